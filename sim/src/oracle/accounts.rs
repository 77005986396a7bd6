//! Accounts: what the devices hold, against what the core says, and against nothing at the end (I2, I3, I9).

use std::collections::BTreeSet;

use keyway_broker::core::{Core, SegmentState};
use keyway_fabric::{Fabric, Holdings};

use super::{Invariant, KeyBook, Verdict, broken};
use crate::device::SimFabric;

/// After a turn of the broker: every bound window is one that the core knows, and no segment that the core calls free is
/// covered by one.
pub(crate) fn cross_check(core: &Core, keys: &KeyBook) -> Verdict {
    let known: BTreeSet<_> = core.windows().map(|view| view.window).collect();
    let size = u64::from(core.config().segment_size);
    let free: BTreeSet<u64> = core
        .segments()
        .filter(|segment| segment.state == SegmentState::Free)
        .map(|segment| u64::from(segment.index))
        .collect();
    for (key, bound) in keys.bound_windows() {
        if !known.contains(&bound.window) {
            return broken(
                Invariant::I9,
                format!("{key} of {bound:?} is in force, and the core has forgotten the window"),
            );
        }
        if let Some(segment) =
            (bound.offset / size..=(bound.offset + bound.len - 1) / size).find(|at| free.contains(at))
        {
            return broken(Invariant::I3, format!("segment {segment} is free, and {key} of {bound:?} opens it"));
        }
    }
    Ok(())
}

/// At the end, with every session over: what the broker holds is its pool, and the windows that it keeps from being used.
pub(crate) fn audit_broker(core: &Core, fabric: &SimFabric) -> Verdict {
    let counters = core.counters();
    let held = fabric.holdings();
    let windows = counters.windows_parked as usize;
    let expected = Holdings { domains: 1, shareds: 1, windows, ..Holdings::default() };
    if held != expected {
        return broken(Invariant::I9, format!("with no session left the broker's device holds {held:?}; {counters:?}"));
    }
    let rest = (counters.sessions, counters.subscriptions, counters.windows, counters.windows_live);
    if rest != (0, 0, 0, 0) || counters.segments_limbo != 0 || counters.batches_waiting != 0 {
        return broken(Invariant::I9, format!("with no session left the core counts {counters:?}"));
    }
    let total = core.config().segments();
    if counters.segments_live + counters.segments_free != total {
        return broken(Invariant::I9, format!("of {total} segments some are neither free nor live: {counters:?}"));
    }
    let (mut live, mut free) = (0, 0);
    for segment in core.segments() {
        match segment.state {
            SegmentState::Free => free += 1,
            SegmentState::Live { .. } => live += 1,
            SegmentState::Limbo { .. } => return broken(Invariant::I9, format!("{segment:?} is left in limbo")),
        }
        if segment.windows > 0 {
            return broken(Invariant::I9, format!("{segment:?} counts windows that are gone"));
        }
    }
    if (live, free) != (counters.segments_live, counters.segments_free) {
        return broken(Invariant::I9, format!("{live} segments are live and {free} free, counted are {counters:?}"));
    }
    let topics: u32 = core.topics().map(|topic| topic.segments).sum();
    if topics != live {
        return broken(Invariant::I9, format!("the rings have {topics} segments, {live} are live"));
    }
    match core.topics().find(|topic| topic.reserved > 0 || topic.waiting > 0) {
        Some(topic) => broken(Invariant::I9, format!("with no session left something is reserved in {topic:?}")),
        None => Ok(()),
    }
}

/// At the end, a client that has given everything back holds its domain only.
pub(crate) fn audit_client(actor: usize, fabric: &SimFabric) -> Verdict {
    let held = fabric.holdings();
    if held == (Holdings { domains: 1, ..Holdings::default() }) {
        return Ok(());
    }
    broken(Invariant::I9, format!("client {actor} has ended, and its device holds {held:?}"))
}
