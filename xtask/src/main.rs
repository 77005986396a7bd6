//! Set-up and test commands: `cargo xtask setup`, `cargo xtask test`, `cargo xtask softroce`.
//!
//! What the continuous integration runs and what a developer runs is the same command, from a fresh clone on.

#![forbid(unsafe_code)]

mod device_tests;
mod interrupt;
mod libclang;
mod packages;
mod plan;
mod softroce;
mod step;
mod toolchain;
mod tools;
mod unsafe_code;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use self::softroce::{Job, Options, Place};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Set-up and test commands of Keyway", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Looks for what building and testing need, and installs what is missing: Rust components with rustup, Debian's packages
    /// with apt-get, as root or with sudo
    Setup,
    /// Runs every check in turn and stops at the first that fails
    Test {
        /// Only what takes seconds once things are built: format, unsafe code, lints, unit tests
        #[arg(long)]
        quick: bool,
    },
    /// Runs a command where there is an RDMA device: this machine's, else Soft-RoCE here, else Soft-RoCE in a guest machine
    ///
    /// Without a command it builds the device tests and runs them.
    ///
    /// The status is the command's; 124 if it took longer than the time limit, 125 if the runner failed, 127 if the
    /// command could not be started, 130 after an interrupt.
    Softroce(Softroce),
    /// What a guest machine runs
    #[command(hide = true)]
    SoftroceGuest,
    /// What runs the device tests where the device is
    #[command(hide = true)]
    DeviceTests { plan: PathBuf },
}

#[derive(Args)]
struct Softroce {
    /// Nothing but this, instead of the first of these that there is
    #[arg(long, value_name = "PLACE")]
    on: Option<Place>,
    /// How long the command may take, such as 90s or 20m; the device tests have 20m if not said
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    time_limit: Option<Duration>,
    /// A guest machine's memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = softroce::MEMORY_MIB, value_parser = clap::value_parser!(u32).range(256..))]
    memory: u32,
    /// The command and its arguments
    #[arg(last = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    step::program();
    let steps = match Arguments::parse().command {
        Command::Setup => plan::setup(),
        Command::Test { quick: true } => plan::quick(),
        Command::Test { quick: false } => plan::full(),
        Command::Softroce(arguments) => return status(softroce(arguments)),
        Command::SoftroceGuest => return status(softroce::serve().map(|()| 0)),
        Command::DeviceTests { plan } => return device_tests_here(&plan),
    };
    step::run(&steps)
}

fn softroce(arguments: Softroce) -> Result<u8, device_tests::Error> {
    let Softroce { on, time_limit, memory, command } = arguments;
    let options = Options { on, time_limit, memory_mib: memory, ..Options::default() };
    let mut words = command.into_iter();
    match words.next() {
        None => device_tests::run(options),
        Some(program) => Ok(softroce::run(&Job::here(program, words.collect())?, options)?),
    }
}

/// The status that the runner ends with when it could not do what it was asked to.
const FAILED: u8 = 125;

fn status<E: Into<device_tests::Error>>(result: Result<u8, E>) -> ExitCode {
    let error = match result {
        Ok(status) => return status.into(),
        Err(error) => error.into(),
    };
    eprintln!("softroce: {error}");
    match error {
        device_tests::Error::Run(error) => error.status().into(),
        _ => FAILED.into(),
    }
}

fn device_tests_here(plan: &Path) -> ExitCode {
    match device_tests::run_all(plan) {
        Ok(status) => status.into(),
        Err(why) => {
            eprintln!("device tests: {why}");
            FAILED.into()
        }
    }
}
