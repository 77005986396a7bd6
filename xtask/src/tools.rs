//! Programs of this machine: where they are, running them quietly, and running them as root.

#![allow(clippy::disallowed_methods, reason = "a tool asks the environment where programs are")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where a user's `PATH` does not lead on Debian, though what is there can be run by anybody.
const ALSO: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The program's path, if this machine has it.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(ALSO.iter().map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// A command for the program wherever it was found, with messages in English, so that they can be read back.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(find(program).unwrap_or_else(|| program.into()));
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// How this process may do what only root may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// It is root.
    Root,
    /// `sudo` does so without a password.
    Sudo,
}

impl Rights {
    /// What this process may.
    pub(crate) fn find() -> Option<Self> {
        if rustix::process::geteuid().is_root() {
            return Some(Self::Root);
        }
        find("sudo")?;
        run(command("sudo").args(["-n", "true"])).is_ok().then_some(Self::Sudo)
    }

    /// A command that runs as root.
    pub(crate) fn command(self, program: &str) -> Command {
        match self {
            Self::Root => command(program),
            Self::Sudo => {
                let mut sudo = command("sudo");
                sudo.args(["-n", "--"]).arg(find(program).unwrap_or_else(|| program.into()));
                sudo
            }
        }
    }
}

/// A program that did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[error("`{command}` failed: {said}")]
pub(crate) struct Failed {
    /// The command line.
    pub(crate) command: String,
    /// What it said, or how it ended if it said nothing.
    pub(crate) said: String,
}

/// Runs a command to its end and returns what it printed.
pub(crate) fn run(command: &mut Command) -> Result<Vec<u8>, Failed> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let shown = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let output = command.output().map_err(|error| Failed { command: shown.clone(), said: error.to_string() })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = match said.trim().lines().last() {
        Some(line) => line.to_owned(),
        None => format!("it ended with {}", output.status),
    };
    Err(Failed { command: shown, said })
}
