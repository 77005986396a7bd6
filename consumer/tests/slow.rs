//! An application that is slow, or stops: nothing grows, nothing is torn, and what it missed it is told exactly.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod bus;

use std::time::Duration;

use bus::*;
use keyway_consumer::{Error, Event, Scope};

/// T01: a consumer is paused until the ring laps it.
#[test]
fn a_consumer_that_was_lapped_is_told_the_exact_gap_and_goes_on_at_the_oldest_record() {
    for scope in [Scope::Segment, Scope::Batch, Scope::Message] {
        let broker = broker(4 << 20, 64 << 10, 4);
        let producer = producer(&broker, "t");
        let mut consumer = reader(&broker, "t", scope).landing(2 << 20).connect().unwrap();
        let events = consumer.events();
        // Far more than ring and landing memory hold; the application takes nothing.
        publish(&producer, 0..5_000, 1_000);
        let mut from = 0;
        let mut missed = 0;
        while from < 5_000 {
            match next(&mut consumer) {
                Ok(record) => {
                    check(&record, from);
                    from += 1;
                }
                Err(Error::Lagged { from: gap, to }) => {
                    assert_eq!(gap, from);
                    assert!(to > from && to < 5_000);
                    missed += to - gap;
                    from = to;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(missed > 0, "{scope:?}: it was not lapped: {:?}", consumer.stats());
        let stats = consumer.stats();
        assert_eq!((stats.lagged, stats.records), (missed, 5_000 - missed), "{scope:?}");
        assert_eq!((stats.remote_access_errors, stats.faults), (0, 0), "{scope:?}");
        let told = std::iter::from_fn(|| events.try_recv());
        let told =
            told.filter_map(|event| if let Event::Lagged { records, .. } = event { Some(records) } else { None });
        assert_eq!(told.sum::<u64>(), missed, "{scope:?}");
        // It goes on as before.
        publish(&producer, 5_000..5_100, 1_000);
        expect(&mut consumer, 5_000..5_100);
    }
}

/// The application keeps every record for a while: the consumer holds still with its memory full, and goes on afterwards.
#[test]
fn an_application_that_keeps_its_records_stops_the_consumer_and_loses_nothing() {
    for scope in [Scope::Segment, Scope::Batch, Scope::Message] {
        let broker = broker(32 << 20, 1 << 20, 28);
        let producer = producer(&broker, "t");
        let mut consumer =
            reader(&broker, "t", scope).grace(Duration::from_millis(200)).landing(2 << 20).connect().unwrap();
        publish(&producer, 0..5_000, 1_000);
        let mut kept = Vec::new();
        while let Some(record) = consumer.recv_timeout(Duration::from_millis(500)).unwrap() {
            check(&record, kept.len() as u64);
            kept.push(record);
        }
        let held = kept.len() as u64;
        assert!(held < 4_000, "{scope:?}: landing memory is 2 MiB, and {held} records of 1,000 bytes are held");
        assert!(consumer.stats().pauses > 0, "{scope:?}: {:?}", consumer.stats());
        for (sequence, record) in (0..).zip(&kept) {
            check(record, sequence);
        }
        drop(kept);
        expect(&mut consumer, held..5_000);
        let stats = consumer.stats();
        assert_eq!((stats.gaps, stats.remote_access_errors, stats.reconnects), (0, 0, 0), "{scope:?}: {stats:?}");
    }
}
