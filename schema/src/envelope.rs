//! The 16 bytes before every control message, and the way in and out of a slot.

use rkyv::api::high;
use rkyv::rancor::Error as RkyvError;
use rkyv::ser::writer::Buffer;

use crate::limits::VERSION;
use crate::message::*;

/// The length of an envelope.
pub const ENVELOPE_LEN: usize = 16;

/// The first two bytes of every control message.
pub const MAGIC: [u8; 2] = *b"KW";

/// The one kind that takes an attachment.
const PUBLISH: u8 = 2;

/// An attachment begins at a multiple of this behind the archive, so that a batch header in a slot is aligned.
const ATTACHMENT_ALIGN: usize = 8;

/// What stands before a message: who it is for and how long it is.
///
/// | byte | field |
/// | --- | --- |
/// | 0 | magic, `KW` |
/// | 2 | version |
/// | 3 | kind |
/// | 4 | credits, u16: receive slots that the sender has posted again |
/// | 6 | archive length, u16 |
/// | 8 | attachment length, u32 |
/// | 12 | session generation, u32 |
///
/// Integers are little-endian. The archive begins at byte 16, the attachment at the next multiple of 8 behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// What the archive is.
    pub kind: u8,
    /// Receive slots that the sender has posted again since its last message: the receiver may use as many more.
    pub credits: u16,
    /// The archive's length.
    pub archive_len: u16,
    /// The attachment's length.
    pub attachment_len: u32,
    /// The session that it belongs to.
    pub generation: u32,
}

impl Envelope {
    fn write(self, to: &mut [u8]) {
        to[..2].copy_from_slice(&MAGIC);
        to[2] = VERSION;
        to[3] = self.kind;
        to[4..6].copy_from_slice(&self.credits.to_le_bytes());
        to[6..8].copy_from_slice(&self.archive_len.to_le_bytes());
        to[8..12].copy_from_slice(&self.attachment_len.to_le_bytes());
        to[12..16].copy_from_slice(&self.generation.to_le_bytes());
    }

    /// Reads and checks an envelope, and that the message is exactly as long as it says.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn read(message: &[u8]) -> Result<Self, DecodeError> {
        let Some(bytes) = message.first_chunk::<ENVELOPE_LEN>() else {
            return Err(DecodeError::Truncated { len: message.len(), need: ENVELOPE_LEN });
        };
        if bytes[..2] != MAGIC {
            return Err(DecodeError::Magic { found: [bytes[0], bytes[1]] });
        }
        if bytes[2] != VERSION {
            return Err(DecodeError::Version { found: bytes[2] });
        }
        let envelope = Self {
            kind: bytes[3],
            credits: u16::from_le_bytes([bytes[4], bytes[5]]),
            archive_len: u16::from_le_bytes([bytes[6], bytes[7]]),
            attachment_len: u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
            generation: u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
        };
        let need = envelope.attachment_start().saturating_add(envelope.attachment_len as usize);
        if message.len() != need {
            return Err(DecodeError::Truncated { len: message.len(), need });
        }
        Ok(envelope)
    }

    /// Where the attachment begins in the message; without one, where the message ends.
    pub const fn attachment_start(&self) -> usize {
        let end = ENVELOPE_LEN + self.archive_len as usize;
        if self.attachment_len == 0 { end } else { end.next_multiple_of(ATTACHMENT_ALIGN) }
    }
}

/// Why bytes are not a control message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Shorter or longer than it says.
    #[error("the message has {len} bytes and should have {need}")]
    Truncated {
        /// How many there are.
        len: usize,
        /// How many there should be.
        need: usize,
    },
    /// Not one of ours.
    #[error("the message begins with {found:02x?}, not with `KW`")]
    Magic {
        /// The first two bytes.
        found: [u8; 2],
    },
    /// Of another version.
    #[error("the message is of protocol version {found}, this side speaks {VERSION}")]
    Version {
        /// The sender's version.
        found: u8,
    },
    /// Of no known kind, or of one that this side does not receive.
    #[error("no message of kind {kind} is expected here")]
    Kind {
        /// The kind.
        kind: u8,
    },
    /// Bytes behind an archive that takes none.
    #[error("a {kind} takes no attachment, this one has {len} bytes")]
    Attachment {
        /// Which message.
        kind: &'static str,
        /// The attachment's length.
        len: u32,
    },
    /// The archive is not a valid one.
    #[error("the {kind} archive is invalid: {reason}")]
    Archive {
        /// Which message.
        kind: &'static str,
        /// The validator's words.
        reason: String,
    },
}

/// Why a message could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {kind} with an attachment of {attachment} bytes does not fit a slot of {slot} bytes")]
pub struct EncodeError {
    /// Which message.
    pub kind: &'static str,
    /// The attachment's length.
    pub attachment: usize,
    /// The slot's length.
    pub slot: usize,
}

