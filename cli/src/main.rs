//! The `keyway` command: publish and subscribe from a shell, and probe devices.
//!
//! Records go to standard output and nothing else does, but for a probe's report and the figures that `--json` asks for; whatever
//! else is said to a person goes to standard error, errors in one line each. The exit status is 0 if everything that was asked for was done, 1 if not, 2 for a
//! command line that makes no sense, and 130 if a signal ended it before it was done.

#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod failure;
mod figures;
mod input;
mod interrupt;
mod output;
mod pace;
mod probe;
mod progress;
mod publish;
mod source;
mod subscribe;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::filter::LevelFilter;

use crate::arguments::{Arguments, Command};
use crate::failure::Failure;
use crate::interrupt::{INTERRUPTED, Interrupt};

/// The status for a command line that makes no sense.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    match run(&arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(failure) => {
            say(&failure.to_string());
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<(), Failure> {
    log(match command {
        Command::Pub(arguments) => arguments.connection.verbose,
        Command::Sub(arguments) => arguments.connection.verbose,
        Command::Probe(arguments) => arguments.verbose,
        Command::Bench(arguments) => arguments.verbose,
        Command::BenchPart(arguments) => arguments.verbose,
    });
    let interrupt = Interrupt::catch()?;
    match command {
        Command::Pub(arguments) => publish::publish(arguments, &interrupt),
        Command::Sub(arguments) => subscribe::subscribe(arguments, &interrupt),
        Command::Probe(arguments) => probe::run(arguments, &interrupt),
        Command::Bench(arguments) => bench::bench(arguments, &interrupt),
        Command::BenchPart(_) => bench::part(),
    }
}

/// Says one line to a person. If standard error is gone there is nobody to say it to.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "keyway: {line}");
}

/// Help and version go to standard output; an error becomes one line, like all others.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return match error.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    say(&one_line(&error.to_string()));
    ExitCode::from(USAGE)
}

/// The first paragraph of what clap says, on one line, and where to find the rest.
fn one_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let words: Vec<_> = text.lines().take_while(|line| !line.is_empty()).flat_map(str::split_whitespace).collect();
    format!("{} (keyway --help says more)", words.join(" "))
}

fn log(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::OFF,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_that_makes_no_sense_is_refused_in_one_line() {
        for line in ["keyway", "keyway sub", "keyway sub t --fast", "keyway pub t --server here", "keyway pub a*b"] {
            let error = Arguments::try_parse_from(line.split(' ')).unwrap_err();
            let said = one_line(&error.to_string());
            assert!(!said.contains('\n') && said.len() > 40, "{line}: {said}");
        }
    }
}
