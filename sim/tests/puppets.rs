//! Worlds of clients made by hand: what the core does when nothing but the protocol is known of its peers.

mod mixes;

use keyway_broker::core::Faults;
use keyway_sim::{Cast, Mix, run_seed};

mixes::tests!(Cast::Puppets, 100);

/// Beyond the seeds that are run for every change.
#[test]
fn worlds_that_failed_once() {
    // The log of a restarted broker had dropped its first segment before a consumer came to it.
    for (seed, mix) in [(236, Mix::Restart)] {
        if let Err(report) = run_seed(seed, mix, Cast::Puppets, Faults::default()) {
            panic!("{report}");
        }
    }
}
