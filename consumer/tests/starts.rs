//! A subscription starts where it was asked to, in every scope, even within a batch.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod bus;

use bus::*;
use keyway_consumer::{Error, Scope, Start};

const SCOPES: [Scope; 3] = [Scope::Segment, Scope::Batch, Scope::Message];

#[test]
fn earliest_latest_a_sequence_and_a_time_are_kept() {
    let broker = broker(16 << 20, 1 << 20, 8);
    let producer = producer(&broker, "t");
    publish(&producer, 0..1_000, 100);
    let time = {
        let mut first = consumer(&broker, "t").start(Start::Sequence(999)).connect().unwrap();
        next(&mut first).unwrap().time().0
    };
    let starts = |start| SCOPES.map(|scope| consumer(&broker, "t").scope(scope).start(start).connect().unwrap());
    for mut consumer in starts(Start::Earliest) {
        expect(&mut consumer, 0..1_000);
    }
    // Somewhere in the middle of a batch, since the producer fills its batches.
    for mut consumer in starts(Start::Sequence(501)) {
        expect(&mut consumer, 501..1_000);
    }
    let later =
        starts(Start::Latest).into_iter().chain(starts(Start::Time(u64::MAX))).chain(starts(Start::Sequence(1_000)));
    let later: Vec<_> = later.collect();
    publish(&producer, 1_000..1_010, 100);
    for mut consumer in later {
        expect(&mut consumer, 1_000..1_010);
    }
    for mut consumer in starts(Start::Time(time)) {
        let first = next(&mut consumer).unwrap();
        assert!(first.time().0 >= time && first.sequence() <= 999, "{first:?}");
    }
}

#[test]
fn a_subscription_before_the_first_publish_gets_everything() {
    let broker = broker(16 << 20, 1 << 20, 8);
    let mut consumers = SCOPES.map(|scope| consumer(&broker, "t").scope(scope).connect().unwrap());
    let producer = producer(&broker, "t");
    publish(&producer, 0..100, 10);
    producer.close(WATCHDOG).unwrap();
    for consumer in &mut consumers {
        expect(consumer, 0..100);
    }
}

#[test]
fn a_start_that_is_gone_is_an_exact_gap_then_the_oldest_record() {
    let broker = broker(1 << 20, 64 << 10, 4);
    let producer = producer(&broker, "t");
    publish(&producer, 0..1_000, 1_000);
    for scope in SCOPES {
        let mut consumer = consumer(&broker, "t").scope(scope).start(Start::Sequence(3)).connect().unwrap();
        let to = match next(&mut consumer) {
            Err(Error::Lagged { from: 3, to }) => to,
            other => panic!("{other:?}"),
        };
        assert!(to > 700, "{to}");
        expect(&mut consumer, to..1_000);
        let stats = consumer.stats();
        assert_eq!((stats.gaps, stats.lagged), (1, to - 3));
    }
}
