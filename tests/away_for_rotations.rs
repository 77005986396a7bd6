//! T08: a consumer that is away for many key rotations goes on at its cursor, or gets an exact gap; its old key fails.
//!
//! The consumer is a process that is stopped with SIGSTOP. The broker is in this process, so that its counters tell when the
//! stopped consumer's keys are gone.

mod bus;

use std::time::Duration;

use keyway::{Broker, Server};

use crate::bus::clients::producer;
use crate::bus::process::{Binary, Process, words};
use crate::bus::{Watchdog, small_broker, until, until_counters};

const LIMIT: Duration = Duration::from_secs(120);

struct Setting {
    broker: Broker,
    server: Server,
    _directory: tempfile::TempDir,
    address: String,
}

fn start() -> Setting {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let path = directory.path().join("broker.sock");
    let broker = small_broker().unix(&path).start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    Setting { broker, server, _directory: directory, address: format!("keyway+unix://{}", path.display()) }
}

/// Lines `from` to `to`, as they are published and as they come out.
fn lines(from: u64, to: u64) -> String {
    (from..to).map(|number| format!("line {number}\n")).collect()
}

/// Stops a subscriber that has read ten lines until its keys are gone, and publishes `more` meanwhile.
fn stopped(scope: &str, more: u64, padding: usize) -> (Setting, Process, u64) {
    let setting = start();
    let producer = producer(&setting.server, "away");
    let line = format!(
        "sub away --server {} --from earliest --scope {scope} --epoch 1ms --grace 50ms --until-idle 3s --json --allow-lag",
        setting.address
    );
    let subscriber = Process::start(Binary::Cli, &words(&line));
    let publish = |from: u64, to: u64| {
        for number in from..to {
            let line = format!("line {number}{}", " ".repeat(padding));
            drop(producer.enqueue(&line).expect("a line is taken"));
        }
        producer.flush(bus::PATIENCE).expect("the lines are committed");
    };
    publish(0, 10);
    until("the first lines", || {
        (subscriber.stdout().iter().filter(|byte| **byte == b'\n').count() == 10).then_some(())
    });
    // Under load: a consumer that has nothing to read holds no key that could be taken from it.
    subscriber.signal("STOP");
    publish(10, 10 + more);
    until_counters(&setting.broker, "the stopped consumer's windows to be gone", |counters| counters.windows_live == 0);
    subscriber.signal("CONT");
    (setting, subscriber, 10 + more)
}

#[test]
fn it_goes_on_at_its_cursor() {
    let _watchdog = Watchdog::start(LIMIT);
    for scope in ["segment", "batch", "message"] {
        let (_setting, subscriber, end) = stopped(scope, 500, 0);
        let ended = subscriber.wait();
        let summary = ended.stderr.clone();
        let received = String::from_utf8(ended.success()).expect("lines are text");
        assert_eq!(received, lines(0, end), "{scope} scope: {summary}");
    }
}

#[test]
fn it_gets_an_exact_gap_if_the_ring_has_lapped_it() {
    let _watchdog = Watchdog::start(LIMIT);
    for scope in ["segment", "batch", "message"] {
        let (_setting, subscriber, end) = stopped(scope, 3_000, 1_000);
        let ended = subscriber.wait();
        let summary: serde_json::Value =
            serde_json::from_str(ended.stderr.lines().last().expect("there is a summary")).expect("it is JSON");
        let numbers: Vec<u64> = String::from_utf8_lossy(&ended.stdout)
            .lines()
            .map(|line| line.trim().strip_prefix("line ").expect("each line is whole").parse().expect("with a number"))
            .collect();
        assert!(numbers.is_sorted_by(|one, next| one < next), "{scope} scope: lines come in order and once");
        assert_eq!(numbers.last(), Some(&(end - 1)), "{scope} scope: {summary}");
        let lost = summary["lost"].as_u64().expect("the loss is told");
        assert!(lost > 0, "{scope} scope: {summary}");
        assert_eq!(numbers.len() as u64 + lost, end, "{scope} scope: every line came or is counted as lost: {summary}");
    }
}
