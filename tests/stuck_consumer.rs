//! T02, T17: a consumer that is stopped while it holds a key and has READs under way loses the key; the others notice nothing, and
//! the stopped one goes on where it was once it runs again.

mod bus;

use std::time::Duration;

use keyway::{Consumer, Server, Start};

use crate::bus::clients::{SCOPES, producer, publish, receive_until};
use crate::bus::process::{Binary, Process, words};
use crate::bus::{Watchdog, assert_undisturbed, data, until, until_counters};

const LIMIT: Duration = Duration::from_secs(180);

const LEN: usize = 2_000;
/// What is published at a time.
const SOME: u64 = 200;

#[test]
fn the_others_go_on_and_it_comes_back() {
    let _watchdog = Watchdog::start(LIMIT);
    let directory = tempfile::tempdir().expect("a directory can be made");
    let path = directory.path().join("broker.sock");
    // The rings hold everything that is published here.
    let builder = bus::broker().pool_size(64 << 20).segment_size(256 << 10).topic_segments(80);
    let broker = builder.record_max(32 << 10).unix(&path).start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    for (place, scope) in ["segment", "batch", "message"].into_iter().enumerate() {
        let topic = format!("stuck/{scope}");
        let producer = producer(&server, &topic);
        let mut others = SCOPES.map(|scope| {
            let builder = Consumer::builder(&server, &topic).start(Start::Earliest).scope(scope);
            builder.epoch(Duration::from_millis(5)).connect().expect("it can connect")
        });
        let address = format!("keyway+unix://{}", path.display());
        let line =
            format!("sub {topic} --server {address} --from earliest --scope {scope} --epoch 5ms --grace 40ms --raw");
        let stuck = Process::start(Binary::Cli, &words(&line));
        publish(&producer, 1, 0, SOME, LEN);
        until("it to read", || (!stuck.stdout().is_empty()).then_some(()));

        // Under load, and until a key was taken from it by force: one that has nothing to read holds none.
        let forced = broker.counters().expect("the broker answers").revocations_forced;
        let mut published = SOME;
        publish(&producer, 1, published, SOME, LEN);
        published += SOME;
        stuck.signal("STOP");
        loop {
            publish(&producer, 1, published, 10, LEN);
            published += 10;
            if broker.counters().expect("the broker answers").revocations_forced > forced {
                break;
            }
        }
        publish(&producer, 1, published, SOME, LEN);
        published += SOME;
        for consumer in &mut others {
            let missed = receive_until(consumer, 0, published, |record| {
                assert_eq!(data::check_payload(record.payload()), (1, record.sequence()));
            });
            let stats = consumer.stats();
            assert_eq!((missed, stats.remote_access_errors), (0, 0), "{scope}: {stats:?}");
            assert_undisturbed(stats.reconnects, &(scope, &stats));
        }

        stuck.signal("CONT");
        let expected: Vec<u8> = (0..published).flat_map(|number| data::payload(1, number, LEN)).collect();
        until("it to have read everything", || (stuck.stdout().len() >= expected.len()).then_some(()));
        stuck.signal("TERM");
        assert!(stuck.wait().stdout == expected, "what the stopped one got is what was published, in {scope} scope");
        drop(others);
        assert_eq!(producer.stats().reconnects, 0);
        until_counters(&broker, "what they held to be given back", |counters| {
            counters.windows == 0 && counters.sessions == 1 && counters.topics as usize == place + 1
        });
    }
}
