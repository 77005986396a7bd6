//! What a broker core is made of: limits, times, and the slots of its sessions' channels.

use std::time::Duration;

use keyway_fabric::{DomainId, SharedId};
use keyway_schema::bootstrap::Role;
use keyway_schema::limits::{
    CONTROL_SLOT, EPOCH_MIN_US, PUBLISH_SLOT, RECORD_MAX_CEILING, RECORD_MAX_DEFAULT, SEGMENT_HEADER, SEGMENT_MAX,
    SEGMENT_MIN,
};
use keyway_schema::record::batch_max;

use super::faults::Faults;

/// Binds and unbinds that are outstanding on one endpoint at most: as many as a subscription of the greatest depth can need
/// at once, twice.
pub(super) const BINDS_MAX: u32 = 128;

/// The fewest segments of a ring: one to write to while the other is being read or dropped.
pub const TOPIC_SEGMENTS_MIN: u32 = 2;

/// What a [`Core`](super::Core) is made of. [`new`](Self::new) gives sensible values for everything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreConfig {
    /// The broker's instance, new at each start.
    pub instance: u64,
    /// The domain of pool, windows and endpoints.
    pub domain: DomainId,
    /// The pool.
    pub pool: SharedId,
    /// The pool's length in bytes; what is left behind its last whole segment is not used.
    pub pool_len: u64,
    /// The length of a segment in bytes, a multiple of 4096.
    pub segment_size: u32,
    /// The segments of a ring whose creator did not say otherwise.
    pub topic_segments: u32,
    /// The most segments of a ring that a client may ask for.
    pub topic_segments_max: u32,
    /// The largest record of a topic whose creator did not say otherwise, and the largest that may be asked for.
    pub record_max: u32,
    /// The most sessions at once.
    pub sessions_max: u32,
    /// The most topics.
    pub topics_max: u32,
    /// The most subscriptions of one session at once.
    pub subscriptions_max: u32,
    /// The most windows at once.
    pub windows_max: u32,
    /// The shortest epoch interval in microseconds; shorter ones are raised to it.
    pub epoch_min_us: u32,
    /// The longest grace in milliseconds; longer ones are lowered to it.
    pub grace_max_ms: u32,
    /// The most batches of one session that may be offered and not yet READ.
    pub offers_max: u16,
    /// How long a key is not issued again after it died.
    pub quarantine: Duration,
    /// How long an offered batch may take to be READ.
    pub offer_timeout: Duration,
    /// How long a session that ends may take to get its last message.
    pub linger: Duration,
    /// Deliberate faults, for the simulator.
    #[cfg(feature = "faults")]
    pub faults: Faults,
}

/// Why a configuration cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The segment size is out of range or no multiple of a page.
    #[error("segments of {size} bytes are not possible: use a multiple of 4096 from {SEGMENT_MIN} to {SEGMENT_MAX}")]
    SegmentSize {
        /// What was asked for.
        size: u32,
    },
    /// The pool is smaller than one segment.
    #[error("a pool of {len} bytes holds no segment of {segment_size}; enlarge it or use smaller segments")]
    Pool {
        /// The pool's length.
        len: u64,
        /// The segment size.
        segment_size: u32,
    },
    /// The largest record does not fit a segment.
    #[error("records of {record_max} bytes do not fit segments of {segment_size}; the most is {most}")]
    RecordMax {
        /// What was asked for.
        record_max: u32,
        /// The segment size.
        segment_size: u32,
        /// The largest record that such segments can hold.
        most: u32,
    },
    /// Too few segments a topic.
    #[error("a ring of {segments} segments is not possible: use {TOPIC_SEGMENTS_MIN} to {most}")]
    TopicSegments {
        /// What was asked for.
        segments: u32,
        /// The most.
        most: u32,
    },
    /// A limit of zero.
    #[error("{what} must not be zero")]
    Zero {
        /// Which.
        what: &'static str,
    },
}

impl CoreConfig {
    /// A configuration with the default limits for a pool of `pool_len` bytes.
    pub fn new(instance: u64, domain: DomainId, pool: SharedId, pool_len: u64) -> Self {
        Self {
            instance,
            domain,
            pool,
            pool_len,
            segment_size: 4 << 20,
            topic_segments: 8,
            topic_segments_max: 4096,
            record_max: RECORD_MAX_DEFAULT,
            sessions_max: 4096,
            topics_max: 4096,
            subscriptions_max: 64,
            windows_max: 65_536,
            epoch_min_us: EPOCH_MIN_US,
            grace_max_ms: 60_000,
            offers_max: 16,
            quarantine: Duration::from_secs(300),
            offer_timeout: Duration::from_millis(250),
            linger: Duration::from_millis(100),
            #[cfg(feature = "faults")]
            faults: Faults::default(),
        }
    }

