//! Worlds of clients made by hand: what the core does when nothing but the protocol is known of its peers.

mod mixes;

mixes::tests!(keyway_sim::Cast::Puppets, 100);
