//! What re-keying costs, and how many records a second go from one process to another: `cargo bench --bench rekey`.
//!
//! Broker, producer and consumer are processes of their own, over a Unix socket. Every run publishes a number of records that the
//! topic's ring holds, so that nothing is lost and every run does the same work; its rate is that of the consumer, from
//! its first record to its last.
//!
//! 1. *Re-keying.* Segment scope, once with keys replaced every millisecond and once with none replaced, in pairs, the order
//!    within a pair alternating. What is reported is the ratio of each pair: machines drift, neighbours in time less so.
//! 2. *Rates.* Each scope at 64 B, 1 KiB and 64 KiB, keys replaced every millisecond.
//!
//! It has no thresholds: it measures.

#![forbid(unsafe_code)]

#[path = "rekey/child.rs"]
mod child;
#[path = "rekey/role.rs"]
mod role;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde::Serialize;

use crate::child::{BrokerProcess, Run};
use crate::role::{Role, ScopeName};

/// The interval that is measured.
const EPOCH: Duration = Duration::from_millis(1);
/// So long that no run sees its end.
const NO_EPOCH: Duration = Duration::from_secs(3_600);
/// How many records a pair's runs publish, and how large they are.
const PAIR: (u64, usize) = (800_000, 1024);

/// Measures what re-keying costs, and records a second between processes
#[derive(Parser)]
struct Arguments {
    /// How many pairs of runs compare re-keying with none: single pairs differ by a tenth on a machine of two cores, so the median
    /// needs many
    #[arg(long, default_value_t = 45)]
    pairs: usize,
    /// Print one line of JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Given by cargo, of no meaning here
    #[arg(long, hide = true)]
    bench: bool,
    /// What a child process of the benchmark is
    #[command(subcommand)]
    role: Option<Role>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.role {
        Some(role) => role.play(),
        None => measure(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rekey: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Everything that was measured.
#[derive(Serialize)]
struct Figures {
    pairs: Vec<Pair>,
    median_ratio: f64,
    rates: Vec<Rate>,
}

/// One run with re-keying and one without.
#[derive(Serialize)]
struct Pair {
    rekeyed_records_per_second: f64,
    rekeys: u64,
    plain_records_per_second: f64,
    /// Re-keyed over plain: 1 is free.
    ratio: f64,
}

/// What one scope does at one size.
#[derive(Serialize)]
struct Rate {
    scope: ScopeName,
    size: usize,
    records: u64,
    records_per_second: f64,
    megabytes_per_second: f64,
    rekeys: u64,
}

fn measure(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let broker = BrokerProcess::start()?;
    let say = |line: String| {
        if !arguments.json {
            println!("{line}");
        }
    };
    let pairs = pairs(&broker, arguments.pairs, &say)?;
    let rates = rates(&broker, &say)?;
    let mut ratios: Vec<_> = pairs.iter().map(|pair| pair.ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let percent = |quarter: usize| ratios.get(ratios.len() * quarter / 4).map_or(f64::NAN, |ratio| 100.0 * ratio);
    let median_ratio = percent(2) / 100.0;
    say(format!(
        "\nre-keying every {EPOCH:?} leaves {:.1} % of the rate without (median of pairs; half of them lie between {:.1} and {:.1})",
        percent(2),
        percent(1),
        percent(3)
    ));
    if arguments.json {
        println!("{}", serde_json::to_string(&Figures { pairs, median_ratio, rates })?);
    }
    broker.stop()
}

fn pairs(broker: &BrokerProcess, count: usize, say: &dyn Fn(String)) -> Result<Vec<Pair>, Box<dyn Error>> {
    let (records, size) = PAIR;
    say(format!("segment scope, {records} records of {size} B, records/s:\n"));
    say(format!("{:>6}{:>14}{:>10}{:>14}{:>8}", "pair", "every 1 ms", "re-keys", "never", "ratio"));
    let run = |epoch| Run { scope: ScopeName::Segment, size, records, epoch }.carry_out(broker);
    // The first run of all warms the pool's pages up.
    run(EPOCH)?;
    (0..count)
        .map(|number| {
            let (rekeyed, plain) = if number % 2 == 0 {
                let rekeyed = run(EPOCH)?;
                (rekeyed, run(NO_EPOCH)?)
            } else {
                let plain = run(NO_EPOCH)?;
                (run(EPOCH)?, plain)
            };
            let pair = Pair {
                rekeyed_records_per_second: rekeyed.records_per_second(),
                rekeys: rekeyed.rekeys,
                plain_records_per_second: plain.records_per_second(),
                ratio: rekeyed.records_per_second() / plain.records_per_second(),
            };
            say(format!(
                "{:>6}{:>14.0}{:>10}{:>14.0}{:>8.3}",
                number + 1,
                pair.rekeyed_records_per_second,
                pair.rekeys,
                pair.plain_records_per_second,
                pair.ratio
            ));
            Ok(pair)
        })
        .collect()
}

/// How many records each run publishes: about a second's worth, and never more than the ring holds.
const fn records(scope: ScopeName, size: usize) -> u64 {
    match (scope, size) {
        (ScopeName::Message, 65_536) => 10_000,
        (ScopeName::Message, _) => 300_000,
        (_, 64) => 8_000_000,
        (_, 1024) => 800_000,
        _ => 14_000,
    }
}

fn rates(broker: &BrokerProcess, say: &dyn Fn(String)) -> Result<Vec<Rate>, Box<dyn Error>> {
    say(format!("\nbetween two processes, keys replaced every {EPOCH:?}:\n"));
    say(format!("{:>9}{:>8}{:>12}{:>14}{:>10}{:>10}", "scope", "size", "records", "records/s", "MB/s", "re-keys"));
    let mut rates = Vec::new();
    for scope in [ScopeName::Segment, ScopeName::Batch, ScopeName::Message] {
        for size in [64, 1024, 65_536] {
            let records = records(scope, size);
            let result = Run { scope, size, records, epoch: EPOCH }.carry_out(broker)?;
            let rate = Rate {
                scope,
                size,
                records,
                records_per_second: result.records_per_second(),
                megabytes_per_second: result.records_per_second() * size as f64 / 1e6,
                rekeys: result.rekeys,
            };
            say(format!(
                "{:>9}{:>8}{:>12}{:>14.0}{:>10.1}{:>10}",
                scope.to_string(),
                size,
                records,
                rate.records_per_second,
                rate.megabytes_per_second,
                rate.rekeys
            ));
            rates.push(rate);
        }
    }
    Ok(rates)
}
