//! What `keyway bench` and the processes that it starts say to each other: a line of JSON each.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::arguments::ScopeArgument;

/// What a process is to do: the first line on its standard input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Task {
    Broker(BrokerTask),
    Producer(ProducerTask),
    Consumer(ConsumerTask),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BrokerTask {
    pub(super) socket: PathBuf,
    pub(super) fabric: String,
    pub(super) segment_size: u64,
    /// Of the one topic.
    pub(super) segments: u32,
    pub(super) record_max: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ProducerTask {
    pub(super) server: String,
    pub(super) fabric: String,
    pub(super) topic: String,
    pub(super) size: usize,
    /// The length up to which batches are filled, if it is told.
    pub(super) batch: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ConsumerTask {
    pub(super) server: String,
    pub(super) fabric: String,
    pub(super) topic: String,
    /// Of every record's payload.
    pub(super) size: usize,
    pub(super) scope: ScopeArgument,
    pub(super) epoch: Duration,
    pub(super) landing: Option<u64>,
    pub(super) reads: Option<u16>,
    /// How many records it may be behind before producers have to hear of it.
    pub(super) stride: u64,
    /// It tells how far it is at least so often.
    pub(super) tick: Duration,
}

/// What a process is told later: one line each. The end of the lines is the end of the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Order {
    /// A producer: publish so many records, and end.
    Fill(u64),
    /// A producer: have so many records published in all, no more.
    Publish(u64),
    /// A consumer: receive what is published.
    Follow,
    /// A consumer: READ what there is, over and over, for so long.
    Pull { seconds: f64, end: u64 },
    /// That was all: say what it has come to.
    Stop,
}

/// What a process says on its standard output: one line each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Word {
    /// It can be worked with.
    Ready,
    /// So much was received.
    At { records: u64, bytes: u64 },
    /// A producer: so many records are committed.
    Published { records: u64 },
    /// A consumer is through.
    Received(Received),
    /// It cannot go on.
    Failed(String),
}

/// What a consumer has come to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Received {
    pub(super) records: u64,
    /// Payloads only.
    pub(super) bytes: u64,
    /// From the first record to the last.
    pub(super) seconds: f64,
    /// Records that the ring dropped, or that never came.
    pub(super) lost: u64,
    /// Times that it began at the ring's start.
    pub(super) passes: u64,
    pub(super) epochs: u64,
    pub(super) rekeys: u64,
    pub(super) reads: u64,
    pub(super) rereads: u64,
    /// Bytes as encoded, which READs have brought.
    pub(super) encoded: u64,
    pub(super) reconnects: u64,
    pub(super) remote_access_errors: u64,
}

/// Writes a line.
pub(super) fn tell(mut to: impl Write, line: &impl Serialize) -> io::Result<()> {
    // In one go: a pipe takes every piece of a line in a system call of its own.
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    to.write_all(&text)?;
    to.flush()
}
