//! How keys follow one another, and what that means for whoever keeps one.

use super::Backend;
use super::harness::{Check, POOL, Pair, ensure};
use crate::{Access, FabricError, Key, Outcome, WindowId, Work, WorkError};

/// How many keys a window has.
const KEYS: usize = 256;

pub(super) fn every_bind_and_every_unbind_uses_up_a_key(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let mut expected = pair.owner.fabric.key(window);
    for round in 0..10 {
        expected = expected.next();
        let key = pair.bind(window, round, 100)?;
        ensure!(key == expected, "a bind gave {key}, and {expected} was next");
        expected = expected.next();
        pair.unbind(window)?;
        let key = pair.owner.fabric.key(window);
        ensure!(key == expected, "an unbind left {key} behind, and {expected} was next");
    }
    Ok(())
}

pub(super) fn a_key_comes_round_after_256_binds_and_not_before(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let first = pair.bind(window, 0, POOL)?;
    for step in 1..=KEYS {
        let key = pair.bind(window, 0, POOL)?;
        ensure!((key == first) == (step == KEYS), "bind {step} gave {key}; the first was {first}");
        // Each refusal costs two endpoints, so not every step is tried.
        if [1, 2, 127, 128, 254, 255].contains(&step) {
            let from = pair.remote(first, 0, 8);
            pair.expect_refusal(from)?;
        }
    }
    // This is the hazard: whoever kept the first key for 256 binds may read again.
    pair.expect_read(first, 0, 8)
}

/// The defence of whoever lends memory: a window is replaced before its first key comes round.
struct Lender {
    window: WindowId,
    bindings: usize,
}

impl Lender {
    /// Grants the pool anew, under a key that was never given out before as far as anyone can remember.
    fn grant(&mut self, pair: &mut Pair<'_>) -> Result<Key, super::Failure> {
        // One key short of the round trip: the last bind of a window must not give its first key.
        if self.bindings == KEYS - 1 {
            let fresh = pair.window()?;
            let spent = std::mem::replace(self, Self { window: fresh, bindings: 0 });
            pair.owner.fabric.free_window(spent.window)?;
        }
        self.bindings += 1;
        pair.bind(self.window, 0, POOL)
    }
}

pub(super) fn a_kept_key_is_refused_for_1000_epochs_if_windows_are_replaced_in_time(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let mut lender = Lender { window: pair.window()?, bindings: 0 };
    let kept = lender.grant(&mut pair)?;
    pair.expect_read(kept, 0, 8)?;
    for epoch in 1..=1_000 {
        let key = lender.grant(&mut pair)?;
        ensure!(key != kept, "the kept key was given out again in epoch {epoch}");
        if [1, 255, 256, 257, 512, 1_000].contains(&epoch) {
            let from = pair.remote(kept, 0, 8);
            pair.expect_refusal(from)?;
            pair.expect_read(key, 0, 8)?;
        }
        pair.owner.events.clear();
    }
    Ok(())
}

pub(super) fn a_posted_key_is_known_at_once_and_opens_once_its_bind_is_done(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let before = pair.owner.fabric.key(window);
    let from = pair.remote(before.next(), 0, 8);
    pair.expect_refusal(from)?;
    let span = pair.span(0, POOL);
    let op = pair.owner.post(Work::Bind { window, span, access: Access::Read })?;
    let known = pair.owner.fabric.key(window);
    ensure!(known != before, "a bind was posted, and the window still says {before}");
    let result = pair.owner_result(op)?;
    ensure!(result == Ok(Outcome::Bound(known)), "the bind that was to give {known} ended with {result:?}");
    pair.expect_read(known, 0, 8)
}

pub(super) fn a_flushed_bind_restores_the_key(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let (failing, flushed) = (pair.window()?, pair.window()?);
    let key = pair.bind(flushed, 0, 100)?;
    let (outside, inside) = (pair.span(POOL, 8), pair.span(0, 200));
    pair.owner.post(Work::Bind { window: failing, span: outside, access: Access::Read })?;
    let op = pair.owner.post(Work::Bind { window: flushed, span: inside, access: Access::Read })?;
    let result = pair.owner_result(op)?;
    ensure!(result == Err(WorkError::Flushed), "a bind behind a failed one ended with {result:?}");
    let restored = pair.owner.fabric.key(flushed);
    ensure!(restored == key, "the key is {restored} after a flushed bind, and was {key}");
    let link = pair.owner.link;
    pair.until("the endpoint to go down", |pair| pair.owner.down(link).is_some())?;
    pair.connect()?;
    pair.expect_read(key, 0, 100)?;
    let from = pair.remote(key.next(), 0, 100);
    pair.expect_refusal(from)
}

pub(super) fn a_window_is_busy_until_its_bind_is_over(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let span = pair.span(0, POOL);
    let op = pair.owner.post(Work::Bind { window, span, access: Access::Read })?;
    let link = pair.owner.link;
    for work in [Work::Bind { window, span, access: Access::Read }, Work::Unbind { window }] {
        let result = pair.owner.fabric.post(link, crate::Op(u64::MAX), work);
        ensure!(matches!(result, Err(FabricError::WindowBusy { .. })), "posting {work:?} gave {result:?}");
    }
    let result = pair.owner.fabric.free_window(window);
    ensure!(matches!(result, Err(FabricError::WindowBusy { .. })), "freeing the window gave {result:?}");
    let result = pair.owner_result(op)?;
    ensure!(matches!(result, Ok(Outcome::Bound(_))), "the first bind ended with {result:?}");
    pair.unbind(window)
}
