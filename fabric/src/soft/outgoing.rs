//! What an endpoint writes: its own work in order, acknowledgements, and the responses to the peer's READs.
//!
//! A turn's frames go out in as few calls as possible: small frames and payloads are laid side by side in one buffer, large
//! payloads are named in place. A response's fragment is checked against its key when it is put into a call. What the stream
//! did not take of a fragment that it began is copied at once, and a fragment that it did not begin is forgotten and checked
//! anew next time, so nothing is ever read from memory on the strength of an earlier check.

use super::device::Device;
use super::endpoint::{Endpoint, Fault, Phase, Surroundings};
use super::frame::{FRAGMENT_MAX, Frame, READS_MAX, VERSION};
use super::send_queue::Job;
use super::sys::{Gather, SEGMENTS_MAX};
use super::transport::Moved;
use crate::SharedId;

/// Payloads up to this length are copied next to their header: cheaper than a segment of their own.
const COPY_MAX: u32 = 4 * 1024;

/// How many bytes of own work one call takes, before the responses to the peer.
const OWN_A_CALL: usize = 128 * 1024;

/// How many bytes of responses one call takes: about what a socket holds.
const RESPONSES_A_CALL: usize = 256 * 1024;

/// How many bytes an endpoint writes before others have their turn.
const BYTES_A_TURN: usize = 1024 * 1024;

/// While the stream takes nothing, own work is still executed, so that a peer that has stopped cannot hold up the unbinds
/// that take its rights away. Its frames wait in the backlog, up to this.
const BACKLOG_MAX: usize = 1024 * 1024;

/// Bytes that were to be written and that the stream did not take.
#[derive(Default)]
pub(super) struct Backlog {
    bytes: Vec<u8>,
    start: usize,
}

impl Backlog {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn advance(&mut self, count: usize) {
        self.start += count;
        if self.is_empty() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start >= BACKLOG_MAX {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}

/// What one call is to write. Kept between calls for its buffers.
#[derive(Default)]
pub(super) struct Plan {
    /// Headers and small payloads.
    arena: Vec<u8>,
    pieces: Vec<Piece>,
    len: usize,
    /// The responses' fragments, which end the plan: length with header, and payload length.
    fragments: Vec<(usize, u32)>,
}

#[derive(Clone, Copy)]
enum Piece {
    Arena { start: usize, len: usize },
    Message { number: u64, len: usize },
    Shared { shared: SharedId, offset: u64, len: usize },
}

impl Piece {
    fn len(self) -> usize {
        match self {
            Self::Arena { len, .. } | Self::Message { len, .. } | Self::Shared { len, .. } => len,
        }
    }
}

impl Plan {
    fn clear(&mut self) {
        self.arena.clear();
        self.pieces.clear();
        self.fragments.clear();
        self.len = 0;
    }

    /// Whether a header and a payload more fit into one call, beside the backlog.
    fn has_room(&self) -> bool {
        self.pieces.len() + 3 <= SEGMENTS_MAX
    }

    fn push(&mut self, piece: Piece) {
        self.len += piece.len();
        if let (Some(Piece::Arena { len: last, .. }), Piece::Arena { len, .. }) = (self.pieces.last_mut(), piece) {
            // The arena only grows at its end, so two of its pieces in a row are one.
            *last += len;
        } else {
            self.pieces.push(piece);
        }
    }

    fn copy(&mut self, bytes: &[u8]) {
        let start = self.arena.len();
        self.arena.extend_from_slice(bytes);
        self.push(Piece::Arena { start, len: bytes.len() });
    }

    fn copy_shared(&mut self, device: &Device, shared: SharedId, offset: u64, len: usize) {
        let start = self.arena.len();
        self.arena.resize(start + len, 0);
        expect_region(device, shared).read(offset, &mut self.arena[start..]);
        self.push(Piece::Arena { start, len });
    }
}

/// The memory of a region that was found in this same call.
fn expect_region(device: &Device, shared: SharedId) -> &crate::memory::SharedMemory {
    &device.regions.get(shared).expect("the region was looked up for this very call").memory
}

/// How writing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// There is no more to write.
    Everything,
    /// The stream takes no more now.
    Blocked,
    /// The turn is over, and there is more.
    More,
}

impl Endpoint {
    /// Executes and writes what it can. `retry` tells whether a blocked stream may have room again.
    pub(super) fn send_out(&mut self, around: &mut Surroundings<'_>, retry: bool) -> Result<Sent, Fault> {
        if matches!(self.phase, Phase::ExpectPeer | Phase::Failed) {
            return Ok(Sent::Everything);
        }
        let mut turn = 0;
        let result = loop {
            around.plan.clear();
            let fault = self.plan_own_work(around);
            let own = around.plan.len;
            if self.blocked && !retry {
                self.set_aside(around, 0, own);
                break fault.map_or(Ok(Sent::Blocked), Err);
            }
            let violation = fault.is_none() && !self.plan_responses(around);
            let given = self.backlog.bytes().len() + around.plan.len;
            let taken = if given > 0 { self.write(around) } else { 0 };
            self.settle(around, taken, own);
            self.blocked = taken < given;
            if let Some(fault) = fault {
                break Err(fault);
            }
            if violation {
                break Err(Fault::Violation);
            }
            turn += taken;
            if self.blocked {
                break Ok(Sent::Blocked);
            }
            if !self.has_work() && self.received == self.acknowledged {
                break Ok(Sent::Everything);
            }
            if turn >= BYTES_A_TURN {
                break Ok(Sent::More);
            }
        };
        self.send.retire(self.link, around.completions);
        result
    }

