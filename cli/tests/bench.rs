//! `keyway bench` on the software fabric: its figures add up, its processes end, and what it cannot do it says.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use keyway_broker::Broker;
use serde_json::Value;

/// For a broker to finish with what is going on.
const DEADLINE: Duration = Duration::from_secs(10);

fn bench(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.arg("bench").args(line.split(' ')).stdin(Stdio::null()).output().unwrap()
}

/// The figures of a measurement that went well.
#[track_caller]
fn figures(line: &str) -> Value {
    let output = bench(&format!("{line} --json"));
    assert!(output.status.success(), "{line}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn number(figures: &Value, name: &str) -> f64 {
    figures[name].as_f64().unwrap_or_else(|| panic!("{name} is no number in {figures}"))
}

#[test]
fn every_scope_is_measured_live_and_out_of_a_full_ring_and_nothing_is_lost() {
    for scope in ["segment", "batch", "message"] {
        for mode in ["", " --prefill"] {
            let line = format!("--seconds 0.3 --ring 16MiB --epoch 5ms --scope {scope}{mode}");
            let figures = figures(&line);
            let rate = number(&figures, "records_per_second");
            assert!(rate > 0.0 && number(&figures, "records") > 0.0, "{line}: {figures}");
            let expected = rate * 1024.0 / 1e6;
            let megabytes = number(&figures, "megabytes_per_second");
            assert!((megabytes - expected).abs() <= expected * 0.01 + 0.001, "{line}: {figures}");
            for zero in ["lost", "remote_access_errors", "reconnects"] {
                assert_eq!(number(&figures, zero), 0.0, "{line}: {figures}");
            }
            assert!(number(&figures, "epochs") > 0.0 && number(&figures, "reads") > 0.0, "{line}: {figures}");
            assert_eq!(figures["scope"], scope);
        }
    }
}

#[test]
fn the_conditions_of_a_measurement_are_among_its_figures() {
    let figures =
        figures("--seconds 0.3 --prefill --size 64KiB --ring 16MiB --epoch never --consumers 2 --producers 2");
    for (name, value) in [
        ("mode", Value::from("prefill")),
        ("fabric", "soft".into()),
        ("transport", "unix".into()),
        ("epoch_us", Value::Null),
        ("size", 65_536.into()),
        ("ring", (16 << 20).into()),
        ("producers", 2.into()),
        ("consumers", 2.into()),
        ("processes", "1 of the broker, 2 of producers, 2 of consumers".into()),
        ("version", env!("CARGO_PKG_VERSION").into()),
    ] {
        assert_eq!(figures[name], value, "{name} in {figures}");
    }
    assert!(number(&figures, "passes") >= 2.0, "{figures}");
    assert_eq!(number(&figures, "rekeys"), 0.0, "{figures}");
    assert_eq!(number(&figures, "bytes"), number(&figures, "records") * 65_536.0);
}

#[test]
fn another_broker_is_measured_where_it_is() {
    let broker = Broker::builder().listen("127.0.0.1:0").start().unwrap();
    let server = format!("keyway://{}", broker.local_addr().unwrap());
    let figures = figures(&format!("--seconds 0.3 --server {server}"));
    assert_eq!((&figures["transport"], &figures["ring"]), (&"tcp".into(), &Value::Null));
    let received = number(&figures, "records") as u64;
    assert!(received > 0 && broker.counters().unwrap().records >= received);
    broker.stop(DEADLINE).unwrap();
}

#[test]
fn a_measurement_that_is_read_by_a_person_says_what_ran_where() {
    let output = bench("--seconds 0.3 --ring 16MiB");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    for words in ["published and received", "records/s", "fabric soft", "1 of the broker", "0 remote access errors"] {
        assert!(said.contains(words), "{words} is not in {said}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_in_one_line() {
    for (line, status, expected) in [
        ("--fabric ethernet", 2, "it is soft, verbs, verbs:DEVICE or auto"),
        ("--epoch often", 2, "never"),
        ("--seconds 0", 2, "more than 0"),
        ("--producers 0", 2, "1..=64"),
        ("--consumers 65", 2, "1..=64"),
        ("--scope topic", 2, "segment, batch, message"),
        ("--fabric soft --server keyway://127.0.0.1:1", 2, "cannot be used with"),
        ("--size 1MiB --ring 4MiB", 1, "need at least"),
        ("--fabric verbs:no_such_device --seconds 0.3", 1, "the broker has failed"),
        ("--server keyway+unix:///no/such/socket --seconds 0.3", 1, "has failed"),
        ("--epoch 1us --seconds 0.3", 1, "microseconds"),
    ] {
        let output = bench(line);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{line}: {said}");
        assert!(said.contains(expected) && said.trim_end().lines().count() == 1, "{line}: {said}");
        assert!(output.stdout.is_empty(), "{line}");
    }
}

#[test]
fn a_measurement_that_is_interrupted_leaves_no_process_behind() {
    let mut running = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args(["bench", "--seconds", "600", "--ring", "16MiB"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let children = format!("/proc/{0}/task/{0}/children", running.id());
    // Broker, consumer and producer.
    let all = loop {
        let children = std::fs::read_to_string(&children).unwrap();
        let children: Vec<String> = children.split_whitespace().map(str::to_owned).collect();
        if children.len() == 3 {
            break children;
        }
        assert!(running.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    };
    let signalled = Command::new("kill").args(["-INT", &running.id().to_string()]).status().unwrap();
    assert!(signalled.success());
    assert_eq!(running.wait().unwrap().code(), Some(130));
    for child in all {
        assert!(!std::path::Path::new(&format!("/proc/{child}")).exists(), "process {child} is left");
    }
}
