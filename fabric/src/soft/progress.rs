//! How the software device moves: ringing the doorbell, reading and writing streams, ending endpoints, handing out events.

use super::Pipe;
use super::completion::{Completion, Release};
use super::endpoint::{Endpoint, Fault, Phase, Surroundings};
use super::fabric::{SoftFabric, WAKER_TAG};
use super::lingering::{LINGERING_MAX, Lingering};
use super::outgoing::Sent;
use super::transport::Transport;
use crate::poller::Ready;
use crate::{Event, FabricError, LinkId};

/// Up to so many sockets are simply read at every poll: a call that finds nothing costs as much as asking which of them have
/// something, and one that finds something has saved the question.
const DIRECT_SOCKETS: usize = 2;

fn tag(link: LinkId) -> u64 {
    u64::from(link.generation) << 32 | u64::from(link.index)
}

fn link_of(tag: u64) -> LinkId {
    LinkId { index: tag as u32, generation: (tag >> 32) as u32 }
}

impl SoftFabric {
    /// Begins the handshake, once the endpoint has its stream and knows its peer.
    pub(super) fn greet(&mut self, link: LinkId) -> Result<(), FabricError> {
        let Some(endpoint) = self.endpoints.get_mut(link).filter(|endpoint| endpoint.can_greet()) else {
            return Ok(());
        };
        let socket = endpoint.transport.as_ref().and_then(Transport::socket);
        if let Some(socket) = socket {
            let added = self.poller.add(socket, tag(link), false);
            added.map_err(|source| FabricError::System { what: "epoll_ctl", source })?;
            self.sockets.push(link);
        } else {
            self.pipes.push(link);
        }
        endpoint.phase = Phase::ExpectHello;
        self.list(link);
        Ok(())
    }

    /// Executes what was posted, and writes what is waiting.
    pub(super) fn ring(&mut self) {
        let mut posted = std::mem::take(&mut self.posted);
        for link in posted.drain(..) {
            if let Some(endpoint) = self.endpoints.get_mut(link) {
                endpoint.posted = false;
                endpoint.send.submit();
                self.list(link);
            }
        }
        self.posted = posted;
        self.write_listed();
    }

    /// One turn of the device: writes what is waiting, reads what has come, and writes what that called for.
    pub(super) fn make_progress(&mut self, limit: usize) {
        self.busy = false;
        self.write_listed();
        let mut ready = std::mem::take(&mut self.ready);
        if self.armed || self.sockets.len() > DIRECT_SOCKETS || !self.lingering.is_empty() {
            self.armed = false;
            self.poller.look(&mut ready);
        } else {
            ready.extend(self.sockets.iter().map(|&link| Ready { tag: tag(link), readable: true, writable: true }));
        }
        self.look_at_pipes(&mut ready);
        for Ready { tag, readable, writable } in ready.drain(..) {
            let link = link_of(tag);
            if tag == WAKER_TAG {
                self.waker.clear();
            } else if self.endpoints.get(link).is_some_and(|endpoint| endpoint.transport.is_some()) {
                // With enough to report already, nothing more is taken in; what is not read now is still there next time.
                if readable && self.completions.len() < limit {
                    self.read(link);
                }
                if writable && self.endpoints.get(link).is_some_and(|endpoint| endpoint.blocked) {
                    self.write(link, true);
                }
            } else {
                self.advance_lingering(link);
            }
        }
        self.ready = ready;
    }

    /// Asks the pipes to wake this fabric at their next change, and wakes it now if there is something to do already.
    pub(super) fn watch_pipes(&self) {
        let of_endpoints = self.pipes.iter().filter_map(|&link| self.endpoints.get(link)?.transport.as_ref());
        let of_lingering = self.lingering.iter().map(|lingering| &lingering.transport);
        of_endpoints.chain(of_lingering).filter_map(Transport::pipe).for_each(Pipe::sleep);
        // After the pipes were asked, so that no change falls in between.
        if self.has_more() {
            self.waker.wake();
        }
    }

    /// Whether another poll would find something to do that no descriptor tells of.
    fn has_more(&self) -> bool {
        let pipe_ready = |link: &LinkId| {
            let endpoint = self.endpoints.get(*link);
            endpoint.is_some_and(|endpoint| pipe_ready(endpoint).is_some())
        };
        !self.completions.is_empty() || !self.listed.is_empty() || self.pipes.iter().any(pipe_ready)
    }

    /// Finds the pipes that are ready: some loads each.
    fn look_at_pipes(&self, ready: &mut Vec<Ready>) {
        for &link in &self.pipes {
            ready.extend(self.endpoints.get(link).and_then(pipe_ready));
        }
        let pipes = self.lingering.iter().filter(|lingering| lingering.transport.pipe().is_some());
        ready.extend(pipes.map(|lingering| Ready { tag: tag(lingering.link), readable: true, writable: true }));
    }

    /// Takes in what a peer has sent, and answers it.
    fn read(&mut self, link: LinkId) {
        let Some(endpoint) = self.endpoints.get_mut(link) else { return };
        let result = endpoint.take_in(&mut Surroundings {
            device: &mut self.device,
            completions: &mut self.completions,
            plan: &mut self.plan,
            buffer: &mut self.buffer,
        });
        let urgent = endpoint.has_work();
        match result {
            Ok(moved) => self.busy |= moved,
            Err(fault) => {
                self.busy = true;
                return self.fail(link, fault);
            }
        }
        if urgent {
            self.write(link, false);
        } else if endpoint.received > endpoint.acknowledged {
            // An acknowledgement can wait for what the owner of this endpoint will post in reply, until the next doorbell
            // or poll: then they go out in one call.
            self.list(link);
        }
    }

