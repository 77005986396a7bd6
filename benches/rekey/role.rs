//! The parts that the benchmark's child processes play.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::error::Error;
use std::fmt;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Subcommand, ValueEnum};
use keyway::{Broker, Consumer, Producer, Scope};
use serde::{Deserialize, Serialize};

const TOPIC: &str = "bench";
/// What a child says once it may be worked with.
pub(crate) const READY: &str = "ready";
/// A run that takes longer has gone wrong.
const DEADLINE: Duration = Duration::from_secs(60);
/// The pool. One topic has nearly all of it, so a run's records all fit.
const POOL: u64 = 1 << 30;
const SEGMENTS: u32 = 250;

/// What a child process is.
#[derive(Subcommand)]
#[command(hide = true)]
pub(crate) enum Role {
    Broker { socket: PathBuf },
    Producer { server: String, size: usize, records: u64 },
    Consumer { server: String, scope: ScopeName, epoch_us: u64, records: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ScopeName {
    Segment,
    Batch,
    Message,
}

impl fmt::Display for ScopeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Segment => "segment",
            Self::Batch => "batch",
            Self::Message => "message",
        })
    }
}

/// What a consumer reports.
#[derive(Serialize, Deserialize)]
pub(crate) struct Received {
    records: u64,
    /// From the first record to the last.
    seconds: f64,
    pub(crate) rekeys: u64,
}

impl Received {
    pub(crate) fn records_per_second(&self) -> f64 {
        self.records as f64 / self.seconds
    }
}

impl Role {
    pub(crate) fn play(&self) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Broker { socket } => broker(socket),
            Self::Producer { server, size, records } => produce(server, *size, *records),
            Self::Consumer { server, scope, epoch_us, records } => {
                consume(server, *scope, Duration::from_micros(*epoch_us), *records)
            }
        }
    }
}

fn broker(socket: &PathBuf) -> Result<(), Box<dyn Error>> {
    let broker = Broker::builder().unix(socket).pool_size(POOL).topic_segments(SEGMENTS).start()?;
    ready()?;
    // The parent holds the other end: it ends when the parent says so, or dies.
    io::stdin().read_to_end(&mut Vec::new())?;
    broker.stop(DEADLINE)?;
    Ok(())
}

fn produce(server: &str, size: usize, records: u64) -> Result<(), Box<dyn Error>> {
    let producer = Producer::builder(server, TOPIC).connect()?;
    let payload = vec![b'k'; size];
    for _ in 0..records {
        // What became of it is told by `close`, for all of them at once.
        drop(producer.enqueue(&payload)?);
    }
    producer.close(DEADLINE)?;
    Ok(())
}

fn consume(server: &str, scope: ScopeName, epoch: Duration, records: u64) -> Result<(), Box<dyn Error>> {
    let scope = match scope {
        ScopeName::Segment => Scope::Segment,
        ScopeName::Batch => Scope::Batch,
        ScopeName::Message => Scope::Message,
    };
    let mut consumer = Consumer::builder(server, TOPIC).scope(scope).epoch(epoch).connect()?;
    ready()?;
    let mut first = None;
    for _ in 0..records {
        // A gap is an error here, and ends the run: the ring holds everything.
        consumer.recv_timeout(DEADLINE)?.ok_or("no record came within the deadline")?;
        first.get_or_insert_with(Instant::now);
    }
    let seconds = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
    let stats = consumer.stats();
    if stats.remote_access_errors > 0 {
        return Err(format!("{} remote access errors", stats.remote_access_errors).into());
    }
    println!("{}", serde_json::to_string(&Received { records, seconds, rekeys: stats.rekeys })?);
    consumer.close(DEADLINE)?;
    Ok(())
}

fn ready() -> io::Result<()> {
    println!("{READY}");
    io::stdout().flush()
}
