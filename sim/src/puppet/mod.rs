//! Clients made by hand: simple ones that keep the protocol, and ones that break it in every way that a seed asks for.
//!
//! They share nothing with the real machines but the schema and the channel, so that a mistake of those is not made twice.

mod consumer;
mod producer;

pub(crate) use consumer::{PuppetConsumer, Subscription};
pub(crate) use producer::PuppetProducer;

/// How a hand-made consumer behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manners {
    /// Keeps the protocol.
    Good,
    /// Stops releasing and reading after so many grants.
    Stops {
        /// How many.
        grants: u64,
    },
    /// Releases so many per cent of the grace late.
    Late {
        /// How many; above 100 the key is taken from it.
        percent: u32,
    },
    /// Keeps the protocol, and every key that it ever had, and tries one now and then.
    KeepsKeys {
        /// The mean number of turns between two attempts.
        turns: u32,
    },
    /// Sends garbage after so many grants.
    Garbage {
        /// How many.
        grants: u64,
    },
}
