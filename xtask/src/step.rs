//! Steps: named, timed, run in turn, and summed up at the end. The first failure ends the run.

#![allow(clippy::disallowed_methods, reason = "a tool that tells how long things took reads the clock")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::libclang;

/// One thing to check.
pub(crate) struct Step {
    /// Short, for the summary.
    pub(crate) name: &'static str,
    pub(crate) action: Action,
}

/// How a step is carried out.
pub(crate) enum Action {
    /// Cargo with these arguments and additional environment. Its output goes where ours goes.
    Cargo { arguments: Vec<&'static str>, environment: Vec<(&'static str, OsString)> },
    /// A check of our own; it prints what it found.
    Check(fn() -> Result<(), Failure>),
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot run `{command}`: {source}")]
    Spawn { command: String, source: std::io::Error },
    #[error("`{command}` ended with {status}")]
    Status { command: String, status: std::process::ExitStatus },
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cargo's metadata are not what they should be: {0}")]
    Metadata(#[from] serde_json::Error),
    #[error("{0}")]
    Found(String),
}

/// Runs the steps in turn and prints the summary.
pub(crate) fn run(steps: &[Step]) -> ExitCode {
    let mut done: Vec<(&str, Duration)> = Vec::new();
    let began = Instant::now();
    let mut failed = None;
    for (place, step) in steps.iter().enumerate() {
        eprintln!("\n==> [{}/{}] {}: {}", place + 1, steps.len(), step.name, step.action.describe());
        let start = Instant::now();
        let result = step.action.carry_out();
        done.push((step.name, start.elapsed()));
        if let Err(failure) = result {
            failed = Some(failure);
            break;
        }
    }
    eprintln!();
    for (place, (name, took)) in done.iter().enumerate() {
        let passed = failed.is_none() || place + 1 < done.len();
        eprintln!("{:<4} {name:<12} {:>7.1} s", if passed { "ok" } else { "FAIL" }, took.as_secs_f64());
    }
    eprintln!("     {:<12} {:>7.1} s", "total", began.elapsed().as_secs_f64());
    match failed {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            eprintln!("\n{failure}");
            if done.len() < steps.len() {
                let skipped: Vec<_> = steps[done.len()..].iter().map(|step| step.name).collect();
                eprintln!("not run: {}", skipped.join(", "));
            }
            ExitCode::FAILURE
        }
    }
}

impl Action {
    fn describe(&self) -> String {
        match self {
            Self::Cargo { arguments, environment } => {
                let assign = |(name, value): &(&str, OsString)| format!("{name}='{}'", value.display());
                let mut words: Vec<_> = environment.iter().map(assign).collect();
                words.push(format!("cargo {}", arguments.join(" ")));
                words.join(" ")
            }
            Self::Check(_) => "our own check".into(),
        }
    }

    fn carry_out(&self) -> Result<(), Failure> {
        match self {
            Self::Cargo { arguments, environment } => {
                let mut command = cargo();
                command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
                succeed(&mut command)
            }
            Self::Check(check) => check(),
        }
    }
}

/// The cargo that runs us, in the workspace's root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(workspace());
    if let Some(directory) = libclang::hint() {
        command.env(libclang::VARIABLE, directory);
    }
    command
}

/// The workspace's root.
pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace's root")
}

/// The file of this program. To be asked for once before anything is built: that may write the file anew, and then the system
/// only knows that it was deleted.
pub(crate) fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| std::env::current_exe().expect("a program knows where it lies"))
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    // This program lies in target/PROFILE/.
    program().ancestors().nth(2).expect("it lies in a profile's directory in the target directory").into()
}

/// Runs a command to its end.
pub(crate) fn succeed(command: &mut Command) -> Result<(), Failure> {
    let shown = format!("{command:?}");
    let status = command.status().map_err(|source| Failure::Spawn { command: shown.clone(), source })?;
    if status.success() { Ok(()) } else { Err(Failure::Status { command: shown, status }) }
}

/// Runs a command to its end and returns what it printed.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let shown = format!("{command:?}");
    let output = command.output().map_err(|source| Failure::Spawn { command: shown.clone(), source })?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(Failure::Status { command: shown, status: output.status })
    }
}

/// Runs a command to its end, its messages going where ours go, and returns what it printed.
pub(crate) fn output_shown(command: &mut Command) -> Result<Vec<u8>, Failure> {
    output(command.stderr(Stdio::inherit()))
}
