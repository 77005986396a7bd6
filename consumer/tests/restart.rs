//! A broker that is stopped and started anew at the same address: the consumer comes back by itself, is told once, and reads the
//! new log from its start.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod bus;

use bus::*;
use keyway_broker::Broker;
use keyway_consumer::{Consumer, Error, Event, Scope, Start};
use keyway_producer::Producer;

#[test]
fn a_restarted_broker_is_told_once_and_read_from_its_start() {
    for scope in [Scope::Segment, Scope::Batch, Scope::Message] {
        let start = |address: &str| {
            Broker::builder().listen(address).pool_size(16 << 20).segment_size(1 << 20).record_max(16 << 10).start()
        };
        let first = start("127.0.0.1:0").unwrap();
        let address = first.local_addr().unwrap().to_string();
        let server = format!("keyway://{address}");
        let producer = Producer::builder(server.as_str(), "t").connect().unwrap();
        let mut consumer =
            Consumer::builder(server.as_str(), "t").scope(scope).start(Start::Earliest).connect().unwrap();
        let events = consumer.events();
        publish(&producer, 0..50, 100);
        expect(&mut consumer, 0..50);
        producer.close(WATCHDOG).unwrap();
        first.stop(WATCHDOG).unwrap();
        let second = start(&address).unwrap();
        let producer = Producer::builder(server.as_str(), "t").connect().unwrap();
        publish(&producer, 0..20, 100);
        assert!(matches!(next(&mut consumer), Err(Error::Restarted { .. })), "{scope:?}");
        expect(&mut consumer, 0..20);
        assert_eq!(consumer.stats().reconnects, 1);
        let all: Vec<Event> = std::iter::from_fn(|| events.try_recv()).collect();
        assert!(all.iter().any(|event| matches!(event, Event::ShuttingDown { .. })), "{all:?}");
        assert!(all.iter().any(|event| matches!(event, Event::Reconnected { sequence: 0, .. })), "{all:?}");
        consumer.close(WATCHDOG).unwrap();
        producer.close(WATCHDOG).unwrap();
        second.stop(WATCHDOG).unwrap();
    }
}
