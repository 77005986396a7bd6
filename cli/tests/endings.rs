//! How `keyway` ends: with what on standard output, and with which status.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use keyway_broker::Broker;
use serde_json::Value;

/// For a broker to finish with what is going on.
const DEADLINE: Duration = Duration::from_secs(10);

/// A broker on a port of its own.
fn broker() -> Broker {
    Broker::builder().listen("127.0.0.1:0").pool_size(64 << 20).segment_size(2 << 20).start().unwrap()
}

fn keyway(broker: &Broker, arguments: &[&str]) -> Command {
    let server = format!("keyway://{}", broker.local_addr().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.args(arguments).env("KEYWAY_SERVER", server).stdin(Stdio::null());
    command
}

#[track_caller]
fn succeeded(output: &Output) -> &Output {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn help_and_version_go_to_standard_output_and_are_no_errors() {
    for arguments in [&["--help"][..], &["--version"], &["pub", "--help"], &["sub", "--help"], &["probe", "--help"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_keyway")).args(arguments).output().unwrap();
        assert!(succeeded(&output).stderr.is_empty() && !output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn figures_in_json_do_not_mix_with_records() {
    let broker = broker();
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("input");
    fs::write(&input, "one\n\nthree").unwrap();
    let input = fs::File::open(&input).unwrap();
    let published = keyway(&broker, &["pub", "words", "--json"]).stdin(input).output().unwrap();
    let figures: Value = serde_json::from_slice(&succeeded(&published).stdout).unwrap();
    assert_eq!((figures["records"].as_u64(), figures["bytes"].as_u64()), (Some(3), Some(8)));

    let received = ["sub", "words", "--from", "earliest", "--count", "3", "--json"];
    let output = keyway(&broker, &received).output().unwrap();
    assert_eq!(succeeded(&output).stdout, b"one\n\nthree\n");
    let figures: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((figures["records"].as_u64(), figures["lost"].as_u64()), (Some(3), Some(0)));

    let output = keyway(&broker, &received).arg("--quiet").output().unwrap();
    let quiet: Value = serde_json::from_slice(&succeeded(&output).stdout).unwrap();
    assert_eq!((quiet["records"].as_u64(), quiet["bytes"].as_u64()), (Some(3), Some(8)));
    broker.stop(DEADLINE).unwrap();
}

#[test]
fn nobody_reading_the_output_any_more_is_no_error() {
    let broker = broker();
    succeeded(&keyway(&broker, &["pub", "many", "--count", "100000"]).output().unwrap());
    let mut subscriber = keyway(&broker, &["sub", "many", "--from", "earliest"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(subscriber.stdout.take());
    let output = subscriber.wait_with_output().unwrap();
    assert!(succeeded(&output).stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    broker.stop(DEADLINE).unwrap();
}

#[test]
fn fewer_records_than_asked_for_are_a_failure_that_says_how_many() {
    let broker = broker();
    succeeded(&keyway(&broker, &["pub", "few", "--count", "3"]).output().unwrap());
    let arguments = ["sub", "few", "--from", "earliest", "--count", "4", "--until-idle", "300ms"];
    let output = keyway(&broker, &arguments).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("3 records") && said.contains("1 are missing"), "{said}");
    broker.stop(DEADLINE).unwrap();
}

#[test]
fn records_that_the_ring_dropped_are_a_failure_unless_they_are_accepted() {
    let broker = broker();
    let publish = ["pub", "lapped", "--count", "6000", "--size", "1KiB", "--segments", "2"];
    succeeded(&keyway(&broker, &publish).output().unwrap());
    let subscribe = ["sub", "lapped", "--from", "0", "--until-idle", "300ms", "--quiet", "--json"];
    let output = keyway(&broker, &subscribe).output().unwrap();
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (records, lost) = (figures["records"].as_u64().unwrap(), figures["lost"].as_u64().unwrap());
    assert!(lost > 0 && records + lost == 6000, "{figures}");
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    succeeded(&keyway(&broker, &subscribe).arg("--allow-lag").output().unwrap());
    broker.stop(DEADLINE).unwrap();
}

#[test]
fn a_broker_that_goes_away_ends_a_subscriber_when_its_timeout_is_over() {
    let broker = broker();
    let mut subscriber =
        keyway(&broker, &["sub", "quiet", "--timeout", "500ms"]).stderr(Stdio::piped()).spawn().unwrap();
    // It has subscribed once the topic is there.
    while broker.counters().unwrap().subscriptions == 0 {
        assert!(subscriber.try_wait().unwrap().is_none(), "it ended before it had subscribed");
        std::thread::yield_now();
    }
    drop(broker);
    let output = subscriber.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("has been away for 500ms"), "{said}");
}
