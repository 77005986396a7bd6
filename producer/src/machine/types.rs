//! What goes into a producer machine and comes out of it.

use keyway_client::Error;
use keyway_schema::TopicName;
use keyway_schema::message::TopicSettings;

use crate::flight::Ticket;

/// What a producer machine is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerConfig {
    /// The topic.
    pub topic: TopicName,
    /// The settings to create it with.
    pub settings: Option<TopicSettings>,
    /// The number that the producer goes by for its life: chosen at random.
    pub producer: u64,
    /// The broker's address, for messages.
    pub server: String,
    /// The most memory for offers, beyond the one slot that a producer of large records cannot do without.
    pub offer_memory: u64,
}

/// What has become of a batch.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which.
    pub ticket: Ticket,
    /// The sequence of its first record and when it was committed, in nanoseconds since 1970; or why it never will be.
    pub result: Result<(u64, u64), Error>,
    /// Its bytes, for the next batch to be built in.
    pub bytes: Vec<u8>,
}

/// What an open topic takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest record, in bytes of key, headers and payload.
    pub record_max: u32,
    /// The largest batch, header included.
    pub batch_max: u32,
    /// The largest batch that fits a slot; larger ones are offered.
    pub publish_max: u32,
}

/// Figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches committed.
    pub batches: u64,
    /// Batches offered through a window.
    pub offers: u64,
    /// Batches sent again after a session was lost.
    pub retries: u64,
    /// Sessions in which the topic was opened, beyond the first.
    pub reconnects: u64,
}
