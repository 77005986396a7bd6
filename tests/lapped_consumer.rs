//! T01: a consumer that does not take its records until the ring has lapped it gets what it had landed, then the exact gap, then
//! the oldest record that is left, and never a torn or stale payload.

mod bus;

use std::time::Duration;

use keyway::{Consumer, Error, Scope, Server, Start};

use crate::bus::clients::{SCOPES, next_record, producer, publish};
use crate::bus::{PATIENCE, Watchdog, data, small_broker, until};

const LIMIT: Duration = Duration::from_secs(180);

/// The least that a consumer can be given to land in.
const LANDING: u64 = 2 << 20;
const LEN: usize = 1_000;
/// More than lands, and less than the ring holds.
const FIRST: u64 = 3_000;
/// Enough for the ring to lap what has landed.
const RECORDS: u64 = 15_000;

fn lapped(scope: Scope) {
    let broker =
        small_broker().segment_size(256 << 10).topic_segments(24).start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    let topic = "lapped";
    let mut consumer = Consumer::builder(&server, topic)
        .start(Start::Earliest)
        .scope(scope)
        .epoch(Duration::from_millis(1))
        .landing(LANDING)
        .connect()
        .expect("a consumer can connect");
    let producer = producer(&server, topic);
    publish(&producer, 1, 0, FIRST, LEN);
    until("the landing memory to be full", || (consumer.stats().pauses > 0).then_some(()));
    publish(&producer, 1, FIRST, RECORDS - FIRST, LEN);

    let mut next = 0;
    let (from, to) = loop {
        match consumer.recv_timeout(PATIENCE) {
            Ok(Some(record)) => {
                assert_eq!(record.sequence(), next);
                assert_eq!(data::check_payload(record.payload()), (1, next), "what was landed is whole");
                next += 1;
            }
            Ok(None) => panic!("neither a record nor the gap came behind record {next}"),
            Err(Error::Lagged { from, to }) => break (from, to),
            Err(error) => panic!("the gap was expected: {error}"),
        }
    };
    assert_eq!(from, next, "the gap begins where the records ended");
    assert!(to < RECORDS, "the newest records are still there");

    // A newcomer is told where the log begins now.
    let mut newcomer = Consumer::builder(&server, topic)
        .start(Start::Earliest)
        .scope(scope)
        .connect()
        .expect("a consumer can connect");
    assert_eq!(next_record(&mut newcomer).sequence(), to, "the gap ends at the oldest record that is left");
    for number in to..RECORDS {
        let record = next_record(&mut consumer);
        assert_eq!(record.sequence(), number);
        assert_eq!(data::check_payload(record.payload()), (1, number));
    }
    assert_eq!(consumer.stats().remote_access_errors, 0);
    assert_eq!(consumer.stats().lagged, to - from);
}

#[test]
fn in_segment_scope() {
    let _watchdog = Watchdog::start(LIMIT);
    lapped(Scope::Segment);
}

#[test]
fn in_batch_scope() {
    let _watchdog = Watchdog::start(LIMIT);
    lapped(Scope::Batch);
}

#[test]
fn in_message_scope() {
    let _watchdog = Watchdog::start(LIMIT);
    lapped(Scope::Message);
}

#[test]
fn while_the_producer_goes_on() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    let producer = producer(&server, "busy");
    std::thread::scope(|threads| {
        for scope in SCOPES {
            let mut consumer = Consumer::builder(&server, "busy")
                .start(Start::Earliest)
                .scope(scope)
                .epoch(Duration::from_millis(1))
                .landing(LANDING)
                .connect()
                .expect("a consumer can connect");
            threads.spawn(move || {
                let check = |record: &keyway::Received| {
                    assert_eq!(data::check_payload(record.payload()), (1, record.sequence()));
                };
                bus::clients::receive_until(&mut consumer, 0, RECORDS, check);
                assert_eq!(consumer.stats().remote_access_errors, 0, "{scope:?}");
            });
        }
        publish(&producer, 1, 0, RECORDS, LEN);
    });
}
