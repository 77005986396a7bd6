//! What can go wrong between asking for a device and the command's end, and what to do about it.

use std::path::PathBuf;
use std::time::Duration;

/// Why the runner could not run the command, or not to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("this machine's own device was asked for, but {0}")]
    NoDevice(String),
    #[error("the kernel's rdma_rxe was asked for, but {0}")]
    NoModule(String),
    #[error("there is nothing to boot a guest with: {missing} is missing; `cargo xtask setup` installs it")]
    Missing { missing: String },
    #[error("a guest can be booted for programs of x86-64 only, and this is {0}: use a machine with an RDMA device")]
    Architecture(&'static str),
    #[error(
        "no kernel for the guest: {command} said \"{said}\"; the guest's kernel comes from Debian's archive \
         (package {package}), so check the network and the package lists (apt-get update)"
    )]
    Archive { package: String, command: String, said: String },
    #[error("the kernel package {package} is not as expected: {what}; report it, or use a machine with a device")]
    Package { package: String, what: String },
    #[error("module {module} of the guest's kernel needs {needed}, which is not there")]
    Module { module: String, needed: String },
    #[error("{doing} {}: {source}", path.display())]
    File { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("`{command}` failed: {said}")]
    Command { command: String, said: String },
    #[error("there is no place for the cache: set KEYWAY_CACHE to a directory, or HOME")]
    NoCache,
    #[error("{0:?} cannot be shared with the guest: its path has a line break or is not UTF-8")]
    Path(PathBuf),
    #[error("the guest was not ready within {limit:?}; its console ends with:\n{console}")]
    Boot { limit: Duration, console: String },
    #[error("the guest ended before its command did; the last that qemu and its console said:\n{console}")]
    Died { console: String },
    #[error("inside the guest: {0}")]
    Inside(String),
    #[error("talking to the guest: {0}")]
    Channel(#[from] std::io::Error),
    #[error("the guest was told nothing that can be read as a job: {0}")]
    Job(#[from] serde_json::Error),
    #[error("cannot run {program:?}: {source}")]
    Spawn { program: String, source: std::io::Error },
    #[error("the command had not ended after {0:?}, the time limit (--time-limit)")]
    TimeLimit(Duration),
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// An error about a file, for `map_err`.
    pub(crate) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { doing, path, source }
    }

    /// The status that the runner ends with, where shells and `timeout` have a word for it.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::TimeLimit(_) => 124,
            Self::Spawn { .. } => 127,
            Self::Interrupted => 130,
            _ => 125,
        }
    }
}
