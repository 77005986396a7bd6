//! The command line.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use keyway::{FabricChoice, Scope, Server, Start, TopicName};
use serde::{Deserialize, Serialize};

use crate::bench::{Bench, Part};
use crate::probe::Probe;

/// Publish to and subscribe from a Keyway broker.
#[derive(Debug, Parser)]
#[command(name = "keyway", version, disable_help_subcommand = true, arg_required_else_help = false)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Publish records: lines of standard input, a file, or generated ones
    Pub(Publish),
    /// Receive records and write them to standard output
    Sub(Subscribe),
    /// Measure what a device can do and does, and say what Keyway makes of it
    Probe(Probe),
    /// Measure how much goes through a broker
    Bench(Box<Bench>),
    #[command(hide = true)]
    BenchPart(Part),
}

/// Where the broker is and how long to wait for it.
#[derive(Debug, Args)]
pub(crate) struct Connection {
    /// Broker: keyway://HOST:PORT or keyway+unix:///PATH
    #[arg(long, value_name = "ADDRESS", env = "KEYWAY_SERVER", default_value = "keyway://127.0.0.1:4480")]
    pub(crate) server: Server,
    /// The name under which the broker logs this client
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// How long to wait for the broker: to connect, to reconnect, to commit what was published
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
    /// The fabric to reach the broker through: auto, whichever it speaks; soft, which needs no device; verbs, for the RDMA device that leads
    /// to it; or verbs:DEVICE
    #[arg(long, value_name = "FABRIC", env = "KEYWAY_FABRIC", default_value_t = FabricChoice::Auto)]
    pub(crate) fabric: FabricChoice,
    /// Log to standard error; -vv and -vvv say more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// `keyway pub`.
#[derive(Debug, Args)]
#[command(after_help = "\
A line becomes one record, without its newline; `keyway sub --raw` writes the newline back. The summary goes to standard \
error. With --json it is one line on standard output: records, bytes (of payloads), seconds, records_per_second, \
megabytes_per_second, batches, reconnects, fabric.")]
pub(crate) struct Publish {
    /// The topic: 1 to 249 letters, digits and ._-/ ; created if it does not exist
    pub(crate) topic: TopicName,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Publish this file instead of standard input, in chunks of 32KiB unless --chunk or --lines says otherwise
    #[arg(long, value_name = "FILE", conflicts_with = "count")]
    pub(crate) file: Option<PathBuf>,
    /// One record a line: what standard input is taken for anyway
    #[arg(long, conflicts_with_all = ["chunk", "count"])]
    pub(crate) lines: bool,
    /// Binary input, in records of this many bytes
    #[arg(long, value_name = "SIZE", value_parser = positive_size, conflicts_with = "count")]
    pub(crate) chunk: Option<usize>,
    /// Generate this many records
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// The size of generated records
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64", requires = "count")]
    pub(crate) size: usize,
    /// Publish at most this many records a second
    #[arg(long, value_name = "N", value_parser = positive_rate)]
    pub(crate) rate: Option<f64>,
    /// Give every record this key
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<OsString>,
    /// If the topic is created: how many segments its ring has at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) segments: Option<u32>,
    /// If the topic is created: the largest record that it takes
    #[arg(long, value_name = "SIZE", value_parser = size_u32)]
    pub(crate) record_max: Option<u32>,
    /// Print the summary as JSON, on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// `keyway sub`.
#[derive(Debug, Args)]
#[command(after_help = "\
Records that were overwritten before they could be read are reported on standard error, and make the exit status 1 unless \
--allow-lag is given. The summary goes to standard error. With --json it is one line: on standard output with --quiet, else on \
standard error. Its fields: records, bytes (of payloads), seconds (from the first record to the last), records_per_second, \
megabytes_per_second, lost, restarts, epochs, rekeys, reads, rereads, reconnects, remote_access_errors, fabric.")]
pub(crate) struct Subscribe {
    /// The topic; created with the broker's defaults if it does not exist
    pub(crate) topic: TopicName,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Where to start: earliest, latest, a sequence, or a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "START", default_value = "latest", value_parser = parse_start)]
    pub(crate) from: Start,
    /// End after this many records
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// End when no record has come for this long
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) until_idle: Option<Duration>,
    /// Write the very bytes that were published, instead of a line for each record
    #[arg(long)]
    pub(crate) raw: bool,
    /// Count the records, write none
    #[arg(short, long, conflicts_with = "raw")]
    pub(crate) quiet: bool,
    /// What one key opens
    #[arg(long, value_enum, default_value = "segment")]
    pub(crate) scope: ScopeArgument,
    /// How long a key is current at most
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) epoch: Option<Duration>,
    /// How long a replaced key lives at most
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) grace: Option<Duration>,
    /// How many grants may be held at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) depth: Option<u16>,
    /// How much memory records land in
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub(crate) landing: Option<usize>,
    /// Exit with 0 even if records were overwritten before they could be read
    #[arg(long)]
    pub(crate) allow_lag: bool,
    /// Add what the keys and READs cost to the summary
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print the summary as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// [`Scope`] by its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum ScopeArgument {
    /// A whole ring segment, re-keyed every epoch
    Segment,
    /// All that is committed and not yet granted
    Batch,
    /// One record
    Message,
}

