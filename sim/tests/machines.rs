//! Worlds of the real machines: producers and consumers as they ship, with hand-made ones where the protocol is broken.

mod mixes;

mixes::tests!(keyway_sim::Cast::Machines, 275);
