//! `keyway bench`: how much goes through a broker.
//!
//! Broker, producers and consumers are processes of their own: this program, started again with the hidden command `bench-part`, so that it
//! works wherever it is installed. This process measures nothing; it starts them, passes on how far the consumers are, so that no
//! producer laps them, and adds up.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod arguments;
mod children;
mod part;
mod report;
mod wire;

use std::io;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use keyway_schema::batch::BATCH_HEADER_LEN;
use keyway_schema::limits::{RECORD_MAX_CEILING, RECORD_MAX_DEFAULT, SEGMENT_HEADER};
use keyway_schema::record;
use tempfile::TempDir;

pub(crate) use self::arguments::{Bench, Part};
use self::children::Children;
pub(crate) use self::part::part;
use self::report::Report;
use self::wire::{BrokerTask, ConsumerTask, Order, ProducerTask, Received, Task, Word};
use crate::failure::Failure;
use crate::figures;
use crate::interrupt::Interrupt;

/// How often a consumer tells how far it is, so that the bar moves.
const TICK: Duration = Duration::from_millis(100);

/// Segments of the broker's own ring: the library's default, unless the records need longer ones.
const SEGMENT: u64 = 4 << 20;

/// A segment takes so many of the largest batches at least, so that little of it is left empty at its end.
const BATCHES_A_SEGMENT: u64 = 16;

/// The part of the ring that consumers may be behind, and the part of that after which a consumer tells how far it is.
const BEHIND: u64 = 2;
const STRIDES: u64 = 16;

/// Of a broker that is not our own nothing is known: it is taken to have a ring of at least this size.
const FOREIGN_RING: u64 = 64 << 20;

/// Measures, and prints the report.
pub(crate) fn bench(arguments: &Bench, interrupt: &Interrupt) -> Result<(), Failure> {
    let plan = Plan::new(arguments)?;
    let bar = Bar::new(arguments.seconds);
    let mut children = Children::new(interrupt, &bar, arguments.verbose);
    let socket = plan.start_broker(arguments, &mut children)?;
    let server = match (&arguments.server, &socket) {
        (Some(server), _) => server.to_string(),
        (None, directory) => {
            let directory = directory.as_ref().expect("without another broker there is one of our own");
            format!("keyway+unix://{}", socket_in(directory).display())
        }
    };
    let run = Run { arguments, plan: &plan, server, topic: topic(), bar: &bar };
    let received = if arguments.prefill { run.pull(&mut children) } else { run.flow(&mut children) };
    bar.clear();
    let received = received?;
    children.end()?;
    let report = Report::new(arguments, &received);
    let printed = figures::print(&report, arguments.json, io::stdout());
    printed.map_err(|source| Failure::Write { source })?;
    let Report { lost, remote_access_errors, reconnects, .. } = report;
    if lost + remote_access_errors + reconnects > 0 {
        return Err(Failure::Incomplete(format!(
            "{lost} records were lost, {remote_access_errors} READs refused, {reconnects} sessions broken"
        )));
    }
    Ok(())
}

/// A topic that no other measurement uses.
fn topic() -> String {
    format!("bench/{}", std::process::id())
}

fn socket_in(directory: &TempDir) -> std::path::PathBuf {
    directory.path().join("broker.sock")
}

/// Sizes.
#[derive(Debug, PartialEq)]
struct Plan {
    record_max: u64,
    segment_size: u64,
    segments: u32,
    /// Records that fill the ring.
    fill: u64,
    /// Records that a consumer may be behind.
    window: u64,
}

impl Plan {
    fn new(arguments: &Bench) -> Result<Self, Failure> {
        let (size, ring) = (arguments.size as u64, arguments.ring as u64);
        let refuse = |what: String| Err(Failure::Impossible(what));
        if size > u64::from(RECORD_MAX_CEILING) {
            return refuse(format!(
                "records of {size} bytes were asked for, at most {RECORD_MAX_CEILING} are possible"
            ));
        }
        let record_max = size.max(RECORD_MAX_DEFAULT.into());
        // As it lies in the log if it is alone in its batch.
        let batch = (BATCH_HEADER_LEN + record::encoded_len(arguments.size)) as u64;
        let least = u64::from(SEGMENT_HEADER) + BATCHES_A_SEGMENT * batch;
        let segment_size = least.next_multiple_of(SEGMENT);
        let segments = ring / segment_size;
        if segments < 2 {
            return refuse(format!(
                "a ring of {ring} bytes was asked for; records of {size} bytes need at least {}",
                2 * segment_size
            ));
        }
        let segments = u32::try_from(segments).unwrap_or(u32::MAX);
        let fits = (segment_size - u64::from(SEGMENT_HEADER) - batch) / batch;
        let known = if arguments.server.is_some() { FOREIGN_RING.min(ring) } else { ring };
        Ok(Self {
            record_max,
            segment_size,
            segments,
            fill: fits * u64::from(segments),
            window: (known / BEHIND / batch).max(1),
        })
    }