impl fmt::Display for ScopeArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Segment => "segment",
            Self::Batch => "batch",
            Self::Message => "message",
        })
    }
}

impl From<ScopeArgument> for Scope {
    fn from(argument: ScopeArgument) -> Self {
        match argument {
            ScopeArgument::Segment => Self::Segment,
            ScopeArgument::Batch => Self::Batch,
            ScopeArgument::Message => Self::Message,
        }
    }
}

fn parse_start(text: &str) -> Result<Start, String> {
    match text {
        "latest" => return Ok(Start::Latest),
        "earliest" => return Ok(Start::Earliest),
        _ => {}
    }
    if let Ok(sequence) = text.parse() {
        return Ok(Start::Sequence(sequence));
    }
    let since_1970 =
        humantime::parse_rfc3339_weak(text).ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    since_1970
        .and_then(|time| u64::try_from(time.as_nanos()).ok())
        .map(Start::Time)
        .ok_or_else(|| "give earliest, latest, a sequence, or a time such as 2026-01-31T12:00:00Z".to_owned())
}

pub(crate) fn size(text: &str) -> Result<usize, String> {
    let ByteSize(bytes) =
        text.parse().map_err(|_| "give a number of bytes, or one with a unit such as 64KiB or 1MB".to_owned())?;
    usize::try_from(bytes).map_err(|_| "more bytes than this machine can address".to_owned())
}

pub(crate) fn positive_size(text: &str) -> Result<usize, String> {
    match size(text)? {
        0 => Err("must be at least one byte".into()),
        size => Ok(size),
    }
}

fn size_u32(text: &str) -> Result<u32, String> {
    u32::try_from(positive_size(text)?).map_err(|_| "must be less than 4GiB".to_owned())
}

fn positive_rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && f64::is_finite(rate) => Ok(rate),
        _ => Err("give a number of records a second, more than 0".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_makes_sense() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_start_is_a_word_a_sequence_or_a_time() {
        assert_eq!(parse_start("earliest"), Ok(Start::Earliest));
        assert_eq!(parse_start("latest"), Ok(Start::Latest));
        assert_eq!(parse_start("42"), Ok(Start::Sequence(42)));
        assert_eq!(parse_start("1970-01-01T00:00:01Z"), Ok(Start::Time(1_000_000_000)));
        for text in ["", "first", "-1", "1969-12-31T23:59:59Z"] {
            assert!(parse_start(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_has_a_unit_or_none() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("17B", 17), ("64KiB", 65_536), ("2 MiB", 2 << 20), ("5MB", 5_000_000)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "KiB", "-1", "1 parsec"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert!(positive_size("0").is_err());
        assert!(size_u32("4GiB").is_err());
    }

    #[test]
    fn generating_and_reading_a_file_exclude_each_other() {
        for line in ["keyway pub t --file f --count 3", "keyway pub t --lines --chunk 3", "keyway pub t --size 3"] {
            assert!(Arguments::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
