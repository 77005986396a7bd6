//! What a probe found.

use std::fmt;
use std::time::Duration;

use crate::conformance::Failure;
use crate::{FabricError, Holdings, WorkError};

/// Everything that is known of a device after a probe.
#[derive(Clone, Debug)]
pub struct Report {
    /// The fabric's name: `soft`, or `verbs:DEVICE`.
    pub fabric: String,
    /// What the device says of itself. Not measured.
    pub device: DeviceReport,
    /// How keys are made on it, in the fabric's own words.
    pub keys: String,
    /// How keys are made on it, and why so.
    pub strategy: StrategyReport,
    /// Who may read what, and when no more.
    pub findings: Findings,
    /// What a key costs.
    pub costs: Costs,
    /// What a READ costs.
    pub reads: Reads,
    /// What the probe's fabrics still held when it had freed everything: nothing, or something is wrong with them.
    pub left_behind: Holdings,
}

/// What was measured, or why it was not.
pub type Measured<T> = Result<T, NotMeasured>;

/// Why something was not measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NotMeasured {
    /// One line.
    pub reason: String,
}

impl NotMeasured {
    pub(crate) fn because(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

impl From<Failure> for NotMeasured {
    fn from(failure: Failure) -> Self {
        Self { reason: failure.0 }
    }
}

impl From<FabricError> for NotMeasured {
    fn from(error: FabricError) -> Self {
        Failure::from(error).into()
    }
}

/// What a device says of itself; `None` where it says nothing. None of it is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceReport {
    /// Its name, if it is a device.
    pub name: Option<String>,
    /// Its firmware.
    pub firmware: Option<String>,
    /// The address of the port and GID in use, with the kind of network.
    pub port: Option<String>,
    /// The types of memory window that it has, such as `type 1`; empty if it has none.
    pub window_types: Vec<String>,
    /// The most windows at once.
    pub windows_max: Option<u64>,
    /// The most registered regions at once.
    pub regions_max: Option<u64>,
    /// The largest region, in bytes.
    pub region_bytes_max: Option<u64>,
    /// The most endpoints (queue pairs) at once.
    pub endpoints_max: Option<u64>,
    /// The most pieces of work outstanding on one endpoint.
    pub work_max: Option<u64>,
    /// The most completion queues at once.
    pub completion_queues_max: Option<u64>,
    /// The most completions that one queue holds.
    pub completions_max: Option<u64>,
    /// The most scatter/gather entries of one piece of work.
    pub scatter_max: Option<u64>,
    /// The path's MTU, in bytes.
    pub mtu_bytes: Option<u64>,
    /// The most READs that one endpoint may have outstanding.
    pub reads_outgoing_max: Option<u64>,
    /// The most READs of a peer that one endpoint serves at once.
    pub reads_incoming_max: Option<u64>,
    /// The most bytes that one READ may fetch.
    pub read_bytes_max: Option<u64>,
}

/// How keys are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// A bind of a type-1 memory window for each key.
    Windows,
    /// A registration of the range for each key, on a device without windows.
    Registrations,
}

/// How keys are made on this device, and why so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrategyReport {
    /// How.
    pub strategy: Strategy,
    /// Why, in one line.
    pub reason: String,
}

/// How the device answered a READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With a remote access error.
    Refused,
    /// With bytes.
    Opened,
    /// With something else, which did not bring the bytes either.
    Failed(WorkError),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("refused"),
            Self::Opened => f.write_str("opened"),
            Self::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}

/// Who may read what, and when no more.
#[derive(Clone, Debug)]
pub struct Findings {
    /// A READ of what a window covers, under its live key.
    pub inside: Measured<Answer>,
    /// READs of what the window does not cover, inside its region.
    pub bounds: Measured<Bounds>,
    /// READs outside the region; the worst answer.
    pub outside_region: Measured<Answer>,
    /// A READ under the region's own key.
    pub region_key: Measured<Answer>,
    /// READs under keys that were never given; the worst answer.
    pub unknown_key: Measured<Answer>,
    /// READs under keys that were given and taken away.
    pub stale_key: Measured<StaleKey>,
    /// When a window's first key comes round.
    pub key_round: Measured<KeyRound>,
    /// READs in flight while their only window is bound anew.
    pub rebind_under_read: Measured<InFlight>,
    /// READs in flight while a second window takes over, as Keyway does it.
    pub make_before_break: Measured<InFlight>,
    /// What happens when a region is deregistered that a live window covers.
    pub deregistration: Measured<Deregistration>,
    /// What becomes of windows whose endpoint is gone.
    pub dead_endpoint: Measured<DeadEndpoint>,
}

/// How READs that a window does not cover in full were answered, inside its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Wholly before the window.
    pub before: Answer,
    /// Across its start.
    pub across_start: Answer,
    /// Across its end.
    pub across_end: Answer,
    /// Wholly beyond it.
    pub beyond: Answer,
}

