//! A test for every kind of world.

use keyway_broker::core::Faults;
use keyway_sim::{Cast, Figures, Mix, Seeds, run_seed};

/// Runs worlds of one kind, and says what they did.
pub(crate) fn run(mix: Mix, cast: Cast, runs: u64) {
    let seeds = Seeds::from_environment(runs);
    let mut total = Figures::default();
    for seed in seeds.iter() {
        match run_seed(seed, mix, cast, Faults::default()) {
            Ok(figures) => total += figures,
            Err(report) => panic!("{report}"),
        }
    }
    println!("{} worlds of {mix:?} with {cast:?}: {total:?}", seeds.runs);
    assert!(seeds.runs < 10 || total.delivered > 0, "worlds in which nothing is delivered show nothing");
}

macro_rules! tests {
    ($cast:expr, $runs:expr) => {
        mixes::tests! { $cast, $runs, steady Steady, lapping Lapping, shortepochs ShortEpochs, faults Faults,
            restart Restart, offers Offers, exhaustion Exhaustion, hostile Hostile }
    };
    ($cast:expr, $runs:expr, $($name:ident $mix:ident),*) => {
        $(
            #[test]
            fn $name() {
                crate::mixes::run(keyway_sim::Mix::$mix, $cast, $runs);
            }
        )*
    };
}
pub(crate) use tests;
