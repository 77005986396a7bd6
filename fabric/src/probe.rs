//! What a device can do and does, each line of it measured.
//!
//! [`run`] connects two fabrics of a device in one process, as broker and consumer would be, and tries: what opens the owner's
//! memory and what does not, how keys follow one another, what happens to READs in flight, and what a key costs. The
//! [`Report`] keeps what was found apart from what the device says of itself, and [`Report::lines`] says in words what
//! Keyway does about each finding.
//!
//! It asks what the [conformance suite](crate::conformance) asks, but to learn the answer, not to insist on one. It leaves
//! nothing behind.

mod cost_verdict;
mod costs;
mod memory;
mod protection;
mod reads;
mod recorder;
mod report;
mod rotation;
mod stand;
mod target;
mod verdict;

use std::ops::ControlFlow;
use std::time::Duration;

pub use memory::memory_available;
pub use report::{
    Answer, Bandwidth, BandwidthReport, Bounds, Costs, DeadEndpoint, Deregistration, DeviceReport, Distribution,
    FabricDeregistration, Findings, InFlight, KeyRound, Measured, NotMeasured, PairedCosts, Ratio, RawDeregistration,
    Reads, Report, SizeCosts, StaleKey, Strategy, StrategyReport,
};
pub use target::{OpenedTarget, SoftTarget, open};
pub use verdict::{Grade, Line, Unusable};

use self::stand::ask;
use crate::Holdings;
use crate::conformance::{Backend, Failure};

/// The size of the READs whose latency is measured.
pub const LATENCY_BYTES: u32 = 64;

/// The sizes of the READs whose bandwidth is measured.
pub const BANDWIDTH_BYTES: [u32; 2] = [64 << 10, 1 << 20];

/// The sizes for which the costs of a key are measured, unless told otherwise.
pub const SIZES: [u64; 4] = [64 << 10, 1 << 20, 64 << 20, 1 << 30];

/// What is probed: a backend that can tell what its device says of itself, too.
pub trait ProbeTarget: Backend {
    /// What the device says of itself.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    fn device(&self) -> Result<DeviceReport, Failure>;

    /// How keys are made on it, and why so.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    fn strategy(&self) -> Result<StrategyReport, Failure>;

    /// Asks the device itself, past the fabric's own account, to deregister a region that a live window covers.
    ///
    /// # Errors
    ///
    /// It could not be tried; the reason.
    fn deregister_under_window(&self) -> Measured<RawDeregistration>;
}

/// How thoroughly to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeOptions {
    /// The sizes for which the costs of a key are measured, in bytes.
    pub sizes: Vec<u64>,
    /// The largest of them that is tried.
    pub memory_max: u64,
    /// The most measurements for one distribution of costs.
    pub pairs_max: u32,
    /// How long one distribution may take, once it has a few measurements.
    pub budget: Duration,
    /// How many READs are caught in flight by a change of keys.
    pub trials: u32,
    /// How many binds of one window are tried for its first key to come round.
    pub binds_max: u32,
    /// How long each trial of bandwidth lasts.
    pub trial: Duration,
}

impl ProbeOptions {
    /// The usual thoroughness, with up to three quarters of `memory_available` for the costs of a key.
    pub fn within(memory_available: u64) -> Self {
        Self {
            sizes: SIZES.to_vec(),
            memory_max: memory_available / 4 * 3,
            pairs_max: 500,
            budget: Duration::from_secs(2),
            trials: 50,
            binds_max: 1_024,
            trial: Duration::from_millis(500),
        }
    }
}

/// How far a probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The step that begins, from 0.
    pub number: usize,
    /// How many there are.
    pub of: usize,
    /// What it tries.
    pub what: &'static str,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The device cannot be opened, or two fabrics of it cannot be connected.
    #[error("cannot open {name}: {source}")]
    Open {
        /// The device.
        name: String,
        /// Why.
        source: Failure,
    },
    /// The watcher said so.
    #[error("the probe of {name} was stopped before it was done")]
    Stopped {
        /// The device.
        name: String,
    },
}

/// Probes a device. `watch` is told of every step before it begins, and may end the probe there.
///
/// # Errors
///
/// The device cannot be opened, or `watch` ended the probe. What could not be measured on a device that works is no error:
/// the report says why.
pub fn run(
    target: &dyn ProbeTarget,
    options: &ProbeOptions,
    watch: &mut dyn FnMut(Step) -> ControlFlow<()>,
) -> Result<Report, ProbeError> {
    let cannot_open = |source| ProbeError::Open { name: target.name(), source };
    let device = target.device().map_err(cannot_open)?;
    let strategy = target.strategy().map_err(cannot_open)?;
    let mut left_behind = Holdings::default();
    let left = &mut left_behind;
    // Nothing else can be asked of a device on which no pair connects.
    let names = ask(target, left, |stand| {
        let fabric = &stand.pair.owner.fabric;
        Ok((fabric.name().to_owned(), fabric.strategy().to_owned()))
    });
    let (fabric, keys) = names.map_err(|not| cannot_open(Failure(not.reason)))?;

    let of = FINDING_STEPS + options.sizes.len() + 2 + BANDWIDTH_BYTES.len();
    let mut number = 0;
    let mut begin = |what| {
        let step = Step { number, of, what };
        number += 1;
        match watch(step) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ProbeError::Stopped { name: target.name() }),
        }
    };
    macro_rules! step {
        ($what:literal, $question:expr) => {{
            begin($what)?;
            ask(target, left, $question)
        }};
    }

    let findings = Findings {
        inside: step!("READing inside a window", protection::inside),
        bounds: step!("READing around a window", protection::bounds),
        outside_region: step!("READing outside the region", protection::outside_region),
        region_key: step!("READing under the region's key", protection::region_key),
        unknown_key: step!("READing under keys that were never given", protection::unknown_key),
        stale_key: step!("READing under keys that were taken away", protection::stale_key),
        key_round: step!("binding until a key comes round", |stand| rotation::key_round(stand, options.binds_max)),
        rebind_under_read: step!("binding the only window under READs", |stand| {
            rotation::rebind_under_read(stand, options.trials)
        }),
        make_before_break: step!("changing windows under READs", |stand| {
            rotation::make_before_break(stand, options.trials)
        }),
        deregistration: step!("deregistering under a window", |stand| protection::deregistration(target, stand)),
        dead_endpoint: step!("ending a window's endpoint", protection::dead_endpoint),
    };
    let mut sizes = Vec::new();
    for &bytes in &options.sizes {
        begin("timing binds and registrations in turns")?;
        sizes.push(SizeCosts { bytes, paired: costs::paired(target, options, left, bytes) });
    }
    let window = step!("timing window allocations", |stand| costs::window(stand, options));
    let latency = step!("timing READs one by one", |stand| reads::latency(stand, options));
    let mut bandwidth = Vec::new();
    for bytes in BANDWIDTH_BYTES {
        let trial = step!("timing many READs at once", |stand| reads::bandwidth(stand, options, bytes));
        bandwidth.push(BandwidthReport { bytes, trial });
    }
    let (costs, reads) = (Costs { sizes, window }, Reads { latency, bandwidth });
    Ok(Report { fabric, device, keys, strategy, findings, costs, reads, left_behind })
}

/// How many steps the findings take.
const FINDING_STEPS: usize = 11;
