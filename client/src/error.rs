//! What can go wrong for a producer or a consumer. One type for both: an application handles them alike.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use keyway_fabric::{FabricError, one_line};
use keyway_schema::record::RecordError;
use keyway_schema::{Code, NameError};

use crate::AddressError;

/// A failed operation of a producer or consumer. It is `Clone`, since one lost session may fail many waiting operations.
///
/// [`kind`](Self::kind) is for programs, the text for people: it says what was tried, with which values, and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The broker's address is none. Correct it.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The topic's name is none. Correct it.
    #[error("{topic:?} cannot be a topic: {source}")]
    Topic {
        /// The name.
        topic: String,
        /// What is wrong with it.
        source: NameError,
    },
    /// A setting is out of its range. Correct it.
    #[error("{setting} is {value}, and must be {allowed}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// No stream to the broker could be opened.
    #[error("cannot reach {server}: {source}; check that the broker runs and listens there")]
    Connect {
        /// The broker's address.
        server: String,
        /// The system's reason.
        source: Arc<io::Error>,
    },
    /// What answered speaks something else.
    #[error("{server} did not answer like a Keyway broker while {step}: {reason}; check the address and both versions")]
    Handshake {
        /// The broker's address.
        server: String,
        /// What was being done.
        step: &'static str,
        /// What it did instead.
        reason: String,
    },
    /// The broker is of another version. Use clients and a broker of the same one.
    #[error(
        "{server} speaks protocol version {theirs}, this client speaks {ours}; use clients and a broker of one version"
    )]
    Version {
        /// The broker's address.
        server: String,
        /// The broker's version.
        theirs: u8,
        /// This side's.
        ours: u8,
    },
    /// The fabric that was chosen cannot be opened on this machine.
    #[error("cannot open the fabric {fabric}: {}", one_line(source))]
    OpenFabric {
        /// What was chosen.
        fabric: String,
        /// The fabric's reason.
        source: Arc<FabricError>,
    },
    /// The broker refused: a session, a topic, a subscription or a batch.
    #[error("the broker refused {what}: {text} ({})", code_text(*code))]
    Refused {
        /// What was refused.
        what: String,
        /// A number of [`Code`].
        code: u16,
        /// The broker's words, and what this side knows of the reason.
        text: String,
    },
    /// It was not done in time.
    #[error("{what} was not done within {after:?}{}", last_text(last))]
    Timeout {
        /// What was to be done.
        what: String,
        /// The time that it had.
        after: Duration,
        /// What last went wrong meanwhile, if anything did.
        last: Option<Box<Error>>,
    },
    /// The session with the broker is gone. Producers and consumers reconnect by themselves.
    #[error("the session with {server} was lost: {reason}")]
    Lost {
        /// The broker's address.
        server: String,
        /// How it was noticed.
        reason: String,
    },
    /// It was closed: by `close`, by dropping it, or by an error that ended it before.
    #[error("the {what} is closed{}", last_text(cause))]
    Closed {
        /// `producer` or `consumer`.
        what: &'static str,
        /// What ended it, if it did not end in order.
        cause: Option<Box<Error>>,
    },
    /// The consumer was too slow or too late: these records are gone. It goes on behind them.
    #[error("the records {from} to {} are gone: the topic's ring dropped them before they were read", to.saturating_sub(1))]
    Lagged {
        /// The first record that was missed.
        from: u64,
        /// The first record that was not.
        to: u64,
    },
    /// The broker was started anew, and its topics with it. The consumer goes on with the new log from its start; what
    /// that has dropped already is told as [`Lagged`](Self::Lagged), right after.
    #[error("the broker was restarted (instance {instance:#018x}): its topics are new and sequences begin again at 0")]
    Restarted {
        /// The new broker's instance.
        instance: u64,
    },
    /// The record cannot be sent. The next one can.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// As much is waiting to be sent as may be.
    #[error("{waiting} bytes are waiting to be sent, the buffer takes {limit}; wait, or raise the buffer")]
    Full {
        /// What is waiting.
        waiting: usize,
        /// The limit.
        limit: usize,
    },
    /// The broker is about to stop and takes nothing new. The client reconnects once it is back.
    #[error("the broker {server} is shutting down and takes nothing new; try again when it is back")]
    ShuttingDown {
        /// The broker's address.
        server: String,
    },
    /// The fabric, or the operating system below it, refused.
    #[error("the fabric failed while {step}: {source}")]
    Fabric {
        /// What was being done.
        step: &'static str,
        /// The fabric's reason.
        source: Arc<FabricError>,
    },
    /// No thread could be started.
    #[error("cannot start the thread {name}: {source}")]
    Thread {
        /// Its name.
        name: &'static str,
        /// The system's reason.
        source: Arc<io::Error>,
    },
    /// A bug of ours, worth a report.
    #[error("an internal error, please report it: {what}")]
    Internal {
        /// What should not have happened.
        what: String,
    },
}