    /// Checks that the values can work together.
    ///
    /// # Errors
    ///
    /// The first that cannot.
    pub fn check(&self) -> Result<(), ConfigError> {
        let size = self.segment_size;
        if !(SEGMENT_MIN..=SEGMENT_MAX).contains(&size) || !size.is_multiple_of(4096) {
            return Err(ConfigError::SegmentSize { size });
        }
        if self.segments() == 0 {
            return Err(ConfigError::Pool { len: self.pool_len, segment_size: size });
        }
        let most = self.record_max_possible();
        if self.record_max == 0 || self.record_max > most {
            return Err(ConfigError::RecordMax { record_max: self.record_max, segment_size: size, most });
        }
        if !(TOPIC_SEGMENTS_MIN..=self.topic_segments_max).contains(&self.topic_segments) {
            let most = self.topic_segments_max;
            return Err(ConfigError::TopicSegments { segments: self.topic_segments, most });
        }
        let limits = [
            ("sessions_max", self.sessions_max),
            ("topics_max", self.topics_max),
            ("subscriptions_max", self.subscriptions_max),
            ("windows_max", self.windows_max),
            ("grace_max_ms", self.grace_max_ms),
            ("offers_max", u32::from(self.offers_max)),
        ];
        match limits.into_iter().find(|(_, limit)| *limit == 0) {
            Some((what, _)) => Err(ConfigError::Zero { what }),
            None => Ok(()),
        }
    }

    /// How many whole segments the pool has.
    pub fn segments(&self) -> u32 {
        u32::try_from(self.pool_len / u64::from(self.segment_size.max(1))).unwrap_or(u32::MAX)
    }

    /// The largest record that a segment of this size can hold in a batch of its own.
    pub fn record_max_possible(&self) -> u32 {
        // A batch never ends at a segment's very end, so that every offset in the log lies in one segment.
        let room = self.segment_size.saturating_sub(SEGMENT_HEADER + 8);
        let overhead = batch_max(0);
        room.saturating_sub(overhead).min(RECORD_MAX_CEILING)
    }

    #[cfg(feature = "faults")]
    pub(super) fn faults(&self) -> Faults {
        self.faults
    }

    #[cfg(not(feature = "faults"))]
    pub(super) const fn faults(&self) -> Faults {
        Faults::NONE
    }
}

/// The slots that the broker's side of a session's channel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Receive slots.
    pub receive: u16,
    /// The length of each.
    pub receive_size: u32,
    /// Send slots.
    pub send: u16,
    /// The length of each.
    pub send_size: u32,
}

/// The slots of a session's channel, by role.
pub const fn slots(role: Role) -> Slots {
    match role {
        Role::Producer => Slots { receive: 16, receive_size: PUBLISH_SLOT, send: 32, send_size: CONTROL_SLOT },
        Role::Consumer => Slots { receive: 64, receive_size: CONTROL_SLOT, send: 64, send_size: CONTROL_SLOT },
    }
}

/// How deep the queues of a session's endpoint must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDepths {
    /// SENDs, READs, binds and unbinds.
    pub send: u32,
    /// Receives.
    pub receive: u32,
}

impl CoreConfig {
    /// The depths of the queues of a session's endpoint, by role: the sums of what may be outstanding.
    pub const fn queue_depths(&self, role: Role) -> QueueDepths {
        let slots = slots(role);
        let work = match role {
            // READs of offered batches.
            Role::Producer => self.offers_max as u32,
            // Binds and unbinds.
            Role::Consumer => BINDS_MAX,
        };
        QueueDepths { send: slots.send as u32 + work, receive: slots.receive as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> CoreConfig {
        let id = (DomainId { index: 0, generation: 0 }, SharedId { index: 0, generation: 0 });
        CoreConfig::new(1, id.0, id.1, 64 << 20)
    }

    #[test]
    fn the_defaults_work_together() {
        assert_eq!(config().check(), Ok(()));
        assert_eq!(config().segments(), 16);
    }

    #[test]
    fn the_largest_possible_record_passes_and_one_byte_more_is_refused() {
        let most = config().record_max_possible();
        assert_eq!(CoreConfig { record_max: most, ..config() }.check(), Ok(()));
        assert!(batch_max(most) < config().segment_size - SEGMENT_HEADER);
        let more = CoreConfig { record_max: most + 1, ..config() }.check();
        assert!(matches!(more, Err(ConfigError::RecordMax { .. })), "{more:?}");
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_value() {
        let size = CoreConfig { segment_size: 65_537, ..config() }.check();
        assert_eq!(size, Err(ConfigError::SegmentSize { size: 65_537 }));
        let pool = CoreConfig { pool_len: 4095, ..config() }.check();
        assert_eq!(pool, Err(ConfigError::Pool { len: 4095, segment_size: 4 << 20 }));
        let ring = CoreConfig { topic_segments: 1, ..config() }.check();
        assert_eq!(ring, Err(ConfigError::TopicSegments { segments: 1, most: 4096 }));
        let zero = CoreConfig { windows_max: 0, ..config() }.check();
        assert_eq!(zero, Err(ConfigError::Zero { what: "windows_max" }));
    }
}
