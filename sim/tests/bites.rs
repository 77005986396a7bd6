//! The judges bite: each deliberate fault of the core is noticed within a bounded number of worlds, by the right judge.

use keyway_broker::core::Faults;
use keyway_sim::{Cast, Invariant, Mix, run_seed};

/// Worlds within which a fault must be noticed: fewer than are run for every change.
const WORLDS: u64 = 200;

/// Looks for a world that notices the fault, and for the invariant that it says was broken.
fn bites(faults: Faults, mixes: &[Mix], expected: &[Invariant]) {
    for seed in 0..WORLDS {
        for mix in mixes {
            let Err(report) = run_seed(seed, *mix, Cast::Puppets, faults) else { continue };
            println!("noticed by seed {seed} of {mix:?} in step {}: {}", report.step, report.failure);
            assert!(expected.contains(&report.failure.invariant), "{report}\nexpected was one of {expected:?}");
            return;
        }
    }
    panic!("{WORLDS} worlds of {mixes:?} did not notice {faults:?}");
}

#[test]
fn a_segment_recycled_under_a_window() {
    let faults = Faults { recycle_under_window: true, ..Faults::default() };
    bites(faults, &[Mix::Lapping], &[Invariant::I3]);
}

#[test]
fn a_skipped_quarantine() {
    let faults = Faults { skip_quarantine: true, ..Faults::default() };
    bites(faults, &[Mix::ShortEpochs], &[Invariant::I4]);
}

#[test]
fn a_window_unbound_before_its_release() {
    let faults = Faults { unbind_before_release: true, ..Faults::default() };
    bites(faults, &[Mix::ShortEpochs, Mix::Steady], &[Invariant::I7]);
}

#[test]
fn a_tail_stored_before_its_batch_was_copied() {
    let faults = Faults { tail_before_copy: true, ..Faults::default() };
    bites(faults, &[Mix::Steady], &[Invariant::I8]);
}

#[test]
fn a_batch_appended_twice() {
    let faults = Faults { skip_dedup: true, ..Faults::default() };
    bites(faults, &[Mix::Faults], &[Invariant::I5]);
}

#[test]
fn a_lapped_consumer_that_is_not_told() {
    let faults = Faults { lose_lagged: true, ..Faults::default() };
    bites(faults, &[Mix::Lapping], &[Invariant::I5]);
}

#[test]
fn a_deadline_that_is_not_enforced() {
    let faults = Faults { ignore_deadline: true, ..Faults::default() };
    bites(faults, &[Mix::Hostile], &[Invariant::I6]);
}

#[test]
fn a_window_that_is_left_behind() {
    let faults = Faults { leak_windows: true, ..Faults::default() };
    bites(faults, &[Mix::Steady], &[Invariant::I9]);
}

#[test]
fn one_grant_more_than_the_depth() {
    let faults = Faults { exceed_depth: true, ..Faults::default() };
    bites(faults, &[Mix::Steady, Mix::ShortEpochs], &[Invariant::I2]);
}

#[test]
fn a_wake_up_that_is_lost() {
    let faults = Faults { lose_wake: true, ..Faults::default() };
    bites(faults, &[Mix::Steady], &[Invariant::Progress]);
}
