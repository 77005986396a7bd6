//! The binary: its ready line, its signals, its exit status, and what it says when it cannot start.

#![allow(clippy::unwrap_used, reason = "this is a test")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use keyway_fabric::{SystemClock, Time};
use keyway_schema::Code;
use rustix::process::{Pid, Signal, kill_process};
use support::{Socket, begin, receive_refusal, receive_welcome};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway-broker"));
    let silent = command.args(arguments).env_remove("KEYWAY_LOG").env_remove("KEYWAY_FABRIC");
    silent.stdin(Stdio::null());
    command
}

/// A broker process that is ready. Killed on drop, so that a failing test leaves none behind.
struct Process {
    child: Child,
    ready: String,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        Self { child, ready }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end: exit status and standard error.
    fn end(&mut self) -> (Option<i32>, String) {
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (self.child.wait().unwrap().code(), stderr)
    }

    fn port(&self) -> u16 {
        let after = self.ready.split_once("127.0.0.1:").expect("the ready line names the port").1;
        after.split_whitespace().next().unwrap().parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs one that cannot start. Its only line of complaint, and its status.
fn complaint(arguments: &[&str]) -> (String, i32) {
    let Output { status, stdout, stderr } = command(arguments).output().unwrap();
    assert!(stdout.is_empty(), "no ready line");
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "one line: {stderr}");
    (stderr, status.code().unwrap())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_ready_line_names_every_place_and_a_signal_stops_it_with_status_0() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("broker.sock");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut broker = Process::start(&["--listen", "127.0.0.1:0", "--unix", text(&path)]);
        let port = broker.port();
        assert_eq!(broker.ready, format!("keyway-broker ready on 127.0.0.1:{port} and unix:{}\n", path.display()));
        TcpStream::connect(("127.0.0.1", port)).unwrap();
        UnixStream::connect(&path).unwrap();
        broker.signal(signal);
        let (status, stderr) = broker.end();
        assert_eq!(status, Some(0), "{stderr}");
        assert!(!path.exists());
        assert!(!stderr.contains("WARN") && !stderr.contains("ERROR"), "{stderr}");
    }
}

#[test]
fn a_client_in_the_middle_of_its_bootstrap_is_told_and_holds_up_no_stop() {
    let mut broker = Process::start(&["--listen", "127.0.0.1:0", "--drain", "1h"]);
    let mut stream = TcpStream::connect(("127.0.0.1", broker.port())).unwrap();
    stream.guard();
    begin(&mut stream);
    receive_welcome(&mut stream);
    broker.signal(Signal::TERM);
    assert_eq!(receive_refusal(&mut stream).0, Code::ShuttingDown.number());
    assert_eq!(broker.end().0, Some(0));
}

#[test]
fn what_a_killed_broker_left_is_cleaned_up_by_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("broker.sock");
    let mut broker = Process::start(&["--unix", text(&path)]);
    broker.signal(Signal::KILL);
    assert_eq!(broker.end().0, None);
    assert!(path.exists());
    let next = Process::start(&["--unix", text(&path)]);
    assert_eq!(next.ready, format!("keyway-broker ready on unix:{}\n", path.display()));
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_live_brokers_socket_is_refused_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("broker.sock");
    let _broker = Process::start(&["--unix", text(&path)]);
    let (line, status) = complaint(&["--unix", text(&path)]);
    assert_eq!(
        line,
        format!(
            "keyway-broker: a live process listens on {}; stop it, or give this broker another path\n",
            path.display()
        )
    );
    assert_eq!(status, 1);
    UnixStream::connect(&path).unwrap();
}

#[test]
fn another_users_socket_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("broker.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    if let Err(error) = std::os::unix::fs::chown(&path, Some(12_345), None) {
        eprintln!("skipped: giving a file to another user needs root ({error})");
        return;
    }
    let (line, status) = complaint(&["--unix", text(&path)]);
    assert!(line.contains("belongs to user 12345, this process runs as user"), "{line}");
    assert_eq!(status, 1);
    assert!(path.exists());
}

#[test]
fn what_cannot_be_listened_on_is_one_clear_line_and_status_1() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    let (line, status) = complaint(&["--listen", &address]);
    assert!(
        line.starts_with(&format!("keyway-broker: cannot listen on {address}: another process has the port")),
        "{line}"
    );
    assert_eq!(status, 1);

    let (line, status) = complaint(&["--listen", "nowhere"]);
    assert!(line.contains("cannot resolve the listening address \"nowhere\"; give HOST:PORT"), "{line}");
    assert_eq!(status, 1);

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let (line, status) = complaint(&["--unix", text(&file)]);
    assert!(line.contains("is a regular file, not a socket"), "{line}");
    assert_eq!(status, 1);

    let (line, status) = complaint(&["--unix", text(&directory.path().join("missing/broker.sock"))]);
    assert!(line.contains("cannot bind the Unix socket") && line.contains("No such file"), "{line}");
    assert_eq!(status, 1);
}