    /// Starts a broker, unless there is one. Returns where its socket is.
    fn start_broker(&self, arguments: &Bench, children: &mut Children<'_>) -> Result<Option<TempDir>, Failure> {
        if arguments.server.is_some() {
            return Ok(None);
        }
        let directory =
            tempfile::tempdir().map_err(|source| Failure::Process { what: "make a temporary directory", source })?;
        let task = BrokerTask {
            socket: socket_in(&directory),
            fabric: arguments.fabric.to_string(),
            segment_size: self.segment_size,
            segments: self.segments,
            record_max: self.record_max,
        };
        children.start("the broker".into(), &Task::Broker(task))?;
        Ok(Some(directory))
    }
}

/// One measurement.
struct Run<'a> {
    arguments: &'a Bench,
    plan: &'a Plan,
    server: String,
    topic: String,
    bar: &'a Bar,
}

impl Run<'_> {
    fn start_producers(&self, children: &mut Children<'_>) -> Result<Vec<usize>, Failure> {
        let task = Task::Producer(ProducerTask {
            server: self.server.clone(),
            fabric: self.arguments.clients_fabric().to_string(),
            topic: self.topic.clone(),
            size: self.arguments.size,
            batch: self.arguments.batch,
        });
        (1..=self.arguments.producers).map(|number| children.start(format!("producer {number}"), &task)).collect()
    }

    fn start_consumers(&self, children: &mut Children<'_>) -> Result<Vec<usize>, Failure> {
        let arguments = self.arguments;
        let task = Task::Consumer(ConsumerTask {
            server: self.server.clone(),
            fabric: arguments.clients_fabric().to_string(),
            topic: self.topic.clone(),
            size: arguments.size,
            scope: arguments.scope,
            epoch: arguments.epoch.interval(),
            landing: arguments.landing.map(|bytes| bytes as u64),
            reads: arguments.reads,
            stride: (self.plan.window / STRIDES).max(1),
            tick: TICK,
        });
        (1..=arguments.consumers).map(|number| children.start(format!("consumer {number}"), &task)).collect()
    }

    /// Fills the ring, then has it READ over and over.
    fn pull(&self, children: &mut Children<'_>) -> Result<Vec<Received>, Failure> {
        let producers = self.start_producers(children)?;
        self.bar.say("filling the ring");
        let share = self.plan.fill.div_ceil(producers.len() as u64);
        for producer in &producers {
            children.order(*producer, &Order::Fill(share))?;
        }
        let end = self.published(children, producers.len())?;
        let consumers = self.start_consumers(children)?;
        for consumer in &consumers {
            children.order(*consumer, &Order::Pull { seconds: self.arguments.seconds.as_secs_f64(), end })?;
        }
        self.bar.start("pulling");
        self.received(children, consumers.len())
    }

    /// How much the producers have published, once they all have said it.
    fn published(&self, children: &mut Children<'_>, producers: usize) -> Result<u64, Failure> {
        let mut published = Vec::new();
        while published.len() < producers {
            match children.next()? {
                (_, Word::Published { records }) => published.push(records),
                (_, Word::At { .. }) => {}
                (from, word) => return Err(children.unexpected(from, &word)),
            }
        }
        Ok(published.iter().sum())
    }

    /// Publishes for as long as the measurement takes, no further ahead than consumers can follow.
    fn flow(&self, children: &mut Children<'_>) -> Result<Vec<Received>, Failure> {
        let consumers = self.start_consumers(children)?;
        let producers = self.start_producers(children)?;
        for consumer in &consumers {
            children.order(*consumer, &Order::Follow)?;
        }
        let allowance = Allowance { window: self.plan.window, shares: producers.len() as u64 };
        let allow = |children: &mut Children<'_>, records| {
            producers.iter().try_for_each(|producer| children.order(*producer, &Order::Publish(records)))
        };
        allow(children, allowance.each(0))?;
        self.bar.start("publishing and receiving");
        let mut at = vec![0; children.len()];
        let deadline = Instant::now() + self.arguments.seconds;
        while let Some((from, word)) = children.next_until(deadline)? {
            let Word::At { records, .. } = word else { return Err(children.unexpected(from, &word)) };
            let slowest = |at: &[u64]| consumers.iter().map(|consumer| at[*consumer]).min().unwrap_or(0);
            let before = slowest(&at);
            at[from] = records;
            if slowest(&at) > before {
                allow(children, allowance.each(slowest(&at)))?;
            }
        }
        for consumer in &consumers {
            children.order(*consumer, &Order::Stop)?;
        }
        let received = self.received(children, consumers.len())?;
        for producer in &producers {
            children.order(*producer, &Order::Stop)?;
        }
        // What is on its way is committed, or this fails.
        self.published(children, producers.len())?;
        Ok(received)
    }

    /// What the consumers have come to, once they all have said it.
    fn received(&self, children: &mut Children<'_>, consumers: usize) -> Result<Vec<Received>, Failure> {
        let mut received = Vec::new();
        while received.len() < consumers {
            match children.next()? {
                (_, Word::At { .. }) => {}
                (_, Word::Received(one)) => received.push(one),
                (from, word) => return Err(children.unexpected(from, &word)),
            }
        }
        Ok(received)
    }
}

