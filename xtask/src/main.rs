//! Set-up and test commands: `cargo xtask setup`, `cargo xtask test`, `cargo xtask softroce`.
//!
//! What the continuous integration runs and what a developer runs is the same command, from a fresh clone on.

#![forbid(unsafe_code)]

mod interrupt;
mod plan;
mod softroce;
mod step;
mod toolchain;
mod tools;
mod unsafe_code;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use self::softroce::{Job, Options, Place};
use self::step::{target, workspace};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Set-up and test commands of Keyway", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Looks for what building and testing need, and adds missing Rust components where rustup can
    Setup,
    /// Runs every check in turn and stops at the first that fails
    Test {
        /// Only what takes seconds once things are built: format, unsafe code, lints, unit tests
        #[arg(long)]
        quick: bool,
    },
    /// Runs a command where there is an RDMA device: this machine's, else Soft-RoCE here, else Soft-RoCE in a guest machine
    ///
    /// The status is the command's; 124 if it took longer than the time limit, 125 if the runner failed, 127 if the
    /// command could not be started, 130 after an interrupt.
    Softroce(Softroce),
    /// What a guest machine runs
    #[command(hide = true)]
    SoftroceGuest,
}

#[derive(Args)]
struct Softroce {
    /// Nothing but this, instead of the first of these that there is
    #[arg(long, value_name = "PLACE")]
    on: Option<Place>,
    /// How long the command may take, such as 90s or 20m
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    time_limit: Option<Duration>,
    /// A guest machine's memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(256..))]
    memory: u32,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let steps = match Arguments::parse().command {
        Command::Setup => plan::setup(),
        Command::Test { quick: true } => plan::quick(),
        Command::Test { quick: false } => plan::full(),
        Command::Softroce(arguments) => return status(softroce(arguments)),
        Command::SoftroceGuest => return status(softroce::serve().map(|()| 0)),
    };
    step::run(&steps)
}

fn softroce(arguments: Softroce) -> Result<u8, softroce::Error> {
    let mut words = arguments.command.into_iter();
    let program = words.next().expect("clap asks for a command");
    let job = Job::here(program, words.collect())?;
    let options = Options {
        on: arguments.on,
        time_limit: arguments.time_limit,
        memory_mib: arguments.memory,
        writable: vec![workspace().into(), target()],
    };
    softroce::run(&job, options)
}

fn status(result: Result<u8, softroce::Error>) -> ExitCode {
    match result {
        Ok(status) => status.into(),
        Err(error) => {
            eprintln!("softroce: {error}");
            error.status().into()
        }
    }
}