    /// Whether the next entry of the send queue could be executed now.
    pub(super) fn can_issue(&self) -> bool {
        self.phase == Phase::Up
            && self.send.next().is_some_and(|(_, entry)| match entry.job {
                Job::Send { .. } => true,
                Job::Read { .. } => self.send.reads() < READS_MAX,
                Job::Bind { .. } | Job::Unbind { .. } => self.send.reads() == 0,
            })
    }

    /// Puts the greeting, the acknowledgement and the next entries of the send queue into the plan, executing them.
    fn plan_own_work(&mut self, around: &mut Surroundings<'_>) -> Option<Fault> {
        let plan = &mut *around.plan;
        if !self.greeted {
            self.greeted = true;
            plan.copy(&Frame::Hello { version: VERSION, token: self.token }.encode());
        }
        // Not for a peer that sends and does not read: it would fill the backlog with acknowledgements. They are cumulative,
        // so the one that goes out once it reads again makes up for all.
        if self.received > self.acknowledged && self.backlog.is_empty() {
            self.acknowledged = self.received;
            plan.copy(&Frame::Ack { received: self.received }.encode());
        }
        while plan.has_room()
            && plan.len < OWN_A_CALL
            && self.backlog.bytes().len() + plan.len < BACKLOG_MAX
            && self.can_issue()
        {
            let (number, entry) = self.send.next().expect("there is an entry that can be issued");
            match &entry.job {
                Job::Send { from } => {
                    let len = from.claim.range().len;
                    plan.copy(&Frame::Send { len }.encode());
                    if len <= COPY_MAX {
                        plan.copy(from.claim.bytes());
                    } else {
                        plan.push(Piece::Message { number, len: len as usize });
                    }
                    self.send.issue_send();
                }
                Job::Read { from, .. } => {
                    let len = from.len;
                    plan.copy(&Frame::Read { address: from.address, len, key: from.key }.encode());
                    self.send.issue_read(len);
                }
                Job::Bind { window, span, access } => {
                    let result = around.device.bind(*window, *span, *access);
                    self.send.issue_done(result);
                    if result.is_err() {
                        return Some(Fault::Bind);
                    }
                }
                Job::Unbind { window } => {
                    let result = around.device.unbind(*window);
                    self.send.issue_done(result);
                    if result.is_err() {
                        return Some(Fault::Bind);
                    }
                }
            }
        }
        None
    }

    /// Puts the next fragments of the responses into the plan, each checked now; `false` if the very next one is refused.
    fn plan_responses(&mut self, around: &mut Surroundings<'_>) -> bool {
        let plan = &mut *around.plan;
        let limit = plan.len + RESPONSES_A_CALL;
        for request in &self.requests {
            let mut done = request.done;
            loop {
                if !plan.has_room() || plan.len >= limit {
                    return true;
                }
                let allowed = self.config.remote_read;
                let opened = around.device.open(self.config.domain, request.key, request.address, request.len);
                let Some((shared, offset)) = opened.filter(|_| allowed) else {
                    // What precedes it goes out first; it is looked at again when its turn has come.
                    return !plan.fragments.is_empty();
                };
                let len = (request.len - done).min(FRAGMENT_MAX);
                let before = plan.len;
                plan.copy(&Frame::Data { len }.encode());
                let offset = offset + u64::from(done);
                if len <= COPY_MAX {
                    plan.copy_shared(around.device, shared, offset, len as usize);
                } else {
                    plan.push(Piece::Shared { shared, offset, len: len as usize });
                }
                plan.fragments.push((plan.len - before, len));
                done += len;
                if done == request.len {
                    break;
                }
            }
        }
        true
    }

    /// Writes the backlog and the plan in one call; returns how many bytes the stream took.
    fn write(&mut self, around: &mut Surroundings<'_>) -> usize {
        let Some(transport) = &mut self.transport else { return 0 };
        let mut gather = Gather::new();
        gather.bytes(self.backlog.bytes());
        for piece in &around.plan.pieces {
            match *piece {
                Piece::Arena { start, len } => gather.bytes(&around.plan.arena[start..start + len]),
                Piece::Message { number, .. } => gather.bytes(message(&self.send, number)),
                Piece::Shared { shared, offset, len } => {
                    gather.shared(expect_region(around.device, shared), offset, len);
                }
            }
        }
        match transport.write(&gather) {
            Moved::Bytes(count) => count,
            Moved::Blocked => 0,
            // The peer is gone, but what it said last may still be unread: its refusal tells more than this. The end of
            // the stream is found when it is read.
            Moved::Ended => gather.len(),
        }
    }