/// How much each producer may have published.
struct Allowance {
    window: u64,
    shares: u64,
}

impl Allowance {
    /// With this many records received by the slowest consumer, and never less than one: a window of fewer records than
    /// producers is stretched.
    const fn each(&self, received: u64) -> u64 {
        let each = (received + self.window) / self.shares;
        if each == 0 { 1 } else { each }
    }
}

/// The bar on a terminal's standard error, which shows the time.
struct Bar {
    bar: ProgressBar,
    seconds: Duration,
}

impl Bar {
    fn new(seconds: Duration) -> Self {
        // Draws to standard error, and not at all if that is no terminal.
        let bar = ProgressBar::no_length();
        bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("the template is well formed"));
        let bar = Self { bar, seconds };
        bar.say("starting the processes");
        bar
    }

    fn say(&self, what: &'static str) {
        self.bar.set_message(what);
        self.bar.tick();
    }

    /// The measurement begins.
    fn start(&self, what: &'static str) {
        self.say(what);
        self.bar.set_length(self.seconds.as_millis() as u64);
        let style = ProgressStyle::with_template("{bar:40} {msg}, {elapsed}");
        self.bar.set_style(style.expect("the template is well formed"));
        self.bar.reset_elapsed();
    }

    /// Some time has passed.
    fn at(&self) {
        if !self.bar.is_hidden() && self.bar.length().is_some() {
            self.bar.set_position(self.bar.elapsed().as_millis() as u64);
        }
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn arguments(line: &str) -> Bench {
        match Arguments::try_parse_from(line.split(' ')).unwrap().command {
            Command::Bench(arguments) => *arguments,
            _ => unreachable!("the line says bench"),
        }
    }

    #[test]
    fn the_ring_holds_what_fills_it_and_the_window_is_half_of_it() {
        for size in ["0", "64", "1KiB", "64KiB", "1MiB", "5MiB"] {
            let arguments = arguments(&format!("keyway bench --size {size}"));
            let plan = Plan::new(&arguments).unwrap();
            let batch = (BATCH_HEADER_LEN + record::encoded_len(arguments.size)) as u64;
            let room = plan.segment_size - u64::from(SEGMENT_HEADER);
            assert!(plan.fill * batch <= u64::from(plan.segments) * room, "{size}: {plan:?}");
            assert!(plan.fill * batch >= arguments.ring as u64 / 2, "{size}: {plan:?}");
            assert!(plan.window * batch <= arguments.ring as u64 / 2, "{size}: {plan:?}");
            assert!(u64::from(plan.segments) * plan.segment_size <= arguments.ring as u64, "{size}: {plan:?}");
        }
    }

    #[test]
    fn producers_and_consumers_are_on_the_fabric_of_their_own_broker_and_follow_another() {
        let fabric = |line| arguments(line).clients_fabric().to_string();
        assert_eq!(fabric("keyway bench --fabric verbs:rxe1"), "verbs:rxe1");
        assert_eq!(fabric("keyway bench"), "soft");
        assert_eq!(fabric("keyway bench --server keyway://192.0.2.7:4480"), "auto");
    }

    #[test]
    fn a_ring_too_small_for_its_records_is_refused_with_the_size_that_it_needs() {
        let refused = Plan::new(&arguments("keyway bench --size 1MiB --ring 16MiB")).unwrap_err().to_string();
        assert!(refused.contains("need at least 41943040"), "{refused}");
    }

    #[test]
    fn no_producer_is_kept_from_its_first_record_and_all_together_stay_within_the_window() {
        let allowance = Allowance { window: 100, shares: 3 };
        assert_eq!((allowance.each(0), allowance.each(50)), (33, 50));
        assert_eq!(Allowance { window: 1, shares: 3 }.each(0), 1);
    }
}
