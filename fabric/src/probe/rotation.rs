//! How keys follow one another, and what that does to READs in flight.

use super::report::{InFlight, KeyRound};
use super::stand::Stand;
use crate::conformance::Failure;
use crate::conformance::harness::{POOL, ensure};
use crate::{Access, LocalId, LocalSpan, Op, WindowId, Work};

/// READs are caught at so many different points of their way.
const HEAD_STARTS: u32 = 8;

/// How many READs are posted at most for each that is caught in flight: some are over before a bind can be posted.
const READS_A_TRIAL: u32 = 8;

/// Binds a window again and again until its first key comes round.
pub(super) fn key_round(stand: &mut Stand<'_>, binds_max: u32) -> Result<KeyRound, Failure> {
    let window = stand.window()?;
    let first = stand.pair.bind(window, 0, POOL)?;
    let mut round_after = None;
    let mut tried = 0;
    while tried < binds_max && round_after.is_none() {
        tried += 1;
        let key = stand.pair.bind(window, 0, POOL)?;
        round_after = (key == first).then_some(tried);
        stand.forget_events();
    }
    Ok(KeyRound { tried, round_after, answer: stand.attempt(first, 0, 8)? })
}

/// Binds the only window anew under each of `trials` READs.
pub(super) fn rebind_under_read(stand: &mut Stand<'_>, trials: u32) -> Result<InFlight, Failure> {
    let window = stand.window()?;
    let landing = Landing::new(stand)?;
    let mut seen = InFlight { trials: 0, died: 0 };
    for round in 0..trials * READS_A_TRIAL {
        if seen.trials == trials {
            break;
        }
        let read = start_under(stand, window, landing.slot(0))?;
        if !caught(stand, read, round % HEAD_STARTS) {
            stand.pair.reader_result(read)?.map_err(|error| Failure(format!("a READ of the pool failed: {error}")))?;
            continue;
        }
        let span = stand.pair.span(0, POOL);
        let rebind = stand.pair.owner.post(Work::Bind { window, span, access: Access::Read })?;
        let died = stand.pair.reader_result(read)?.is_err();
        // If the READ died it took the endpoint with it, and the rebind may have been flushed; which, does not matter.
        let _ = stand.pair.owner_result(rebind)?;
        seen.trials += 1;
        if died {
            seen.died += 1;
            stand.reconnect()?;
        }
        stand.forget_events();
    }
    landing.free(stand)?;
    judge(seen)
}

/// Lets a second window take over under each of `trials` READs, as the broker does: bind the spare, READ on under its key, let
/// the READ under the old one end, and only then unbind that. So every READ is in flight over a bind, and over an unbind too.
pub(super) fn make_before_break(stand: &mut Stand<'_>, trials: u32) -> Result<InFlight, Failure> {
    let landing = Landing::new(stand)?;
    let windows = [stand.window()?, stand.window()?];
    let mut seen = InFlight { trials: 0, died: 0 };
    let mut current = 0;
    let mut read = start_under(stand, windows[0], landing.slot(0))?;
    for round in 0..trials * READS_A_TRIAL {
        if seen.trials == trials {
            break;
        }
        let in_flight = caught(stand, read, round % HEAD_STARTS);
        let spare = 1 - current;
        let next = start_under(stand, windows[spare], landing.slot(spare as u32));
        if stand.pair.reader_result(read)?.is_ok() {
            stand.pair.unbind(windows[current])?;
            seen.trials += u32::from(in_flight);
            (current, read) = (spare, next?);
        } else {
            seen.trials += 1;
            seen.died += 1;
            stand.reconnect()?;
            (current, read) = (0, start_under(stand, windows[0], landing.slot(0))?);
        }
    }
    stand.pair.reader_result(read)?.map_err(|error| Failure(format!("the last READ died: {error}")))?;
    landing.free(stand)?;
    judge(seen)
}

/// Binds a window to the pool and posts a READ of it under the new key.
fn start_under(stand: &mut Stand<'_>, window: WindowId, into: LocalSpan) -> Result<Op, Failure> {
    let key = stand.pair.bind(window, 0, POOL)?;
    stand.start_read(key, into)
}

/// Gives a READ a head start of some turns; whether it is still on its way then.
fn caught(stand: &mut Stand<'_>, read: Op, turns: u32) -> bool {
    for _ in 0..turns {
        stand.pair.turn();
    }
    stand.pair.reader.result(read).is_none()
}

fn judge(seen: InFlight) -> Result<InFlight, Failure> {
    ensure!(seen.trials > 0, "every READ was over before a bind could be posted");
    Ok(seen)
}

/// Where the reader puts the pool, twice.
struct Landing(LocalId);

impl Landing {
    fn new(stand: &mut Stand<'_>) -> Result<Self, Failure> {
        let reader = &mut stand.pair.reader;
        Ok(Self(reader.fabric.local(reader.domain, 2, POOL as u32)?))
    }

    fn slot(&self, slot: u32) -> LocalSpan {
        LocalSpan { local: self.0, slot, offset: 0, len: POOL as u32 }
    }

    fn free(self, stand: &mut Stand<'_>) -> Result<(), Failure> {
        Ok(stand.pair.reader.fabric.free_local(self.0)?)
    }
}
