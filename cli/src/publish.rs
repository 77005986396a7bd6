//! `keyway pub`.

#![allow(clippy::disallowed_methods, reason = "a tool that tells how long things took reads the clock")]

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use keyway::wait_for;
use keyway::{Overflow, Producer, Record, TopicSettings};
use serde::Serialize;

use crate::arguments::Publish;
use crate::failure::Failure;
use crate::figures::{self, Throughput};
use crate::input::Input;
use crate::interrupt::Interrupt;
use crate::pace::Pace;
use crate::progress::{Goal, Progress};
use crate::source::{LINE_END, Piece, Source, SourceError};

/// How often a wait for room looks for a signal.
const LOOK: Duration = Duration::from_millis(50);
/// The size of a file's records unless it is told: with its framing such a record fits one control message.
const CHUNK_DEFAULT: usize = 32 * 1024;

/// Publishes everything, waits until it is committed, and prints the summary.
pub(crate) fn publish(arguments: &Publish, interrupt: &Interrupt) -> Result<(), Failure> {
    // Before connecting: a file that cannot be read should not leave a topic behind.
    let (mut source, goal) = open(arguments, interrupt)?;
    let producer = connect(arguments)?;
    let start = Instant::now();
    let mut publication = Publication {
        records: 0,
        bytes: 0,
        pace: arguments.rate.map(Pace::new),
        timeout: arguments.connection.timeout,
        interrupt,
    };
    let progress = Progress::new(goal, arguments.rate.is_some());
    let sent = publication.send_all(&producer, &mut source, key(arguments), &progress);
    // Whatever ended it, what was taken so far is committed or reported. A broker that was waited for is not waited for again.
    let patience = if let Err(Failure::Stuck { .. }) = sent { Duration::ZERO } else { arguments.connection.timeout };
    let committed = producer.flush(patience);
    progress.clear();
    let took = start.elapsed();
    let stats = producer.stats();
    let closed = producer.close(if committed.is_ok() { patience } else { Duration::ZERO });
    // Of a failure that nothing came before, one line is enough.
    if committed.is_ok() && (sent.is_ok() || publication.records > 0) {
        let summary = Summary {
            throughput: Throughput::new(publication.records, publication.bytes, took),
            batches: stats.batches,
            reconnects: stats.reconnects,
            fabric: stats.fabric.to_string(),
        };
        print(&summary, arguments.json)?;
    }
    sent?;
    committed?;
    closed?;
    if interrupt.is_raised() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// Where the records come from, and how many there will be, if that can be told.
fn open(arguments: &Publish, interrupt: &Interrupt) -> Result<(Source, Goal), Failure> {
    if let Some(count) = arguments.count {
        return Ok((Source::generated(count, arguments.size), Goal::Records(count)));
    }
    let Some(path) = &arguments.file else {
        let input = Input::standard(interrupt)?;
        let source = match arguments.chunk {
            Some(size) => Source::chunks(input, size),
            None => Source::lines(input),
        };
        return Ok((source, Goal::Unknown));
    };
    let input = Input::file(path, interrupt)?;
    let goal = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Goal::Bytes(metadata.len()),
        _ => Goal::Unknown,
    };
    let source = if arguments.lines {
        Source::lines(input)
    } else {
        Source::chunks(input, arguments.chunk.unwrap_or(CHUNK_DEFAULT))
    };
    Ok((source, goal))
}

fn connect(arguments: &Publish) -> Result<Producer, Failure> {
    let connection = &arguments.connection;
    let mut builder = Producer::builder(&connection.server, arguments.topic.as_str())
        .fabric(connection.fabric.clone())
        .connect_timeout(connection.timeout);
    if let Some(name) = &connection.name {
        builder = builder.name(name);
    }
    if arguments.segments.is_some() || arguments.record_max.is_some() {
        // Zero stands for the broker's default.
        builder = builder.settings(TopicSettings {
            segments: arguments.segments.unwrap_or(0),
            record_max: arguments.record_max.unwrap_or(0),
            overflow: Overflow::DropOldest,
        });
    }
    Ok(builder.connect()?)
}

fn key(arguments: &Publish) -> &[u8] {
    arguments.key.as_deref().map_or(&[], OsStr::as_bytes)
}

/// How far a publication is.
struct Publication<'a> {
    records: u64,
    bytes: u64,
    pace: Option<Pace>,
    timeout: Duration,
    interrupt: &'a Interrupt,
}

impl Publication<'_> {
    /// Hands every record of the source to the producer, until a signal comes.
    fn send_all(
        &mut self,
        producer: &Producer,
        source: &mut Source,
        key: &[u8],
        progress: &Progress,
    ) -> Result<(), Failure> {
        loop {
            if let Some(pace) = &self.pace {
                pace.wait(self.records, self.interrupt);
            }
            if self.interrupt.is_raised() {
                return Ok(());
            }
            let Some(piece) = source.next().map_err(refused)? else { return Ok(()) };
            if !self.send(producer, piece, key)? {
                return Ok(());
            }
            self.records += 1;
            self.bytes += piece.payload.len() as u64;
            progress.at(self.records, self.bytes);
        }
    }

    /// Hands over one record, once there is room. `false` if a signal came before.
    fn send(&self, producer: &Producer, piece: Piece<'_>, key: &[u8]) -> Result<bool, Failure> {
        let mut waited = Duration::ZERO;
        loop {
            // Dropping the future that ran into its limit takes nothing; the record is made again, which copies nothing.
            match wait_for(producer.enqueue_async(record(piece, key)), Some(LOOK)) {
                // What becomes of the record is told by `flush`, for all of them at once.
                Some(Ok(_pending)) => return Ok(true),
                Some(Err(error)) => return Err(Failure::Publish { number: self.records, source: error.into() }),
                None if self.interrupt.is_raised() => return Ok(false),
                None => waited += LOOK,
            }
            if waited >= self.timeout {
                return Err(Failure::Stuck { number: self.records, timeout: self.timeout });
            }
        }
    }
}

fn record<'a>(piece: Piece<'a>, key: &'a [u8]) -> Record<'a> {
    let record = Record::new(piece.payload).key(key);
    if piece.line_end.is_empty() { record } else { record.header(LINE_END, piece.line_end) }
}

fn refused(error: SourceError) -> Failure {
    match error {
        SourceError::Read(source) => Failure::Read { source },
        SourceError::LineTooLong(max) => Failure::LineTooLong { max },
    }
}

fn print(summary: &Summary, json: bool) -> Result<(), Failure> {
    let printed =
        if json { figures::print(summary, true, io::stdout()) } else { figures::print(summary, false, io::stderr()) };
    printed.map_err(|source| Failure::Write { source })
}

#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    throughput: Throughput,
    batches: u64,
    reconnects: u64,
    fabric: String,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "published {}", self.throughput)
    }
}
