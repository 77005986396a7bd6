//! Control messages: what client and broker SEND each other.
//!
//! Each message is a 16-byte [`Envelope`](crate::Envelope), an rkyv archive at byte 16, and for `Publish` the batch behind it.
//! A receiver works on the archive in the receive slot itself, after `rkyv` has validated it. Sequences, offsets and
//! epochs are those of the design; times on the wire are durations or commit times, never a peer's deadline.

use rkyv::{Archive, Deserialize, Serialize};

macro_rules! plain {
    ($($item:item)*) => { $(
        #[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
        #[rkyv(derive(Debug))]
        $item
    )* };
}

macro_rules! copied {
    ($($item:item)*) => { $(
        #[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[rkyv(derive(Debug))]
        $item
    )* };
}

copied! {
    /// Where a subscription starts.
    pub enum Start {
        /// Behind the last record committed so far.
        Latest,
        /// At the oldest record that is still there.
        Earliest,
        /// At this record; if it is gone already, the gap is told.
        Sequence(u64),
        /// At the first record committed at this wall-clock time or later, in nanoseconds since 1970.
        Time(u64),
    }

    /// What one grant covers.
    pub enum Scope {
        /// A whole ring segment, re-keyed every epoch.
        Segment,
        /// All that is committed and not yet granted.
        Batch,
        /// One record.
        Message,
    }

    /// When a key is replaced. An epoch ends when the first of its limits is reached.
    pub struct EpochSettings {
        /// The longest that a key is current, in microseconds.
        pub interval_us: u32,
        /// How long a superseded key lives at most, in milliseconds.
        pub grace_ms: u32,
        /// The most bytes that are opened by one key, or zero for no limit.
        pub bytes: u64,
        /// The most records that are opened by one key, or zero for no limit.
        pub records: u64,
    }

    /// What happens when a topic's ring is full.
    pub enum Overflow {
        /// The oldest segment is dropped; who has not read it is told the exact gap.
        DropOldest,
    }

    /// A topic's settings; zeros stand for the broker's defaults.
    pub struct TopicSettings {
        /// The most segments of the ring.
        pub segments: u32,
        /// The largest record, in bytes of key, headers and payload.
        pub record_max: u32,
        /// What happens when the ring is full.
        pub overflow: Overflow,
    }

    /// Which batch became which records.
    pub struct Commit {
        /// The producer's batch number.
        pub number: u64,
        /// The sequence of its first record.
        pub base_sequence: u64,
        /// When it was committed, in nanoseconds since 1970.
        pub time: u64,
    }
}

