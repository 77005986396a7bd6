//! A broker in this process, and producers that number their records.

#![allow(dead_code, reason = "each test file uses what it needs")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::time::Duration;

use keyway_broker::Broker;
use keyway_consumer::{Consumer, ConsumerBuilder, Error, Record, Scope, Start};
use keyway_producer::Producer;

/// Longer than anything takes: what is not there by then hangs.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(30);

pub(crate) fn broker(pool: u64, segment: u64, segments: u32) -> Broker {
    Broker::builder()
        .listen("127.0.0.1:0")
        .pool_size(pool)
        .segment_size(segment)
        .topic_segments(segments)
        .record_max(16 << 10)
        .start()
        .unwrap()
}

pub(crate) fn consumer(broker: &Broker, topic: &str) -> ConsumerBuilder {
    Consumer::builder(broker.connector(), topic).connect_timeout(WATCHDOG)
}

/// A consumer of everything from the start on, whose keys are replaced every millisecond.
pub(crate) fn reader(broker: &Broker, topic: &str, scope: Scope) -> ConsumerBuilder {
    consumer(broker, topic).scope(scope).start(Start::Earliest).epoch(Duration::from_millis(1))
}

pub(crate) fn producer(broker: &Broker, topic: &str) -> Producer {
    Producer::builder(broker.connector(), topic).connect_timeout(WATCHDOG).connect().unwrap()
}

/// A payload of `len` bytes that says which record it is.
pub(crate) fn payload(sequence: u64, len: usize) -> Vec<u8> {
    (sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes().into_iter().cycle().take(len).collect()
}

/// Publishes the records of a range, and waits until they are committed.
pub(crate) fn publish(producer: &Producer, sequences: std::ops::Range<u64>, len: usize) {
    for sequence in sequences {
        let key = sequence.to_string();
        let payload = payload(sequence, len);
        let _pending = producer.enqueue(keyway_producer::Record::new(&payload).key(&key)).unwrap();
    }
    producer.flush(WATCHDOG).unwrap();
}

/// The next record, which must come in time.
pub(crate) fn next(consumer: &mut Consumer) -> Result<Record, Error> {
    consumer.recv_timeout(WATCHDOG).transpose().unwrap_or_else(|| panic!("nothing came: {:?}", consumer.stats()))
}

/// Checks that a record is the one of this sequence.
pub(crate) fn check(record: &Record, sequence: u64) {
    assert_eq!(record.sequence(), sequence);
    assert_eq!(record.key(), Some(sequence.to_string().as_bytes()));
    assert_eq!(record.payload(), payload(sequence, record.payload().len()), "of record {sequence}");
    assert!(record.time().0 > 0);
}

/// Receives the records of a range and nothing else.
pub(crate) fn expect(consumer: &mut Consumer, sequences: std::ops::Range<u64>) {
    for sequence in sequences {
        check(&next(consumer).unwrap(), sequence);
    }
}