    /// Enters what was written: `taken` bytes of the backlog and the plan, whose first `own` bytes are own work.
    fn settle(&mut self, around: &mut Surroundings<'_>, taken: usize, own: usize) {
        let old = taken.min(self.backlog.bytes().len());
        self.backlog.advance(old);
        let taken = taken - old;
        // Own work has been executed and is kept whole. Of the fragments, those that were begun are; the rest never were.
        let mut keep = own;
        for &(wire, payload) in &around.plan.fragments {
            if taken <= keep {
                break;
            }
            keep += wire;
            let request = self.requests.front_mut().expect("a fragment belongs to the oldest request that is not done");
            request.done += payload;
            if request.done == request.len {
                self.requests.pop_front();
            }
        }
        self.set_aside(around, taken, keep);
    }

    /// Copies the bytes of the plan from `from` to `to` into the backlog.
    fn set_aside(&mut self, around: &Surroundings<'_>, from: usize, to: usize) {
        let mut position = 0;
        for piece in &around.plan.pieces {
            let len = piece.len();
            let skip = from.saturating_sub(position).min(len);
            let end = to.saturating_sub(position).min(len);
            position += len;
            if skip >= end {
                continue;
            }
            match *piece {
                Piece::Arena { start, .. } => self.backlog.push(&around.plan.arena[start + skip..start + end]),
                Piece::Message { number, .. } => {
                    let bytes = &message(&self.send, number)[skip..end];
                    self.backlog.bytes.extend_from_slice(bytes);
                }
                Piece::Shared { shared, offset, .. } => {
                    let start = self.backlog.bytes.len();
                    self.backlog.bytes.resize(start + end - skip, 0);
                    expect_region(around.device, shared).read(offset + skip as u64, &mut self.backlog.bytes[start..]);
                }
            }
        }
    }
}

/// The bytes of a SEND under way.
fn message(send: &super::send_queue::SendQueue, number: u64) -> &[u8] {
    match &send.entry(number).job {
        Job::Send { from } => from.claim.bytes(),
        Job::Read { .. } | Job::Bind { .. } | Job::Unbind { .. } => {
            unreachable!("entry {number} was planned as a SEND")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::soft::{SoftConfig, SoftFabric, Token};
    use crate::{EndpointConfig, Event, Fabric, LocalSpan, Op, Stream, Work};

    #[test]
    fn a_peer_that_floods_and_never_reads_fills_no_memory_and_is_acknowledged_once_it_reads() {
        const MESSAGES: u64 = 100_000;
        let mut fabric = SoftFabric::new(SoftConfig::default()).unwrap();
        let domain = fabric.domain().unwrap();
        let local = fabric.local(domain, 1, 64).unwrap();
        let config = EndpointConfig { domain, send_depth: 1, receive_depth: 1, remote_read: false };
        let (link, _) = fabric.endpoint(config).unwrap();
        let token = Token([5; 16]);
        fabric.connect(link, &token.address()).unwrap();
        let (mut peer, stream) = UnixStream::pair().unwrap();
        fabric.attach(link, Stream::Unix(stream)).unwrap();
        peer.set_nonblocking(true).unwrap();
        peer.write_all(&Frame::Hello { version: VERSION, token }.encode()).unwrap();

        let into = LocalSpan { local, slot: 0, offset: 0, len: 64 };
        let mut events = Vec::new();
        let mut arrived = 0;
        fabric.post(link, Op(0), Work::Recv { into }).unwrap();
        while arrived < MESSAGES {
            peer.write_all(&Frame::Send { len: 0 }.encode()).unwrap();
            fabric.submit();
            fabric.poll(&mut events, 64);
            for event in events.drain(..) {
                if matches!(event, Event::Message { .. }) {
                    arrived += 1;
                    fabric.post(link, Op(0), Work::Recv { into }).unwrap();
                }
            }
            let backlog = fabric.endpoints.get(link).unwrap().backlog.bytes().len();
            assert!(backlog <= 4 * super::super::frame::HEADER, "{backlog} bytes are kept after {arrived} messages");
        }
        assert!(fabric.endpoints.get(link).unwrap().blocked, "the flood was too short to fill the stream");

        let mut all = Vec::new();
        for _ in 0..10 {
            let mut buffer = vec![0; 1 << 20];
            match peer.read(&mut buffer) {
                Ok(count) => all.extend_from_slice(&buffer[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            fabric.poll(&mut events, 64);
        }
        assert!(all.ends_with(&Frame::Ack { received: MESSAGES }.encode()), "the last of {} bytes", all.len());
        fabric.close(link);
    }
}
