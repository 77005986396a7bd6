//! How the fabric moves: taking completions in, ending endpoints.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::address::PairAddress;
use super::endpoint::{Endpoint, Entry, Job, Phase, Receive, places};
use super::fabric::{ASYNC_TAG, CHANNEL_TAG, VerbsFabric, WAKER_TAG};
use super::status;
use super::sys::{AsyncEvent, Buffer, WorkCompletion};
use crate::{DownCause, Event, LinkId, LocalId, LocalSpan, Outcome, WorkError};

/// After so many polls in a row that found nothing, the device is asked for what no completion tells of: a system call or two,
/// so not at every one.
const QUIET_POLLS: u32 = 64;

/// So many times in a row, a sleep that a completion has ended needs no look at what else might have.
const QUICK_LOOKS: u32 = 64;

/// How often it is told that a peer does not answer.
const TELL_UNANSWERED_EVERY: Duration = Duration::from_secs(1);

impl VerbsFabric {
    /// Takes in what has happened, up to about `limit` events.
    pub(super) fn make_progress(&mut self, events: &mut Vec<Event>, limit: usize) {
        let armed = std::mem::take(&mut self.armed);
        if armed {
            self.look_armed();
        } else if self.quiet_polls >= QUIET_POLLS {
            self.look();
        }
        let end = events.len().saturating_add(limit);
        let before = events.len();
        while let Some(link) = self.ups.pop_front() {
            if self.endpoints.get(link).is_some_and(|endpoint| endpoint.phase == Phase::Up) {
                events.push(Event::Up { link });
            }
        }
        while let Some(link) = self.finished.pop_front() {
            self.report_finished(link, events);
        }
        for place in 0..self.queues.len() {
            while events.len() < end {
                let room = end - events.len();
                if let Err(error) = self.queues.at(place).poll(&mut self.polled, room) {
                    tracing::error!(device = self.context.name(), %error, "ibv_poll_cq failed");
                    self.fail_all();
                    break;
                }
                let count = self.polled.len();
                for at in 0..count {
                    let completion = self.polled.at(at);
                    self.take(completion, events);
                }
                if count == 0 {
                    break;
                }
            }
        }
        if !self.listed.is_empty() && self.has_stalled {
            // Endpoints that waited for their own work go on at once: nobody rings for them.
            self.has_stalled = false;
            self.ring();
        }
        self.end_failed(events, end);
        self.quiet_polls = if events.len() == before { self.quiet_polls + 1 } else { 0 };
        if armed && (events.len() >= end || self.has_more()) {
            // What is left has used up its notification, or never had one.
            self.waker.wake();
        }
    }

    /// Whether there is something to report that no descriptor tells of.
    pub(super) fn has_more(&self) -> bool {
        let drained = |link: &LinkId| self.endpoints.get(*link).is_some_and(Endpoint::is_drained);
        !self.ups.is_empty() || !self.finished.is_empty() || self.failing.iter().any(drained)
    }

    /// Looks at what may have ended the sleep, or would end it at once. Mostly that is a completion, and a busy fabric that sleeps
    /// between completions should not pay a system call each time to learn of everything else that it might have been.
    fn look_armed(&mut self) {
        if self.queues.take_notifications() && self.quick_looks < QUICK_LOOKS {
            self.quick_looks += 1;
        } else {
            self.look();
        }
        // If the one that `arm` asked for has come, ask again before the queues are polled, so that none is missed by whoever
        // goes to sleep now.
        self.queues.notify();
    }

    /// Looks at all descriptors that make this fabric's own readable, and asks for what no descriptor tells of.
    fn look(&mut self) {
        self.quiet_polls = 0;
        self.quick_looks = 0;
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.look(&mut ready);
        for ready in ready.drain(..) {
            match ready.tag {
                WAKER_TAG => self.waker.clear(),
                CHANNEL_TAG => {
                    self.queues.take_notifications();
                }
                ASYNC_TAG => self.take_async(),
                tag => unreachable!("nothing is watched as {tag}"),
            }
        }
        self.ready = ready;
        self.ask_silent();
    }

    fn take_async(&mut self) {
        while let Some(event) = self.context.next_async() {
            tracing::debug!(device = self.context.name(), ?event, "asynchronous event");
            match event {
                AsyncEvent::Refused { pair } => self.fail_pair(pair, false),
                AsyncEvent::PairFatal { pair } => self.fail_pair(pair, true),
                AsyncEvent::QueueFatal | AsyncEvent::DeviceFatal => {
                    tracing::error!(
                        device = self.context.name(),
                        ?event,
                        "the device has failed; all its endpoints end"
                    );
                    self.fail_all();
                }
                AsyncEvent::PortDown { port } => {
                    tracing::warn!(device = self.context.name(), port, "the port went down; its endpoints end");
                }
                AsyncEvent::PortUp { port } => tracing::info!(device = self.context.name(), port, "the port came up"),
                AsyncEvent::Other { .. } => {}
            }
        }
    }

