//! A file that is published with `keyway pub` comes out of `keyway sub --raw` byte for byte: text and binary, in each of the three
//! scopes with epochs of 1 ms, over TCP and over a Unix socket.

mod bus;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::bus::process::{Binary, BrokerProcess, Process, words};
use crate::bus::{Watchdog, assert_undisturbed, data, scaled};

const LIMIT: Duration = Duration::from_secs(240);

const SCOPES: [&str; 3] = ["segment", "batch", "message"];

/// A ring that holds everything that is published here, in segments that are small enough to be many.
const BROKER: &str = "--pool-size 64MiB --segment-size 512KiB --topic-segments 100 --record-max 256KiB";

fn write(broker: &BrokerProcess, name: &str, bytes: &[u8]) -> String {
    let path: PathBuf = broker.directory().join(name);
    std::fs::write(&path, bytes).expect("a file can be written");
    path.to_str().expect("a temporary directory's path is text").to_owned()
}

/// Publishes a file as `pub_options` say, `records` in all, while a subscriber of each scope reads it.
fn transfer(server: &str, topic: &str, file: &str, pub_options: &str, bytes: &[u8], records: usize) {
    let subscribers = SCOPES.map(|scope| {
        // The grace is for emulated machines, whose devices may stand still for longer than the usual second.
        let line = format!(
            "sub {topic} --server {server} --from earliest --raw --scope {scope} --epoch 1ms --grace 20s --count {records} --json --timeout 60s"
        );
        Process::start(Binary::Cli, &words(&line))
    });
    let line = format!("pub {topic} --server {server} --file {file} {pub_options} --json --timeout 60s");
    let summary = summary(&Process::run(Binary::Cli, &words(&line)).success());
    assert_eq!(summary["records"], records, "{summary}");
    assert_undisturbed(reconnects(&summary), &summary);
    for (scope, subscriber) in SCOPES.into_iter().zip(subscribers) {
        let ended = subscriber.wait();
        let summary = summary_of_text(&ended.stderr);
        let received = ended.success();
        assert!(received == bytes, "{} bytes became {} in {scope} scope: {summary}", bytes.len(), received.len());
        assert_eq!(summary["remote_access_errors"], 0, "{scope} scope: {summary}");
        assert_eq!(summary["lost"], 0, "{scope} scope: {summary}");
        assert_undisturbed(reconnects(&summary), &(scope, &summary));
        assert!(summary["epochs"].as_u64().is_some_and(|epochs| epochs > 0), "{scope} scope: {summary}");
    }
}

fn reconnects(summary: &Value) -> u64 {
    summary["reconnects"].as_u64().unwrap_or_else(|| panic!("no reconnects are counted in {summary}"))
}

fn summary(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("the summary is one line of JSON")
}

fn summary_of_text(text: &str) -> Value {
    let line = text.lines().last().unwrap_or_else(|| panic!("there is no summary in {text:?}"));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn text_over_tcp_and_unix() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = BrokerProcess::start(BROKER);
    let text = data::text(1, scaled(1_500_000));
    let lines = text.split(|byte| *byte == b'\n').count();
    let file = write(&broker, "words.txt", &text);
    transfer(&broker.tcp(), "words/tcp", &file, "--lines", &text, lines);
    transfer(&broker.unix(), "words/unix", &file, "--lines", &text, lines);
}

#[test]
fn binary_over_tcp_and_unix() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = BrokerProcess::start(BROKER);
    let bytes = data::binary(2, scaled(5_000_001));
    let file = write(&broker, "noise.bin", &bytes);
    for (name, chunk, size) in [("small", "10000", 10_000), ("offered", "200KiB", 200 << 10)] {
        let records = bytes.len().div_ceil(size);
        transfer(&broker.tcp(), &format!("{name}/tcp"), &file, &format!("--chunk {chunk}"), &bytes, records);
        transfer(&broker.unix(), &format!("{name}/unix"), &file, &format!("--chunk {chunk}"), &bytes, records);
    }
}

#[test]
fn standard_input_to_a_subscriber_that_comes_later() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = BrokerProcess::start(BROKER);
    let server = broker.unix();
    for (topic, input) in [("empty", &b""[..]), ("blank", b"\n\n\n"), ("last", b"one\n\ntwo"), ("ended", b"one\ntwo\n")]
    {
        let publish = format!("pub {topic} --server {server}");
        Process::run_with_input(Binary::Cli, &words(&publish), input.to_vec()).success();
        let subscribe = format!("sub {topic} --server {server} --from earliest --raw --until-idle 2s");
        let received = Process::run(Binary::Cli, &words(&subscribe)).success();
        assert_eq!(String::from_utf8_lossy(&received), String::from_utf8_lossy(input), "topic {topic}");
    }
}
