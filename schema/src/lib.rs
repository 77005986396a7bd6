//! What travels on Keyway: control messages, batches and records, segment headers, names, limits and error codes.
//!
//! No I/O here, and nothing that knows how bytes get from one machine to another.
//!
//! - [`message`]: the control messages, as rkyv archives behind an [`Envelope`], read in place after validation.
//! - [`bootstrap`]: what is said on the byte stream before two endpoints are connected.
//! - [`batch`], [`record`], [`segment`]: how records lie in memory.
//! - [`limits`], [`Code`], [`TopicName`]: limits, error codes and names, in one place.

#![forbid(unsafe_code)]

pub mod batch;
pub mod bootstrap;
mod code;
mod envelope;
pub mod limits;
pub mod message;
mod name;
pub mod record;
pub mod segment;

pub use code::Code;
pub use envelope::{
    DecodeError, ENVELOPE_LEN, EncodeError, Envelope, MAGIC, ToBroker, ToBrokerRef, ToClient, ToClientRef,
};
pub use name::{NameError, TopicName};
