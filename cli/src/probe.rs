//! `keyway probe`.

mod json;
mod text;

use std::io::{self, Write};
use std::ops::ControlFlow;

use bytesize::ByteSize;
use clap::Args;
use keyway::probe::{self, ProbeError, ProbeOptions, Report, Step};
use keyway::{FabricChoice, FabricOptions};

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::Steps;
use crate::say;

/// What a probe may take if the system does not say how much memory is available.
const MEMORY_UNKNOWN: u64 = 256 << 20;

/// `keyway probe`.
#[derive(Debug, Args)]
#[command(after_help = "\
Two endpoints are connected within this process, and everything is tried on them: what opens lent memory and what does not, how \
keys follow one another, what happens to READs in flight, what a key and a READ cost. Nothing is left behind. The report goes to \
standard output; with --json it is one object, whose fields docs/probe.md lists. The exit status is 1 if the device cannot be \
opened, or if keys do not protect memory on it.")]
pub(crate) struct Probe {
    /// The RDMA device, such as mlx5_0: short for --fabric verbs:DEVICE
    #[arg(long, value_name = "DEVICE", value_parser = device, conflicts_with = "fabric")]
    device: Option<FabricChoice>,
    /// The fabric: soft, verbs, verbs:DEVICE, or auto for a device if there is one and the software fabric if not
    #[arg(long, value_name = "FABRIC", default_value = "auto")]
    fabric: FabricChoice,
    /// The largest memory that a key's costs are measured for; three quarters of what is available if it is not given
    #[arg(long, value_name = "SIZE", value_parser = crate::arguments::positive_size)]
    memory: Option<usize>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Log to standard error; -vv and -vvv say more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// Probes the device and prints the report.
pub(crate) fn run(arguments: &Probe, interrupt: &Interrupt) -> Result<(), Failure> {
    let choice = arguments.device.as_ref().unwrap_or(&arguments.fabric).clone();
    let opened = probe::open(&FabricOptions::new(choice))?;
    if let Some(reason) = &opened.fallback {
        say(&format!("the software fabric is probed, since there is no device: {reason}"));
    }
    let steps = Steps::new();
    let report = probe::run(&*opened.target, &options(arguments.memory), &mut |step: Step| {
        steps.at(step.number, step.of, step.what);
        if interrupt.is_raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    steps.clear();
    let report = report.map_err(|error| match error {
        ProbeError::Stopped { .. } => Failure::Interrupted,
        error => Failure::Probe(error),
    })?;
    print(&report, opened.fallback.as_deref(), arguments.json).map_err(|source| Failure::Write { source })?;
    Ok(report.usable()?)
}

fn options(memory: Option<usize>) -> ProbeOptions {
    let options = ProbeOptions::within(probe::memory_available().unwrap_or(MEMORY_UNKNOWN));
    match memory {
        Some(memory) => ProbeOptions { memory_max: memory as u64, ..options },
        None => options,
    }
}

fn print(report: &Report, fallback: Option<&str>, json: bool) -> io::Result<()> {
    let mut to = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut to, &json::object(report, fallback))?;
        writeln!(to)
    } else {
        write!(to, "{}", text::Text(report))
    }
}

/// The fabric on a device of that name.
fn device(name: &str) -> Result<FabricChoice, String> {
    format!("verbs:{name}").parse().map_err(|_| "give the name of a device, such as mlx5_0".to_owned())
}

/// A size that is a whole number of its unit, as the sizes of a probe are.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift)) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => ByteSize(bytes).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_verbs_fabric() {
        assert_eq!(device("rxe0"), Ok(FabricChoice::Verbs { device: Some("rxe0".into()) }));
        assert!(device("").is_err());
    }

    #[test]
    fn a_size_is_told_in_its_largest_whole_unit() {
        let sizes = [(64, "64 B"), (64 << 10, "64 KiB"), (1 << 20, "1 MiB"), (3 << 29, "1536 MiB"), (1 << 30, "1 GiB")];
        for (bytes, text) in sizes {
            assert_eq!(size(bytes), text);
        }
    }
}
