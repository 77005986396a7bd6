//! T09: with keys replaced as often as goes and READs that take longer than an epoch, every record arrives whole, no epoch is
//! mixed into another, and a consumer that keeps the protocol never sees a remote access error.

mod bus;

use std::time::Duration;

use keyway::{Consumer, Server, Start};

use crate::bus::clients::{SCOPES, producer, publish, receive_until};
use crate::bus::{Watchdog, assert_undisturbed, data};

const LIMIT: Duration = Duration::from_secs(180);

const RECORDS: u64 = 400;
const LEN: usize = 100 << 10;

/// A key that is not released within it is revoked, which is not what this test is about, however slow the machine.
const GRACE: Duration = Duration::from_secs(20);

#[test]
fn large_records_under_the_shortest_epochs() {
    let _watchdog = Watchdog::start(LIMIT);
    let builder = bus::broker().pool_size(64 << 20).segment_size(1 << 20).topic_segments(60).record_max(512 << 10);
    let broker = builder.listen("127.0.0.1:0").start().expect("the settings fit each other");
    let server = Server::from(broker.local_addr().expect("it listens"));
    let producer = producer(&server, "rotated");
    std::thread::scope(|threads| {
        for scope in SCOPES {
            let server = &server;
            threads.spawn(move || {
                let mut consumer = Consumer::builder(server, "rotated")
                    .start(Start::Earliest)
                    .scope(scope)
                    .epoch(Duration::from_micros(100))
                    .grace(GRACE)
                    .connect()
                    .expect("a consumer can connect");
                let check = |record: &keyway::Received| {
                    assert_eq!(data::check_payload(record.payload()), (1, record.sequence()));
                };
                let missed = receive_until(&mut consumer, 0, RECORDS, check);
                let stats = consumer.stats();
                assert_eq!((missed, stats.remote_access_errors), (0, 0), "{scope:?}: {stats:?}");
                assert_undisturbed(stats.reconnects, &(scope, &stats));
                assert!(stats.epochs > 20, "{scope:?}: {stats:?}");
            });
        }
        publish(&producer, 1, 0, RECORDS, bus::scaled(LEN));
    });
    let counters = broker.counters().expect("the broker answers");
    assert_eq!((counters.remote_access_violations, counters.revocations_forced), (0, 0), "{counters:?}");
    assert!(counters.rekeys > 20, "keys were replaced under the READs: {counters:?}");
}
