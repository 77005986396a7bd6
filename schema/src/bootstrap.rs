//! What client and broker say to each other on the byte stream before their endpoints are connected.
//!
//! The stream begins with [`PREAMBLE`] from the client. Then each side sends frames: a little-endian u32 length, then an
//! rkyv archive of [`Bootstrap`] of that many bytes. The order is `Hello`, `Welcome`, `Confirm`, `Ready`; instead of any
//! answer the broker may send `Refused`. The stream then stays open, silent: its end tells each side that the other died.

use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

use crate::limits::BOOTSTRAP_MAX;

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
#[allow(missing_docs, reason = "the archived form repeats the fields, which are documented here")]
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    /// Client: who it is and what it can do.
    Hello {
        /// Its protocol version.
        version: u8,
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
    #[error("a bootstrap message of {len} bytes was announced, the limit is {BOOTSTRAP_MAX}")]
    TooLong {
        /// The announced length.
        len: usize,
    },
    /// The archive is not a valid one.
    #[error("the bootstrap message is invalid: {reason}")]
    Archive {
        /// The validator's words.
        reason: String,
    },
}

impl Bootstrap {
    /// The message as a frame, length included.
    ///
    /// # Errors
    ///
    /// It is longer than a bootstrap message may be.
    pub fn encode(&self) -> Result<Vec<u8>, BootstrapError> {
        let archive = rkyv::to_bytes::<rkyv::rancor::Error>(self)
            .map_err(|error| BootstrapError::Archive { reason: error.to_string() })?;
        if archive.len() > BOOTSTRAP_MAX {
            return Err(BootstrapError::TooLong { len: archive.len() });
        }
        let mut frame = Vec::with_capacity(4 + archive.len());
        frame.extend_from_slice(&(archive.len() as u32).to_le_bytes());
        frame.extend_from_slice(&archive);
        Ok(frame)
    }

    /// Checks a frame's length word.
    ///
    /// # Errors
    ///
    /// It announces more than a bootstrap message may have.
    pub fn frame_len(word: [u8; 4]) -> Result<usize, BootstrapError> {
        let len = u32::from_le_bytes(word) as usize;
        if len > BOOTSTRAP_MAX { Err(BootstrapError::TooLong { len }) } else { Ok(len) }
    }

    /// Reads a message from what follows the length word.
    ///
    /// # Errors
    ///
    /// It is not a valid archive.
    pub fn decode(archive: &[u8]) -> Result<Self, BootstrapError> {
        let mut aligned = AlignedVec::<16>::with_capacity(archive.len());
        aligned.extend_from_slice(archive);
        rkyv::from_bytes::<Self, rkyv::rancor::Error>(&aligned)
            .map_err(|error| BootstrapError::Archive { reason: error.to_string() })
    }
}
