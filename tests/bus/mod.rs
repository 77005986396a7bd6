//! What the tests of the whole bus share. Each test file is a program of its own and uses its part of this.
//!
//! - [`Watchdog`] ends a test that hangs, and [`until`] waits for a condition; nothing here sleeps for a fixed time.
//! - [`process`] runs the real binaries on free ports and sockets in directories of their own, and kills them on drop.
//! - [`proxy`] is a way to a broker that can be cut.
//! - [`raw`] is a client by hand: bootstrap, channel and fabric, and no machine that keeps the protocol for the test.
//! - [`bystander`] publishes and reads all the while, and must not notice what others do.
//! - [`data`] generates what is published.
//! - [`device`] makes interfaces and devices, and asks what processes hold on a device.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::disallowed_methods, reason = "tests read the clock for their deadlines")]

pub(crate) mod bystander;
pub(crate) mod clients;
pub(crate) mod data;
pub(crate) mod device;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod raw;

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use keyway::{Broker, BrokerBuilder, BrokerCounters};
use keyway_fabric::FabricChoice;
use libtest_mimic::Trial;

use self::raw::Way;

/// How long a condition may take to come true. Not a claim about speed: on a busy machine everything takes its time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How often a condition is looked at that nothing announces.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Waits until `condition` gives something, and gives that.
///
/// # Panics
///
/// If it takes longer than [`PATIENCE`]; `what` is named.
pub(crate) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for {what}");
        std::thread::park_timeout(LOOK_AGAIN);
    }
}

/// What an operation gives, and how long it took.
pub(crate) fn timed<T>(operation: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = operation();
    (result, start.elapsed())
}

/// The fabric that is tested: the one that `KEYWAY_FABRIC` names, as for the binaries, else the software one.
pub(crate) fn fabric() -> FabricChoice {
    match std::env::var("KEYWAY_FABRIC") {
        Ok(name) => name.parse().unwrap_or_else(|error| panic!("KEYWAY_FABRIC: {error}")),
        Err(_) => FabricChoice::Soft,
    }
}

/// What the bootstrap calls it.
pub(crate) fn family() -> &'static str {
    fabric().family().expect("KEYWAY_FABRIC must name one fabric, so that it is known which one is tested")
}

/// How much of what a test would move it is to move: a quarter on a device, which may be an emulated one.
pub(crate) fn scaled(amount: usize) -> usize {
    if fabric() == FabricChoice::Soft { amount } else { amount / 4 }
}

/// Checks that a client in whose way nothing was put has kept its session. Soft-RoCE ends one by itself now and then (docs/devices.md
/// says how), so on a device a few may be lost; what was delivered must be right all the same.
pub(crate) fn assert_undisturbed(reconnects: u64, what: &dyn std::fmt::Debug) {
    let lost_by_device = if fabric() == FabricChoice::Soft { 0 } else { 3 };
    assert!(reconnects <= lost_by_device, "{reconnects} sessions were lost: {what:?}");
}

/// A broker in this process, on the fabric that is tested.
pub(crate) fn broker() -> BrokerBuilder {
    Broker::builder().fabric(fabric())
}

/// A small broker in this process: 128 segments of 64 KiB, rings of 16, records of up to 32 KiB.
pub(crate) fn small_broker() -> BrokerBuilder {
    broker().pool_size(8 << 20).segment_size(64 << 10).topic_segments(16).record_max(32 << 10)
}

/// How a client by hand reaches a broker in this process.
pub(crate) fn way(broker: &Broker) -> Way {
    Way::InProcess(broker.connector())
}

/// Waits until the broker's counters are as they should be.
pub(crate) fn until_counters(
    broker: &Broker,
    what: &str,
    mut condition: impl FnMut(&BrokerCounters) -> bool,
) -> BrokerCounters {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let counters = broker.counters().expect("the broker answers");
        if condition(&counters) {
            return counters;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for {what}: {counters:?}");
        std::thread::park_timeout(LOOK_AGAIN);
    }
}

/// A test of a program without the standard harness, listed as ignored if something is in the way, with what that is.
pub(crate) fn trial(title: impl Into<String>, obstacle: Option<String>, test: impl FnOnce() + Send + 'static) -> Trial {
    let trial = Trial::test(title, move || {
        test();
        Ok(())
    });
    match obstacle {
        Some(obstacle) => trial.with_ignored_flag(true).with_kind(obstacle),
        None => trial,
    }
}

/// Ends the whole test program, and every process that it started, if a test hangs.
pub(crate) struct Watchdog {
    over: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Gives the test that it is made in this long.
    pub(crate) fn start(limit: Duration) -> Self {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let (over, waiting): (_, Receiver<()>) = sync_channel(1);
        let watch = move || {
            if waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{test} hangs: it has taken {limit:?}");
                process::kill_all();
                std::process::abort();
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(watch).expect("a thread can be started");
        Self { over: Some(over), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            // It ends as soon as its channel does, and it does not panic.
            let _ = thread.join();
        }
    }
}
