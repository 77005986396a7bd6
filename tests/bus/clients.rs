//! What tests do with producers and consumers again and again.

use std::time::Duration;

use keyway::{Consumer, ErrorKind, Producer, Received, Scope, Server};

use super::{PATIENCE, data};

pub(crate) const SCOPES: [Scope; 3] = [Scope::Segment, Scope::Batch, Scope::Message];

/// A producer with defaults.
pub(crate) fn producer(server: &Server, topic: &str) -> Producer {
    Producer::builder(server, topic).connect().expect("a producer can connect")
}

/// Publishes `count` records of one producer, numbered from `first`, and waits until they are committed.
pub(crate) fn publish(producer: &Producer, whose: u64, first: u64, count: u64, len: usize) {
    for number in first..first + count {
        drop(producer.enqueue(data::payload(whose, number, len)).expect("a record is taken"));
    }
    producer.flush(PATIENCE).expect("the records are committed");
}

/// The next record.
///
/// # Panics
///
/// If anything else comes, or nothing.
#[track_caller]
pub(crate) fn next_record(consumer: &mut Consumer) -> Received {
    match consumer.recv_timeout(PATIENCE) {
        Ok(Some(record)) => record,
        Ok(None) => panic!("waited {PATIENCE:?} in vain for a record; {:?}", consumer.stats()),
        Err(error) => panic!("a record was expected: {error}; {:?}", consumer.stats()),
    }
}

/// Whether nothing comes for a moment.
#[track_caller]
pub(crate) fn expect_nothing(consumer: &mut Consumer) {
    let got = consumer.recv_timeout(Duration::from_millis(50)).expect("nothing is not an error");
    assert!(got.is_none(), "record {} was not expected", got.expect("it is something").sequence());
}

/// Receives until record `end` is next: whole records in order, or exact gaps. Returns the records that were missed.
#[track_caller]
pub(crate) fn receive_until(consumer: &mut Consumer, mut next: u64, end: u64, mut each: impl FnMut(&Received)) -> u64 {
    let mut missed = 0;
    while next < end {
        match consumer.recv_timeout(PATIENCE) {
            Ok(Some(record)) => {
                assert_eq!(record.sequence(), next, "records come in order and without gaps; {:?}", consumer.stats());
                each(&record);
                next += 1;
            }
            Ok(None) => panic!("waited {PATIENCE:?} in vain for record {next} of {end}; {:?}", consumer.stats()),
            Err(error) => match error {
                keyway::Error::Lagged { from, to } => {
                    assert_eq!(from, next, "a gap begins at the next record");
                    assert!(to > from && error.is_retryable() && error.kind() == ErrorKind::Lagged);
                    missed += to - from;
                    next = to;
                }
                error => panic!("record {next} or a gap was expected: {error}; {:?}", consumer.stats()),
            },
        }
    }
    missed
}
