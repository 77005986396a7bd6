//! The command line of `keyway bench`, and of the processes that it starts.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use keyway::{FabricChoice, Server};

use crate::arguments::{ScopeArgument, positive_size, size};

/// `keyway bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Broker, producers and consumers are a process each. The broker ends with the measurement; with --server there is none, and \
nothing else should be going on at the one that is named.

Without --prefill, producers publish for as long as --seconds says, never further ahead of the slowest consumer than half of the \
ring, and the rate is that of what has been received, from the first record to the last. With --prefill the ring is filled first; \
then no producer runs, and consumers READ it over and over.

Rates are those of payloads, summed over the consumers. The status is 1 if a record was lost, a READ was refused or a session broke. \
With --json, one line on standard output: records, bytes, seconds, records_per_second, megabytes_per_second, lost, rekeys, \
remote_access_errors, reconnects, epochs, reads, rereads, read_bytes (of the mean READ), passes (through the ring), and the \
conditions: mode, fabric, transport, scope, epoch_us (null: never), size, batch, ring, producers, consumers, processes, cpus, \
version.")]
pub(crate) struct Bench {
    /// What broker, producers and consumers run on: soft, verbs, verbs:DEVICE or auto
    #[arg(long, default_value = "soft", conflicts_with = "server")]
    pub(crate) fabric: FabricChoice,
    /// The size of a record's payload
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1KiB")]
    pub(crate) size: usize,
    /// How long to measure
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "5")]
    pub(crate) seconds: Duration,
    /// Fill the ring first, then measure the consumers alone
    #[arg(long)]
    pub(crate) prefill: bool,
    /// What one key opens
    #[arg(long, value_enum, default_value = "segment")]
    pub(crate) scope: ScopeArgument,
    /// How long a key is current at most, or never: one key for each grant
    #[arg(long, value_name = "DURATION|never", default_value = "100ms")]
    pub(crate) epoch: Epoch,
    /// How many producers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64), default_value = "1")]
    pub(crate) producers: u16,
    /// How many consumers; each gets every record
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64), default_value = "1")]
    pub(crate) consumers: u16,
    /// The length up to which producers fill a batch; 0 sends every record in a batch of its own
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) batch: Option<usize>,
    /// The size of the topic's ring
    #[arg(long, value_name = "SIZE", value_parser = positive_size, default_value = "256MiB")]
    pub(crate) ring: usize,
    /// How much memory the records of one consumer land in [default: the library's]
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) landing: Option<usize>,
    /// How many READs of one consumer are in flight at most [default: the library's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) reads: Option<u16>,
    /// Measure this broker instead of one of its own: keyway://HOST:PORT or keyway+unix:///PATH
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) server: Option<Server>,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Log to standard error; -vv and -vvv say more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

impl Bench {
    /// What producers and consumers use: the device of a broker of this program's own may not be the first, and their way to it, a
    /// Unix socket, leads to none. Of another broker nothing is known; they follow it.
    pub(crate) fn clients_fabric(&self) -> FabricChoice {
        if self.server.is_some() { FabricChoice::Auto } else { self.fabric.clone() }
    }
}

/// A process that `keyway bench` has started. What it is to do comes in a line on its standard input.
#[derive(Debug, Args)]
pub(crate) struct Part {
    /// Log to standard error
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// How long a key is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Epoch {
    Every(Duration),
    Never,
}

/// So long that no measurement sees its end, and the longest is half of it.
const NEVER: Duration = Duration::from_secs(3_600);

impl Epoch {
    /// The interval that does it.
    pub(crate) const fn interval(self) -> Duration {
        match self {
            Self::Every(interval) => interval,
            Self::Never => NEVER,
        }
    }

    /// In microseconds, if keys are replaced at all.
    pub(crate) fn micros(self) -> Option<u64> {
        match self {
            Self::Every(interval) => Some(u64::try_from(interval.as_micros()).unwrap_or(u64::MAX)),
            Self::Never => None,
        }
    }
}

impl FromStr for Epoch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self::Never);
        }
        let interval = humantime::parse_duration(text).map_err(|error| format!("{error}; or give never"))?;
        Ok(Self::Every(interval))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(interval) => write!(f, "every {}", humantime::format_duration(*interval)),
            Self::Never => f.write_str("never"),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let max = NEVER.as_secs_f64() / 2.0;
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= max => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("give a number of seconds, more than 0 and at most {max}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_a_duration_or_never() {
        assert_eq!("5ms".parse(), Ok(Epoch::Every(Duration::from_millis(5))));
        assert_eq!("never".parse(), Ok(Epoch::Never));
        assert!("sometimes".parse::<Epoch>().is_err_and(|said| said.contains("never")));
        assert_eq!((Epoch::Every(Duration::from_millis(5)).micros(), Epoch::Never.micros()), (Some(5_000), None));
    }

    #[test]
    fn a_measurement_takes_some_time_and_less_than_a_key_that_is_never_replaced() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "NaN", "1e9", "soon"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
