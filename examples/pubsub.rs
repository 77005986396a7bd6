//! The demo: a broker, two producers and three consumers, one for each scope; a million records; at the end a table of what each
//! consumer got and what its keys went through, and one stale key, tried on purpose.
//!
//! Many cheap records go to the consumers of the wide scopes; the narrow one, with a key of its own for each record, has a
//! smaller topic. Everything runs in this process, over the same fabric that processes of their own would use:
//!
//!     cargo run --release --example pubsub
//!     cargo run --release --example pubsub --features verbs -- --fabric verbs --records 100000

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a demonstration that tells rates reads the clock")]

#[path = "pubsub/stale_key.rs"]
mod stale_key;

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Parser;
use keyway::{Broker, Consumer, ConsumerStats, FabricChoice, Producer, Scope, Server, Start};
use keyway_fabric::WorkError;

use crate::stale_key::Attempt;

/// A broker, two producers and three consumers.
#[derive(Parser)]
struct Options {
    /// The fabric of all of them: soft, verbs, verbs:DEVICE, or auto
    #[arg(long, value_name = "FABRIC", env = "KEYWAY_FABRIC", default_value_t)]
    fabric: FabricChoice,
    /// How many records are published. The topics' rings hold so many at most, so that every consumer may take its time
    #[arg(long, value_name = "N", default_value_t = RECORDS_MAX, value_parser = clap::value_parser!(u64).range(10..=RECORDS_MAX))]
    records: u64,
}

/// What a producer publishes.
#[derive(Clone, Copy)]
struct Feed {
    topic: &'static str,
    records: u64,
}

const RECORDS_MAX: u64 = 1_000_000;
const PRICES: &str = "demo/prices";
const ORDERS: &str = "demo/orders";
/// Keys are replaced a thousand times a second.
const EPOCH: Duration = Duration::from_millis(1);
/// Nothing here should take nearly as long.
const DEADLINE: Duration = Duration::from_secs(60);

/// Whatever goes wrong ends the demo.
type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    match demo(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pubsub: {error}");
            ExitCode::FAILURE
        }
    }
}

fn demo(options: &Options) -> Result<(), Failure> {
    let orders = Feed { topic: ORDERS, records: options.records / 10 };
    let prices = Feed { topic: PRICES, records: options.records - orders.records };
    let readers = [(prices, Scope::Segment), (prices, Scope::Batch), (orders, Scope::Message)];
    let fabric = || options.fabric.clone();
    let broker = Broker::builder().fabric(fabric()).pool_size(256 << 20).segment_size(4 << 20).start()?;
    let server = Server::from(broker.connector());

    // Each runs on a thread of its own, as it would in a process of its own.
    let consumers = readers.map(|(feed, scope)| {
        let builder = Consumer::builder(&server, feed.topic).fabric(fabric());
        let builder = builder.start(Start::Earliest).scope(scope).epoch(EPOCH);
        spawn(format!("{scope:?}"), move || receive(builder.connect()?, feed.records))
    });
    let producers = [prices, orders].map(|feed| {
        let builder = Producer::builder(&server, feed.topic).fabric(fabric()).name(feed.topic);
        spawn(feed.topic.into(), move || publish(builder.connect()?, feed.records))
    });
    for producer in producers {
        join(producer?)?;
    }
    println!("{} records in {PRICES}, {} in {ORDERS}", prices.records, orders.records);
    println!("keys are replaced every {EPOCH:?}\n");
    println!(
        "{:<9}{:>11}{:>12}{:>9}{:>10}{:>12}{:>15}{:>7}",
        "scope", "delivered", "records/s", "epochs", "re-keys", "reconnects", "access errors", "lost"
    );
    let mut complete = true;
    let mut over = None;
    for (consumer, (feed, scope)) in consumers.into_iter().zip(readers) {
        let report = join(consumer?)?;
        over.get_or_insert_with(|| report.stats.fabric.clone());
        complete &= report.delivered == feed.records && report.lost == 0 && report.stats.remote_access_errors == 0;
        report.print(scope);
    }
    let counters = broker.counters()?;
    let fabric = over.unwrap_or_default();
    println!(
        "\nbroker: {} keys granted, {} taken by force, over {fabric}",
        counters.grants, counters.revocations_forced
    );
    if !complete {
        return Err("a consumer did not get every record, in order and once".into());
    }

    let Attempt { key, bytes_read, age, result } = stale_key::attempt(&server, options.fabric.clone(), PRICES)?;
    println!("\na stale key: {key} opened {bytes_read} bytes; tried once more, {age} epochs later:");
    match result {
        Err(refused @ WorkError::RemoteAccess) => println!("  {refused}"),
        other => return Err(format!("a stale key was not refused: {other:?}").into()),
    }
    broker.stop(DEADLINE)?;
    Ok(())
}

fn spawn<T: Send + 'static>(
    name: String,
    run: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> io::Result<JoinHandle<Result<T, Failure>>> {
    thread::Builder::new().name(name).spawn(run)
}

fn join<T>(thread: JoinHandle<Result<T, Failure>>) -> Result<T, Failure> {
    thread.join().map_err(|_| "a thread panicked")?
}

/// Publishes records that hold their own number.
fn publish(producer: Producer, records: u64) -> Result<(), Failure> {
    for number in 0..records {
        // What became of it is told by `close`, for all of them at once.
        drop(producer.enqueue(&number.to_le_bytes())?);
    }
    producer.close(DEADLINE)?;
    Ok(())
}

/// What one consumer saw.
struct Report {
    delivered: u64,
    lost: u64,
    took: Duration,
    stats: ConsumerStats,
}

/// Receives everything, and checks that each record comes once and in its turn.
fn receive(mut consumer: Consumer, records: u64) -> Result<Report, Failure> {
    let start = Instant::now();
    let (mut delivered, mut lost) = (0, 0);
    while delivered + lost < records {
        match consumer.recv_timeout(DEADLINE) {
            Ok(Some(record)) => {
                if record.payload() != (delivered + lost).to_le_bytes() {
                    return Err(format!("record {} is not the one that was published", record.sequence()).into());
                }
                delivered += 1;
            }
            Ok(None) => return Err("no record came within the deadline".into()),
            Err(keyway::Error::Lagged { from, to }) => lost += to - from,
            Err(error) => return Err(error.into()),
        }
    }
    let report = Report { delivered, lost, took: start.elapsed(), stats: consumer.stats() };
    consumer.close(DEADLINE)?;
    Ok(report)
}

impl Report {
    fn print(&self, scope: Scope) {
        let Self { delivered, lost, took, stats } = self;
        let rate = *delivered as f64 / took.as_secs_f64();
        println!(
            "{:<9}{delivered:>11}{rate:>12.0}{:>9}{:>10}{:>12}{:>15}{lost:>7}",
            format!("{scope:?}").to_lowercase(),
            stats.epochs,
            stats.rekeys,
            stats.reconnects,
            stats.remote_access_errors,
        );
    }
}