#[test]
fn what_cannot_be_configured_is_one_clear_line_and_status_2() {
    let cases = [
        (&["--frobnicate"][..], "unexpected argument '--frobnicate' found"),
        (&["--pool-size", "lots"], "invalid value 'lots' for '--pool-size <SIZE>'"),
        (&["--pool-size", "5MiB"], "a pool of 5.0 MiB holds 1 segments of 4.0 MiB"),
        (&["--segment-size", "5000"], "segment-size is"),
        (&["--record-max", "8MiB"], "raise segment-size or lower record-max"),
        (&["--pool-size", "8191PiB", "--segment-size", "2GiB"], "cannot make a pool of"),
    ];
    for (arguments, expected) in cases {
        let (line, status) = complaint(arguments);
        assert!(line.contains(expected), "{line}");
        let usage = if expected.starts_with("cannot make") { 1 } else { 2 };
        assert_eq!(status, usage, "{line}");
    }
}

#[test]
fn strangers_at_the_port_are_logged_once_a_second_at_most() {
    const STRANGERS: usize = 200;
    let mut broker = Process::start(&["--listen", "127.0.0.1:0"]);
    let clock = SystemClock::start();
    for _ in 0..STRANGERS {
        let mut stream = TcpStream::connect(("127.0.0.1", broker.port())).unwrap();
        stream.write_all(b"GET / HT").unwrap();
        // Closed, and so it was looked at.
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    let seconds = clock.now().time.since(Time::ZERO).as_secs() as usize;
    broker.signal(Signal::TERM);
    let (status, stderr) = broker.end();
    assert_eq!(status, Some(0));
    let lines = stderr.lines().filter(|line| line.contains("it began with \"GET / HT\"")).count();
    assert!((1..=1 + seconds).contains(&lines), "{lines} lines in {seconds} s: {stderr}");
}

#[test]
fn help_and_version_are_no_errors() {
    let help = command(&["--help"]).output().unwrap();
    assert!(help.status.success() && help.stderr.is_empty());
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("--quarantine <DURATION>") && help.contains("Examples:"));
    let version = command(&["--version"]).output().unwrap();
    assert_eq!(String::from_utf8(version.stdout).unwrap(), format!("keyway-broker {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_closed_standard_output_is_no_reason_to_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("broker.sock");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = command(&["--unix", text(&path)]).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let mut broker = Process { child, ready: String::new() };
    // The log on standard error says when it stops; until it listens there is nothing to see it by.
    while UnixStream::connect(&path).is_err() {
        assert_eq!(broker.child.try_wait().unwrap(), None, "it goes on");
        std::thread::yield_now();
    }
    broker.signal(Signal::TERM);
    assert_eq!(broker.end().0, Some(0));
}

#[test]
fn a_device_that_is_not_there_is_named_and_nothing_is_started() {
    let (line, status) = complaint(&["--listen", "127.0.0.1:0", "--fabric", "verbs:no-such-device"]);
    assert!(line.starts_with("keyway-broker: cannot open the fabric verbs:no-such-device: "), "{line}");
    assert_eq!(status, 1);
}

#[test]
fn without_a_device_auto_says_so_in_one_line_and_goes_on_with_the_software_fabric() {
    let mut broker = Process::start(&["--listen", "127.0.0.1:0", "--fabric", "auto", "--huge-pages", "try"]);
    broker.signal(Signal::TERM);
    let (status, stderr) = broker.end();
    assert_eq!(status, Some(0), "{stderr}");
    let opened = stderr.lines().find(|line| line.contains("fabric opened")).expect("the fabric is told");
    let fallbacks = stderr.lines().filter(|line| line.contains("no RDMA device is used")).count();
    if opened.contains("fabric=\"verbs:") {
        assert_eq!(fallbacks, 0, "this machine has a device: {stderr}");
    } else {
        assert!(opened.contains("fabric=\"soft\"") && opened.contains("in software"), "{opened}");
        assert_eq!(fallbacks, 1, "{stderr}");
    }
    let pages = stderr.lines().filter(|line| line.contains("huge pages of 2 MiB")).count();
    assert_eq!(pages, 1, "it is told which pages the pool has: {stderr}");
}
