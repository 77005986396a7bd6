//! Worlds of clients made by hand: what the core does when nothing but the protocol is known of its peers.

mod mixes;

mixes::tests!(keyway_sim::Cast::Puppets, 100);

/// Beyond the seeds that are run for every change.
#[test]
fn worlds_that_failed_once() {
    // The log of a restarted broker had dropped its first segment before a consumer came to it.
    let worlds = [(236, keyway_sim::Mix::Restart)];
    mixes::again(keyway_sim::Cast::Puppets, &worlds);
}
