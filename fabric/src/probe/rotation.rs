//! How keys follow one another, and what that does to READs in flight.

use super::report::{InFlight, KeyRound};
use super::stand::Stand;
use crate::conformance::Failure;
use crate::conformance::harness::{POOL, ensure};
use crate::{Access, LocalId, LocalSpan, Op, Target, WindowId, Work};

/// How many READs are posted in a row, so that keys change while some are on their way, whoever gets the processor when.
const READS: usize = 4;

/// READs are caught at so many different points of their way.
const HEAD_STARTS: u32 = 8;

/// How many rounds there are at most for each in which READs were caught: some are over before a bind can be posted.
const ROUNDS_A_TRIAL: u32 = 8;

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

/// Binds the only window anew under READs, `trials` times.
pub(super) fn rebind_under_read(stand: &mut Stand<'_>, trials: u32) -> Result<InFlight, Failure> {
    let window = stand.window()?;
    let landing = Landing::new(stand)?;
    let mut seen = InFlight { trials: 0, died: 0 };
    for round in 0..trials * ROUNDS_A_TRIAL {
        if seen.trials == trials {
            break;
        }
        let reads = read_under(stand, window, landing, 0)?;
        if !reads.are_caught(stand, round % HEAD_STARTS) {
            ensure!(!reads.have_died(stand)?, "a READ died while its window was left alone");
            continue;
        }
        let span = stand.pair.span(0, POOL);
        let rebind = stand.pair.owner.post(Work::Bind { window, span, access: Access::Read })?;
        seen.trials += 1;
        let died = reads.have_died(stand)?;
        // If a READ died it took the endpoint with it, and the rebind may have been flushed; which, does not matter.
        let _ = stand.pair.owner_result(rebind)?;
        if died {
            seen.died += 1;
            stand.reconnect()?;
        }
        stand.forget_events();
    }
    landing.free(stand)?;
    judge(seen)
}

/// Lets a second window take over under READs, `trials` times, as the broker does: bind the spare, READ on under its key, let the
/// READs under the old one end, and only then unbind that. So READs are in flight over every bind, and over every unbind too.
pub(super) fn make_before_break(stand: &mut Stand<'_>, trials: u32) -> Result<InFlight, Failure> {
    let landing = Landing::new(stand)?;
    let windows = [stand.window()?, stand.window()?];
    let mut seen = InFlight { trials: 0, died: 0 };
    let mut current = 0;
    let mut reads = read_under(stand, windows[current], landing, current)?;
    for round in 0..trials * ROUNDS_A_TRIAL {
        if seen.trials == trials {
            break;
        }
        let caught = reads.are_caught(stand, round % HEAD_STARTS);
        let spare = 1 - current;
        let next = read_under(stand, windows[spare], landing, spare);
        if reads.have_died(stand)? {
            seen.trials += 1;
            seen.died += 1;
            stand.reconnect()?;
            current = 0;
            reads = read_under(stand, windows[current], landing, current)?;
        } else {
            stand.pair.unbind(windows[current])?;
            seen.trials += u32::from(caught);
            (current, reads) = (spare, next?);
        }
    }
    ensure!(!reads.have_died(stand)?, "a READ died while its window was left alone");
    landing.free(stand)?;
    judge(seen)
}

/// Binds a window to the pool and READs that under the new key, into one half of the landing memory.
fn read_under(stand: &mut Stand<'_>, window: WindowId, landing: Landing, half: usize) -> Result<InARow, Failure> {
    let key = stand.pair.bind(window, 0, POOL)?;
    let mut ops = [Op(0); READS];
    for (place, op) in ops.iter_mut().enumerate() {
        let from = stand.pair.remote(key, 0, POOL as u32);
        let into = Target::Local(landing.slot(half * READS + place));
        *op = stand.pair.reader.post(Work::Read { from, into })?;
    }
    stand.pair.reader.fabric.submit();
    Ok(InARow(ops))
}

/// READs that were posted one behind the other.
#[derive(Clone, Copy)]
struct InARow([Op; READS]);

impl InARow {
    /// Gives them a head start of some turns; whether they are still on their way then.
    fn are_caught(self, stand: &mut Stand<'_>, turns: u32) -> bool {
        for _ in 0..turns {
            stand.pair.turn();
        }
        self.0.iter().any(|op| stand.pair.reader.result(*op).is_none())
    }

    /// Waits for their ends; whether one of them failed.
    fn have_died(self, stand: &mut Stand<'_>) -> Result<bool, Failure> {
        let mut died = false;
        for op in self.0 {
            died |= stand.pair.reader_result(op)?.is_err();
        }
        Ok(died)
    }
}

fn judge(seen: InFlight) -> Result<InFlight, Failure> {
    ensure!(seen.trials > 0, "all READs were over before a bind could be posted");
    Ok(seen)
}

/// Where the reader puts the pool: a half for each of two windows.
#[derive(Clone, Copy)]
struct Landing(LocalId);

impl Landing {
    fn new(stand: &mut Stand<'_>) -> Result<Self, Failure> {
        let reader = &mut stand.pair.reader;
        Ok(Self(reader.fabric.local(reader.domain, 2 * READS as u32, POOL as u32)?))
    }

    fn slot(self, slot: usize) -> LocalSpan {
        LocalSpan { local: self.0, slot: slot as u32, offset: 0, len: POOL as u32 }
    }

    fn free(self, stand: &mut Stand<'_>) -> Result<(), Failure> {
        Ok(stand.pair.reader.fabric.free_local(self.0)?)
    }
}
