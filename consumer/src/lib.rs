//! Keyway's subscribing client: it READs a topic's records out of the broker's memory, under keys that are replaced every
//! epoch.
//!
//! ```no_run
//! use keyway_consumer::{Consumer, Error, Start};
//!
//! # fn main() -> Result<(), Error> {
//! let mut consumer = Consumer::builder("keyway://127.0.0.1:4480", "plant-7/temperature").start(Start::Earliest).connect()?;
//! loop {
//!     match consumer.recv_blocking() {
//!         Ok(record) => println!("{}: {} bytes", record.sequence(), record.payload().len()),
//!         Err(Error::Lagged { from, to }) => eprintln!("{} records were missed", to - from),
//!         Err(error) => return Err(error),
//!     }
//! }
//! # }
//! ```
//!
//! [`Consumer`] is the handle, and one thread of its own serves it. [`machine`] is what that thread runs: the protocol as a
//! pure state machine, which a simulator can drive as well.

#![forbid(unsafe_code)]

mod builder;
mod consumer;
mod events;
pub mod machine;
mod record;
mod role;
mod stats;

pub use builder::ConsumerBuilder;
pub use consumer::Consumer;
pub use events::{Event, Events};
pub use keyway_client::{Error, ErrorKind, Server};
pub use keyway_fabric::{IdleLimits, WallTime};
pub use keyway_schema::message::{Scope, Start};
pub use record::Record;
pub use stats::ConsumerStats;
