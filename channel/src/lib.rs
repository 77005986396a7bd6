//! The control channel of a session: messages in slots, credits, generations. Broker and clients share it.
//!
//! A [`Channel`] is a part of a state machine: it holds ids, never memory, and says what to post. It promises that
//!
//! - a message is sent only into a slot that the peer has posted, so nobody ever sees a receiver that is not ready;
//! - two channels cannot starve each other of credits (see [`Channel::room`]);
//! - a message of another generation, version or kind is an error that names it, before anything of it is used.
//!
//! It does not know what a message means.
//!
//! # Credits
//!
//! Each side starts with one credit for every slot that the other posts. Sending costs one. A slot that is posted again is a
//! credit owed, and travels in the envelope of the next message, whatever it is. When half of the slots are owed and
//! there is nothing to say, an empty `Credit` carries them. One credit is kept back for that message alone, and only it can
//! spend a side's last one. So of two sides without credits, the message that was sent last was a `Credit`, and brings some.
//! Two idle sides fall silent: a `Credit` costs one slot and is answered for no fewer than two.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use keyway_fabric::{LinkId, LocalId, LocalSpan, Memory, Op, Work};
use keyway_schema::limits::RECEIVE_SLOTS_MIN;
use keyway_schema::message::{ArchivedPublish, Credit};
use keyway_schema::{
    Code, DecodeError, ENVELOPE_LEN, EncodeError, Envelope, ToBroker, ToBrokerRef, ToClient, ToClientRef,
};

/// The high byte of the tags of a channel's receives.
const RECEIVE: u64 = 0xc0 << 56;
/// The high byte of the tags of a channel's sends.
const SEND: u64 = 0xc1 << 56;
/// Where a tag keeps its high byte.
const KIND: u64 = 0xff << 56;

/// A message that can be written to a slot.
pub trait Outgoing: From<Credit> {
    /// Writes it; see [`ToBroker::encode`].
    ///
    /// # Errors
    ///
    /// It does not fit.
    fn encode(&self, generation: u32, credits: u16, attachment: usize, slot: &mut [u8]) -> Result<usize, EncodeError>;
}

/// A message that can be read in its slot.
pub trait Incoming<'a>: Sized {
    /// Validates it; see [`ToBrokerRef::decode`].
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    fn decode(message: &'a [u8]) -> Result<(Envelope, Self), DecodeError>;
}

impl Outgoing for ToBroker {
    fn encode(&self, generation: u32, credits: u16, attachment: usize, slot: &mut [u8]) -> Result<usize, EncodeError> {
        self.encode(generation, credits, attachment, slot)
    }
}

impl Outgoing for ToClient {
    fn encode(&self, generation: u32, credits: u16, attachment: usize, slot: &mut [u8]) -> Result<usize, EncodeError> {
        self.encode(generation, credits, attachment, slot)
    }
}

impl<'a> Incoming<'a> for ToBrokerRef<'a> {
    fn decode(message: &'a [u8]) -> Result<(Envelope, Self), DecodeError> {
        Self::decode(message)
    }
}

impl<'a> Incoming<'a> for ToClientRef<'a> {
    fn decode(message: &'a [u8]) -> Result<(Envelope, Self), DecodeError> {
        Self::decode(message)
    }
}

/// Why a peer's message is refused. The session that it came on ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// It is no message, or not one that is expected here.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It belongs to another session.
    #[error("the message is of session generation {found}, this session is {expected}")]
    Generation {
        /// The message's generation.
        found: u32,
        /// This session's.
        expected: u32,
    },
    /// The peer gave more credits than it can have slots.
    #[error("the peer gave {given} credits on top of {held}, but has only {slots} receive slots")]
    Credits {
        /// What it gave.
        given: u16,
        /// What was held.
        held: u16,
        /// How many slots it has.
        slots: u16,
    },
}

impl ProtocolError {
    /// The code with which the session ends.
    pub const fn code(&self) -> Code {
        match self {
            Self::Decode(DecodeError::Version { .. }) => Code::Version,
            Self::Generation { .. } => Code::Generation,
            _ => Code::Protocol,
        }
    }
}

