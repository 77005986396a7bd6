//! What client and broker say to each other on the byte stream before their endpoints are connected.
//!
//! The stream begins with [`PREAMBLE`] from the client. Then each side sends frames: four bytes of prefix, then an rkyv archive of
//! [`Bootstrap`]. The order is `Hello`, `Welcome`, `Confirm`, `Ready`; instead of any answer the broker may send `Refused`.
//! The stream then stays open: its end tells each side that the other died. The client says nothing more on it; the
//! broker says `Refused` when it ends the session, since a failed endpoint carries no last words.
//!
//! | byte | field of the prefix |
//! | --- | --- |
//! | 0 | archive length, u16, little-endian |
//! | 2 | zero |
//! | 3 | version |
//!
//! The version stands in the prefix, and not in an archive, because an archive of another version cannot be read.

#![allow(missing_docs, reason = "rkyv's derive makes items of an enum's fields that it does not document")]

use std::time::Duration;

use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

use crate::limits::{BOOTSTRAP_MAX, CLIENT_NAME_MAX, CONTROL_SLOT, ENDPOINT_ADDRESS_MAX, RECEIVE_SLOTS_MIN, VERSION};

/// How long a bootstrap stream is silent until the system asks whether the peer's host is still there, and between two such questions. A
/// process that does not run is answered for by its system.
pub const HOST_ASKED_AFTER: Duration = Duration::from_secs(1);

/// How long a host may leave that, or what was sent, unanswered until the stream ends: so a peer whose cable or power is gone is
/// noticed about as soon as one that has died.
pub const HOST_SILENCE_MAX: Duration = Duration::from_secs(2);

/// The first bytes of a bootstrap stream.
pub const PREAMBLE: [u8; 8] = *b"KEYWAY/B";

/// Which of the clients it is.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Publishes: gets large receive slots.
    Producer,
    /// Subscribes.
    Consumer,
}

/// A message of the bootstrap.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    /// Client: who it is and what it can do.
    Hello {
        /// What it is.
        role: Role,
        /// Its name, for logs.
        name: String,
        /// The fabrics that it speaks, best first: `soft`, `verbs`.
        fabrics: Vec<String>,
        /// How many receive slots it posts.
        receive_slots: u16,
        /// How large they are.
        receive_size: u32,
    },
    /// Broker: a session.
    Welcome {
        /// The broker's instance: new at each start.
        instance: u64,
        /// The session's id.
        session: u64,
        /// The generation that the session's messages carry.
        generation: u32,
        /// The fabric to use.
        fabric: String,
        /// The broker's endpoint.
        endpoint: Vec<u8>,
        /// How many receive slots the broker posts for this session.
        receive_slots: u16,
        /// How large they are.
        receive_size: u32,
        /// The most batches of this session that may be offered at once.
        offers: u16,
    },
    /// Client: its endpoint.
    Confirm {
        /// The client's endpoint.
        endpoint: Vec<u8>,
    },
    /// Broker: its endpoint is connected; the client may send.
    Ready,
    /// Broker: no session.
    Refused {
        /// A number of [`Code`](crate::Code).
        code: u16,
        /// What happened, with the values.
        text: String,
    },
}

/// Why bytes are not a bootstrap message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// A frame longer than any message.
    #[error("the bootstrap message has {len} bytes, the limit is {BOOTSTRAP_MAX}")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// No frame at all: whoever sent it speaks something else.
    #[error("what came is no bootstrap message: it begins with {:02x?}", prefix)]
    Prefix {
        /// What stands where the prefix should.
        prefix: [u8; 4],
    },
    /// Of another version.
    #[error("the bootstrap message is of protocol version {found}, this side speaks {VERSION}")]
    Version {
        /// The sender's version.
        found: u8,
    },
    /// A field is outside its limits.
    #[error("the bootstrap message's {field} is {value}, allowed are {min} to {max}")]
    Limit {
        /// What: a count, a size or a length.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The least that is allowed.
        min: u64,
        /// The most.
        max: u64,
    },
    /// The archive is not a valid one.
    #[error("the bootstrap message is invalid: {reason}")]
    Archive {
        /// The validator's words.
        reason: String,
    },
}

impl Bootstrap {
    /// The message as a frame, prefix included.
    ///
    /// # Errors
    ///
    /// It is longer than a bootstrap message may be, or a field is outside its limits.
    pub fn encode(&self) -> Result<Vec<u8>, BootstrapError> {
        self.check()?;
        let archive = rkyv::to_bytes::<rkyv::rancor::Error>(self)
            .map_err(|error| BootstrapError::Archive { reason: error.to_string() })?;
        let len = archive.len();
        let prefix = u16::try_from(len).ok().filter(|_| len <= BOOTSTRAP_MAX).ok_or(BootstrapError::TooLong { len })?;
        let [low, high] = prefix.to_le_bytes();
        let mut frame = Vec::with_capacity(4 + len);
        frame.extend_from_slice(&[low, high, 0, VERSION]);
        frame.extend_from_slice(&archive);
        Ok(frame)
    }

    /// Checks a frame's prefix and returns the length of the archive behind it.
    ///
    /// # Errors
    ///
    /// It is none, or of another version, or announces more than a bootstrap message may have.
    pub fn frame_len(prefix: [u8; 4]) -> Result<usize, BootstrapError> {
        let [low, high, zero, version] = prefix;
        if zero != 0 {
            return Err(BootstrapError::Prefix { prefix });
        }
        if version != VERSION {
            return Err(BootstrapError::Version { found: version });
        }
        let len = usize::from(u16::from_le_bytes([low, high]));
        if len > BOOTSTRAP_MAX { Err(BootstrapError::TooLong { len }) } else { Ok(len) }
    }

    /// Reads a message from what follows the prefix, and checks it against the limits.
    ///
    /// # Errors
    ///
    /// It is not a valid archive, or a field is outside its limits.
    pub fn decode(archive: &[u8]) -> Result<Self, BootstrapError> {
        let mut aligned = AlignedVec::<16>::with_capacity(archive.len());
        aligned.extend_from_slice(archive);
        let message = rkyv::from_bytes::<Self, rkyv::rancor::Error>(&aligned)
            .map_err(|error| BootstrapError::Archive { reason: error.to_string() })?;
        message.check()?;
        Ok(message)
    }

    /// Whether every field is within its limits, so that neither side makes a channel of what could not work.
    fn check(&self) -> Result<(), BootstrapError> {
        match self {
            Self::Hello { name, receive_slots, receive_size, .. } => {
                at_most("name length", name.len(), CLIENT_NAME_MAX)?;
                check_slots(*receive_slots, *receive_size)
            }
            Self::Welcome { endpoint, receive_slots, receive_size, .. } => {
                at_most("endpoint address length", endpoint.len(), ENDPOINT_ADDRESS_MAX)?;
                check_slots(*receive_slots, *receive_size)
            }
            Self::Confirm { endpoint } => at_most("endpoint address length", endpoint.len(), ENDPOINT_ADDRESS_MAX),
            Self::Ready | Self::Refused { .. } => Ok(()),
        }
    }
}

fn check_slots(slots: u16, size: u32) -> Result<(), BootstrapError> {
    within("number of receive slots", slots.into(), RECEIVE_SLOTS_MIN.into(), u16::MAX.into())?;
    within("receive slot size", size.into(), CONTROL_SLOT.into(), u32::MAX.into())
}

fn at_most(field: &'static str, len: usize, max: usize) -> Result<(), BootstrapError> {
    within(field, len as u64, 0, max as u64)
}

fn within(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), BootstrapError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(BootstrapError::Limit { field, value, min, max }) }
}
