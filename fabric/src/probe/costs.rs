//! What a key costs: bound to a window, or by a registration of its own.

use super::ProbeOptions;
use super::recorder::{RatioRecorder, Recorder};
use super::report::{Distribution, Measured, NotMeasured, PairedCosts};
use super::stand::{Stand, ask};
use crate::conformance::{Backend, Failure};
use crate::{Access, Holdings, SharedId, SharedSpan, WindowId, Work};

/// So many pairs are measured however long one takes, or a distribution would say nothing.
const PAIRS_MIN: u32 = 5;

/// Measures a key to `bytes` bytes both ways, in turns, so that what disturbs the machine meanwhile disturbs both.
pub(super) fn paired(
    backend: &dyn Backend,
    options: &ProbeOptions,
    left_behind: &mut Holdings,
    bytes: u64,
) -> Measured<PairedCosts> {
    if bytes > options.memory_max {
        return Err(NotMeasured::because(format!(
            "needs {bytes} bytes of memory, and the probe may take {}: three quarters of what is available, unless told \
             otherwise",
            options.memory_max
        )));
    }
    ask(backend, left_behind, |stand| {
        let window = stand.window()?;
        let owner = &mut stand.pair.owner;
        let shared = owner.fabric.shared(owner.domain, bytes)?;
        let span = SharedSpan { shared, offset: 0, len: bytes };
        let costs = take_turns(stand, options, window, span)?;
        // A window over it would keep it from being freed.
        stand.free(window)?;
        stand.pair.owner.fabric.free_shared(shared)?;
        Ok(costs)
    })
}

fn take_turns(
    stand: &mut Stand<'_>,
    options: &ProbeOptions,
    window: WindowId,
    span: SharedSpan,
) -> Result<PairedCosts, Failure> {
    let (mut binds, mut registrations, mut ratios) = (Recorder::new(), Recorder::new(), RatioRecorder::new());
    let start = stand.clock.time();
    let work = Work::Bind { window, span, access: Access::Read };
    for pair in 0..options.pairs_max {
        if pair >= PAIRS_MIN && stand.clock.time().since(start) >= options.budget {
            break;
        }
        let registration = time_registration(stand, span.shared)?;
        // What a large registration has pushed out of the caches is its cost, and not the next bind's: one bind goes untimed.
        stand.time_at_owner(work)?;
        let (bind, _) = stand.time_at_owner(work)?;
        binds.record(bind);
        registrations.record(registration);
        ratios.record(registration.as_secs_f64() / bind.as_secs_f64());
    }
    Ok(PairedCosts { bind: binds.finish(), registration: registrations.finish(), ratio: ratios.finish() })
}

/// Registers memory that exists once more, and deregisters it.
fn time_registration(stand: &mut Stand<'_>, shared: SharedId) -> Result<std::time::Duration, Failure> {
    let owner = &mut stand.pair.owner;
    let start = stand.clock.time();
    let again = owner.fabric.share(owner.domain, shared)?;
    owner.fabric.free_shared(again)?;
    Ok(stand.clock.time().since(start))
}

/// Allocates windows, and deallocates each.
pub(super) fn window(stand: &mut Stand<'_>, options: &ProbeOptions) -> Result<Distribution, Failure> {
    let mut recorder = Recorder::new();
    let owner = &mut stand.pair.owner;
    for _ in 0..options.pairs_max {
        let start = stand.clock.time();
        let window = owner.fabric.window(owner.domain)?;
        owner.fabric.free_window(window)?;
        recorder.record(stand.clock.time().since(start));
    }
    Ok(recorder.finish())
}