    fn write_listed(&mut self) {
        let mut listed = std::mem::take(&mut self.listed);
        for link in listed.drain(..) {
            if let Some(endpoint) = self.endpoints.get_mut(link) {
                endpoint.listed = false;
                self.write(link, false);
            }
        }
        // Those that were not finished in their turn have listed themselves again.
        listed.append(&mut self.listed);
        self.listed = listed;
    }

    /// Executes and writes an endpoint's work and responses. `retry` tells whether a blocked stream may have room again.
    fn write(&mut self, link: LinkId, retry: bool) {
        let Some(endpoint) = self.endpoints.get_mut(link) else { return };
        let was_blocked = endpoint.blocked;
        let result = endpoint.send_out(
            &mut Surroundings {
                device: &mut self.device,
                completions: &mut self.completions,
                plan: &mut self.plan,
                buffer: &mut self.buffer,
            },
            retry,
        );
        let blocked = endpoint.blocked;
        if blocked != was_blocked {
            self.busy = true;
            if let Some(socket) = endpoint.transport.as_ref().and_then(Transport::socket)
                && self.poller.change(socket, tag(link), blocked).is_err()
            {
                return self.fail(link, Fault::Lost);
            }
        }
        match result {
            Ok(Sent::More) => self.list(link),
            Ok(Sent::Everything | Sent::Blocked) => {}
            Err(fault) => self.fail(link, fault),
        }
    }

    /// Has an endpoint write at the next doorbell or poll.
    fn list(&mut self, link: LinkId) {
        if let Some(endpoint) = self.endpoints.get_mut(link)
            && !std::mem::replace(&mut endpoint.listed, true)
        {
            self.listed.push(link);
        }
    }

    /// Puts an endpoint into the error state.
    pub(super) fn fail(&mut self, link: LinkId, fault: Fault) {
        let Some(endpoint) = self.endpoints.get_mut(link) else { return };
        let Some(mut lingering) = endpoint.fail(fault, &mut self.completions) else { return };
        let socket = lingering.transport.socket();
        let list = if socket.is_some() { &mut self.sockets } else { &mut self.pipes };
        list.retain(|other| *other != link);
        if !lingering.advance(&mut self.buffer) {
            if self.lingering.len() >= LINGERING_MAX {
                let oldest = self.lingering.remove(0);
                self.let_go(oldest);
            }
            if let Some(socket) = socket {
                // If this fails, the stream is dropped with the oldest, at the latest.
                let _ = self.poller.change(socket, tag(link), lingering.blocked());
            }
            self.lingering.push(lingering);
        } else {
            self.let_go(lingering);
        }
    }

    fn advance_lingering(&mut self, link: LinkId) {
        let Some(place) = self.lingering.iter().position(|lingering| lingering.link == link) else { return };
        let lingering = &mut self.lingering[place];
        let was_blocked = lingering.blocked();
        if lingering.advance(&mut self.buffer) {
            let lingering = self.lingering.remove(place);
            self.let_go(lingering);
        } else if lingering.blocked() != was_blocked
            && let Some(socket) = lingering.transport.socket()
        {
            let _ = self.poller.change(socket, tag(link), lingering.blocked());
        }
    }

    /// Closes a stream for good.
    fn let_go(&self, lingering: Lingering) {
        if let Some(socket) = lingering.transport.socket() {
            // Before it is closed: a duplicate that someone else holds would keep it watched.
            self.poller.remove(socket);
        }
    }

    /// Appends what has happened, and gives back what the work had used.
    pub(super) fn hand_out(&mut self, events: &mut Vec<Event>, limit: usize) {
        let mut given = 0;
        while given < limit {
            let Some(Completion { event, release }) = self.completions.pop_front() else { break };
            let link = match event {
                Event::Up { link }
                | Event::Message { link, .. }
                | Event::Done { link, .. }
                | Event::Down { link, .. } => link,
                Event::Allocated { .. } => unreachable!("windows are allocated at once, by whoever drives the machine"),
            };
            match release {
                Release::Nothing => {}
                Release::Receive(slot) => {
                    self.locals.end(slot.local, slot.claim);
                    self.count(link, |endpoint| endpoint.receives_open -= 1);
                }
                Release::Send(slot) => {
                    if let Some(slot) = slot {
                        self.locals.end(slot.local, slot.claim);
                    }
                    self.count(link, |endpoint| endpoint.sends_open -= 1);
                }
                Release::Window(window) => {
                    self.device.settle(window);
                    self.count(link, |endpoint| endpoint.sends_open -= 1);
                }
            }
            if let Event::Down { link, .. } = event {
                let posted_since =
                    self.endpoints.get(link).is_some_and(|endpoint| endpoint.sends_open + endpoint.receives_open > 0);
                if posted_since {
                    assert!(!self.completions.is_empty(), "{link} is down, and work posted to it has no completion");
                    // Its flushed completions are behind this event; it is the last one all the same.
                    self.completions.push_back(Completion { event, release: Release::Nothing });
                    continue;
                }
                self.endpoints.remove(link);
            }
            events.push(event);
            given += 1;
        }
    }

    fn count(&mut self, link: LinkId, change: impl FnOnce(&mut Endpoint)) {
        if let Some(endpoint) = self.endpoints.get_mut(link) {
            change(endpoint);
        }
    }
}

/// Whether an endpoint's pipe is ready for what the endpoint wants of it.
fn pipe_ready(endpoint: &Endpoint) -> Option<Ready> {
    let pipe = endpoint.transport.as_ref()?.pipe()?;
    if endpoint.phase == Phase::ExpectPeer {
        return None;
    }
    let (readable, writable) = (pipe.readable(), endpoint.blocked && pipe.writable());
    (readable || writable).then_some(Ready { tag: tag(endpoint.link), readable, writable })
}
