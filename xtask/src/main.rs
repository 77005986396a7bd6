//! Set-up and test commands: `cargo xtask setup`, `cargo xtask test`.
//!
//! What the continuous integration runs and what a developer runs is the same command. It works from a fresh clone, needs
//! no device, no network beyond the crates of `Cargo.lock`, and no privileges.

#![forbid(unsafe_code)]

mod plan;
mod step;
mod toolchain;
mod unsafe_code;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
}

fn main() -> ExitCode {
    let steps = match Arguments::parse().command {
        Command::Setup => plan::setup(),
        Command::Test { quick: true } => plan::quick(),
        Command::Test { quick: false } => plan::full(),
    };
    step::run(&steps)
}
