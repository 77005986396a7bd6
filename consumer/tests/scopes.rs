//! In every scope, at a thousand re-keyings a second, every record comes once, in order, and no READ is refused.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod bus;

use bus::*;
use keyway_consumer::Scope;

const RECORDS: u64 = 100_000;

fn read_all(scope: Scope) {
    let broker = broker(64 << 20, 1 << 20, 32);
    let producer = producer(&broker, "numbers");
    let mut consumer = reader(&broker, "numbers", scope).connect().unwrap();
    let publishing = std::thread::Builder::new()
        .name("publishing".into())
        .spawn(move || {
            publish(&producer, 0..RECORDS, 64);
            producer.close(WATCHDOG).unwrap();
        })
        .unwrap();
    expect(&mut consumer, 0..RECORDS);
    publishing.join().unwrap();
    assert_eq!(consumer.try_recv().unwrap().map(|record| record.sequence()), None);
    let stats = consumer.stats();
    println!("{scope:?}: {stats:?}");
    assert_eq!((stats.records, stats.remote_access_errors, stats.faults, stats.reconnects), (RECORDS, 0, 0, 0));
    assert!(stats.epochs > 10, "{stats:?}");
    consumer.close(WATCHDOG).unwrap();
    let counters = broker.counters().unwrap();
    assert_eq!((counters.remote_access_violations, counters.revocations_forced), (0, 0), "{counters:?}");
    broker.stop(WATCHDOG).unwrap();
}

#[test]
fn a_hundred_thousand_records_are_read_by_segments() {
    read_all(Scope::Segment);
}

#[test]
fn a_hundred_thousand_records_are_read_by_batches() {
    read_all(Scope::Batch);
}

#[test]
fn a_hundred_thousand_records_are_read_one_by_one() {
    read_all(Scope::Message);
}
