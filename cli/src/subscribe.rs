//! `keyway sub`.

#![allow(clippy::disallowed_methods, reason = "a tool that tells how long things took reads the clock")]

use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use keyway::{Consumer, ConsumerStats, Error, ErrorKind, Event, Events, Received as Record};
use serde::Serialize;

use crate::arguments::Subscribe;
use crate::failure::Failure;
use crate::figures::{self, Throughput};
use crate::interrupt::Interrupt;
use crate::output::{Form, Output};
use crate::say;

/// How often a wait for records looks for a signal.
const LOOK: Duration = Duration::from_millis(50);

/// Receives until told to stop, and prints the summary.
pub(crate) fn subscribe(arguments: &Subscribe, interrupt: &Interrupt) -> Result<(), Failure> {
    let mut consumer = connect(arguments)?;
    let form = match (arguments.quiet, arguments.raw) {
        (true, _) => Form::Nothing,
        (false, true) => Form::Raw,
        (false, false) => Form::Lines,
    };
    let mut reception = Reception {
        arguments,
        interrupt,
        output: Output::new(io::stdout().lock(), form),
        received: Received::default(),
        connection: Connection::new(consumer.events()),
    };
    let ended = reception.receive_all(&mut consumer).and_then(|end| match reception.output.flush() {
        Ok(()) => Ok(end),
        Err(error) => output_failed(error),
    });
    let received = reception.received;
    let stats = consumer.stats();
    let closed = consumer.close(arguments.connection.timeout);
    if let Ok(End::OutputClosed) = ended {
        return Ok(());
    }
    print(&Summary::new(&received, &stats, arguments.stats), arguments)?;
    let end = ended?;
    closed?;
    complete(arguments, &received, end)
}

fn connect(arguments: &Subscribe) -> Result<Consumer, Failure> {
    let connection = &arguments.connection;
    let mut builder = Consumer::builder(&connection.server, arguments.topic.as_str())
        .start(arguments.from)
        .scope(arguments.scope.into())
        .fabric(connection.fabric.clone())
        .connect_timeout(connection.timeout);
    if let Some(name) = &connection.name {
        builder = builder.name(name);
    }
    if let Some(epoch) = arguments.epoch {
        builder = builder.epoch(epoch);
    }
    if let Some(grace) = arguments.grace {
        builder = builder.grace(grace);
    }
    if let Some(depth) = arguments.depth {
        builder = builder.depth(depth);
    }
    if let Some(landing) = arguments.landing {
        builder = builder.landing(landing as u64);
    }
    Ok(builder.connect()?)
}

/// Why receiving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// As many as were asked for are there.
    Count,
    Idle,
    Interrupted,
    /// Nobody reads standard output any more.
    OutputClosed,
}

/// What has come so far.
#[derive(Clone, Copy, Debug, Default)]
struct Received {
    records: u64,
    bytes: u64,
    lost: u64,
    restarts: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Received {
    /// From the first record to the last.
    fn took(&self) -> Duration {
        self.first.zip(self.last).map_or(Duration::ZERO, |(first, last)| last - first)
    }
}

struct Reception<'a, W: Write> {
    arguments: &'a Subscribe,
    interrupt: &'a Interrupt,
    output: Output<W>,
    received: Received,
    connection: Connection,
}

/// What is known of the session with the broker.
struct Connection {
    events: Events,
    /// Since when there is none, and why.
    lost: Option<(Instant, String)>,
}

impl Connection {
    const fn new(events: Events) -> Self {
        Self { events, lost: None }
    }

