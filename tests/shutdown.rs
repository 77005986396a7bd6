//! T26: a broker that is told to stop by a signal under load tells its producers, lets consumers read what is committed, and exits
//! with status 0; a second signal ends it at once.

mod bus;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keyway::{Consumer, ErrorKind, Server, Start};

use crate::bus::clients::{SCOPES, next_record, producer};
use crate::bus::process::BrokerProcess;
use crate::bus::raw::{RawSession, Way, subscription};
use crate::bus::{PATIENCE, Watchdog, data};

const LIMIT: Duration = Duration::from_secs(120);

/// How long a flush may wait that the broker answers within milliseconds, if it answers.
const FLUSH: Duration = Duration::from_secs(5);

/// How often a reader that gets nothing looks whether the broker has ended.
const LOOK: Duration = Duration::from_millis(200);

#[test]
fn what_was_committed_is_read_before_it_exits() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = BrokerProcess::start("--pool-size 32MiB --segment-size 2MiB --drain 30s");
    let server: Server = broker.tcp().parse().expect("a broker's address is one");
    let producer = producer(&server, "drained");
    let consumers = SCOPES.map(|scope| {
        let builder = Consumer::builder(&server, "drained").start(Start::Earliest).scope(scope);
        builder.epoch(Duration::from_millis(5)).connect().expect("a consumer can connect")
    });
    let has_ended = &AtomicBool::new(false);
    std::thread::scope(|threads| {
        let publishing = threads.spawn(|| {
            // Until it is told to stop. A record that was taken and not committed waits for the broker's return.
            let mut taken = Vec::new();
            for number in 0.. {
                match producer.enqueue(data::payload(1, number, 100)) {
                    Ok(pending) => taken.push(pending),
                    Err(error) => return (taken, error.kind()),
                }
                if number % 64 == 0
                    && let Err(error) = producer.flush(FLUSH)
                {
                    return (taken, error.kind());
                }
            }
            unreachable!("numbers do not run out")
        });
        let readers: Vec<_> = consumers
            .into_iter()
            .map(|mut consumer| {
                threads.spawn(move || {
                    let mut next = 0;
                    loop {
                        match consumer.recv_timeout(LOOK) {
                            Ok(Some(record)) => {
                                assert_eq!(data::check_payload(record.payload()), (1, next));
                                assert_eq!(record.sequence(), next);
                                next += 1;
                            }
                            // What had landed by the broker's end is taken by now.
                            _ if has_ended.load(Ordering::SeqCst) => break,
                            _ => {}
                        }
                    }
                    consumer.close(PATIENCE).expect("it closes");
                    next
                })
            })
            .collect();
        // Under load.
        let mut probe = Consumer::builder(&server, "drained").connect().expect("it can connect");
        while next_record(&mut probe).sequence() < 300 {}
        probe.close(PATIENCE).expect("it closes");
        let mut broker = broker;
        broker.process().signal("TERM");
        let (taken, kind) = publishing.join().expect("its claims hold");
        // Whether it is told before it takes a record or while it waits for one is a matter of the moment.
        assert!(matches!(kind, ErrorKind::ShuttingDown | ErrorKind::Timeout), "{kind:?}");
        let ended = broker.wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
        has_ended.store(true, Ordering::SeqCst);
        let read: Vec<u64> = readers.into_iter().map(|reader| reader.join().expect("its claims hold")).collect();
        let committed = taken.iter().filter(|pending| matches!(pending.try_result(), Some(Ok(_)))).count() as u64;
        assert!(committed >= 300, "{committed} of {} records that were taken have receipts", taken.len());
        assert!(read.iter().all(|read| *read >= committed), "{committed} records were acknowledged, {read:?} read");
    });
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let _watchdog = Watchdog::start(LIMIT);
    let mut broker = BrokerProcess::start("--pool-size 16MiB --segment-size 2MiB --drain 1h");
    let way = Way::Tcp(broker.address());
    let mut producer = RawSession::producer(&way);
    let topic = producer.open_topic("held", 1).topic;
    producer.commit(topic, 1, 1, &[b"one"]);
    // Holds a grant and says nothing more, so that there is something to wait for.
    let mut holder = RawSession::consumer(&way);
    holder.subscribe(subscription("held", keyway::Scope::Message, 60_000_000, 1));
    holder.receive_grant();
    broker.process().signal("TERM");
    holder.receive_some("the announcement", |message| match message {
        keyway_schema::ToClient::ShuttingDown(_) => Some(()),
        _ => None,
    });
    assert!(broker.process().poll().is_none(), "it waits for the reader");
    broker.process().signal("TERM");
    let ended = broker.wait();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
}

#[test]
fn an_idle_broker_stops_at_once_and_removes_its_socket() {
    let _watchdog = Watchdog::start(LIMIT);
    for signal in ["TERM", "INT", "HUP"] {
        let mut broker = BrokerProcess::start("");
        let directory = broker.directory().to_owned();
        let socket = directory.join("broker.sock");
        assert!(socket.exists());
        broker.process().signal(signal);
        bus::until("its end", || broker.process().poll());
        assert!(!socket.exists(), "the socket is left behind after {signal}");
        let ended = broker.wait();
        assert_eq!(ended.status.code(), Some(0), "{signal}: {}", ended.stderr);
    }
}