    fn fail_pair(&mut self, pair: u32, fatal: bool) {
        let found = self.endpoints.iter_mut().find(|(_, endpoint)| endpoint.pair.number() == pair);
        let Some((link, endpoint)) = found else { return };
        endpoint.faults.fatal |= fatal;
        self.fail(link);
    }

    fn fail_all(&mut self) {
        for link in self.links() {
            self.expect_endpoint(link).faults.fatal = true;
            self.fail(link);
        }
    }

    /// Asks for the state of those whose failure no completion would tell of: nothing of theirs is outstanding. Devices
    /// that report a refused request as an asynchronous event need not be asked, but not all do.
    fn ask_silent(&mut self) {
        let silent = |endpoint: &Endpoint| endpoint.phase == Phase::Up && endpoint.is_drained();
        let failed = |endpoint: &Endpoint| silent(endpoint) && endpoint.pair.has_failed().unwrap_or(true);
        let links: Vec<_> =
            self.endpoints.iter().filter(|(_, endpoint)| failed(endpoint)).map(|(link, _)| link).collect();
        links.into_iter().for_each(|link| self.fail(link));
    }

    /// Takes one completion in.
    fn take(&mut self, completion: WorkCompletion, events: &mut Vec<Event>) {
        let Some(link) = self.endpoints.id_in(completion.place) else { return };
        let endpoint = self.expect_endpoint(link);
        if endpoint.pair.number() != completion.pair {
            // Of a queue pair that was destroyed before it was drained: its work has been reported.
            return;
        }
        let buffer = if completion.receive {
            endpoint.pair.receive_done(completion.number)
        } else {
            endpoint.pair.send_done(completion.number)
        };
        let Some(buffer) = buffer else {
            tracing::error!(%link, ?completion, "the device completed what was not the oldest outstanding work");
            return self.give_up(link);
        };
        if completion.receive {
            self.receive_done(link, completion, buffer, events);
        } else {
            self.send_done(link, completion, buffer, events);
        }
    }

    fn receive_done(&mut self, link: LinkId, completion: WorkCompletion, buffer: Buffer, events: &mut Vec<Event>) {
        let endpoint = self.expect_endpoint(link);
        let receive = endpoint.receives.pop_front().expect("the device has only what is in the list");
        endpoint.receives_rung -= 1;
        let Receive { op, into, .. } = receive;
        let result = status::of_receive(completion.status);
        endpoint.heard |= result.is_ok();
        let event = match result {
            Ok(()) => Event::Message { link, op, span: LocalSpan { len: completion.len.min(into.len), ..into } },
            Err(error) => Event::Done { link, op, result: Err(error) },
        };
        self.end_claim(Some(into.local), buffer);
        events.push(event);
        if let Err(error) = result {
            let endpoint = self.expect_endpoint(link);
            endpoint.faults.receive |= error == WorkError::TooLong;
            endpoint.faults.fatal |= error == WorkError::Device;
            self.fail(link);
        }
    }

    fn send_done(&mut self, link: LinkId, completion: WorkCompletion, buffer: Buffer, events: &mut Vec<Event>) {
        let endpoint = self.expect_endpoint(link);
        let mut entry = endpoint.sends.pop_front().expect("the device has only what is in the list");
        endpoint.rung -= 1;
        let result = status::of_send(completion.status, &entry.job);
        endpoint.heard |= result.is_ok() && !matches!(entry.job, Job::Bind { .. });
        endpoint.reads -= usize::from(entry.job.is_read());
        entry.job.take_back(buffer);
        if std::mem::take(&mut endpoint.stalled) {
            self.has_stalled = true;
            self.list(link);
        }
        self.report(link, entry, result.map(|()| Outcome::Finished), true, events);
        if let Err(error) = result {
            if error != WorkError::Flushed {
                tracing::debug!(%link, status = completion.status, vendor = completion.vendor, %error, "work failed");
                self.expect_endpoint(link).faults.work.get_or_insert(error);
            }
            self.fail(link);
        } else {
            self.report_finished(link, events);
        }
    }

    /// Reports what was executed here and has nothing in front of it any more.
    fn report_finished(&mut self, link: LinkId, events: &mut Vec<Event>) {
        while let Some(endpoint) = self.endpoints.get_mut(link) {
            let is_finished = endpoint.rung > 0 && endpoint.sends.front().is_some_and(|entry| entry.result.is_some());
            if !is_finished {
                return;
            }
            let Some(entry) = endpoint.sends.pop_front() else { return };
            endpoint.rung -= 1;
            let result = entry.result.unwrap_or(Err(WorkError::Flushed));
            self.report(link, entry, result, false, events);
        }
    }

