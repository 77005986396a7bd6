//! A client by hand: raw sockets that say what a test wants said, under watchdog deadlines.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "it is a part of tests")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use keyway_broker::{Broker, Builder};
use keyway_schema::bootstrap::{Bootstrap, PREAMBLE, Role};
use keyway_schema::limits::CONTROL_SLOT;

/// How long anything may take before a test is said to hang.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(20);

/// What a socket of either kind can do.
pub(crate) trait Socket: Read + Write {
    /// Makes reads fail after [`WATCHDOG`].
    fn guard(&self);
}

impl Socket for TcpStream {
    fn guard(&self) {
        self.set_read_timeout(Some(WATCHDOG)).unwrap();
    }
}

impl Socket for UnixStream {
    fn guard(&self) {
        self.set_read_timeout(Some(WATCHDOG)).unwrap();
    }
}

/// A broker with a small pool on a free port.
pub(crate) fn builder() -> Builder {
    Broker::builder().listen("127.0.0.1:0").pool_size(4 << 20).segment_size(1 << 20).record_max(64 << 10)
}

/// A connection to its port.
pub(crate) fn dial(broker: &Broker) -> TcpStream {
    let stream = TcpStream::connect(broker.local_addr().unwrap()).unwrap();
    stream.guard();
    stream
}

/// A connection to a Unix socket.
pub(crate) fn dial_unix(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.guard();
    stream
}

/// A Hello that the broker takes.
pub(crate) fn hello() -> Bootstrap {
    hello_of(&["soft"])
}

/// A Hello of a client that speaks these fabrics.
pub(crate) fn hello_of(fabrics: &[&str]) -> Bootstrap {
    Bootstrap::Hello {
        role: Role::Consumer,
        name: "by hand".to_owned(),
        fabrics: fabrics.iter().map(ToString::to_string).collect(),
        receive_slots: 16,
        receive_size: CONTROL_SLOT,
    }
}

/// Begins a bootstrap.
pub(crate) fn begin(stream: &mut impl Socket) {
    stream.write_all(&PREAMBLE).unwrap();
    send(stream, &hello());
}

/// Sends a message.
pub(crate) fn send(stream: &mut impl Socket, message: &Bootstrap) {
    stream.write_all(&message.encode().unwrap()).unwrap();
}

/// The next message.
pub(crate) fn receive(stream: &mut impl Socket) -> Bootstrap {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).expect("the broker answers");
    let mut archive = vec![0; Bootstrap::frame_len(prefix).unwrap()];
    stream.read_exact(&mut archive).unwrap();
    Bootstrap::decode(&archive).unwrap()
}

/// The refusal that comes next, and nothing after it.
pub(crate) fn receive_refusal(stream: &mut impl Socket) -> (u16, String) {
    match receive(stream) {
        Bootstrap::Refused { code, text } => {
            expect_end(stream);
            (code, text)
        }
        other => panic!("{other:?} instead of Refused"),
    }
}

/// The endpoint of the Welcome that comes next.
pub(crate) fn receive_welcome(stream: &mut impl Socket) -> Vec<u8> {
    match receive(stream) {
        Bootstrap::Welcome { endpoint, .. } => endpoint,
        other => panic!("{other:?} instead of Welcome"),
    }
}

/// Waits for the broker to close the connection. A reset is an end too: the broker closes with bytes unread.
pub(crate) fn expect_end(stream: &mut impl Socket) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => assert!(rest.is_empty(), "{rest:?} instead of the end"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the broker does not close it"),
    }
}

/// Waits until the broker has as many sessions.
pub(crate) fn await_sessions(broker: &Broker, sessions: u32) {
    let clock = keyway_fabric::SystemClock::start();
    while broker.counters().unwrap().sessions != sessions {
        assert!(clock.now().time.since(keyway_fabric::Time::ZERO) < WATCHDOG, "never {sessions} sessions");
        std::thread::yield_now();
    }
}
