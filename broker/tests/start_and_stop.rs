//! Starting and stopping leaves no thread and no descriptor behind. One test in a process of its own: it counts them.

#![allow(clippy::unwrap_used, reason = "this is a test")]

mod support;

use std::time::Duration;

use keyway_broker::{Broker, BrokerErrorKind};
use keyway_fabric::{SystemClock, Time};
use support::{begin, builder, dial, receive_welcome};

/// How long the system may take to take down a thread.
const WATCHDOG: Duration = Duration::from_secs(10);

fn entries(directory: &str) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

/// Threads and descriptors of this process.
fn held() -> (usize, usize) {
    (entries("/proc/self/task"), entries("/proc/self/fd"))
}

#[test]
fn nothing_is_left_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("broker.sock");
    let before = held();
    for round in 0..20 {
        let broker = builder().unix(&path).start().unwrap();
        let address = broker.local_addr().unwrap();
        let connector = broker.connector();
        // Left open over the stop: a connection that has said nothing, one in the middle of its bootstrap, one in process.
        let silent = dial(&broker);
        let mut halfway = dial(&broker);
        begin(&mut halfway);
        receive_welcome(&mut halfway);
        let in_process = connector.bootstrap().unwrap();
        assert!(held().0 > before.0);
        // A second broker on the same port and path: an error, and nothing is left of it either.
        for second in [builder().unix(&path), Broker::builder().listen(address.to_string())] {
            assert_eq!(second.start().unwrap_err().kind(), BrokerErrorKind::Address);
        }
        if round % 2 == 0 {
            broker.stop(Duration::from_millis(10)).unwrap();
        } else {
            drop(broker);
        }
        assert!(!path.exists());
        drop((silent, halfway, in_process, connector));
        // A thread that has been joined is listed until the system has taken it down.
        let clock = SystemClock::start();
        while held() != before && clock.now().time.since(Time::ZERO) < WATCHDOG {
            std::thread::yield_now();
        }
        assert_eq!(held(), before, "threads and descriptors after round {round}");
    }
}
