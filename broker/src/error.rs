//! Why a broker does not start, or does not go on.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use bytesize::ByteSize;
use keyway_fabric::FabricError;

/// What a broker's operations fail with. Each says what was tried, with which values, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// A setting is outside its range.
    #[error("{setting} is {value}, and must be {expected}")]
    Setting {
        /// The setting, as its command-line option is called.
        setting: &'static str,
        /// What it was set to.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// The pool does not hold the segments that a broker needs.
    #[error(
        "a pool of {} holds {segments} segments of {}, and at least {needed} are needed; raise pool-size or lower segment-size",
        ByteSize(*pool_size), ByteSize(*segment_size)
    )]
    PoolTooSmall {
        /// The pool's size in bytes.
        pool_size: u64,
        /// A segment's size in bytes.
        segment_size: u64,
        /// How many fit.
        segments: u64,
        /// How many must fit.
        needed: u64,
    },
    /// A segment does not hold a batch with the largest record.
    #[error(
        "a record of {} makes a batch of {batch} bytes, and a segment of {} has room for {room}; raise segment-size or \
         lower record-max",
        ByteSize(*record_max), ByteSize(*segment_size)
    )]
    SegmentTooSmall {
        /// The largest record in bytes.
        record_max: u64,
        /// The batch around it in bytes.
        batch: u64,
        /// A segment's size in bytes.
        segment_size: u64,
        /// What a segment holds, without its header.
        room: u64,
    },
    /// A listening address is none.
    #[error("cannot resolve the listening address {address:?}; give HOST:PORT, such as 127.0.0.1:4480")]
    Resolve {
        /// The address, as it was given.
        address: String,
        /// The resolver's reason.
        #[source]
        source: io::Error,
    },
    /// A port cannot be had.
    #[error("cannot listen on {address}: {}", bind_advice(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A live process listens on the Unix socket.
    #[error("a live process listens on {}; stop it, or give this broker another path", path.display())]
    UnixBusy {
        /// The path.
        path: PathBuf,
    },
    /// The Unix socket belongs to another user.
    #[error(
        "{} belongs to user {owner}, this process runs as user {own}; remove it as that user, or give another path",
        path.display()
    )]
    UnixForeign {
        /// The path.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Who runs this process.
        own: u32,
    },
    /// Something else is at the Unix socket's path.
    #[error("{} is {kind}, not a socket, and is left alone; remove it, or give another path", path.display())]
    UnixOccupied {
        /// The path.
        path: PathBuf,
        /// What is there.
        kind: &'static str,
    },
    /// The Unix socket cannot be made.
    #[error("cannot {what} the Unix socket {}", path.display())]
    Unix {
        /// What was tried.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The fabric that was chosen cannot be opened on this machine.
    #[error("cannot open the fabric {fabric}")]
    OpenFabric {
        /// What was chosen.
        fabric: String,
        /// The fabric's reason.
        #[source]
        source: FabricError,
    },
    /// The fabric refused something that a broker cannot do without.
    #[error("cannot make {what}")]
    Fabric {
        /// What was to be made.
        what: String,
        /// The fabric's reason.
        #[source]
        source: FabricError,
    },
    /// The operating system refused something that a broker cannot do without.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The broker failed inside and has ended.
    #[error("the broker's {thread} thread failed, and the broker has ended: {reason}")]
    Failed {
        /// The thread.
        thread: &'static str,
        /// The panic's or the error's words.
        reason: String,
    },
    /// The broker does not answer: its reactor is stopped, or held up for longer than any turn should take.
    #[error("the broker does not answer; it has been stopped, or its reactor is held up")]
    Silent,
}

/// What kind of failure it is, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BrokerErrorKind {
    /// The settings do not fit each other, or the machine.
    Settings,
    /// An address cannot be listened on.
    Address,
    /// The system or the fabric has not enough of something.
    Resources,
    /// The broker failed inside.
    Failed,
    /// The broker is stopped or held up.
    Silent,
}

impl BrokerError {
    /// What kind of failure it is.
    pub const fn kind(&self) -> BrokerErrorKind {
        match self {
            Self::Setting { .. } | Self::PoolTooSmall { .. } | Self::SegmentTooSmall { .. } => {
                BrokerErrorKind::Settings
            }
            Self::Resolve { .. }
            | Self::Listen { .. }
            | Self::UnixBusy { .. }
            | Self::UnixForeign { .. }
            | Self::UnixOccupied { .. }
            | Self::Unix { .. } => BrokerErrorKind::Address,
            Self::OpenFabric { .. } | Self::Fabric { .. } | Self::System { .. } => BrokerErrorKind::Resources,
            Self::Failed { .. } => BrokerErrorKind::Failed,
            Self::Silent => BrokerErrorKind::Silent,
        }
    }

    /// Whether the same call may succeed later, with nothing changed but the rest of the machine.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Listen { .. } | Self::Resolve { .. } | Self::UnixBusy { .. } => true,
            Self::OpenFabric { .. } | Self::Fabric { .. } | Self::System { .. } => true,
            Self::Setting { .. }
            | Self::PoolTooSmall { .. }
            | Self::SegmentTooSmall { .. }
            | Self::UnixForeign { .. }
            | Self::UnixOccupied { .. }
            | Self::Unix { .. }
            | Self::Failed { .. }
            | Self::Silent => false,
        }
    }
}

/// What to do about a port that cannot be had.
fn bind_advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => "another process has the port; stop it, or give another address (port 0 for any)",
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has that address",
        io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege; give a higher one",
        _ => "the system refused",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_line;

    #[test]
    fn a_busy_port_says_what_to_do_and_keeps_the_systems_reason() {
        let source = io::Error::from(io::ErrorKind::AddrInUse);
        let error = BrokerError::Listen { address: "127.0.0.1:4480".parse().unwrap(), source };
        assert!(error.to_string().starts_with("cannot listen on 127.0.0.1:4480: another process has the port"));
        assert_eq!(error.kind(), BrokerErrorKind::Address);
        assert!(one_line(&error).ends_with("address in use"));
    }
}
