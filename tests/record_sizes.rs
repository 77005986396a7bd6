//! T10: a record of the maximum size passes, also when headers make part of it; one byte more is refused by the client with both
//! sizes named, and neither the session nor the next record notices. So it is for `keyway pub`.

mod bus;

use std::time::Duration;

use keyway::{Consumer, ErrorKind, Record, Server, Start};

use crate::bus::clients::{SCOPES, next_record, producer};
use crate::bus::process::{Binary, BrokerProcess, Process, words};
use crate::bus::{PATIENCE, Watchdog, data, small_broker};

const LIMIT: Duration = Duration::from_secs(120);
const MAX: usize = 32 << 10;

#[test]
fn from_nothing_to_the_maximum_and_not_a_byte_more() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    let producer = producer(&server, "sizes");
    let payload = data::binary(3, MAX + 1);

    let mut passed: Vec<&[u8]> = Vec::new();
    for size in [0, 1, 7, 8, 9, MAX - 1, MAX] {
        let pending = producer.enqueue(&payload[..size]).expect("a record of up to the maximum is taken");
        assert_eq!(pending.wait().expect("and committed").sequence, passed.len() as u64);
        passed.push(&payload[..size]);
        let refused = producer.enqueue(&payload).expect_err("a byte more is refused");
        assert_eq!(refused.kind(), ErrorKind::RecordTooLarge);
        let text = refused.to_string();
        assert!(text.contains(&MAX.to_string()) && text.contains(&(MAX + 1).to_string()), "{text}");
    }

    // A header of 4 bytes takes 3 more; a key counts as it is.
    let room = MAX - 3 - 4 - 3;
    let with_headers = |size: usize| Record::new(&payload[..size]).key("key").header("name", "");
    assert_eq!(with_headers(room).size(), MAX);
    producer.enqueue(with_headers(room)).expect("the maximum with headers is taken").wait().expect("and committed");
    let refused = producer.enqueue(with_headers(room + 1)).expect_err("a byte more is refused");
    assert_eq!(refused.kind(), ErrorKind::RecordTooLarge);
    assert!(!refused.is_retryable());
    let given_back = refused.into_record().expect("a record that was not taken is given back");
    assert_eq!(given_back.payload().len(), room + 1);
    producer.enqueue("the next one").expect("the session goes on").wait().expect("and commits");
    assert_eq!(producer.stats().reconnects, 0);

    for scope in SCOPES {
        let mut consumer = Consumer::builder(&server, "sizes")
            .start(Start::Earliest)
            .scope(scope)
            .connect()
            .expect("a consumer can connect");
        for expected in &passed {
            assert_eq!(next_record(&mut consumer).payload(), *expected, "{scope:?}");
        }
        let record = next_record(&mut consumer);
        assert_eq!((record.key(), record.payload()), (Some(&b"key"[..]), &payload[..room]), "{scope:?}");
        assert_eq!(record.headers().collect::<Vec<_>>(), [("name", &b""[..])], "{scope:?}");
        assert_eq!(next_record(&mut consumer).payload(), b"the next one", "{scope:?}");
        consumer.close(PATIENCE).expect("it closes");
    }
}

#[test]
fn a_command_that_publishes_too_large_a_record_says_so() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = BrokerProcess::start("--pool-size 16MiB --segment-size 64KiB --record-max 20000");
    let file = broker.directory().join("noise");
    std::fs::write(&file, data::binary(4, 20_001)).expect("a file can be written");
    let server = broker.unix();
    let line = |chunk: usize| format!("pub sizes --server {server} --file {} --chunk {chunk}", file.display());
    Process::run(Binary::Cli, &words(&line(20_000))).success();
    let said = Process::run(Binary::Cli, &words(&line(20_001))).one_line(1);
    assert!(said.contains("20001") && said.contains("20000"), "both sizes should be named: {said}");
}
