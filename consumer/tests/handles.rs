//! Every order of dropping and closing, every way of receiving, and what is left after the end.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod bus;

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bus::*;
use futures_core::Stream;
use keyway_consumer::{Consumer, Error, ErrorKind, Event, Record, Start};
use keyway_schema::Code;

/// A stream's next item, for any executor.
struct Next<'a>(&'a mut Consumer);

impl Future for Next<'_> {
    type Output = Option<Result<Record, Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        pin!(&mut *self.0).poll_next(context)
    }
}

fn wait<F: Future>(future: F) -> F::Output {
    keyway_client::wait_for(future, Some(WATCHDOG)).expect("it is ready in time")
}

/// T15: records stay valid in every order of dropping consumer, producer, broker and records.
#[test]
fn records_outlive_their_consumer_and_the_broker() {
    let broker = broker(8 << 20, 1 << 20, 4);
    let producer = producer(&broker, "t");
    publish(&producer, 0..10, 5_000);
    let mut reader = consumer(&broker, "t").start(Start::Earliest).connect().unwrap();
    let records: Vec<Record> = (0..10).map(|_| next(&mut reader).unwrap()).collect();
    let other = records[3].clone();
    drop(reader);
    drop(producer);
    for (sequence, record) in (0..).zip(&records) {
        check(record, sequence);
    }
    drop(broker);
    drop(records);
    let thread = std::thread::Builder::new().spawn(move || check(&other, 3)).unwrap();
    thread.join().unwrap();
}

#[test]
fn a_broker_that_is_gone_leaves_a_consumer_that_can_be_closed_at_once() {
    let broker = broker(8 << 20, 1 << 20, 4);
    let mut reader = consumer(&broker, "t").connect().unwrap();
    let events = reader.events();
    broker.stop(WATCHDOG).unwrap();
    let lost =
        std::iter::from_fn(|| events.recv_timeout(WATCHDOG)).any(|event| matches!(event, Event::SessionLost { .. }));
    assert!(lost);
    assert_eq!(reader.recv_timeout(Duration::from_millis(1)).unwrap().map(|record| record.sequence()), None);
    reader.close(Duration::from_secs(1)).unwrap();
    assert_eq!(events.recv_blocking(), None);
}

#[test]
fn every_way_of_receiving_gives_the_next_record() {
    let broker = broker(8 << 20, 1 << 20, 4);
    let producer = producer(&broker, "t");
    let mut reader = wait(consumer(&broker, "t").start(Start::Earliest).connect_async()).unwrap();
    assert!(reader.try_recv().unwrap().is_none());
    publish(&producer, 0..400, 10);
    for round in 0..100 {
        check(&reader.recv_blocking().unwrap(), round * 4);
        check(&wait(reader.recv()).unwrap(), round * 4 + 1);
        check(&wait(Next(&mut reader)).unwrap().unwrap(), round * 4 + 2);
        check(&next(&mut reader).unwrap(), round * 4 + 3);
    }
    // A receive that is given up loses nothing.
    assert!(keyway_client::wait_for(reader.recv(), Some(Duration::from_millis(1))).is_none());
    publish(&producer, 400..401, 10);
    check(&next(&mut reader).unwrap(), 400);
    wait(reader.close_async(WATCHDOG)).unwrap();
}

#[test]
fn a_refusal_is_told_with_its_code_when_the_time_to_connect_is_over() {
    let broker = keyway_broker::Broker::builder().listen("127.0.0.1:0").topics_max(1).start().unwrap();
    let _first = consumer(&broker, "first").connect().unwrap();
    let error = consumer(&broker, "second").connect_timeout(Duration::from_millis(300)).connect().unwrap_err();
    match &error {
        Error::Timeout { last: Some(last), .. } => assert_eq!(last.kind(), ErrorKind::Refused(Code::TopicsExhausted)),
        other => panic!("{other}"),
    }
    assert!(error.is_retryable());
    let unreachable =
        Consumer::builder("keyway://127.0.0.1:1", "t").connect_timeout(Duration::from_millis(100)).connect();
    assert_eq!(unreachable.unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn records_may_be_shared_between_threads_and_consumers_moved() {
    fn shared<T: Send + Sync>() {}
    fn moved<T: Send>() {}
    shared::<Record>();
    shared::<keyway_consumer::Events>();
    moved::<Consumer>();
}
