//! Keyway's broker: topics as rings of segments in one pool, and grants that let consumers READ them while a key lives.
//!
//! [`core`] is the pure part: what the broker decides. Around it are the reactor, a thread that owns the fabric and the
//! core, and the listener, a thread that lets clients in. [`Broker`] starts and stops them:
//!
//! ```
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), keyway_broker::BrokerError> {
//! let broker = keyway_broker::Broker::builder().listen("127.0.0.1:0").pool_size(64 << 20).start()?;
//! println!("listening on {:?}", broker.local_addr());
//! let stopped = broker.stop(Duration::from_secs(5))?;
//! assert!(stopped.drained);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod broker;
mod builder;
mod connector;
pub mod core;
mod error;
mod inbox;
mod listener;
mod reactor;
mod settings;
mod supervise;
mod throttle;
mod unix_socket;

pub use broker::Broker;
pub use builder::Builder;
pub use error::{BrokerError, BrokerErrorKind};
pub use keyway_fabric::one_line;
pub use reactor::Stopped;
pub use settings::{Idle, Settings};

pub use crate::core::Counters;