plain! {
    /// Client: opens a topic for publishing, creating it if need be.
    pub struct OpenTopic {
        /// Comes back in the answer.
        pub request: u32,
        /// The topic's name.
        pub topic: String,
        /// The settings to create it with; an existing topic keeps its own.
        pub settings: Option<TopicSettings>,
        /// Who publishes: a number that the producer chose at random and keeps for its life.
        pub producer: u64,
    }

    /// Client: a batch, behind the archive.
    pub struct Publish {
        /// The topic, as `TopicOpened` numbered it.
        pub topic: u32,
    }

    /// Client: a batch that is too large for a slot, for the broker to READ from the producer's window.
    pub struct Offer {
        /// The topic.
        pub topic: u32,
        /// The batch's number.
        pub number: u64,
        /// Where it is.
        pub address: u64,
        /// How long it is, header included.
        pub len: u32,
        /// What opens it.
        pub key: u32,
    }

    /// Client: wants a topic's records.
    pub struct Subscribe {
        /// Comes back in the answer.
        pub request: u32,
        /// The topic's name; it is created with defaults if it does not exist.
        pub topic: String,
        /// A name for logs and status, or empty.
        pub name: String,
        /// Where to start.
        pub start: Start,
        /// What one grant covers.
        pub scope: Scope,
        /// When keys are replaced.
        pub epoch: EpochSettings,
        /// The most grants to hold at once; zero for the broker's default.
        pub depth: u16,
        /// The most bytes that one grant of batch scope should cover: what the consumer can land at once.
        pub grant_bytes: u32,
    }

    /// Client: no READ is outstanding under any epoch up to this one, and none will be posted.
    pub struct Release {
        /// The subscription.
        pub subscription: u32,
        /// The last epoch released; all before it are too.
        pub epoch: u64,
        /// The next record that the consumer wants.
        pub sequence: u64,
        /// The consumer cannot read now (it has nowhere to land): no grants until it sends `Arm`.
        pub pause: bool,
    }

    /// Client: has read up to here and wants to hear of more: a `Wake` under a live key, or a `Grant`.
    pub struct Arm {
        /// The subscription.
        pub subscription: u32,
        /// The next record that it wants.
        pub sequence: u64,
    }

    /// Client: ends a subscription; every epoch of it is released.
    pub struct Unsubscribe {
        /// The subscription.
        pub subscription: u32,
    }

    /// Client: ends the session; the broker closes it.
    pub struct Goodbye {}

    /// Broker: a topic is open.
    pub struct TopicOpened {
        /// Of `OpenTopic`.
        pub request: u32,
        /// The topic's number in this broker instance.
        pub topic: u32,
        /// The sequence that the next record will get.
        pub next_sequence: u64,
        /// The largest record that it takes.
        pub record_max: u32,
        /// The largest batch that it takes, header included.
        pub batch_max: u32,
        /// The last batch of this producer that was committed or is about to be; zero if none.
        pub last_number: u64,
    }

    /// Broker: batches were committed.
    pub struct Committed {
        /// The topic.
        pub topic: u32,
        /// Which, in order; at most `COMMITS_MAX`.
        pub commits: Vec<Commit>,
    }

    /// Broker: an offered batch has been READ; the producer may unbind its window.
    pub struct Withdraw {
        /// The topic.
        pub topic: u32,
        /// The batch's number.
        pub number: u64,
    }

    /// Broker: a subscription exists. Grants follow.
    pub struct Subscribed {
        /// Of `Subscribe`.
        pub request: u32,
        /// Its number in this session.
        pub subscription: u32,
        /// The topic's number.
        pub topic: u32,
        /// The length of its segments.
        pub segment_size: u32,
        /// The largest batch that the topic takes, header included: what a consumer must be able to land.
        pub batch_max: u32,
        /// The first record that it will get. Where that is later than what was asked for, `Lagged` is told by comparison.
        pub sequence: u64,
        /// Where that record's batch begins, in segment and batch scope; a batch may begin before the record.
        pub offset: u64,
        /// The settings in force.
        pub epoch: EpochSettings,
        /// The grants that it may hold at once.
        pub depth: u16,
    }

    /// Broker: may READ these bytes under this key, in this epoch.
    pub struct Grant {
        /// The subscription.
        pub subscription: u32,
        /// The grant's epoch; one more than that of the grant before.
        pub epoch: u64,
        /// Segment scope: the epoch of the same segment that this one supersedes, or zero.
        pub supersedes: u64,
        /// The log offset of the first byte.
        pub offset: u64,
        /// How many bytes.
        pub len: u32,
        /// Where the first byte is.
        pub address: u64,
        /// What opens them.
        pub key: u32,
        /// Segment scope: the first record of the segment. Otherwise the first record granted.
        pub sequence: u64,
        /// Batch and message scope: how many records; segment scope: zero.
        pub records: u32,
        /// Message scope: when the record was committed.
        pub time: u64,
        /// Message scope: the CRC-32C of the bytes.
        pub crc: u32,
        /// How long the key is current, in microseconds: to the end of its epoch. It dies when the epoch's interval and the grace
        /// have passed since the grant, at the latest.
        pub current_us: u32,
    }

    /// Broker: the tail has passed the armed cursor.
    pub struct Wake {
        /// The subscription.
        pub subscription: u32,
        /// The tail: everything before this offset may be read, under the keys held.
        pub tail: u64,
    }

    /// Broker: what is before this record is gone, or about to be.
    pub struct Lagged {
        /// The subscription.
        pub subscription: u32,
        /// The oldest record that is still there.
        pub sequence: u64,
        /// Where its batch begins.
        pub offset: u64,
    }

    /// Broker: stop using these epochs and release them; they end when the grace is over.
    pub struct Revoked {
        /// The subscription.
        pub subscription: u32,
        /// The epochs, up to and including this one.
        pub epoch: u64,
        /// Why: a number of [`Code`](crate::Code), or zero when the segment is needed.
        pub code: u16,
    }

    /// Either: nothing but the credits in the envelope.
    pub struct Credit {}

    /// Broker: a request was refused, or the session ends.
    pub struct Failed {
        /// The request that was refused, or zero: the session ends.
        pub request: u32,
        /// The subscription or topic concerned, or zero.
        pub subject: u32,
        /// A number of [`Code`](crate::Code).
        pub code: u16,
        /// What happened, with the values.
        pub text: String,
    }

    /// Broker: it stops. What is committed can be read until the deadline.
    pub struct ShuttingDown {
        /// How long from now.
        pub deadline_ms: u32,
    }
}

impl Default for TopicSettings {
    /// The broker's defaults.
    fn default() -> Self {
        Self { segments: 0, record_max: 0, overflow: Overflow::DropOldest }
    }
}

impl Default for EpochSettings {
    fn default() -> Self {
        Self {
            interval_us: crate::limits::EPOCH_DEFAULT_US,
            grace_ms: crate::limits::GRACE_DEFAULT_MS,
            bytes: 0,
            records: 0,
        }
    }
}

macro_rules! native {
    ($archived:ident -> $native:ident { $($variant:ident $(($field:ident))?),* }) => {
        impl $archived {
            /// The value as the program's own type.
            pub fn to_native(&self) -> $native {
                match self {
                    $(Self::$variant $(($field))? => $native::$variant $(($field.to_native()))?,)*
                }
            }
        }
    };
}

native!(ArchivedStart -> Start { Latest, Earliest, Sequence(at), Time(at) });
native!(ArchivedScope -> Scope { Segment, Batch, Message });
native!(ArchivedOverflow -> Overflow { DropOldest });

impl ArchivedEpochSettings {
    /// The value as the program's own type.
    pub fn to_native(&self) -> EpochSettings {
        EpochSettings {
            interval_us: self.interval_us.to_native(),
            grace_ms: self.grace_ms.to_native(),
            bytes: self.bytes.to_native(),
            records: self.records.to_native(),
        }
    }
}

impl ArchivedTopicSettings {
    /// The value as the program's own type.
    pub fn to_native(&self) -> TopicSettings {
        TopicSettings {
            segments: self.segments.to_native(),
            record_max: self.record_max.to_native(),
            overflow: self.overflow.to_native(),
        }
    }
}

impl ArchivedCommit {
    /// The value as the program's own type.
    pub fn to_native(&self) -> Commit {
        Commit {
            number: self.number.to_native(),
            base_sequence: self.base_sequence.to_native(),
            time: self.time.to_native(),
        }
    }
}
