//! What a broker can do wrong, as a consumer sees it. Each of these ends the session; the consumer goes on at its cursor on
//! the next one.

use keyway_channel::ProtocolError;
use keyway_fabric::WorkError;
use keyway_schema::Code;

/// Why the consumer ended a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A message could not be read, or belongs to another session.
    #[error("the broker's message is refused: {0}")]
    Message(#[from] ProtocolError),
    /// A message that does not belong here.
    #[error("the broker sent {kind}, which is not expected {when}")]
    Unexpected {
        /// Which message.
        kind: &'static str,
        /// In which state, or about what.
        when: &'static str,
    },
    /// The answer to the subscription cannot be true.
    #[error("the broker's Subscribed is impossible: {what} is {value}, {expected} was expected")]
    Subscribed {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What would have been right.
        expected: String,
    },
    /// A grant cannot be true.
    #[error("the grant of epoch {epoch} is impossible: {what} is {value}, {expected} was expected")]
    Grant {
        /// Its epoch.
        epoch: u64,
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What would have been right.
        expected: String,
    },
    /// Epochs are revoked that were never granted.
    #[error("epochs up to {epoch} were revoked, but {newest} is the newest that was granted")]
    Revoked {
        /// The epoch that was named.
        epoch: u64,
        /// The newest that there is.
        newest: u64,
    },
    /// An offset that is not in the log.
    #[error("the broker's {what} names the offset {offset}, which no batch can begin at")]
    Offset {
        /// Which message.
        what: &'static str,
        /// The offset.
        offset: u64,
    },
    /// The tail word of a segment is not one.
    #[error("segment {segment} has a tail of {offset}, which is not within it or before what was committed")]
    Tail {
        /// The segment.
        segment: u64,
        /// Its tail.
        offset: u64,
    },
    /// What was committed stays unreadable however often it is READ.
    #[error("what is committed at offset {offset} is still not valid after {tries} READs: {reason}")]
    Unreadable {
        /// Where.
        offset: u64,
        /// How often it was READ.
        tries: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// A READ or SEND failed.
    #[error("a {what} failed: {error}")]
    Work {
        /// `READ` or `SEND`.
        what: &'static str,
        /// How.
        error: WorkError,
    },
    /// No answer to the subscription.
    #[error("the broker did not answer the subscription within {after_ms} ms")]
    SubscribeTimeout {
        /// How long was waited.
        after_ms: u64,
    },
    /// The broker refused the subscription.
    #[error("the broker refused the subscription: {text} (code {code})")]
    Refused {
        /// A number of [`Code`].
        code: u16,
        /// Its words.
        text: String,
    },
    /// The broker said that the session ends.
    #[error("the broker ended the session: {text} (code {code})")]
    Ended {
        /// A number of [`Code`].
        code: u16,
        /// Its words.
        text: String,
    },
}

impl Fault {
    /// The code that says it on the wire and to programs.
    pub fn code(&self) -> u16 {
        match self {
            Self::Message(error) => error.code().number(),
            Self::Refused { code, .. } | Self::Ended { code, .. } => *code,
            Self::SubscribeTimeout { .. } => Code::Timeout.number(),
            Self::Work { error: WorkError::RemoteAccess, .. } => Code::KeyViolation.number(),
            _ => Code::Protocol.number(),
        }
    }

    /// Whether it is the broker's last word: a refusal that will be the same next time, or a consumer or topic that an
    /// operator has removed.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Refused { code, .. } => !Code::from_number(*code).is_some_and(Code::is_retryable),
            Self::Ended { code, .. } => {
                matches!(Code::from_number(*code), Some(Code::Evicted | Code::TopicRemoved))
            }
            _ => false,
        }
    }

    /// Whether the broker's fabric refused a READ.
    pub(super) const fn is_remote_access(&self) -> bool {
        matches!(self, Self::Work { error: WorkError::RemoteAccess, .. })
    }
}
