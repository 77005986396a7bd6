//! What can go wrong, each as one line that says what was tried and with what.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use keyway::probe::{ProbeError, Unusable};
use keyway::{Error, Server};

/// Why a command ends with a status other than zero.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot read {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot read the input: {source}")]
    Read { source: io::Error },
    #[error("cannot write to standard output: {source}")]
    Write { source: io::Error },
    #[error("cannot catch signals: {source}")]
    Signals { source: ctrlc::Error },
    #[error("cannot start a thread: {source}")]
    Thread { source: io::Error },
    #[error("the input has no line end within {max} bytes, and no record is that large; give --chunk for binary input")]
    LineTooLong { max: usize },
    #[error("record {number} was not published: {source}")]
    Publish { number: u64, source: Error },
    #[error(
        "record {number} was not published: the broker has made no room for it within {}",
        humantime::format_duration(*timeout)
    )]
    Stuck { number: u64, timeout: Duration },
    #[error("{server} has been away for {}: {reason}", humantime::format_duration(*timeout))]
    Gone { server: Server, timeout: Duration, reason: String },
    #[error("cannot {what}: {source}")]
    Process { what: &'static str, source: io::Error },
    #[error("{name} has failed: {reason}")]
    Part { name: String, reason: String },
    #[error("impossible: {0}")]
    Impossible(String),
    /// The client's own words say what was tried.
    #[error(transparent)]
    Client(#[from] Error),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The report was printed.
    #[error(transparent)]
    Unusable(#[from] Unusable),
    #[error("incomplete: {0}")]
    Incomplete(String),
    /// A signal ended it before it was done. The summary was printed.
    #[error("interrupted")]
    Interrupted,
}
