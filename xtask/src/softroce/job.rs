//! A command to run, wherever that may be, and running it on this machine.

#![allow(
    clippy::disallowed_methods,
    reason = "a runner with a time limit reads the clock, and passes its environment on"
)]

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::error::Error;
use crate::interrupt;

/// How often a wait looks at the clock and at interrupts.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long a command has to end by itself once it was asked to.
const GRACE: Duration = Duration::from_secs(5);

/// A command with everything around it that it is to find again.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Job {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    /// All of it: nothing is inherited besides.
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) directory: OsString,
}

impl Job {
    /// This program with these arguments, in our directory and with our environment.
    pub(crate) fn here(program: OsString, arguments: Vec<OsString>) -> Result<Self, Error> {
        let directory = std::env::current_dir().map_err(Error::file("cannot find the directory", "."))?.into();
        Ok(Self { program, arguments, environment: std::env::vars_os().collect(), directory })
    }

    /// The command that does it.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&self.directory);
        command.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts the command.
    pub(super) fn spawn(&self, command: &mut Command) -> Result<Child, Error> {
        let program = self.program.to_string_lossy().into_owned();
        command.spawn().map_err(|source| Error::Spawn { program, source })
    }

    /// Runs it on this machine, with our standard streams, and returns its status as a shell would.
    pub(super) fn run(&self, time_limit: Option<Duration>) -> Result<u8, Error> {
        let mut child = self.spawn(&mut self.command())?;
        let deadline = time_limit.map(|limit| Instant::now() + limit);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(shell_status(status));
            }
            if interrupt::came() {
                end(&mut child)?;
                return Err(Error::Interrupted);
            }
            if let Some(limit) = time_limit.filter(|_| deadline.is_some_and(|deadline| Instant::now() >= deadline)) {
                end(&mut child)?;
                return Err(Error::TimeLimit(limit));
            }
            std::thread::park_timeout(LOOK_AGAIN);
        }
    }
}

/// Asks a child to end, and makes it.
fn end(child: &mut Child) -> Result<(), Error> {
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a child has an id");
    // It may have ended meanwhile; then there is nobody to tell.
    let _ = kill_process(id, Signal::TERM);
    let deadline = Instant::now() + GRACE;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            break;
        }
        std::thread::park_timeout(LOOK_AGAIN);
    }
    Ok(())
}

/// A command's status as a shell gives it: 128 and the signal's number if one ended it.
pub(super) fn shell_status(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(program: &str, arguments: &[&str]) -> Job {
        Job::here(program.into(), arguments.iter().map(OsString::from).collect()).expect("there is a directory")
    }

    #[test]
    fn a_job_arrives_as_it_was_sent_whatever_its_words_are() {
        let mut sent = job("/bin/echo", &["two words", "a'quote\"", "$(not run)", "line\nbreak", ""]);
        sent.environment = vec![("KEYWAY_X".into(), " = ;\n".into())];
        let line = serde_json::to_string(&sent).expect("a job can be written");
        assert!(!line.contains('\n'), "a job is sent as one line: {line}");
        let came: Job = serde_json::from_str(&line).expect("a job can be read");
        assert_eq!((came.program, came.arguments, came.environment), (sent.program, sent.arguments, sent.environment));
        assert_eq!(came.directory, sent.directory);
    }

    #[test]
    fn the_status_of_a_job_is_that_of_its_command() {
        assert_eq!(job("sh", &["-c", "exit 7"]).run(None).expect("sh can be run"), 7);
        assert_eq!(job("sh", &["-c", "kill -9 $$"]).run(None).expect("sh can be run"), 128 + 9);
    }

    #[test]
    fn a_job_that_cannot_be_started_is_told_from_one_that_failed() {
        let error = job("/nonexistent/program", &[]).run(None).expect_err("there is no such program");
        assert!(matches!(error, Error::Spawn { .. }), "{error}");
    }

    #[test]
    fn a_job_past_its_time_limit_is_ended() {
        let limit = Duration::from_millis(1);
        let error = job("tail", &["-f", "/dev/null"]).run(Some(limit)).expect_err("it does not end by itself");
        assert!(matches!(error, Error::TimeLimit(told) if told == limit), "{error}");
    }
}
