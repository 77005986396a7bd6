//! Ringing doorbells: what was posted goes to the device, one chain of requests for each endpoint and queue.

use super::endpoint::{Endpoint, Job, Phase};
use super::fabric::{Domain, VerbsFabric};
use super::sys::Chain;
use super::window::Window;
use crate::table::Table;
use crate::{DomainId, WindowId, WorkError};

/// What ringing in came to.
enum Rung {
    /// Everything is under way, or waits for what is.
    Done,
    /// The endpoint has failed.
    Failed,
}

impl VerbsFabric {
    /// Rings in everything that was posted.
    pub(super) fn ring(&mut self) {
        let mut listed = std::mem::take(&mut self.listed);
        for link in listed.drain(..) {
            let Some(endpoint) = self.endpoints.get_mut(link) else { continue };
            endpoint.listed = false;
            if endpoint.phase == Phase::Failed {
                continue;
            }
            let device = self.context.name();
            let mut rung = ring_receives(endpoint, &mut self.chain, device);
            if endpoint.phase == Phase::Up && matches!(rung, Rung::Done) {
                let mut around = Around { windows: &mut self.windows, domains: &self.domains, device };
                rung = ring_sends(endpoint, &mut self.chain, &mut around);
            }
            let finished = endpoint.sends.front().is_some_and(|entry| entry.result.is_some());
            match rung {
                Rung::Failed => self.fail(link),
                // What was executed here, with nothing in front of it, has no completion on its way that would tell of it.
                Rung::Done if finished => self.finished.push_back(link),
                Rung::Done => {}
            }
        }
        listed.append(&mut self.listed);
        self.listed = listed;
    }
}

fn ring_receives(endpoint: &mut Endpoint, chain: &mut Chain, device: &str) -> Rung {
    for receive in endpoint.receives.iter_mut().skip(endpoint.receives_rung) {
        chain.receive(std::mem::take(&mut receive.buffer));
    }
    if chain.is_empty() {
        return Rung::Done;
    }
    let result = endpoint.pair.post_receives(chain);
    endpoint.receives_rung = endpoint.pair.outstanding().1;
    let Err(error) = result else { return Rung::Done };
    tracing::error!(link = %endpoint.link, device, %error, "ibv_post_recv failed");
    for (receive, buffer) in endpoint.receives.iter_mut().skip(endpoint.receives_rung).zip(chain.take_back()) {
        receive.buffer = buffer;
    }
    endpoint.faults.fatal = true;
    Rung::Failed
}

/// What an endpoint's work needs beside the endpoint.
struct Around<'a> {
    windows: &'a mut Table<WindowId, Window>,
    domains: &'a Table<DomainId, Domain>,
    device: &'a str,
}

/// Rings in what is posted, in order: SENDs and READs in chains, binds one by one between them.
fn ring_sends(endpoint: &mut Endpoint, chain: &mut Chain, around: &mut Around<'_>) -> Rung {
    let mut at = endpoint.rung;
    while at < endpoint.sends.len() {
        let entry = &mut endpoint.sends[at];
        match &mut entry.job {
            Job::Send { buffer, .. } => chain.send(std::mem::take(buffer)),
            Job::Read { from, buffer, .. } => {
                endpoint.reads += 1;
                chain.read(*from, std::mem::take(buffer));
            }
            Job::Bind { .. } => {
                if let Rung::Failed = ring_chain(endpoint, chain, around.device) {
                    return Rung::Failed;
                }
                match ring_bind(endpoint, at, around) {
                    Bind::Rung => endpoint.rung += 1,
                    Bind::Waits => return Rung::Done,
                    Bind::Failed => return Rung::Failed,
                }
            }
        }
        at += 1;
    }
    ring_chain(endpoint, chain, around.device)
}

/// Rings in a chain of SENDs and READs, which are the next entries that the device does not have.
fn ring_chain(endpoint: &mut Endpoint, chain: &mut Chain, device: &str) -> Rung {
    if chain.is_empty() {
        return Rung::Done;
    }
    let before = endpoint.pair.outstanding().0;
    let result = endpoint.pair.post_sends(chain);
    endpoint.rung += endpoint.pair.outstanding().0 - before;
    let Err(error) = result else { return Rung::Done };
    tracing::error!(link = %endpoint.link, device, %error, "ibv_post_send failed");
    let refused = endpoint.sends.iter_mut().skip(endpoint.rung).zip(chain.take_back());
    for (place, (entry, buffer)) in refused.enumerate() {
        if place == 0 {
            entry.result = Some(Err(WorkError::Device));
        }
        endpoint.reads -= usize::from(entry.job.is_read());
        entry.job.take_back(buffer);
    }
    endpoint.faults.fatal = true;
    Rung::Failed
}

/// What ringing in a bind came to.
enum Bind {
    Rung,
    Waits,
    Failed,
}

fn ring_bind(endpoint: &mut Endpoint, at: usize, around: &mut Around<'_>) -> Bind {
    let entry = &mut endpoint.sends[at];
    if entry.result.is_some() {
        // It was known to fail when it was posted. The endpoint fails with it, once what is before it has ended.
        endpoint.stalled = at > 0;
        return if at > 0 { Bind::Waits } else { Bind::Failed };
    }
    let Job::Bind { window: id, to } = &mut entry.job else { unreachable!("the entry is a bind") };
    let window = around.windows.get_mut(*id).expect("a busy window is not freed");
    let result = if window.is_registration() {
        if endpoint.reads > 0 {
            // The fence.
            endpoint.stalled = true;
            return Bind::Waits;
        }
        window.execute(to.take()).map(|outcome| entry.result = Some(Ok(outcome)))
    } else {
        let domain = around.domains.get(window.domain).expect("a domain with windows is not freed");
        window.ring(&mut endpoint.pair, to.as_ref(), domain.anchor.as_deref())
    };
    let Err(error) = result else { return Bind::Rung };
    tracing::error!(link = %endpoint.link, window = %id, device = around.device, %error, "ibv_bind_mw failed");
    entry.result = Some(Err(WorkError::Bind));
    Bind::Failed
}
