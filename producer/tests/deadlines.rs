//! Connecting, flushing and closing end in time, with a typed error, whatever the broker does or does not do, and leave no
//! thread and no descriptor behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod stub;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use std::time::Duration;

use keyway_client::wait_for;
use keyway_fabric::{SystemClock, Time};
use keyway_producer::{ErrorKind, Producer, ProducerBuilder};
use keyway_schema::Code;
use keyway_schema::bootstrap::Bootstrap;
use stub::{Batches, Stub};

/// The deadline of what is expected to end by it.
const DEADLINE: Duration = Duration::from_millis(300);

/// How late an answer may be before a test calls it hung: a watchdog, not a measure.
const HUNG: Duration = Duration::from_secs(5);

/// Threads and descriptors are counted for the whole process, so these tests take turns.
static ALONE: Mutex<()> = Mutex::new(());

fn builder(address: SocketAddr) -> ProducerBuilder {
    Producer::builder(format!("keyway://{address}"), "t").connect_timeout(DEADLINE)
}

fn dead_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The producer threads and the descriptors of this process.
fn left_over() -> (usize, usize) {
    let entries = |path: &str| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let name = |task: std::path::PathBuf| std::fs::read_to_string(task.join("comm")).unwrap_or_default();
    let threads = entries("/proc/self/task").filter(|task| name(task.clone()).starts_with("keyway-prod")).count();
    (threads, entries("/proc/self/fd").count())
}

/// Runs a scenario and checks that it ended in time and left nothing.
fn in_time(scenario: impl FnOnce()) {
    let _turn = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let before = left_over();
    let clock = SystemClock::start();
    scenario();
    let took = clock.now().time.since(Time::ZERO);
    assert!(took < HUNG, "it took {took:?}");
    // A thread that has been joined is listed until the system has taken it down.
    while left_over() != before && clock.now().time.since(Time::ZERO) < took + HUNG {
        std::thread::yield_now();
    }
    assert_eq!(left_over(), before, "threads and descriptors");
}

#[test]
fn connecting_to_a_dead_port_ends_with_the_connect_timeout_and_its_cause() {
    in_time(|| {
        let error = builder(dead_port()).connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("refused"), "{error}");
    });
}

#[test]
fn connecting_to_a_listener_that_never_answers_ends_with_the_connect_timeout() {
    in_time(|| {
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = builder(mute.local_addr().unwrap()).connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
    });
}

#[test]
fn connecting_to_something_else_names_what_it_is_not() {
    in_time(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answering = std::thread::Builder::new()
            .spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
                drop(stream.read_to_end(&mut Vec::new()));
            })
            .unwrap();
        let error = builder(address).connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Handshake, "{error}");
        answering.join().unwrap();
    });
}

#[test]
fn a_broker_of_another_version_is_not_asked_twice() {
    in_time(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let refusing = std::thread::Builder::new()
            .spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let refused = Bootstrap::Refused { code: Code::Version.number(), text: "2, not 1".into() };
                stream.write_all(&refused.encode().unwrap()).unwrap();
                drop(stream.read_to_end(&mut Vec::new()));
            })
            .unwrap();
        let error = builder(address).connect_timeout(HUNG).connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused(Code::Version), "{error}");
        refusing.join().unwrap();
    });
}

#[test]
fn what_is_published_is_committed_before_close_returns() {
    in_time(|| {
        let stub = Stub::start(Batches::Commit);
        let producer = builder(stub.address).connect().unwrap();
        let pending: Vec<_> = (0..1000).map(|i| producer.enqueue(format!("record {i}")).unwrap()).collect();
        producer.close(HUNG).unwrap();
        for (i, pending) in pending.into_iter().enumerate() {
            assert_eq!(pending.try_result().expect("close waits for it").unwrap().sequence, i as u64);
        }
        assert_eq!(stub.stop(), 1000);
    });
}

#[test]
fn flush_and_close_end_in_time_when_the_broker_never_commits() {
    in_time(|| {
        let stub = Stub::start(Batches::Ignore);
        let producer = builder(stub.address).connect().unwrap();
        let pending = producer.enqueue("never").unwrap();
        let error = producer.flush(DEADLINE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(pending.try_result().is_none(), "a flush gives nothing up");
        assert_eq!(producer.close(DEADLINE).unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Closed);
    });
}

#[test]
fn flush_and_close_end_in_time_when_the_broker_is_gone() {
    in_time(|| {
        let stub = Stub::start(Batches::Ignore);
        let producer = builder(stub.address).connect().unwrap();
        let pending = producer.enqueue("never").unwrap();
        drop(stub);
        let error = wait_for(producer.flush_async(DEADLINE), Some(HUNG)).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let error = wait_for(producer.close_async(DEADLINE), Some(HUNG)).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("cannot reach"), "{error}");
        assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Closed);
    });
}

#[test]
fn a_producer_that_is_dropped_fails_what_it_did_not_deliver() {
    in_time(|| {
        let stub = Stub::start(Batches::Ignore);
        let producer = builder(stub.address).buffer(1000).connect().unwrap();
        let pending = producer.enqueue("in flight").unwrap();
        drop(producer);
        assert_eq!(pending.try_result().expect("it is known at once").unwrap_err().kind(), ErrorKind::Closed);
    });
}
