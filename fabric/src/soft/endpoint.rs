//! An endpoint: its queues, its phases, and how it fails.
//!
//! What it writes is in [`outgoing`](super::outgoing), what it makes of the peer's bytes in [`incoming`](super::incoming).
//! Both report a [`Fault`]; [`Endpoint::fail`] turns it into completions and the endpoint's last event.

use std::collections::VecDeque;

use super::address::Token;
use super::completion::{Completion, Completions, LocalClaim, Release};
use super::device::Device;
use super::frame::{Frame, HEADER, Refusal};
use super::lingering::Lingering;
use super::outgoing::{Backlog, Plan};
use super::send_queue::SendQueue;
use super::transport::Transport;
use crate::{DownCause, EndpointConfig, Event, Key, LinkId, LocalSpan, Op, WorkError};

/// What an endpoint waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its peer's address, or its stream.
    ExpectPeer,
    /// The peer's first frame.
    ExpectHello,
    /// Work.
    Up,
    /// Being polled to its end; nothing is executed any more.
    Failed,
}

/// What ends an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It was closed here.
    Closed,
    /// The stream ended.
    Lost,
    /// The peer sent what makes no sense.
    Protocol,
    /// The peer refused an entry of the send queue.
    Refused { number: u64, error: WorkError },
    /// A bind failed.
    Bind,
    /// The peer's READ was refused here.
    Violation,
    /// The peer's SEND met no slot that it fits in.
    NoSlot(Refusal),
}

/// A posted receive.
pub(super) struct Receive {
    pub(super) op: Op,
    pub(super) into: LocalSpan,
    pub(super) slot: LocalClaim,
}

/// A READ of the peer that is being answered.
pub(super) struct Request {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) key: Key,
    /// How many bytes have left already.
    pub(super) done: u32,
}

/// What the next byte from the peer belongs to.
pub(super) enum Expect {
    Header,
    /// A message that is on its way into a slot.
    Message {
        receive: Receive,
        filled: u32,
        len: u32,
    },
    /// The rest of a part of the oldest READ's response.
    Data {
        left: u32,
    },
}

/// An endpoint.
pub(super) struct Endpoint {
    pub(super) link: LinkId,
    pub(super) config: EndpointConfig,
    pub(super) token: Token,
    pub(super) peer: Option<Token>,
    pub(super) transport: Option<Transport>,
    pub(super) phase: Phase,
    pub(super) send: SendQueue,
    pub(super) receives: VecDeque<Receive>,
    /// Posted to the send queue and its completion not yet polled.
    pub(super) sends_open: u32,
    /// Posted to the receive queue and its completion not yet polled.
    pub(super) receives_open: u32,
    /// The peer's READs, oldest first; at most [`READS_MAX`](super::frame::READS_MAX).
    pub(super) requests: VecDeque<Request>,
    /// Messages that have arrived in slots.
    pub(super) received: u64,
    /// How many of them the peer has been told of.
    pub(super) acknowledged: u64,
    /// SENDs that the peer has acknowledged.
    pub(super) arrived: u64,
    pub(super) greeted: bool,
    pub(super) backlog: Backlog,
    /// The stream took less than it was given.
    pub(super) blocked: bool,
    pub(super) expect: Expect,
    /// The part of a header that has come, and how long it is.
    pub(super) partial: [u8; HEADER],
    pub(super) partial_len: usize,
    /// It is in the fabric's list of endpoints that have something to write.
    pub(super) listed: bool,
    /// It is in the fabric's list of endpoints that were posted to since the last doorbell.
    pub(super) posted: bool,
}

/// What endpoints work on, beside themselves.
pub(super) struct Surroundings<'a> {
    pub(super) device: &'a mut Device,
    pub(super) completions: &'a mut Completions,
    pub(super) plan: &'a mut Plan,
    /// The receive buffer. Between two reads it holds nothing, so one serves all endpoints.
    pub(super) buffer: &'a mut [u8],
}

impl Endpoint {
    pub(super) fn new(link: LinkId, config: EndpointConfig, token: Token) -> Self {
        Self {
            link,
            config,
            token,
            peer: None,
            transport: None,
            phase: Phase::ExpectPeer,
            send: SendQueue::default(),
            receives: VecDeque::new(),
            sends_open: 0,
            receives_open: 0,
            requests: VecDeque::new(),
            received: 0,
            acknowledged: 0,
            arrived: 0,
            greeted: false,
            backlog: Backlog::default(),
            blocked: false,
            expect: Expect::Header,
            partial: [0; HEADER],
            partial_len: 0,
            listed: false,
            posted: false,
        }
    }

    /// Whether the stream is there and both tokens are known.
    pub(super) fn can_greet(&self) -> bool {
        self.phase == Phase::ExpectPeer && self.peer.is_some() && self.transport.is_some()
    }

    /// Whether it could execute or answer something now.
    pub(super) fn has_work(&self) -> bool {
        !self.requests.is_empty() || self.can_issue()
    }

    /// Puts the endpoint into the error state: everything posted completes, then comes `Down`. The stream, if there is one,
    /// lingers until the peer has what was said last.
    pub(super) fn fail(&mut self, fault: Fault, completions: &mut Completions) -> Option<Lingering> {
        let before = std::mem::replace(&mut self.phase, Phase::Failed);
        if before == Phase::Failed {
            return None;
        }
        let cause = match fault {
            Fault::Closed => {
                // What has arrived has arrived: its sender is not to take it for lost and send it again.
                self.acknowledge();
                DownCause::Closed
            }
            Fault::Lost => {
                if let Some(number) = self.send.oldest_open() {
                    self.send.finish(number, Err(WorkError::Disconnected));
                }
                DownCause::PeerLost
            }
            Fault::Protocol => DownCause::Protocol,
            Fault::Refused { number, error } => {
                self.acknowledge();
                self.send.finish(number, Err(error));
                DownCause::Work(error)
            }
            Fault::Bind => {
                self.acknowledge();
                DownCause::Work(WorkError::Bind)
            }
            Fault::Violation => {
                self.say_last(Refusal::Access);
                DownCause::PeerViolation
            }
            Fault::NoSlot(refusal) => {
                self.say_last(refusal);
                DownCause::Protocol
            }
        };
        self.send.flush(self.link, completions);
        if let Expect::Message { receive, .. } = std::mem::replace(&mut self.expect, Expect::Header) {
            self.receives.push_front(receive);
        }
        while let Some(receive) = self.receives.pop_front() {
            completions.push_back(flushed_receive(self.link, receive));
        }
        self.requests.clear();
        completions.push_back(Completion { event: Event::Down { link: self.link, cause }, release: Release::Nothing });
        let backlog = std::mem::take(&mut self.backlog);
        // A stream on which nothing was said yet is closed at once.
        let transport = self.transport.take().filter(|_| before != Phase::ExpectPeer)?;
        Some(Lingering::new(self.link, transport, backlog))
    }

    /// Acknowledges what has arrived, so that the peer knows which SEND is meant, then refuses.
    fn say_last(&mut self, refusal: Refusal) {
        self.acknowledge();
        self.backlog.push(&Frame::Refuse(refusal).encode());
    }

    fn acknowledge(&mut self) {
        if self.received > self.acknowledged {
            self.acknowledged = self.received;
            self.backlog.push(&Frame::Ack { received: self.received }.encode());
        }
    }
}

/// The completion of a receive that no message will take.
pub(super) fn flushed_receive(link: LinkId, receive: Receive) -> Completion {
    let event = Event::Done { link, op: receive.op, result: Err(WorkError::Flushed) };
    Completion { event, release: Release::Receive(receive.slot) }
}
