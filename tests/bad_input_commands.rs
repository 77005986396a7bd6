//! Bad input to `keyway` gives one clear line on standard error and a non-zero status.

mod bus;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use crate::bus::Watchdog;
use crate::bus::process::{Binary, BrokerProcess, FAILURE, Process, USAGE, display};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn the_commands_refuse_options_that_make_no_sense() {
    let _watchdog = Watchdog::start(LIMIT);
    let cases: [(&[&str], &str); 11] = [
        (&[], "subcommand"),
        (&["frobnicate"], "frobnicate"),
        (&["pub"], "TOPIC"),
        (&["pub", "words", "--frobnicate"], "--frobnicate"),
        (&["pub", "no spaces"], "no spaces"),
        (&["pub", "words", "--count", "many"], "many"),
        (&["sub", "words", "--scope", "world"], "world"),
        (&["sub", "words", "--from", "yesterday"], "yesterday"),
        (&["sub", "words", "--epoch", "1 apple"], "1 apple"),
        (&["sub", "words", "--server", "127.0.0.1:4480"], "keyway://"),
        (&["sub", "words", "--server", "keyway://127.0.0.1:port"], "port"),
    ];
    for (arguments, named) in cases {
        let line = Process::run(Binary::Cli, arguments).one_line(USAGE);
        assert!(line.starts_with("keyway: ") && line.contains(named), "{arguments:?}: {line}");
    }
}

#[test]
fn the_commands_name_the_server_that_they_cannot_reach() {
    let _watchdog = Watchdog::start(LIMIT);
    // A port that was free a moment ago.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port can be had");
    let server = format!("keyway://{}", listener.local_addr().expect("it has an address"));
    drop(listener);
    for command in ["pub", "sub"] {
        let ended = Process::run(Binary::Cli, &[command, "words", "--server", &server, "--timeout", "300ms"]);
        let line = ended.one_line(FAILURE);
        assert!(line.contains(&server), "{line}");
    }
    let server = "keyway+unix:///nowhere/broker.sock";
    let ended = Process::run(Binary::Cli, &["sub", "words", "--server", server, "--timeout", "300ms"]);
    let line = ended.one_line(FAILURE);
    assert!(line.contains(server), "{line}");
}

#[test]
fn the_commands_say_so_when_what_answers_is_no_broker() {
    let _watchdog = Watchdog::start(LIMIT);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port can be had");
    let address = listener.local_addr().expect("it has an address");
    let answer = move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            // The client may have gone already.
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            let _ = stream.read(&mut [0; 64]);
        }
    };
    // It ends with the program.
    let web_server = std::thread::Builder::new().name("no broker".into()).spawn(answer);
    web_server.expect("a thread can be started");
    let server = format!("keyway://{address}");
    let line = Process::run(Binary::Cli, &["sub", "words", "--server", &server]).one_line(FAILURE);
    assert!(line.contains(&server) && line.contains("like a Keyway broker"), "{line}");
}

#[test]
fn a_file_that_cannot_be_read_is_named_before_anything_is_published() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = BrokerProcess::start("");
    let server = broker.tcp();
    let missing = broker.directory().join("missing.txt");
    for path in [missing.as_path(), broker.directory()] {
        let line = Process::run(Binary::Cli, &["pub", "words", "--server", &server, "--file", display(path)])
            .one_line(FAILURE);
        assert!(line.contains(display(path)) || line.contains("directory"), "{line}");
    }
}
