//! T13: a consumer or producer that is killed with -9 at any moment leaves nothing behind: its windows and segments are the
//! broker's again, a new client of its name works at once, and the others go on.

mod bus;

use std::time::Duration;

use keyway::{Broker, Consumer, Server, Start};

use crate::bus::clients::{SCOPES, producer, publish, receive_until};
use crate::bus::data::Noise;
use crate::bus::process::{Binary, Process, words};
use crate::bus::{Watchdog, data, until_counters};

const LIMIT: Duration = Duration::from_secs(180);

fn start() -> (Broker, Server, String, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let path = directory.path().join("broker.sock");
    // Records of up to 512 KiB: beyond 64 KiB they are offered.
    let builder = bus::broker().pool_size(32 << 20).segment_size(1 << 20).topic_segments(16).record_max(512 << 10);
    let broker = builder.unix(&path).start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    (broker, server, format!("keyway+unix://{}", path.display()), directory)
}

#[test]
fn a_killed_consumer_leaves_no_window_and_no_segment() {
    let _watchdog = Watchdog::start(LIMIT);
    let (broker, server, address, _directory) = start();
    let producer = producer(&server, "killed");
    publish(&producer, 1, 0, 1_000, 500);
    let before = broker.counters().expect("the broker answers");
    assert_eq!(before.windows, 0, "nobody has subscribed");
    let mut noise = Noise::new(5);
    let mut published = 1_000;
    for round in 0..6 {
        let scope = ["segment", "batch", "message"][round % 3];
        let line =
            format!("sub killed --server {address} --name same --from earliest --scope {scope} --epoch 1ms --quiet");
        let grants = broker.counters().expect("the broker answers").grants;
        let mut subscriber = Process::start(Binary::Cli, &words(&line));
        // Not that it still holds one: it may have read everything and released it before anybody looks.
        until_counters(&broker, "it to be given grants", |counters| counters.grants > grants);
        let more = 20 + noise.below(200);
        publish(&producer, 1, published, more, 500);
        published += more;
        subscriber.kill();
        until_counters(&broker, "its windows and its session to be gone", |counters| {
            counters.windows == 0 && counters.sessions == 1 && counters.segments_limbo == 0
        });
    }
    let after = broker.counters().expect("the broker answers");
    assert_eq!(after.segments_free + after.segments_live, before.segments_free + before.segments_live);

    let line = format!("sub killed --server {address} --name same --from latest --count 1 --raw");
    let heir = Process::start(Binary::Cli, &words(&line));
    until_counters(&broker, "a new client of that name", |counters| counters.subscriptions == 1);
    producer.enqueue("an heir\n").expect("it is taken").wait().expect("it is committed");
    assert_eq!(heir.wait().success(), b"an heir\n");
}

#[test]
fn a_killed_producer_takes_nobody_with_it() {
    let _watchdog = Watchdog::start(LIMIT);
    let (broker, server, address, directory) = start();
    let file = directory.path().join("noise");
    std::fs::write(&file, data::binary(9, 40 << 20)).expect("a file can be written");
    let file = file.to_str().expect("a temporary directory's path is text");
    let steady = producer(&server, "killed");
    let mut consumers = SCOPES.map(|scope| {
        Consumer::builder(&server, "killed").start(Start::Earliest).scope(scope).connect().expect("it can connect")
    });
    let mut next = 0;
    for (round, chunk) in [(0, "1000"), (1, "200KiB"), (2, "30KiB"), (3, "512KiB"), (4, "100")] {
        let line = format!("pub killed --server {address} --name same --file {file} --chunk {chunk}");
        let mut publisher = Process::start(Binary::Cli, &words(&line));
        let records = broker.counters().expect("the broker answers").records;
        until_counters(&broker, "it to publish", |counters| counters.records > records + 3);
        publisher.kill();
        until_counters(&broker, "its session to be gone", |counters| {
            counters.sessions == 4 && counters.batches_waiting == 0
        });
        // Behind whatever it has left comes the next record of another producer, and everybody gets there.
        let marker = data::payload(7, round, 100);
        let receipt = steady.enqueue(&marker).expect("it is taken").wait().expect("it is committed");
        for consumer in &mut consumers {
            let mut last = Vec::new();
            // One that is slow may be lapped meanwhile, and is told the exact gap.
            receive_until(consumer, next, receipt.sequence + 1, |record| last = record.payload().to_vec());
            assert!(last == marker, "the last record is the one behind the killed producer's");
        }
        next = receipt.sequence + 1;
    }
    assert_eq!(steady.stats().reconnects, 0);
    assert!(broker.counters().expect("the broker answers").offers > 0, "large records are offered");
}
