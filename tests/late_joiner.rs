//! T18: who subscribes before the first publish gets everything; a late joiner gets the history that it asks for; the last record
//! of a producer that exits right after it is not lost.

mod bus;

use std::time::Duration;

use keyway::{Consumer, Scope, Server, Start};

use crate::bus::clients::{SCOPES, expect_nothing, next_record, producer, publish};
use crate::bus::process::{Binary, BrokerProcess, Process, words};
use crate::bus::{Watchdog, data, small_broker};

const LIMIT: Duration = Duration::from_secs(120);

fn consumer(server: &Server, topic: &str, start: Start, scope: Scope) -> Consumer {
    Consumer::builder(server, topic).start(start).scope(scope).connect().expect("a consumer can connect")
}

#[test]
fn before_and_after_the_first_publish() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    for scope in SCOPES {
        let topic = format!("history/{scope:?}");
        let mut early =
            [Start::Earliest, Start::Latest, Start::Sequence(0)].map(|start| consumer(&server, &topic, start, scope));
        let producer = producer(&server, &topic);
        publish(&producer, 1, 0, 20, 10);
        for consumer in &mut early {
            for number in 0..20 {
                assert_eq!(data::check_payload(next_record(consumer).payload()), (1, number), "{scope:?}");
            }
        }

        let mut all = consumer(&server, &topic, Start::Earliest, scope);
        let mut some = consumer(&server, &topic, Start::Sequence(15), scope);
        let mut none = consumer(&server, &topic, Start::Latest, scope);
        for number in 0..20 {
            assert_eq!(next_record(&mut all).sequence(), number, "{scope:?}");
        }
        for number in 15..20 {
            assert_eq!(next_record(&mut some).sequence(), number, "{scope:?}");
        }
        expect_nothing(&mut none);
        publish(&producer, 1, 20, 1, 10);
        for consumer in early.iter_mut().chain([&mut all, &mut some, &mut none]) {
            assert_eq!(next_record(consumer).sequence(), 20, "{scope:?}");
        }
    }
}

#[test]
fn from_a_time() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    let producer = producer(&server, "times");
    let receipts: Vec<_> =
        (0..5).map(|number| producer.enqueue(data::payload(1, number, 5)).expect("it is taken").wait()).collect();
    let times: Vec<u64> = receipts.into_iter().map(|receipt| receipt.expect("it is committed").time.0).collect();
    assert!(times.is_sorted(), "commit times never decrease: {times:?}");
    for scope in SCOPES {
        let mut consumer = consumer(&server, "times", Start::Time(times[3]), scope);
        let first = times.iter().position(|time| *time >= times[3]).expect("there is such a record");
        assert_eq!(next_record(&mut consumer).sequence(), first as u64, "{scope:?}");
        let mut beginning = self::consumer(&server, "times", Start::Time(0), scope);
        assert_eq!(next_record(&mut beginning).sequence(), 0, "{scope:?}");
    }
}

#[test]
fn the_last_record_of_a_producer_that_exits() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = BrokerProcess::start("--pool-size 16MiB --segment-size 2MiB");
    let server = broker.unix();
    let subscribe = format!("sub last --server {server} --raw --from earliest --count 3 --timeout 60s");
    let early = Process::start(Binary::Cli, &words(&subscribe));
    Process::run_with_input(Binary::Cli, &words(&format!("pub last --server {server}")), b"one\ntwo\nthree\n".to_vec())
        .success();
    assert_eq!(early.wait().success(), b"one\ntwo\nthree\n");
    assert_eq!(
        Process::run(Binary::Cli, &words(&subscribe)).success(),
        b"one\ntwo\nthree\n",
        "the producer is long gone"
    );
}
