//! A producer that is dropped with records on board says so: their receipts fail, and what nobody waits for is logged.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[allow(dead_code, reason = "not every test needs every part of it")]
mod stub;

use std::io::Write;
use std::sync::{Arc, Mutex};

use keyway_producer::{ErrorKind, Producer};
use stub::{Batches, Stub};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// One test: the log is the process's.
#[test]
fn records_that_nobody_waits_for_are_counted_in_the_log_when_they_are_lost() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let stub = Stub::start(Batches::Ignore);
    let producer = Producer::builder(stub.address, "t").connect().unwrap();
    let in_flight = producer.enqueue("the first").unwrap();
    assert_eq!(producer.flush(std::time::Duration::ZERO).unwrap_err().kind(), ErrorKind::Timeout);
    for i in 0..7 {
        drop(producer.enqueue(i.to_string()).unwrap());
    }
    drop(producer);
    assert_eq!(in_flight.try_result().expect("it is known at once").unwrap_err().kind(), ErrorKind::Closed);
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lost: u64 = log
        .lines()
        .filter(|line| line.contains("ERROR") && line.contains("not published"))
        .map(|line| line.split("records=").nth(1).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(lost, 7, "{log}");
}