macro_rules! messages {
    ($(#[$doc:meta])* $owned:ident, $(#[$ref_doc:meta])* $borrowed:ident { $($name:ident = $kind:literal, $archived:ident;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each variant is documented at its message")]
        pub enum $owned {
            $($name($name),)*
        }

        $(#[$ref_doc])*
        #[derive(Debug)]
        #[allow(missing_docs, reason = "each variant is documented at its message")]
        pub enum $borrowed<'a> {
            $($name(&'a $archived),)*
        }

        impl $owned {
            /// The message's name.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)*
                }
            }

            /// Writes envelope and archive to the start of `slot`, which must be aligned to 16 bytes, leaving room for an
            /// attachment of `attachment_len` bytes. Returns where the attachment begins (without one: where the message
            /// ends).
            ///
            /// # Errors
            ///
            /// It does not fit.
            pub fn encode(
                &self,
                generation: u32,
                credits: u16,
                attachment_len: usize,
                slot: &mut [u8],
            ) -> Result<usize, EncodeError> {
                let len = slot.len();
                let too_long = |kind| EncodeError { kind, attachment: attachment_len, slot: len };
                let Some((_, body)) = slot.split_at_mut_checked(ENVELOPE_LEN) else {
                    return Err(too_long(self.name()));
                };
                let (kind, archive_len) = match self {
                    $(Self::$name(message) => {
                        let written = high::to_bytes_in::<_, RkyvError>(message, Buffer::from(body));
                        ($kind, written.map_err(|_| too_long(stringify!($name)))?.len())
                    })*
                };
                let envelope = Envelope {
                    kind,
                    credits,
                    archive_len: u16::try_from(archive_len).map_err(|_| too_long(self.name()))?,
                    attachment_len: u32::try_from(attachment_len).map_err(|_| too_long(self.name()))?,
                    generation,
                };
                let start = envelope.attachment_start();
                if start.checked_add(attachment_len).is_none_or(|end| end > len) {
                    return Err(too_long(self.name()));
                }
                // The bytes between the archive and the attachment travel too: they must not be a leftover of the slot.
                slot[ENVELOPE_LEN + archive_len..start].fill(0);
                envelope.write(&mut slot[..ENVELOPE_LEN]);
                Ok(start)
            }
        }

        impl<'a> $borrowed<'a> {
            /// The message's name.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)*
                }
            }

            /// Validates a message where it lies: `message` is a receive slot's content, aligned to 16 bytes. The
            /// attachment, if any, is `message[envelope.attachment_start()..]`.
            ///
            /// # Errors
            ///
            /// What is wrong with it.
            pub fn decode(message: &'a [u8]) -> Result<(Envelope, Self), DecodeError> {
                let envelope = Envelope::read(message)?;
                let archive = &message[ENVELOPE_LEN..ENVELOPE_LEN + envelope.archive_len as usize];
                let decoded = match envelope.kind {
                    $($kind => Self::$name(rkyv::access::<$archived, RkyvError>(archive).map_err(|error| {
                        DecodeError::Archive { kind: stringify!($name), reason: error.to_string() }
                    })?),)*
                    kind => return Err(DecodeError::Kind { kind }),
                };
                if envelope.attachment_len > 0 && envelope.kind != PUBLISH {
                    return Err(DecodeError::Attachment { kind: decoded.name(), len: envelope.attachment_len });
                }
                Ok((envelope, decoded))
            }

            /// The message as an owned value: for whoever keeps it longer than its slot.
            pub fn to_message(&self) -> $owned {
                match self {
                    $(Self::$name(message) => {
                        let owned = rkyv::deserialize::<$name, RkyvError>(*message);
                        $owned::$name(owned.expect("what was validated holds nothing that cannot be copied out"))
                    })*
                }
            }
        }

        $(impl From<$name> for $owned {
            fn from(message: $name) -> Self {
                Self::$name(message)
            }
        })*
    };
}

messages! {
    /// A message from client to broker, to be written.
    ToBroker,
    /// A message from client to broker, where it arrived.
    ToBrokerRef {
        OpenTopic = 1, ArchivedOpenTopic;
        Publish = 2, ArchivedPublish;
        Offer = 3, ArchivedOffer;
        Subscribe = 4, ArchivedSubscribe;
        Release = 5, ArchivedRelease;
        Arm = 6, ArchivedArm;
        Unsubscribe = 7, ArchivedUnsubscribe;
        Goodbye = 8, ArchivedGoodbye;
        Credit = 9, ArchivedCredit;
    }
}

messages! {
    /// A message from broker to client, to be written.
    ToClient,
    /// A message from broker to client, where it arrived.
    ToClientRef {
        Credit = 9, ArchivedCredit;
        TopicOpened = 65, ArchivedTopicOpened;
        Committed = 66, ArchivedCommitted;
        Withdraw = 67, ArchivedWithdraw;
        Subscribed = 68, ArchivedSubscribed;
        Grant = 69, ArchivedGrant;
        Wake = 70, ArchivedWake;
        Lagged = 71, ArchivedLagged;
        Revoked = 72, ArchivedRevoked;
        Failed = 73, ArchivedFailed;
        ShuttingDown = 74, ArchivedShuttingDown;
    }
}
