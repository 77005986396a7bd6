//! Keyway's broker: topics as rings of segments in one pool, and grants that let consumers READ them while a key lives.
//!
//! [`core`] is the pure part: what the broker decides. Around it are the reactor and the listener.

#![forbid(unsafe_code)]

pub mod core;
