//! A window opens its own range, not its region's.

use super::Backend;
use super::harness::{Check, POOL, Pair, ensure};
use crate::{Access, DownCause, Work, WorkError};

/// The window under test: well inside the pool, and not at a page.
const START: u64 = 10_000;
const LEN: u64 = 1_000;

/// A READ of a part of the pool that the window does not cover in full.
fn refused(backend: &dyn Backend, offset: u64, len: u32) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, START, LEN)?;
    let from = pair.remote(key, offset, len);
    pair.expect_refusal(from)?;
    // The key itself is as good as before.
    pair.expect_read(key, START, LEN as u32)
}

pub(super) fn a_read_before_a_window_is_refused(backend: &dyn Backend) -> Check {
    refused(backend, START - 8, 8)
}

pub(super) fn a_read_beyond_a_window_is_refused(backend: &dyn Backend) -> Check {
    refused(backend, START + LEN, 8)
}

pub(super) fn a_read_across_a_windows_start_is_refused(backend: &dyn Backend) -> Check {
    refused(backend, START - 1, 2)
}

pub(super) fn a_read_across_a_windows_end_is_refused(backend: &dyn Backend) -> Check {
    refused(backend, START + LEN - 1, 2)
}

pub(super) fn a_read_outside_the_memory_is_refused(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, 0, POOL)?;
    for (offset, len) in [(POOL, 1), (POOL - 1, 2), (0_u64.wrapping_sub(1), 1), (0_u64.wrapping_sub(1), 2)] {
        let from = pair.remote(key, offset, len);
        pair.expect_refusal(from)?;
    }
    let mut from = pair.remote(key, 0, 16);
    from.address = u64::MAX - 7;
    pair.expect_refusal(from)
}

pub(super) fn a_bind_outside_the_memory_fails_and_restores_the_key(backend: &dyn Backend) -> Check {
    let mut pair = Pair::new(backend)?;
    let window = pair.window()?;
    let key = pair.bind(window, START, LEN)?;
    for (offset, len) in [(POOL, 1), (1, POOL), (POOL - 1, 2)] {
        let span = pair.span(offset, len);
        let op = pair.owner.post(Work::Bind { window, span, access: Access::Read })?;
        let result = pair.owner_result(op)?;
        ensure!(result == Err(WorkError::Bind), "binding {span:?} ended with {result:?}");
        let restored = pair.owner.fabric.key(window);
        ensure!(restored == key, "the key is {restored} after a failed bind, and was {key}");
        pair.expect_down(DownCause::PeerLost, DownCause::Work(WorkError::Bind))?;
        pair.connect()?;
        pair.expect_read(key, START, LEN as u32)?;
    }
    Ok(())
}
