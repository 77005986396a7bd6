//! The same seed makes the same world, down to the last event.

use keyway_broker::core::Faults;
use keyway_sim::{Cast, Mix, run_seed};

#[test]
fn the_same_seed_makes_the_same_trace_and_another_seed_another() {
    for mix in Mix::ALL {
        for cast in [Cast::Puppets, Cast::Machines] {
            let run = |seed| match run_seed(seed, mix, cast, Faults::default()) {
                Ok(figures) => figures,
                Err(report) => panic!("{report}"),
            };
            let first = run(1);
            assert_eq!(first, run(1), "{mix:?} with {cast:?}");
            assert_ne!(first.hash, run(2).hash, "{mix:?} with {cast:?}");
        }
    }
}
