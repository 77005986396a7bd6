//! Records of every size, from nothing to the topic's maximum, over a network socket.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod bus;

use std::time::Duration;

use bus::*;
use keyway_broker::Broker;
use keyway_consumer::{Consumer, Scope, Start};
use keyway_producer::Producer;

/// Smaller and larger than a READ's chunk, than a slot of the broker, and the largest.
const SIZES: [usize; 11] = [0, 1, 7, 8, 9, 100, 4_096, 65_000, 66_000, 300_000, (1 << 20) - 20];

#[test]
fn records_from_nothing_to_the_maximum_come_through_in_every_scope() {
    let broker = Broker::builder().listen("127.0.0.1:0").pool_size(96 << 20).segment_size(2 << 20).start().unwrap();
    let server = format!("keyway://{}", broker.local_addr().unwrap());
    let mut consumers = [Scope::Segment, Scope::Batch, Scope::Message].map(|scope| {
        let builder = Consumer::builder(server.as_str(), "t").scope(scope).start(Start::Earliest);
        builder.epoch(Duration::from_millis(1)).connect_timeout(WATCHDOG).connect().unwrap()
    });
    let producer = Producer::builder(server.as_str(), "t").connect_timeout(WATCHDOG).connect().unwrap();
    for round in 0..3 {
        for (place, len) in (0..).zip(SIZES) {
            publish(&producer, round * 11 + place..round * 11 + place + 1, len);
        }
        for consumer in &mut consumers {
            for (place, len) in (0..).zip(SIZES) {
                let record = next(consumer).unwrap();
                check(&record, round * 11 + place);
                assert_eq!(record.payload().len(), len);
            }
        }
    }
    for consumer in consumers {
        let stats = consumer.stats();
        assert_eq!((stats.gaps, stats.remote_access_errors, stats.faults, stats.reconnects), (0, 0, 0, 0), "{stats:?}");
        consumer.close(WATCHDOG).unwrap();
    }
}