/// What kind of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An address, name or setting is wrong.
    Invalid,
    /// The broker could not be reached.
    Connect,
    /// What was reached is no Keyway broker.
    Handshake,
    /// The broker is of another version.
    Version,
    /// The broker refused, with a code that this version knows.
    Refused(Code),
    /// The broker refused, with a code that this version does not know.
    RefusedUnknown(u16),
    /// Not done in time.
    Timeout,
    /// The session was lost.
    Lost,
    /// The producer or consumer is closed.
    Closed,
    /// Records are gone before they were read.
    Lagged,
    /// The broker was started anew.
    Restarted,
    /// The record is larger than the topic takes.
    RecordTooLarge,
    /// The record's key or headers do not fit the format.
    Record,
    /// The buffer is full.
    Full,
    /// The broker is about to stop.
    ShuttingDown,
    /// The fabric or the operating system failed.
    System,
    /// A bug of ours.
    Internal,
}

impl Error {
    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Address(_) | Self::Topic { .. } | Self::Setting { .. } => ErrorKind::Invalid,
            Self::Connect { .. } => ErrorKind::Connect,
            Self::Handshake { .. } => ErrorKind::Handshake,
            Self::Version { .. } => ErrorKind::Version,
            Self::Refused { code, .. } => match Code::from_number(*code) {
                Some(Code::ShuttingDown) => ErrorKind::ShuttingDown,
                Some(code) => ErrorKind::Refused(code),
                None => ErrorKind::RefusedUnknown(*code),
            },
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::Lost { .. } => ErrorKind::Lost,
            Self::Closed { .. } => ErrorKind::Closed,
            Self::Lagged { .. } => ErrorKind::Lagged,
            Self::Restarted { .. } => ErrorKind::Restarted,
            Self::Record(RecordError::TooLarge { .. }) => ErrorKind::RecordTooLarge,
            Self::Record(_) => ErrorKind::Record,
            Self::Full { .. } => ErrorKind::Full,
            Self::ShuttingDown { .. } => ErrorKind::ShuttingDown,
            Self::OpenFabric { .. } | Self::Fabric { .. } | Self::Thread { .. } => ErrorKind::System,
            Self::Internal { .. } => ErrorKind::Internal,
        }
    }

    /// Whether the same operation may succeed later, unchanged, without the caller doing anything about it.
    pub fn is_retryable(&self) -> bool {
        match self.kind() {
            ErrorKind::Connect
            | ErrorKind::Timeout
            | ErrorKind::Lost
            | ErrorKind::Lagged
            | ErrorKind::Restarted
            | ErrorKind::Full
            | ErrorKind::ShuttingDown => true,
            ErrorKind::Refused(code) => code.is_retryable(),
            ErrorKind::Invalid
            | ErrorKind::Handshake
            | ErrorKind::Version
            | ErrorKind::RefusedUnknown(_)
            | ErrorKind::Closed
            | ErrorKind::RecordTooLarge
            | ErrorKind::Record
            | ErrorKind::System
            | ErrorKind::Internal => false,
        }
    }

    /// A refusal in the broker's words.
    pub fn refused(what: impl Into<String>, code: u16, text: impl Into<String>) -> Self {
        Self::Refused { what: what.into(), code, text: text.into() }
    }

    /// A refusal by the fabric while something was being done.
    pub fn fabric(step: &'static str) -> impl Fn(FabricError) -> Self {
        move |source| Self::Fabric { step, source: Arc::new(source) }
    }
}

fn code_text(number: u16) -> String {
    match Code::from_number(number) {
        Some(code) => format!("code {number}: {code}"),
        None => format!("code {number}, which this version does not know"),
    }
}

fn last_text(last: &Option<Box<Error>>) -> String {
    last.as_ref().map_or_else(String::new, |error| format!("; last: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_retryable_exactly_if_its_code_is() {
        for code in Code::ALL {
            let error = Error::refused("a session", code.number(), "no");
            assert_eq!(error.is_retryable(), code.is_retryable(), "{error}");
        }
        let unknown = Error::refused("a session", 999, "no");
        assert_eq!(unknown.kind(), ErrorKind::RefusedUnknown(999));
        assert!(!unknown.is_retryable());
    }

    #[test]
    fn a_timeout_says_what_went_wrong_meanwhile() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let last = Error::Connect { server: "keyway://h:1".into(), source: Arc::new(refused) };
        let error = Error::Timeout {
            what: "connecting to keyway://h:1".into(),
            after: Duration::from_secs(5),
            last: Some(Box::new(last)),
        };
        assert_eq!(
            error.to_string(),
            "connecting to keyway://h:1 was not done within 5s; last: cannot reach keyway://h:1: connection refused; check \
             that the broker runs and listens there"
        );
    }

    #[test]
    fn a_record_that_is_too_large_names_both_sizes() {
        let error = Error::from(RecordError::TooLarge { size: 11, max: 10 });
        assert_eq!(error.kind(), ErrorKind::RecordTooLarge);
        assert!(error.to_string().contains("11") && error.to_string().contains("10"), "{error}");
    }
}
