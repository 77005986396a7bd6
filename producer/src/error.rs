//! A record that was not published.

use std::fmt;

use keyway_client::{Error, ErrorKind};

use crate::Record;

/// Why a record was not published, with the record itself if it was never taken.
#[derive(Clone)]
pub struct SendError(Box<Inner>);

#[derive(Clone)]
struct Inner {
    error: Error,
    record: Option<Record<'static>>,
}

impl SendError {
    /// The record was not taken.
    pub(crate) fn untaken(error: Error, record: Record<'_>) -> Self {
        Self(Box::new(Inner { error, record: Some(record.into_owned()) }))
    }

    /// The record was taken, and failed with its batch.
    pub(crate) fn taken(error: Error) -> Self {
        Self(Box::new(Inner { error, record: None }))
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.error.kind()
    }

    /// Whether the same record may be published later.
    pub fn is_retryable(&self) -> bool {
        self.0.error.is_retryable()
    }

    /// The error.
    pub fn error(&self) -> &Error {
        &self.0.error
    }

    /// The error alone.
    pub fn into_error(self) -> Error {
        self.0.error
    }

    /// The record, if it was not taken. One that was taken has failed for good, or its fate is unknown: the error says which.
    pub fn into_record(self) -> Option<Record<'static>> {
        self.0.record
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Self {
        error.into_error()
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.error, f)
    }
}

impl fmt::Debug for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the record: payloads have no place in logs.
        f.debug_struct("SendError").field("error", &self.0.error).field("taken", &self.0.record.is_none()).finish()
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.0.error)
    }
}
