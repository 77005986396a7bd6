//! T15: broker, producer, consumer and a received record may be dropped in every order, and what is used after `close` says
//! `Closed`.

mod bus;

use std::time::Duration;

use keyway::{Consumer, ErrorKind, Received, Server, Start};

use crate::bus::clients::{next_record, producer};
use crate::bus::{PATIENCE, Watchdog, data, small_broker};

const LIMIT: Duration = Duration::from_secs(120);

/// Every order of `count` things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(count - 1);
    shorter
        .into_iter()
        .flat_map(|order| {
            (0..count).map(move |place| {
                let mut order = order.clone();
                order.insert(place, count - 1);
                order
            })
        })
        .collect()
}

#[test]
fn every_order_of_dropping() {
    let _watchdog = Watchdog::start(LIMIT);
    let orders = orders(5);
    assert_eq!(orders.len(), 120);
    for order in orders {
        let broker = small_broker().start().expect("the settings fit each other");
        let server = Server::from(broker.connector());
        let producer = producer(&server, "dropped");
        let mut consumer =
            Consumer::builder(&server, "dropped").start(Start::Earliest).connect().expect("a consumer can connect");
        let payload = data::payload(1, 2, 1_000);
        let pending = producer.enqueue(&payload).expect("it is taken");
        let record = next_record(&mut consumer);
        let mut record: Option<Received> = Some(record);
        let (mut broker, mut producer, mut consumer) = (Some(broker), Some(producer), Some(consumer));
        let mut pending = Some(pending);
        for which in order {
            match which {
                0 => drop(broker.take()),
                1 => drop(producer.take()),
                2 => drop(consumer.take()),
                3 => drop(record.take()),
                _ => drop(pending.take()),
            }
            if let Some(record) = &record {
                assert!(record.payload() == payload, "a record outlives whatever it came from");
            }
        }
    }
}

#[test]
fn a_record_goes_to_another_thread_and_outlives_everything() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    let producer = producer(&server, "kept");
    let mut consumer =
        Consumer::builder(&server, "kept").start(Start::Earliest).connect().expect("a consumer can connect");
    let payload = data::payload(1, 2, 10_000);
    drop(producer.enqueue(&payload).expect("it is taken"));
    let record = next_record(&mut consumer);
    let copy = record.clone();
    let events = consumer.events();
    consumer.close(PATIENCE).expect("a consumer may be closed while its records are alive");
    // What had happened is still told, and then that nothing will.
    while events.recv_blocking().is_some() {}
    producer.close(PATIENCE).expect("it closes");
    drop(broker);
    drop(record);
    let check = move || assert!(copy.payload() == payload);
    let thread = std::thread::Builder::new().name("reader".into()).spawn(check).expect("a thread can be started");
    thread.join().expect("the record is whole");
}

#[test]
fn a_client_without_its_broker_is_closed_in_order() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    let producer = producer(&server, "closed");
    let consumer = Consumer::builder(&server, "closed").connect().expect("a consumer can connect");
    drop(broker);
    // Nothing was waiting to be delivered.
    producer.close(PATIENCE).expect("it has nothing to wait for");
    consumer.close(PATIENCE).expect("it has nothing to wait for");
    let error = keyway::Producer::builder(&server, "closed").connect_timeout(Duration::from_millis(100)).connect();
    let error = error.expect_err("the broker is gone");
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Connect), "{error}");
}
