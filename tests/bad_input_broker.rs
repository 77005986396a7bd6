//! Bad input to `keyway-broker` gives one clear line on standard error and a non-zero status.

mod bus;

use std::net::TcpListener;
use std::time::Duration;

use crate::bus::Watchdog;
use crate::bus::process::{Binary, BrokerProcess, FAILURE, Process, USAGE, display};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn the_broker_refuses_options_that_make_no_sense() {
    let _watchdog = Watchdog::start(LIMIT);
    let cases: [(&[&str], &str); 8] = [
        (&["--frobnicate"], "--frobnicate"),
        (&["stray"], "stray"),
        (&["--pool-size", "much"], "much"),
        (&["--pool-size", "5MiB"], "pool"),
        (&["--segment-size", "65537"], "segment-size"),
        (&["--segment-size", "64KiB"], "record-max"),
        (&["--topic-segments", "1"], "topic-segments"),
        (&["--quarantine", "5 apples"], "quarantine"),
    ];
    for (arguments, named) in cases {
        let line = Process::run(Binary::Broker, arguments).one_line(USAGE);
        assert!(line.starts_with("keyway-broker: ") && line.contains(named), "{arguments:?}: {line}");
    }
}

#[test]
fn the_broker_names_the_address_that_it_cannot_have() {
    let _watchdog = Watchdog::start(LIMIT);
    let line = Process::run(Binary::Broker, &["--listen", "nowhere"]).one_line(FAILURE);
    assert!(line.contains("nowhere") && line.contains("HOST:PORT"), "{line}");

    let other = TcpListener::bind("127.0.0.1:0").expect("a port can be had");
    let busy = other.local_addr().expect("it has an address").to_string();
    let line = Process::run(Binary::Broker, &["--listen", &busy]).one_line(FAILURE);
    assert!(line.contains(&busy) && line.contains("another process has the port"), "{line}");
}

#[test]
fn the_broker_takes_over_a_dead_socket_and_nothing_else() {
    let _watchdog = Watchdog::start(LIMIT);
    let mut broker = BrokerProcess::start("");
    let socket = broker.directory().join("broker.sock");
    let line = Process::run(Binary::Broker, &["--unix", display(&socket)]).one_line(FAILURE);
    assert!(line.contains(display(&socket)) && line.contains("live process"), "{line}");

    let file = broker.directory().join("a file");
    std::fs::write(&file, "precious").expect("a file can be written");
    let line = Process::run(Binary::Broker, &["--unix", display(&file)]).one_line(FAILURE);
    assert!(line.contains("a file") && line.contains("not a socket"), "{line}");
    assert_eq!(std::fs::read_to_string(&file).expect("it is left alone"), "precious");

    let missing = broker.directory().join("missing/broker.sock");
    let line = Process::run(Binary::Broker, &["--unix", display(&missing)]).one_line(FAILURE);
    assert!(line.contains("missing/broker.sock"), "{line}");

    broker.kill();
    assert!(socket.exists(), "a killed broker leaves its socket");
    broker.restart();
}
