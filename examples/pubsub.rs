//! The demo: a broker, two producers and three consumers, one for each scope; a million records; at the end a table of what each
//! consumer got and what its keys went through, and one stale key, tried on purpose.
//!
//! Everything runs in this process, over the same fabric that processes of their own would use.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a demonstration that tells rates reads the clock")]

#[path = "pubsub/stale_key.rs"]
mod stale_key;

use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use keyway::{Broker, Consumer, ConsumerStats, Producer, Scope, Server, Start};
use keyway_fabric::WorkError;

use crate::stale_key::Attempt;

const TOPIC: &str = "demo/prices";
/// All of them fit into the topic's ring, so that the slowest scope may take its time.
const RECORDS: u64 = 1_000_000;
const PRODUCERS: u64 = 2;
const SCOPES: [Scope; 3] = [Scope::Segment, Scope::Batch, Scope::Message];
/// Keys are replaced a thousand times a second.
const EPOCH: Duration = Duration::from_millis(1);
/// Nothing here should take nearly as long.
const DEADLINE: Duration = Duration::from_secs(60);

/// Whatever goes wrong ends the demo.
type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    match demo() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pubsub: {error}");
            ExitCode::FAILURE
        }
    }
}

fn demo() -> Result<(), Failure> {
    let broker = Broker::builder().pool_size(256 << 20).topic_segments(56).start()?;
    let server = Server::from(broker.connector());

    // Each runs on a thread of its own, as it would in a process of its own.
    let consumers: Vec<_> = SCOPES
        .into_iter()
        .map(|scope| {
            let consumer =
                Consumer::builder(&server, TOPIC).start(Start::Earliest).scope(scope).epoch(EPOCH).connect()?;
            Ok(thread::Builder::new().name(format!("{scope:?}")).spawn(move || receive(consumer))?)
        })
        .collect::<Result<_, Failure>>()?;
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|number| {
            let producer = Producer::builder(&server, TOPIC).name(format!("producer {number}")).connect()?;
            Ok(thread::Builder::new().name(format!("producer {number}")).spawn(move || publish(number, producer))?)
        })
        .collect::<Result<_, Failure>>()?;

    let mut published = 0;
    for producer in producers {
        published += producer.join().expect("a producer's thread does not panic")?;
    }
    println!("{published} records published by {PRODUCERS} producers, keys replaced every {EPOCH:?}\n");
    println!(
        "{:<9}{:>11}{:>12}{:>9}{:>10}{:>12}{:>14}{:>7}",
        "scope", "delivered", "records/s", "epochs", "re-keys", "reconnects", "access errors", "lost"
    );
    let mut complete = true;
    for (scope, consumer) in SCOPES.into_iter().zip(consumers) {
        let report = consumer.join().expect("a consumer's thread does not panic")?;
        complete &= report.delivered == published && report.lost == 0 && report.stats.remote_access_errors == 0;
        report.print(scope);
    }
    let counters = broker.counters()?;
    println!(
        "\nbroker: {} grants, {} forced revocations, {} refused READs",
        counters.grants, counters.revocations_forced, counters.remote_access_violations
    );
    if !complete {
        return Err("a consumer did not get every record, in order and once".into());
    }

    let attempt = stale_key::attempt(&server, TOPIC)?;
    let Attempt { key, bytes_read, age, result } = attempt;
    println!("\na stale key: {key} opened {bytes_read} bytes; tried again {age} epochs later:");
    match result {
        Err(WorkError::RemoteAccess) => println!("  {}", WorkError::RemoteAccess),
        result => return Err(format!("a stale key was not refused: {result:?}").into()),
    }
    broker.stop(DEADLINE)?;
    Ok(())
}

/// Publishes this producer's share. Each record says who sent it and which of the sender's it is.
fn publish(number: u64, producer: Producer) -> Result<u64, keyway::Error> {
    for count in 0..RECORDS / PRODUCERS {
        // What became of it is told by `close`, for all of them at once.
        drop(producer.enqueue([number.to_le_bytes(), count.to_le_bytes()].concat())?);
    }
    // Returns once everything is committed.
    producer.close(DEADLINE)?;
    Ok(RECORDS / PRODUCERS)
}

/// What one consumer saw.
struct Report {
    delivered: u64,
    lost: u64,
    took: Duration,
    stats: ConsumerStats,
}

/// Receives everything, and checks that each producer's records come in the order in which it sent them, each once.
fn receive(mut consumer: Consumer) -> Result<Report, Failure> {
    let start = Instant::now();
    let mut report = Report { delivered: 0, lost: 0, took: Duration::ZERO, stats: consumer.stats() };
    let mut expected = [0; PRODUCERS as usize];
    while report.delivered + report.lost < RECORDS {
        match consumer.recv_timeout(DEADLINE) {
            Ok(Some(record)) => {
                let (number, count) = sender(record.payload()).ok_or("a record is not one that was sent")?;
                if expected[number] != count {
                    return Err(
                        format!("producer {number}: expected its record {}, got {count}", expected[number]).into()
                    );
                }
                expected[number] += 1;
                report.delivered += 1;
            }
            Ok(None) => return Err("no record came within the deadline".into()),
            Err(keyway::Error::Lagged { from, to }) => report.lost += to - from,
            Err(error) => return Err(error.into()),
        }
    }
    report.took = start.elapsed();
    report.stats = consumer.stats();
    consumer.close(DEADLINE)?;
    Ok(report)
}

/// Who sent a record, and which of the sender's it is.
fn sender(payload: &[u8]) -> Option<(usize, u64)> {
    let (number, count) = payload.split_first_chunk::<8>()?;
    let number = usize::try_from(u64::from_le_bytes(*number)).ok().filter(|number| *number < PRODUCERS as usize)?;
    Some((number, u64::from_le_bytes(count.try_into().ok()?)))
}

impl Report {
    fn print(&self, scope: Scope) {
        let Self { delivered, lost, took, stats } = self;
        let rate = *delivered as f64 / took.as_secs_f64();
        println!(
            "{:<9}{delivered:>11}{rate:>12.0}{:>9}{:>10}{:>12}{:>14}{lost:>7}",
            format!("{scope:?}").to_lowercase(),
            stats.epochs,
            stats.rekeys,
            stats.reconnects,
            stats.remote_access_errors,
        );
    }
}
