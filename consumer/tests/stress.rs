//! Small segments, the shortest epochs, many consumers of every scope at once: everyone gets everything, or is told exactly what not,
//! and no READ is refused.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod bus;

use std::time::Duration;

use bus::*;
use keyway_consumer::{Consumer, Error, Scope, Start};

const RECORDS: u64 = 20_000;

/// Receives up to the last record. Returns how many were missed.
fn read_to_the_end(consumer: &mut Consumer) -> u64 {
    let mut from = 0;
    let mut missed = 0;
    while from < RECORDS {
        match next(consumer) {
            Ok(record) => {
                check(&record, from);
                from += 1;
            }
            Err(Error::Lagged { from: gap, to }) => {
                assert_eq!(gap, from);
                missed += to - from;
                from = to;
            }
            Err(error) => panic!("{error}"),
        }
    }
    missed
}

#[test]
fn nine_consumers_at_the_shortest_epochs_keep_the_protocol() {
    let broker = broker(8 << 20, 64 << 10, 64);
    let producer = producer(&broker, "t");
    let readers: Vec<_> = [Scope::Segment, Scope::Batch, Scope::Message]
        .into_iter()
        .flat_map(|scope| (0..3).map(move |number| (scope, number)))
        .map(|(scope, number)| {
            let builder =
                consumer(&broker, "t").scope(scope).start(Start::Earliest).name(format!("{scope:?}-{number}"));
            let mut consumer = builder.epoch(Duration::from_micros(100)).connect().unwrap();
            let reading = move || {
                let missed = read_to_the_end(&mut consumer);
                let stats = consumer.stats();
                assert_eq!((stats.records, stats.lagged), (RECORDS - missed, missed), "{scope:?} {number}: {stats:?}");
                assert_eq!((stats.remote_access_errors, stats.faults), (0, 0), "{scope:?} {number}: {stats:?}");
                consumer.close(WATCHDOG).unwrap();
            };
            std::thread::Builder::new().name(format!("{scope:?}-{number}")).spawn(reading).unwrap()
        })
        .collect();
    publish(&producer, 0..RECORDS, 200);
    for reader in readers {
        reader.join().unwrap();
    }
    let counters = broker.counters().unwrap();
    assert_eq!((counters.remote_access_violations, counters.protocol_errors), (0, 0), "{counters:?}");
    broker.stop(WATCHDOG).unwrap();
}
