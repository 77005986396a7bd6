//! A broker that is killed with -9 and started again: producers send again what was not acknowledged, consumers are told that the
//! log is a new one and read it from its start, in the same processes and objects.

mod bus;

use std::time::Duration;

use keyway::{Consumer, Error, ErrorKind, Server, Start};

use crate::bus::clients::{SCOPES, next_record, producer, publish};
use crate::bus::data::Noise;
use crate::bus::process::BrokerProcess;
use crate::bus::{PATIENCE, Watchdog, data};

const LIMIT: Duration = Duration::from_secs(180);

const BROKER: &str = "--pool-size 16MiB --segment-size 256KiB --topic-segments 32 --record-max 64KiB";

#[test]
fn clients_go_on_with_the_new_log() {
    let _watchdog = Watchdog::start(LIMIT);
    let mut broker = BrokerProcess::start(BROKER);
    let server: Server = broker.tcp().parse().expect("a broker's address is one");
    let producer = producer(&server, "restarted");
    let mut consumers = SCOPES.map(|scope| {
        let builder = Consumer::builder(&server, "restarted").start(Start::Earliest).scope(scope);
        builder.epoch(Duration::from_millis(1)).connect().expect("a consumer can connect")
    });
    publish(&producer, 1, 0, 100, 100);
    for consumer in &mut consumers {
        for number in 0..100 {
            assert_eq!(data::check_payload(next_record(consumer).payload()), (1, number));
        }
    }

    broker.kill();
    // Taken while nobody is there, and delivered when somebody is.
    let pending: Vec<_> =
        (100..150).map(|number| producer.enqueue(data::payload(1, number, 100)).expect("a record is taken")).collect();
    broker.restart();
    for (place, pending) in pending.into_iter().enumerate() {
        assert_eq!(pending.wait().expect("it is delivered to the new broker").sequence, place as u64);
    }
    for consumer in &mut consumers {
        let told = consumer.recv_timeout(PATIENCE).expect_err("a new log is not silently the old one");
        assert!(matches!(told, Error::Restarted { .. }) && told.is_retryable(), "{told}");
        assert_eq!(told.kind(), ErrorKind::Restarted);
        for number in 100..150 {
            let record = next_record(consumer);
            assert_eq!(record.sequence(), number - 100);
            assert_eq!(data::check_payload(record.payload()), (1, number));
        }
    }
    assert!(producer.stats().reconnects > 0);
}

/// Killed in the middle of traffic, again and again: whatever was received is whole and in order within one log, and everything
/// that was acknowledged by the last broker is there.
#[test]
fn killed_at_random_moments() {
    let _watchdog = Watchdog::start(LIMIT);
    let mut broker = BrokerProcess::start(BROKER);
    let server: Server = broker.unix().parse().expect("a broker's address is one");
    let producer = producer(&server, "unlucky");
    let mut consumer = Consumer::builder(&server, "unlucky")
        .start(Start::Earliest)
        .epoch(Duration::from_millis(1))
        .connect()
        .expect("a consumer can connect");
    let mut noise = Noise::new(17);
    let mut number = 0;
    for _ in 0..4 {
        for _ in 0..noise.below(400) {
            drop(producer.enqueue(data::payload(1, number, 200)).expect("a record is taken"));
            number += 1;
        }
        // In the middle of it, without waiting for anything.
        broker.kill();
        broker.restart();
    }
    let last = number;
    let receipt = producer.enqueue(data::payload(1, last, 0)).expect("a record is taken").wait();
    let receipt = receipt.expect("the broker is there again");

    // Of each log: sequences without gaps, numbers in order. The last log ends with the last record.
    let (mut next, mut before) = (0, None);
    loop {
        match consumer.recv_timeout(PATIENCE) {
            Ok(Some(record)) => {
                let (whose, number) = data::check_payload(record.payload());
                assert_eq!((whose, record.sequence()), (1, next));
                assert!(before.is_none_or(|before| before < number), "record {number} came behind {before:?}");
                (next, before) = (next + 1, Some(number));
                if number == last {
                    assert_eq!(record.sequence(), receipt.sequence);
                    return;
                }
            }
            Err(Error::Restarted { .. }) => (next, before) = (0, None),
            Ok(None) => panic!("waited in vain for record {next}; {:?}", consumer.stats()),
            Err(error) => panic!("record {next} or a restart was expected: {error}"),
        }
    }
}
