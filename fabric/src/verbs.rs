//! The fabric on RDMA devices, through libibverbs.
//!
//! An endpoint is a reliable connected queue pair, a window a type-1 memory window. It has no thread: work is rung in by
//! [`submit`](Fabric::submit), and completions are taken in by [`poll`](Fabric::poll), on the thread that calls them. The device
//! answers peers' READs by itself, whether or not the owner of the memory polls.
//!
//! # What it promises
//!
//! - The contract, with the device as the judge of every READ. What the device does not do is said in
//!   [`capabilities`](Fabric::capabilities), and found by trying.
//! - Nothing that the device may still read or write is unmapped, deregistered or lent out, in whatever order objects go.
//! - Completion queues cannot overflow: every endpoint has a place reserved for each piece of work that it takes.
//!
//! # What it lacks
//!
//! A device keeps no connection but the state of its queue pairs: an endpoint without work under way does not notice that its
//! peer is gone. That is the business of whoever holds the bootstrap stream. An endpoint whose peer's READ was refused, on
//! a device that reports that by flushed receives only (Soft-RoCE does), is noticed by asking, once it is polled, if it has
//! no receive posted.
//!
//! A bind that was flushed may have been executed all the same, since a device executes it before what stands in front of it is
//! acknowledged. The window says that it is bound as before; what it was to be bound to counts as lent too until the window
//! is freed, or bound or unbound again, for which it is replaced underneath.

mod address;
mod doorbell;
mod endpoint;
mod fabric;
mod failure;
mod open;
mod port;
mod post;
mod progress;
mod queues;
mod report;
mod resting;
mod status;
mod sys;
mod target;
mod trial;
mod window;

pub(crate) use address::device_address;
pub use fabric::VerbsFabric;
pub use open::{VerbsConfig, WINDOWS_RESTING};
pub use target::VerbsTarget;

#[cfg(doc)]
use crate::Fabric;

/// What this fabric is called in errors.
const NAME: &str = "verbs";
