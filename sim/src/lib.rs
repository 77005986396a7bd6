//! Keyway's deterministic simulator: whole worlds of brokers, producers and consumers, made from a seed, and judged after every step.
//!
//! The roles of the bus are pure state machines, so they run here as they ship: on simulated devices and a simulated network, in
//! virtual time, with every delay, death and disturbance decided by the seed. The same seed makes the same world, down to the
//! last event.
//!
//! - `scenario` is what a seed decides; `world` is the world and its time, step by step.
//! - `device`, `fabric`, `endpoint`, `network` are a fabric as `keyway_fabric`'s contract has it, held to the conformance suite,
//!   and as nasty as the contract lets it be.
//! - `broker`, `client`, `machines` are the processes: the core and the real machines with what reactor, listener and driver do
//!   for them. `puppet` has clients made by hand: plain ones, and ones that break the protocol.
//! - `oracle` has the judges, which keep books of their own and know nothing from the machines that they can see for themselves.
//! - [`run_seed`] runs one world and says how to run it again.
//!
//! # What is not modelled
//!
//! The bytes of the bootstrap (it is a connection with delay, refusal and loss), the threads and sockets around the machines, the
//! broker's orderly stop, a device's timing, and memory orderings: a step is atomic, and an aligned word is read whole.

#![forbid(unsafe_code)]

mod broker;
mod client;
#[cfg(test)]
mod conforming;
mod device;
mod endpoint;
mod fabric;
mod machines;
mod network;
mod oracle;
mod payload;
mod puppet;
mod runner;
mod scenario;
mod schedule;
mod session;
mod shared;
mod table;
mod trace;
mod world;

pub(crate) use endpoint::Place;
pub use oracle::{Failure, Invariant};
pub use runner::{Report, Seeds, run_seed};
pub use scenario::{Cast, Mix};
pub use world::Figures;

/// One incarnation of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) u32);