/// What a channel is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelConfig {
    /// Its endpoint.
    pub link: LinkId,
    /// The session's generation, which every message carries.
    pub generation: u32,
    /// The memory of its receive slots.
    pub receive: LocalId,
    /// How many receive slots there are.
    pub receive_slots: u16,
    /// How long each is.
    pub receive_size: u32,
    /// The memory of its send slots.
    pub send: LocalId,
    /// How many send slots there are.
    pub send_slots: u16,
    /// How long each is.
    pub send_size: u32,
    /// How many receive slots the peer posts.
    pub peer_slots: u16,
    /// How long each is.
    pub peer_size: u32,
}

/// A piece of work that a channel wants posted on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// The tag.
    pub op: Op,
    /// The work.
    pub work: Work,
}

/// One side of a session's control channel.
#[derive(Clone, Debug)]
pub struct Channel {
    config: ChannelConfig,
    /// The peer's slots that may still be used.
    credits: u16,
    /// Slots posted again that the peer has not been told of.
    owed: u16,
    /// Receive slots to post.
    receives: Vec<u16>,
    /// Send slots that no message is in.
    free: Vec<u16>,
    /// Messages written and not posted: slot and length.
    outbox: VecDeque<(u16, u32)>,
}

impl Channel {
    /// A channel on a new endpoint.
    ///
    /// # Panics
    ///
    /// If either side has fewer receive slots than [`RECEIVE_SLOTS_MIN`] (the bootstrap refuses that), or this side has
    /// fewer than two send slots: one is kept for credits.
    pub fn new(config: ChannelConfig) -> Self {
        let slots = config.receive_slots.min(config.peer_slots);
        assert!(slots >= RECEIVE_SLOTS_MIN, "a channel of {slots} receive slots cannot return its credits");
        assert!(config.send_slots >= 2, "a channel of {} send slots has room for credits only", config.send_slots);
        Self {
            config,
            credits: config.peer_slots,
            owed: 0,
            receives: (0..config.receive_slots).rev().collect(),
            free: (0..config.send_slots).rev().collect(),
            outbox: VecDeque::with_capacity(config.send_slots as usize),
        }
    }

    /// Its parameters.
    pub const fn config(&self) -> &ChannelConfig {
        &self.config
    }

    /// Its endpoint.
    pub const fn link(&self) -> LinkId {
        self.config.link
    }

    /// How many messages may be sent now. One credit and one send slot are kept back for `Credit`.
    pub fn room(&self) -> usize {
        let free = self.free.len().saturating_sub(1);
        free.min((self.credits as usize).saturating_sub(1))
    }

    /// The longest message that fits both sides' slots.
    pub fn message_max(&self) -> usize {
        self.config.send_size.min(self.config.peer_size) as usize
    }

    /// The longest batch that can travel with a `Publish`; a longer one is offered.
    pub fn publish_max(&self) -> usize {
        attachment_max(self.message_max(), size_of::<ArchivedPublish>())
    }

    /// Writes a message into a send slot, to be posted by [`transmit`](Self::transmit) after what was sent before.
    ///
    /// # Errors
    ///
    /// It does not fit a slot.
    ///
    /// # Panics
    ///
    /// If there is no [`room`](Self::room): whoever sends asks first.
    pub fn send<M: Outgoing>(&mut self, memory: &mut dyn Memory, message: &M) -> Result<(), EncodeError> {
        self.send_with(memory, message, 0, |_| ())
    }

    /// Like [`send`](Self::send), with an attachment of `len` bytes that `fill` writes.
    ///
    /// # Errors
    ///
    /// It does not fit a slot.
    ///
    /// # Panics
    ///
    /// If there is no [`room`](Self::room).
    pub fn send_with<M: Outgoing>(
        &mut self,
        memory: &mut dyn Memory,
        message: &M,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), EncodeError> {
        assert!(self.room() > 0, "whoever sends on a channel asks for room first");
        self.put(memory, message, len, fill)
    }