    /// Tells what has happened, and gives up when there was no session for too long. The consumer itself never would.
    fn look(&mut self, arguments: &Subscribe) -> Result<(), Failure> {
        while let Some(event) = self.events.try_recv() {
            match event {
                Event::SessionLost { reason, .. } => {
                    say(&format!("the session was lost, reconnecting: {reason}"));
                    self.lost.get_or_insert((Instant::now(), reason));
                }
                Event::Reconnected { sequence, .. } => {
                    say(&format!("reconnected, going on at record {sequence}"));
                    self.lost = None;
                }
                Event::ShuttingDown { .. } => say("the broker is shutting down"),
                _ => {}
            }
        }
        let timeout = arguments.connection.timeout;
        match &self.lost {
            Some((since, reason)) if since.elapsed() >= timeout => {
                Err(Failure::Gone { server: arguments.connection.server.clone(), timeout, reason: reason.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Nothing has come for so long. That there is no more to come is known only within a session.
    fn idle(&self) -> Result<End, Failure> {
        match &self.lost {
            None => Ok(End::Idle),
            Some((_, reason)) => Err(Failure::Incomplete(format!("there is no session with the broker: {reason}"))),
        }
    }
}

impl<W: Write> Reception<'_, W> {
    fn receive_all(&mut self, consumer: &mut Consumer) -> Result<End, Failure> {
        // What the clock said when there was last nothing left to take.
        let mut quiet_since = Instant::now();
        let mut counted = 0;
        loop {
            if self.arguments.count.is_some_and(|count| self.received.records >= count) {
                self.received.last = Some(Instant::now());
                return Ok(End::Count);
            }
            if self.interrupt.is_raised() {
                return Ok(End::Interrupted);
            }
            let mut item = consumer.try_recv();
            if let Ok(None) = item {
                if let Err(error) = self.output.flush() {
                    return output_failed(error);
                }
                if self.received.records > counted {
                    counted = self.received.records;
                    quiet_since = Instant::now();
                    self.received.last = Some(quiet_since);
                }
                self.connection.look(self.arguments)?;
                let wait = match self.arguments.until_idle {
                    None => LOOK,
                    Some(limit) => match limit.saturating_sub(quiet_since.elapsed()) {
                        Duration::ZERO => return self.connection.idle(),
                        left => left.min(LOOK),
                    },
                };
                item = consumer.recv_timeout(wait);
            }
            match item {
                Ok(None) => {}
                Ok(Some(record)) => {
                    if let Err(error) = self.take(&record) {
                        return output_failed(error);
                    }
                }
                Err(error) => self.told(error)?,
            }
        }
    }

    fn take(&mut self, record: &Record) -> io::Result<()> {
        if self.received.first.is_none() {
            self.received.first = Some(Instant::now());
        }
        self.received.records += 1;
        self.received.bytes += record.payload().len() as u64;
        self.output.write(record.payload(), record.headers())
    }

    /// Reports what is no record: a gap or a new log is told and counted, everything else ends the reception.
    fn told(&mut self, error: Error) -> Result<(), Failure> {
        match (error.kind(), &error) {
            (ErrorKind::Lagged, Error::Lagged { from, to }) => self.received.lost += to - from,
            (ErrorKind::Restarted, _) => self.received.restarts += 1,
            _ => return Err(error.into()),
        }
        say(&error.to_string());
        Ok(())
    }
}

/// Nobody reading any more is how `head` ends its input, and no failure.
fn output_failed(error: io::Error) -> Result<End, Failure> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(End::OutputClosed),
        _ => Err(Failure::Write { source: error }),
    }
}

/// Whether everything that was asked for has come.
fn complete(arguments: &Subscribe, received: &Received, end: End) -> Result<(), Failure> {
    let missing = arguments.count.map_or(0, |count| count.saturating_sub(received.records));
    if end == End::Interrupted && missing > 0 {
        return Err(Failure::Interrupted);
    }
    if missing > 0 {
        let count = received.records;
        return Err(Failure::Incomplete(format!("{count} records came before it was idle, {missing} are missing")));
    }
    if arguments.allow_lag {
        return Ok(());
    }
    match received {
        Received { lost: 0, restarts: 0, .. } => Ok(()),
        Received { restarts: 0, lost, .. } => Err(Failure::Incomplete(format!(
            "{lost} records were overwritten before they were read (--allow-lag accepts that)"
        ))),
        Received { .. } => {
            let what = "the broker was restarted, and its records gone with it (--allow-lag accepts that)";
            Err(Failure::Incomplete(what.into()))
        }
    }
}

fn print(summary: &Summary, arguments: &Subscribe) -> Result<(), Failure> {
    // Figures never mix with records.
    let printed = if arguments.json && arguments.quiet {
        figures::print(summary, true, io::stdout())
    } else {
        figures::print(summary, arguments.json, io::stderr())
    };
    printed.map_err(|source| Failure::Write { source })
}

#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    throughput: Throughput,
    lost: u64,
    restarts: u64,
    epochs: u64,
    rekeys: u64,
    reads: u64,
    rereads: u64,
    reconnects: u64,
    remote_access_errors: u64,
    fabric: String,
    /// Whether the text form says all of it.
    #[serde(skip)]
    detailed: bool,
}

impl Summary {
    fn new(received: &Received, stats: &ConsumerStats, detailed: bool) -> Self {
        Self {
            throughput: Throughput::new(received.records, received.bytes, received.took()),
            lost: received.lost,
            restarts: received.restarts,
            epochs: stats.epochs,
            rekeys: stats.rekeys,
            reads: stats.reads,
            rereads: stats.rereads,
            reconnects: stats.reconnects,
            remote_access_errors: stats.remote_access_errors,
            fabric: stats.fabric.to_string(),
            detailed,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "received {}, {} lost", self.throughput, self.lost)?;
        if self.detailed {
            let Self { epochs, rekeys, reads, rereads, reconnects, remote_access_errors, fabric, .. } = self;
            write!(
                f,
                "\n{epochs} epochs, {rekeys} re-keys, {reads} READs ({rereads} repeated), {reconnects} reconnects, \
                 {remote_access_errors} remote access errors, over {fabric}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn arguments(line: &str) -> Subscribe {
        match Arguments::try_parse_from(line.split(' ')).unwrap().command {
            Command::Sub(arguments) => arguments,
            _ => unreachable!("the line says sub"),
        }
    }

    #[test]
    fn what_is_missing_lost_or_cut_off_is_incomplete() {
        let ten = Received { records: 10, ..Received::default() };
        let lagged = Received { lost: 1, ..ten };
        let restarted = Received { restarts: 1, ..ten };
        assert!(complete(&arguments("keyway sub t"), &ten, End::Interrupted).is_ok());
        assert!(complete(&arguments("keyway sub t --count 10"), &ten, End::Count).is_ok());
        assert!(matches!(
            complete(&arguments("keyway sub t --count 11"), &ten, End::Idle),
            Err(Failure::Incomplete(_))
        ));
        assert!(matches!(
            complete(&arguments("keyway sub t --count 11"), &ten, End::Interrupted),
            Err(Failure::Interrupted)
        ));
        for short in [lagged, restarted] {
            assert!(matches!(complete(&arguments("keyway sub t"), &short, End::Idle), Err(Failure::Incomplete(_))));
            assert!(complete(&arguments("keyway sub t --allow-lag"), &short, End::Idle).is_ok());
        }
    }
}