impl Bounds {
    /// The answers, by what was tried.
    pub fn answers(&self) -> [(&'static str, Answer); 4] {
        [
            ("before", self.before),
            ("across its start", self.across_start),
            ("across its end", self.across_end),
            ("beyond", self.beyond),
        ]
    }

    /// Whether none of it was opened.
    pub fn enforced(&self) -> bool {
        self.answers().iter().all(|(_, answer)| *answer != Answer::Opened)
    }
}

/// How READs under keys that had been taken away were answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleKey {
    /// The key before the window's last bind.
    pub after_rebind: Answer,
    /// The key of a window that was unbound.
    pub after_unbind: Answer,
    /// The key of a window that was freed while it was bound.
    pub after_free: Answer,
}

impl StaleKey {
    /// The answers, by what took the key away.
    pub fn answers(&self) -> [(&'static str, Answer); 3] {
        [
            ("after a rebind", self.after_rebind),
            ("after an unbind", self.after_unbind),
            ("after the window was freed", self.after_free),
        ]
    }
}

/// When a window's first key comes round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRound {
    /// How many binds of the same window were tried behind the first.
    pub tried: u32,
    /// The bind that gave the first key again, if one did.
    pub round_after: Option<u32>,
    /// How a READ under the first key was answered at the end.
    pub answer: Answer,
}

/// Keys that changed while READs were in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// How often they did.
    pub trials: u32,
    /// How often a READ died of it.
    pub died: u32,
}

/// What happens when a region is deregistered that a live window covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deregistration {
    /// What the device answers.
    pub device: Measured<RawDeregistration>,
    /// What the fabric answers, before it ever asks the device.
    pub fabric: FabricDeregistration,
}

/// A device's own answer to the deregistration of a region under a live window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawDeregistration {
    /// It refused, with this errno.
    Refused {
        /// Such as `EBUSY`.
        errno: i32,
    },
    /// It deregistered the region.
    Done,
}

/// The fabric's answer to the deregistration of memory under a live window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricDeregistration {
    /// It refused and named the windows.
    Lent {
        /// How many it named.
        windows: usize,
    },
    /// It gave another error.
    Failed {
        /// Its text.
        error: String,
    },
    /// It freed the memory.
    Done,
}

/// What becomes of windows whose endpoint is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadEndpoint {
    /// How the window's key was answered through another endpoint, once the one that bound it was gone.
    pub through_another: Answer,
    /// How it was answered once another endpoint of the domain had unbound the window.
    pub after_unbind: Answer,
}

/// How long something took, over many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// How often it was done.
    pub count: u64,
    /// The median.
    pub p50: Duration,
    /// Nine of ten were no longer.
    pub p90: Duration,
    /// 99 of 100 were no longer.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

/// What a key costs, one way and the other.
#[derive(Clone, Debug)]
pub struct Costs {
    /// For each size that was asked for.
    pub sizes: Vec<SizeCosts>,
    /// Allocating a window, and deallocating it.
    pub window: Measured<Distribution>,
}

/// What a key to a range of one size costs.
#[derive(Clone, Debug)]
pub struct SizeCosts {
    /// The size, in bytes.
    pub bytes: u64,
    /// The measurements.
    pub paired: Measured<PairedCosts>,
}

/// Both ways to a key, taken in turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedCosts {
    /// From the posting of a bind to its completion: a new key, and the one before it is dead.
    pub bind: Distribution,
    /// Registering memory that exists, and deregistering it: a new key, and its death.
    pub registration: Distribution,
    /// How many binds one registration was worth, pair by pair.
    pub ratio: Ratio,
}

/// A ratio, over many pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The median.
    pub p50: f64,
    /// Nine of ten were no higher.
    pub p90: f64,
    /// 99 of 100 were no higher.
    pub p99: f64,
    /// The highest.
    pub max: f64,
}

/// What a READ costs.
#[derive(Clone, Debug)]
pub struct Reads {
    /// From the posting of a READ of [`LATENCY_BYTES`](super::LATENCY_BYTES) to its completion, one at a time.
    pub latency: Measured<Distribution>,
    /// Several at a time.
    pub bandwidth: Vec<BandwidthReport>,
}

/// How fast READs of one size bring bytes.
#[derive(Clone, Debug)]
pub struct BandwidthReport {
    /// The size of a READ, in bytes.
    pub bytes: u32,
    /// The measurement.
    pub trial: Measured<Bandwidth>,
}

/// One trial of how fast READs bring bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// How many READs were kept outstanding.
    pub outstanding: u32,
    /// How many ended within the trial.
    pub reads: u64,
    /// How long it lasted.
    pub took: Duration,
}

impl Bandwidth {
    /// In 10^6 bytes a second, for READs of `bytes`.
    pub fn megabytes_per_second(&self, bytes: u32) -> f64 {
        let seconds = self.took.as_secs_f64();
        if seconds > 0.0 { self.reads as f64 * f64::from(bytes) / 1e6 / seconds } else { 0.0 }
    }
}
