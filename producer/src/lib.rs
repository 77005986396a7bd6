//! Keyway's publishing client.
//!
//! ```no_run
//! use std::time::Duration;
//! use keyway_producer::{Producer, Record};
//!
//! # fn main() -> Result<(), keyway_producer::Error> {
//! let producer = Producer::builder("keyway://127.0.0.1:4480", "plant-7/temperature").connect()?;
//! let pending = producer.enqueue(Record::new("21.5").key("line-2"))?;
//! println!("record {}", pending.wait()?.sequence);
//! producer.close(Duration::from_secs(5))
//! # }
//! ```
//!
//! - [`Producer`] is the handle, [`ProducerBuilder`] its settings, [`Record`] what is published.
//! - [`machine`] is the protocol as a pure state machine, for whoever drives it otherwise, such as a simulator.

#![forbid(unsafe_code)]

mod buffer;
mod builder;
mod completion;
mod error;
mod flight;
mod lost;
pub mod machine;
mod offer;
mod producer;
mod record;
mod role;

pub use builder::{BUFFER_DEFAULT, ProducerBuilder};
pub use completion::{Pending, Receipt};
pub use error::SendError;
pub use keyway_client::{AddressError, Error, ErrorKind, Server};
pub use keyway_schema::message::{Overflow, TopicSettings};
pub use producer::{Producer, ProducerStats};
pub use record::{Bytes, Record};
