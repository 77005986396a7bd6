//! T06: `flush`, `close` and connecting return within their deadlines with an error while the broker is unreachable, and leave no
//! thread and no descriptor behind.

mod bus;

use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use keyway::{Consumer, ErrorKind, Producer, Server};

use crate::bus::clients::producer;
use crate::bus::proxy::Proxy;
use crate::bus::{Watchdog, small_broker, timed, until, until_counters};

const LIMIT: Duration = Duration::from_secs(120);

/// The deadline that each operation is given.
const DEADLINE: Duration = Duration::from_millis(300);

/// How much later a thread may run on a machine that is busy with other things.
const SLACK: Duration = Duration::from_secs(10);

/// Threads and descriptors of this process.
fn holdings() -> (usize, usize) {
    let count = |directory: &str| fs::read_dir(directory).expect("Linux tells about processes").count();
    (count("/proc/self/task"), count("/proc/self/fd"))
}

#[track_caller]
fn within_deadline<T>(what: &str, operation: impl FnOnce() -> T) -> T {
    let (result, took) = timed(operation);
    assert!(took < DEADLINE + SLACK, "{what} took {took:?} with a deadline of {DEADLINE:?}");
    result
}

// One test: it counts what the whole process holds, and another test's threads would be counted too.
#[test]
fn every_operation_ends_and_leaves_nothing() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().listen("127.0.0.1:0").start().expect("the settings fit each other");
    let proxy = Proxy::start(broker.local_addr().expect("it listens"));
    let server: Server = proxy.server().parse().expect("a proxy's address is one");
    proxy.close();
    let before = holdings();

    // Refused, silent, and gone.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port can be had");
    let silent_server = Server::from(silent.local_addr().expect("it has an address"));
    for server in [&server, &silent_server] {
        let connect = || Producer::builder(server, "topic").connect_timeout(DEADLINE).connect();
        let error = within_deadline("connecting a producer", connect).expect_err("there is no broker");
        assert!(error.is_retryable(), "{error}");
        let connect = || Consumer::builder(server, "topic").connect_timeout(DEADLINE).connect();
        let error = within_deadline("connecting a consumer", connect).expect_err("there is no broker");
        assert!(error.is_retryable(), "{error}");
    }
    drop(silent);

    proxy.open();
    let producer = producer(&server, "topic");
    let mut consumer = Consumer::builder(&server, "topic").connect().expect("a consumer can connect");
    proxy.close();
    // A device goes on for as long as the broker has not heard that the bootstrap streams have ended.
    until_counters(&broker, "both sessions to be gone", |counters| counters.sessions == 0);
    let mut pending = producer.enqueue("while it is away").expect("it is taken");
    let error = within_deadline("flush", || producer.flush(DEADLINE)).expect_err("nothing can be committed");
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(within_deadline("a receipt", || pending.wait_timeout(DEADLINE)).is_none());
    let nothing = within_deadline("recv_timeout", || consumer.recv_timeout(DEADLINE));
    assert!(nothing.is_ok_and(|record| record.is_none()), "being away is no error of the record stream");
    let error = within_deadline("close", || producer.close(DEADLINE)).expect_err("nothing can be committed");
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(pending.wait().is_err());
    // A consumer owes nobody anything.
    within_deadline("closing a consumer", || consumer.close(DEADLINE)).expect("it has nothing to wait for");

    until("threads and descriptors to be as before", || (holdings() == before).then_some(()));
    drop(broker);
}
