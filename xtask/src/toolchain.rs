//! What everything needs of the machine: a Rust toolchain with rustfmt and clippy, and a C compiler to link with.

use std::process::Command;

use crate::step::{Failure, cargo, output, succeed};

/// Looks for everything that is needed, and adds Rust components that are missing if rustup is there to add them.
pub(crate) fn require() -> Result<(), Failure> {
    report("cargo", &mut cargo_with(&["--version"]))?;
    component("rustfmt", &["fmt", "--version"])?;
    component("clippy", &["clippy", "--version"])?;
    report("cc", Command::new("cc").arg("--version")).map_err(|_| {
        Failure::Found("there is no C compiler to link with: on Debian, apt-get install build-essential".into())
    })
}

/// A component of the toolchain that is a cargo subcommand.
fn component(name: &str, version: &[&str]) -> Result<(), Failure> {
    if report(name, &mut cargo_with(version)).is_ok() {
        return Ok(());
    }
    eprintln!("{name} is missing, asking rustup for it");
    succeed(Command::new("rustup").args(["component", "add", name]))?;
    report(name, &mut cargo_with(version))
}

fn cargo_with(arguments: &[&str]) -> Command {
    let mut command = cargo();
    command.args(arguments);
    command
}

/// Prints the first line of what a tool says of itself.
fn report(name: &str, command: &mut Command) -> Result<(), Failure> {
    let said = output(command)?;
    let said = String::from_utf8_lossy(&said);
    eprintln!("{name:<8} {}", said.lines().next().unwrap_or("(says nothing of itself)"));
    Ok(())
}
