#![doc = include_str!("../README.md")]
//!
//! # What is in this crate
//!
//! Everything that an application needs, from the crates that it is made of: [`Producer`] with [`Record`], [`Consumer`] with
//! [`Received`], and, with the feature `broker` (on by default), an embedded [`Broker`].
#![forbid(unsafe_code)]

#[cfg(feature = "broker")]
pub use keyway_broker::{Broker, BrokerError, BrokerErrorKind, Builder as BrokerBuilder, Counters as BrokerCounters};
pub use keyway_client::{AddressError, Error, ErrorKind, Server, wait_for};
/// A record that was received: a counted view of the consumer's landing memory.
pub use keyway_consumer::Record as Received;
pub use keyway_consumer::{Consumer, ConsumerBuilder, ConsumerStats, Event, Events};
pub use keyway_fabric::{
    Dial, FabricChoice, FabricOptions, HugePages, IdleLimits, NoSuchFabric, WallTime, one_line, probe,
};
pub use keyway_producer::{Bytes, Pending, Producer, ProducerBuilder, ProducerStats, Receipt, Record, SendError};
pub use keyway_schema::message::{Overflow, Scope, Start, TopicSettings};
pub use keyway_schema::{Code, TopicName};
