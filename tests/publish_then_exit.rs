//! T05: `close` with a deadline delivers what was taken; without it, what was not committed is an error somewhere, and never a
//! silent success.

mod bus;

use std::time::Duration;

use keyway::{Consumer, ErrorKind, Server, Start};

use crate::bus::clients::{producer, receive_until};
use crate::bus::proxy::Proxy;
use crate::bus::{PATIENCE, Watchdog, data, small_broker, until_counters};

const LIMIT: Duration = Duration::from_secs(120);
const RECORDS: u64 = 2_000;

/// Every record of the topic: its number, by sequence.
fn log(server: &Server, topic: &str, end: u64) -> Vec<u64> {
    let mut consumer =
        Consumer::builder(server, topic).start(Start::Earliest).connect().expect("a consumer can connect");
    let mut numbers = Vec::new();
    receive_until(&mut consumer, 0, end, |record| numbers.push(data::check_payload(record.payload()).1));
    numbers
}

#[test]
fn close_delivers_what_was_taken() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    let producer = producer(&server, "closed");
    let pending: Vec<_> =
        (0..RECORDS).map(|number| producer.enqueue(data::payload(1, number, 20)).expect("a record is taken")).collect();
    producer.close(PATIENCE).expect("everything is committed within the deadline");
    for (number, pending) in pending.into_iter().enumerate() {
        assert_eq!(pending.wait().expect("close delivered it").sequence, number as u64);
    }
    assert_eq!(log(&server, "closed", RECORDS), (0..RECORDS).collect::<Vec<_>>());
}

#[test]
fn dropping_a_producer_never_pretends() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    let producer = producer(&server, "dropped");
    let pending: Vec<_> =
        (0..RECORDS).map(|number| producer.enqueue(data::payload(1, number, 20)).expect("a record is taken")).collect();
    drop(producer);
    let results: Vec<_> = pending.into_iter().map(|pending| pending.wait()).collect();
    // Another producer's record behind them tells where the log ends.
    let end = bus::clients::producer(&server, "dropped").enqueue("end").expect("it is taken").wait();
    let end = end.expect("it is committed").sequence;
    let log = log(&server, "dropped", end);
    for (number, result) in results.into_iter().enumerate() {
        match result {
            Ok(receipt) => assert_eq!(log.get(receipt.sequence as usize), Some(&(number as u64)), "a false receipt"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Closed, "{error}"),
        }
    }
}

#[test]
fn what_was_not_committed_when_the_deadline_is_over_is_an_error() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().listen("127.0.0.1:0").start().expect("the settings fit each other");
    let proxy = Proxy::start(broker.local_addr().expect("it listens"));
    let server: Server = proxy.server().parse().expect("a proxy's address is one");
    let producer = producer(&server, "cut");
    let first = producer.enqueue("first").expect("it is taken").wait().expect("it is committed");
    proxy.close();
    // A device goes on for as long as the broker has not heard that the bootstrap stream has ended.
    until_counters(&broker, "the session to be gone", |counters| counters.sessions == 0);
    let pending = producer.enqueue("second").expect("it is taken while the broker is away");
    let error = producer.close(Duration::from_millis(200)).expect_err("the second record cannot be delivered");
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(pending.wait().is_err(), "its receipt is an error too");
    let direct = Server::from(broker.connector());
    let next = bus::clients::producer(&direct, "cut").enqueue("third").expect("it is taken").wait();
    assert_eq!(next.expect("it is committed").sequence, first.sequence + 1);
}