    /// Reports the end of an entry of the send queue. `by_device` tells whether the device had it.
    fn report(
        &mut self,
        link: LinkId,
        entry: Entry,
        result: Result<Outcome, WorkError>,
        by_device: bool,
        events: &mut Vec<Event>,
    ) {
        let result = match entry.job {
            Job::Send { local, buffer } => {
                self.end_claim(Some(local), buffer);
                result
            }
            Job::Read { local, buffer, .. } => {
                self.end_claim(local, buffer);
                result
            }
            Job::Bind { window, to } => {
                let window = self.windows.get_mut(window).expect("a busy window is not freed");
                match entry.result {
                    Some(Ok(_)) => {
                        window.release();
                        result
                    }
                    _ => window.settle(to, result.map(drop), by_device),
                }
            }
        };
        events.push(Event::Done { link, op: entry.op, result });
    }

    fn end_claim(&mut self, local: Option<LocalId>, buffer: Buffer) {
        if let (Some(local), Buffer::Local { claim, .. }) = (local, buffer) {
            self.locals.end(local, claim);
        }
    }

    /// Puts an endpoint into the error state: everything that the device has completes, the rest is flushed behind it.
    pub(super) fn fail(&mut self, link: LinkId) {
        let endpoint = self.expect_endpoint(link);
        if endpoint.phase == Phase::Failed {
            return;
        }
        endpoint.phase = Phase::Failed;
        let failed = endpoint.pair.fail();
        self.failing.push(link);
        if let Err(error) = failed {
            tracing::error!(%link, %error, "ibv_modify_qp (to ERR) failed");
            self.give_up(link);
        }
    }

    /// Ends an endpoint whose device does not complete what it has: without a queue pair, nothing is outstanding.
    fn give_up(&mut self, link: LinkId) {
        let endpoint = self.expect_endpoint(link);
        endpoint.faults.fatal = true;
        endpoint.pair.destroy();
        let (sends, receives) = endpoint.pair.take_buffers();
        // Those with a buffer of their own were executed here, and the device does not know of them.
        let entries = endpoint.sends.iter_mut().filter(|entry| entry.result.is_none());
        for (entry, buffer) in entries.zip(sends) {
            entry.job.take_back(buffer);
        }
        for (receive, buffer) in endpoint.receives.iter_mut().zip(receives) {
            receive.buffer = buffer;
        }
        self.fail(link);
    }

    /// Flushes what the device never had of endpoints that it is through with, and ends them.
    fn end_failed(&mut self, events: &mut Vec<Event>, end: usize) {
        let mut place = 0;
        while let Some(&link) = self.failing.get(place) {
            if events.len() >= end {
                return;
            }
            if self.expect_endpoint(link).is_drained() && self.flush(link, events, end) {
                self.failing.swap_remove(place);
                self.remove(link, events);
            } else {
                place += 1;
            }
        }
    }

    /// Reports everything that is left, as far as there is room; `true` once nothing is.
    fn flush(&mut self, link: LinkId, events: &mut Vec<Event>, end: usize) -> bool {
        while events.len() < end {
            let endpoint = self.expect_endpoint(link);
            if let Some(entry) = endpoint.sends.pop_front() {
                let was_rung = endpoint.rung > 0;
                endpoint.rung -= usize::from(was_rung);
                let result = entry.result.unwrap_or(Err(WorkError::Flushed));
                if let Err(error) = result
                    && error != WorkError::Flushed
                {
                    endpoint.faults.work.get_or_insert(error);
                }
                self.report(link, entry, result, was_rung, events);
            } else if let Some(receive) = endpoint.receives.pop_front() {
                let Receive { op, into, buffer } = receive;
                self.end_claim(Some(into.local), buffer);
                events.push(Event::Done { link, op, result: Err(WorkError::Flushed) });
            } else {
                return true;
            }
        }
        false
    }

    fn remove(&mut self, link: LinkId, events: &mut Vec<Event>) {
        let endpoint = self.endpoints.remove(link).expect("an endpoint that fails is there until it is drained");
        let Endpoint { pair, queue, config, mut faults, peer, heard, .. } = endpoint;
        drop(pair);
        self.queues.release(&queue, places(&config));
        if faults.cause() == DownCause::PeerViolation {
            faults.port_down = self.context.port(self.port.number).is_ok_and(|port| !port.active);
        }
        if let (false, Some(WorkError::Disconnected), Some(peer)) = (heard, faults.work, peer) {
            self.tell_unanswered(link, &peer);
        }
        events.push(Event::Down { link, cause: faults.cause() });
    }

    /// Says, once a second at most, that nothing was ever heard of a peer: mostly that is the network between them.
    fn tell_unanswered(&mut self, link: LinkId, peer: &PairAddress) {
        let now = self.clock.time();
        if self.told_unanswered.is_some_and(|told| now.since(told) < TELL_UNANSWERED_EVERY) {
            return;
        }
        self.told_unanswered = Some(now);
        let own = Ipv6Addr::from(self.port.gid).to_canonical();
        tracing::warn!(
            %link,
            device = self.context.name(),
            %own,
            ?peer,
            "the peer's device has never answered: it is gone, or packets do not get through; see the networks of both devices, \
             UDP port 4791 and the MTU"
        );
    }
}
