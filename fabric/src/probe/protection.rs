//! What opens the owner's memory, and what does not.

use super::report::{Answer, Bounds, Deregistration, FabricDeregistration, StaleKey};
use super::stand::Stand;
use super::{DeadEndpoint, ProbeTarget};
use crate::conformance::Failure;
use crate::conformance::harness::POOL;
use crate::{Access, FabricError, Key, Outcome, SharedSpan, Work};

/// The window under test: well inside the pool, and at no page's start.
const START: u64 = 10_000;
const LEN: u32 = 1_000;

/// The size of what a READ asks for where its size does not matter.
const SOME: u32 = 8;

pub(super) fn inside(stand: &mut Stand<'_>) -> Result<Answer, Failure> {
    let window = stand.window()?;
    let key = stand.pair.bind(window, START, LEN.into())?;
    stand.attempt(key, START, LEN)
}

pub(super) fn bounds(stand: &mut Stand<'_>) -> Result<Bounds, Failure> {
    let window = stand.window()?;
    let key = stand.pair.bind(window, START, LEN.into())?;
    let end = START + u64::from(LEN);
    Ok(Bounds {
        before: stand.attempt(key, START - u64::from(SOME), SOME)?,
        across_start: stand.attempt(key, START - 1, 2)?,
        across_end: stand.attempt(key, end - 1, 2)?,
        beyond: stand.attempt(key, end, SOME)?,
    })
}

pub(super) fn outside_region(stand: &mut Stand<'_>) -> Result<Answer, Failure> {
    let window = stand.window()?;
    let key = stand.pair.bind(window, 0, POOL)?;
    let before = 0_u64.wrapping_sub(1);
    stand.worst_attempt([(key, POOL, 1), (key, POOL - 1, 2), (key, before, 1), (key, before, 2)])
}

/// Before a window covers the region, and while one does.
pub(super) fn region_key(stand: &mut Stand<'_>) -> Result<Answer, Failure> {
    let key = stand.pair.owner.fabric.region_key(stand.pair.pool)?;
    let alone = stand.attempt(key, 0, SOME)?;
    if alone != Answer::Refused {
        return Ok(alone);
    }
    let window = stand.window()?;
    stand.pair.bind(window, 0, POOL)?;
    stand.attempt(key, 0, SOME)
}

/// A window's key before its first bind, the one after its current one, another window's to be, and the likeliest guesses.
pub(super) fn unknown_key(stand: &mut Stand<'_>) -> Result<Answer, Failure> {
    let window = stand.window()?;
    let initial = stand.pair.owner.fabric.key(window);
    let unbound = stand.attempt(initial, 0, SOME)?;
    if unbound != Answer::Refused {
        return Ok(unbound);
    }
    let key = stand.pair.bind(window, 0, POOL)?;
    stand.worst_attempt([Key(0), Key(u32::MAX), key.next(), Key(key.0 ^ 0x0100)].map(|guess| (guess, 0, SOME)))
}

pub(super) fn stale_key(stand: &mut Stand<'_>) -> Result<StaleKey, Failure> {
    let window = stand.window()?;
    let before = stand.pair.bind(window, 0, POOL)?;
    let current = stand.pair.bind(window, 0, POOL)?;
    let after_rebind = stand.attempt(before, 0, SOME)?;
    stand.pair.unbind(window)?;
    let after_unbind = stand.attempt(current, 0, SOME)?;
    let last = stand.pair.bind(window, 0, POOL)?;
    stand.free(window)?;
    let after_free = stand.attempt(last, 0, SOME)?;
    Ok(StaleKey { after_rebind, after_unbind, after_free })
}

/// Asks the fabric to free memory that a live window covers, and the device itself if it can be asked.
pub(super) fn deregistration(target: &dyn ProbeTarget, stand: &mut Stand<'_>) -> Result<Deregistration, Failure> {
    let window = stand.window()?;
    let fabric = &mut stand.pair.owner.fabric;
    let shared = fabric.shared(stand.pair.owner.domain, POOL)?;
    let span = SharedSpan { shared, offset: 0, len: POOL };
    stand.pair.bind_as(window, span, Access::Read)?;
    let fabric = match stand.pair.owner.fabric.free_shared(shared) {
        Ok(()) => FabricDeregistration::Done,
        Err(FabricError::Lent { windows, .. }) => FabricDeregistration::Lent { windows: windows.len() },
        Err(error) => FabricDeregistration::Failed { error: error.to_string() },
    };
    stand.free(window)?;
    if fabric != FabricDeregistration::Done {
        stand.pair.owner.fabric.free_shared(shared)?;
    }
    Ok(Deregistration { device: target.deregister_under_window(), fabric })
}

pub(super) fn dead_endpoint(stand: &mut Stand<'_>) -> Result<DeadEndpoint, Failure> {
    let window = stand.window()?;
    let key = stand.pair.bind(window, START, LEN.into())?;
    stand.reconnect()?;
    let through_another = stand.attempt(key, START, SOME)?;
    let op = stand.pair.owner.post(Work::Unbind { window })?;
    let result = stand.pair.owner_result(op)?;
    if result != Ok(Outcome::Unbound) {
        return Err(Failure(format!("unbinding a window of an endpoint that is gone ended with {result:?}")));
    }
    Ok(DeadEndpoint { through_another, after_unbind: stand.attempt(key, START, SOME)? })
}
