//! `keyway-broker`: the broker as a process.
//!
//! Everything that it does is the library's; here are the command line, the log, the signals and the exit status.

#![forbid(unsafe_code)]

mod options;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use crossbeam_channel::Sender;
use keyway_broker::{Broker, BrokerError, BrokerErrorKind, one_line};
use keyway_fabric::SystemClock;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::options::Options;

/// The command line cannot be used.
const USAGE: u8 = 2;

/// Signals that come this close together are one: `timeout` signals a process and then its whole group, some microseconds
/// apart. Nobody who means the second one is so fast.
const SAME_SIGNAL: Duration = Duration::from_millis(1);

/// What the main thread waits for. Two signals and one failure are the most that is looked at.
enum News {
    Signal,
    Failed(String),
}

fn main() -> ExitCode {
    match Options::try_parse() {
        Ok(options) => run(options).unwrap_or_else(|error| {
            complain(&one_line(&error));
            ExitCode::from(if error.kind() == BrokerErrorKind::Settings { USAGE } else { 1 })
        }),
        // Help and version are no errors: clap prints them as they are.
        Err(error) if !error.use_stderr() => {
            drop(error.print());
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(&options::one_line(&error));
            ExitCode::from(USAGE)
        }
    }
}

fn run(options: Options) -> Result<ExitCode, BrokerError> {
    start_log(&options);
    let drain = options.drain;
    let (tell, news) = crossbeam_channel::bounded(3);
    raise_descriptor_limit(options.settings().descriptors_max());
    // Before anything exists that a signal could leave behind.
    catch_signals(tell.clone())?;
    let builder = options.builder().on_failure(move |error| drop(tell.try_send(News::Failed(one_line(error)))));
    let broker = builder.start()?;
    announce(&broker);
    match news.recv() {
        Ok(News::Failed(reason)) => {
            complain(&reason);
            Ok(ExitCode::FAILURE)
        }
        // Without senders there is nothing left to wait for either.
        Ok(News::Signal) | Err(_) => broker.stop(drain).map(|_| ExitCode::SUCCESS),
    }
}

fn start_log(options: &Options) {
    tracing_subscriber::fmt()
        .with_env_filter(options.log.clone())
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
}

/// The first SIGINT, SIGTERM or SIGHUP is news; the second ends the process on the spot.
fn catch_signals(tell: Sender<News>) -> Result<(), BrokerError> {
    let clock = SystemClock::start();
    let mut first = None;
    let caught = ctrlc::set_handler(move || {
        let now = clock.now().time;
        match first {
            None => {
                first = Some(now);
                drop(tell.try_send(News::Signal));
            }
            Some(first) if now.since(first) < SAME_SIGNAL => (),
            Some(_) => {
                complain("ended at once by a second signal; what was not read is gone");
                #[allow(clippy::disallowed_methods, reason = "the second signal asks for exactly that")]
                std::process::exit(1);
            }
        }
    });
    caught.map_err(|error| BrokerError::System { what: "catch signals", source: io::Error::other(error) })
}

/// Lets the process have as many descriptors as full use of its settings takes, as far as the hard limit goes: the usual soft
/// limit of 1024 is for programs that use `select`.
fn raise_descriptor_limit(needed: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return;
    }
    let possible = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(possible), ..limit });
    if possible < needed || raised.is_err() {
        tracing::warn!(needed, possible, "too few descriptors for all sessions; raise the limit (ulimit -Hn)");
    }
}

/// Says on standard output that clients can come in, and where.
fn announce(broker: &Broker) {
    let tcp = broker.local_addrs().iter().map(ToString::to_string);
    let unix = broker.unix_path().map(|path| format!("unix:{}", path.display()));
    let places: Vec<String> = tcp.chain(unix).collect();
    let mut stdout = io::stdout().lock();
    // Whoever closed standard output does not want to know.
    drop(writeln!(stdout, "keyway-broker ready on {}", places.join(" and ")).and_then(|()| stdout.flush()));
}

fn complain(line: &str) {
    drop(writeln!(io::stderr(), "keyway-broker: {line}"));
}
