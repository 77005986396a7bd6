//! A consumer goes on elsewhere in its topic, in every scope and in one session: exactly there, and nothing of before is delivered.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod bus;

use std::time::Duration;

use bus::*;
use keyway_consumer::{Consumer, Error, ErrorKind, Scope, Start};

const SCOPES: [Scope; 3] = [Scope::Segment, Scope::Batch, Scope::Message];

/// Checks that everything went by the rules, on one session.
fn kept_the_protocol(consumer: &Consumer, seeks: u64) {
    let stats = consumer.stats();
    assert_eq!(
        (stats.seeks, stats.reconnects, stats.faults, stats.remote_access_errors),
        (seeks, 0, 0, 0),
        "{stats:?}"
    );
}

#[test]
fn earliest_latest_a_sequence_and_a_time_are_found_from_anywhere() {
    let broker = broker(16 << 20, 256 << 10, 48);
    let producer = producer(&broker, "t");
    publish(&producer, 0..5_000, 1_000);
    for scope in SCOPES {
        let mut consumer = reader(&broker, "t", scope).connect().unwrap();
        expect(&mut consumer, 0..10);
        assert_eq!(consumer.seek_timeout(Start::Sequence(4_321), WATCHDOG).unwrap(), 4_321);
        let record = next(&mut consumer).unwrap();
        check(&record, 4_321);
        assert_eq!(consumer.seek_timeout(Start::Earliest, WATCHDOG).unwrap(), 0);
        expect(&mut consumer, 0..5_000);
        let found = consumer.seek_timeout(Start::Time(record.time().0), WATCHDOG).unwrap();
        let at = next(&mut consumer).unwrap();
        assert!(at.time() >= record.time() && at.sequence() == found && found <= 4_321, "{at:?}");
        assert_eq!(consumer.seek_timeout(Start::Latest, WATCHDOG).unwrap(), 5_000);
        assert!(consumer.try_recv().unwrap().is_none());
        // Where there is nothing yet, it waits like any other consumer.
        assert_eq!(consumer.seek_timeout(Start::Sequence(9_999), WATCHDOG).unwrap(), 5_000);
        kept_the_protocol(&consumer, 5);
    }
    let mut waiting = SCOPES.map(|scope| consumer(&broker, "t").scope(scope).start(Start::Earliest).connect().unwrap());
    for consumer in &mut waiting {
        consumer.seek_blocking(Start::Latest).unwrap();
    }
    publish(&producer, 5_000..5_010, 1_000);
    for consumer in &mut waiting {
        expect(consumer, 5_000..5_010);
    }
}

#[test]
fn seeking_while_everything_is_under_way_gives_no_record_of_before() {
    let broker = broker(16 << 20, 256 << 10, 48);
    let producer = producer(&broker, "t");
    publish(&producer, 0..5_000, 1_000);
    for scope in SCOPES {
        let mut consumer = reader(&broker, "t", scope).landing(2 << 20).connect().unwrap();
        // Each time at another point of what is read ahead, with READs in flight, batches half taken and memory full.
        let seeks = 60;
        for round in 0..seeks {
            let to = round * 2_654_435_761 % 4_900;
            assert_eq!(consumer.seek_timeout(Start::Sequence(to), WATCHDOG).unwrap(), to);
            expect(&mut consumer, to..to + round % 90);
        }
        kept_the_protocol(&consumer, seeks);
    }
}

#[test]
fn a_record_that_is_kept_over_a_seek_stays_what_it_is() {
    let broker = broker(16 << 20, 256 << 10, 48);
    let producer = producer(&broker, "t");
    publish(&producer, 0..2_000, 1_000);
    let mut consumer = consumer(&broker, "t").start(Start::Earliest).landing(2 << 20).connect().unwrap();
    let kept = next(&mut consumer).unwrap();
    for _ in 0..5 {
        consumer.seek_timeout(Start::Sequence(1), WATCHDOG).unwrap();
        expect(&mut consumer, 1..2_000);
    }
    check(&kept, 0);
}

#[test]
fn a_place_that_the_ring_has_dropped_is_an_exact_gap() {
    let broker = broker(1 << 20, 64 << 10, 4);
    let producer = producer(&broker, "t");
    publish(&producer, 0..1_000, 1_000);
    for scope in SCOPES {
        let mut consumer = consumer(&broker, "t").scope(scope).connect().unwrap();
        let oldest = consumer.seek_timeout(Start::Sequence(3), WATCHDOG).unwrap();
        match next(&mut consumer) {
            Err(Error::Lagged { from: 3, to }) => assert_eq!(to, oldest),
            other => panic!("{other:?}"),
        }
        expect(&mut consumer, oldest..1_000);
        assert_eq!((consumer.stats().gaps, consumer.stats().lagged), (1, oldest - 3));
    }
}

#[test]
fn a_task_seeks_too_and_one_that_gives_up_waiting_gets_nothing_of_before() {
    let broker = broker(16 << 20, 256 << 10, 48);
    let producer = producer(&broker, "t");
    publish(&producer, 0..1_000, 1_000);
    let mut consumer = consumer(&broker, "t").start(Start::Earliest).connect().unwrap();
    expect(&mut consumer, 0..3);
    let sought = keyway_client::wait_for(consumer.seek(Start::Sequence(500)), Some(WATCHDOG));
    assert_eq!(sought.unwrap().unwrap(), 500);
    expect(&mut consumer, 500..510);
    match consumer.seek_timeout(Start::Sequence(800), Duration::ZERO) {
        // The broker may have been faster than no time at all.
        Ok(800) => {}
        result => assert_eq!(result.unwrap_err().kind(), ErrorKind::Timeout),
    }
    expect(&mut consumer, 800..1_000);
}

#[test]
fn a_seek_without_a_broker_waits_as_receiving_does() {
    let broker = keyway_broker::Broker::builder().listen("127.0.0.1:0").start().unwrap();
    let mut consumer = consumer(&broker, "t").connect().unwrap();
    broker.stop(WATCHDOG).unwrap();
    let waited = consumer.seek_timeout(Start::Earliest, Duration::from_millis(20));
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(consumer.try_recv().unwrap().is_none());
}
