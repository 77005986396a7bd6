//! Keyway's subscribing client.

#![forbid(unsafe_code)]

mod events;
pub mod machine;

pub use events::{Event, Events};