    fn put<M: Outgoing>(
        &mut self,
        memory: &mut dyn Memory,
        message: &M,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), EncodeError> {
        let slot = *self.free.last().expect("room was checked, and one slot more is kept for credits");
        let size = self.message_max() as u32;
        let span = LocalSpan { local: self.config.send, slot: u32::from(slot), offset: 0, len: size };
        let bytes = memory.bytes_mut(span);
        let start = message.encode(self.config.generation, self.owed, len, bytes)?;
        fill(&mut bytes[start..start + len]);
        self.free.pop();
        self.owed = 0;
        self.credits -= 1;
        self.outbox.push_back((slot, (start + len) as u32));
        Ok(())
    }

    /// The next work to post: receives first, then messages in order, then owed credits.
    pub fn transmit<M: Outgoing>(&mut self, memory: &mut dyn Memory) -> Option<Post> {
        if let Some(slot) = self.receives.pop() {
            let into = self.receive_span(slot);
            return Some(Post { op: Op(RECEIVE | u64::from(slot)), work: Work::Recv { into } });
        }
        if self.outbox.is_empty() && self.credit_is_due() {
            self.put(memory, &M::from(Credit {}), 0, |_| ()).expect("an empty message fits every slot");
        }
        let (slot, len) = self.outbox.pop_front()?;
        let from = LocalSpan { local: self.config.send, slot: u32::from(slot), offset: 0, len };
        Some(Post { op: Op(SEND | u64::from(slot)), work: Work::Send { from } })
    }

    fn credit_is_due(&self) -> bool {
        self.owed >= self.config.receive_slots / 2 && self.credits > 0 && !self.free.is_empty()
    }

    fn receive_span(&self, slot: u16) -> LocalSpan {
        LocalSpan { local: self.config.receive, slot: u32::from(slot), offset: 0, len: self.config.receive_size }
    }

    /// Reads a message that has arrived, where it lies. The slot stays the caller's until [`repost`](Self::repost), which is
    /// due for messages that are refused too.
    ///
    /// # Errors
    ///
    /// Why the message is refused; the session must end.
    pub fn receive<'m, M: Incoming<'m>>(
        &mut self,
        memory: &'m dyn Memory,
        span: LocalSpan,
    ) -> Result<Received<M>, ProtocolError> {
        let (envelope, message) = M::decode(memory.bytes(span))?;
        let ChannelConfig { generation: expected, peer_slots: slots, .. } = self.config;
        if envelope.generation != expected {
            return Err(ProtocolError::Generation { found: envelope.generation, expected });
        }
        let held = self.credits;
        self.credits = held
            .checked_add(envelope.credits)
            .filter(|credits| *credits <= slots)
            .ok_or(ProtocolError::Credits { given: envelope.credits, held, slots })?;
        let attachment = span.part(envelope.attachment_start() as u32, envelope.attachment_len);
        Ok(Received { message, attachment })
    }

    /// Posts a receive slot again and owes the peer a credit for it.
    ///
    /// # Panics
    ///
    /// If the tag is not of a receive of this channel.
    pub fn repost(&mut self, op: Op) {
        assert_eq!(op.0 & KIND, RECEIVE, "{op:?} is not the tag of a receive");
        self.receives.push(op.0 as u16);
        self.owed += 1;
    }

    /// Takes in the completion of a send. Returns whether the tag was of this channel's (a flushed receive counts too).
    pub fn done(&mut self, op: Op) -> bool {
        match op.0 & KIND {
            SEND => {
                self.free.push(op.0 as u16);
                true
            }
            RECEIVE => true,
            _ => false,
        }
    }

    /// Whether every message written has been posted and has completed.
    pub fn is_drained(&self) -> bool {
        self.free.len() == self.config.send_slots as usize
    }
}

/// A message in its receive slot.
#[derive(Debug)]
pub struct Received<M> {
    /// The message.
    pub message: M,
    /// The bytes behind its archive; empty for every message but `Publish`.
    pub attachment: LocalSpan,
}

/// The most bytes that can be attached to `archive` bytes of message in a slot.
pub const fn attachment_max(slot: usize, archive: usize) -> usize {
    slot.saturating_sub((ENVELOPE_LEN + archive).next_multiple_of(8))
}
