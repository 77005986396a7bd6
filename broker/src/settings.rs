//! A broker's settings, their defaults, and whether they fit each other.

use std::time::Duration;

use bytesize::ByteSize;
use keyway_fabric::{FabricChoice, HugePages};
use keyway_schema::batch::BATCH_HEADER_LEN;
use keyway_schema::limits::{RECORD_MAX_CEILING, RECORD_MAX_DEFAULT, SEGMENT_HEADER, SEGMENT_MAX, SEGMENT_MIN};
use keyway_schema::record::encoded_len;

use crate::BrokerError;
use crate::core::TOPIC_SEGMENTS_MIN;
use crate::listener::CONNECTIONS_MAX;

/// Segments begin at multiples of a page.
const PAGE: u64 = 4096;

/// A batch never ends at a segment's very end, so that every offset of the log lies in one segment.
const END_KEPT_FREE: u64 = 8;

/// The fewest segments of a pool and of a ring: while one is being dropped, another is written.
const SEGMENTS_MIN: u64 = TOPIC_SEGMENTS_MIN as u64;

/// The most segments of a ring unless configured otherwise: 128 MiB of a topic's latest records with the default segment. It
/// is half of a pool that has fewer than twice as many, so that one topic alone never takes the whole pool.
const TOPIC_SEGMENTS_DEFAULT: u32 = 32;

/// The most sessions that can be configured. Each costs two descriptors and, for a producer, 1 MiB of receive slots.
const SESSIONS_CEILING: u32 = 16_384;

/// The most topics that can be configured.
const TOPICS_CEILING: u32 = 1 << 20;

/// Descriptors that a broker needs without any client: listening sockets, event queues, wakers, the standard streams.
const DESCRIPTORS_ITSELF: u64 = 64;

/// The longest duration that can be configured: what is longer is a slip of the pen.
const DURATION_CEILING: Duration = Duration::from_secs(7 * 24 * 3600);

/// How the reactor rests when it has nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Never: takes a core of its own, and sees everything at once.
    Latency,
    /// Spins for some tens of microseconds before it sleeps.
    #[default]
    Balanced,
    /// Sleeps as soon as there is nothing to do.
    Frugal,
}

/// What a broker is made of. The defaults take less than 1 GiB: the pool, as far as it is used, and a MiB for each producer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The pool's size in bytes; what is left over behind its last whole segment is not used.
    pub pool_size: u64,
    /// A segment's size in bytes: a multiple of 4096.
    pub segment_size: u64,
    /// The most segments of a topic's ring; unless set, 32, or half of a smaller pool.
    pub topic_segments: Option<u32>,
    /// The largest record in bytes of key, headers and payload.
    pub record_max: u64,
    /// The most sessions at once.
    pub sessions_max: u32,
    /// The most topics.
    pub topics_max: u32,
    /// How long a dead key's value is not issued again.
    pub quarantine: Duration,
    /// How long a producer has to serve a batch that it offered.
    pub offer_timeout: Duration,
    /// The longest grace that a consumer may ask for.
    pub grace_max: Duration,
    /// How long a peer has, from connecting, until its bootstrap is done; and then for its data stream.
    pub bootstrap_timeout: Duration,
    /// How the reactor rests.
    pub idle: Idle,
    /// The fabric that it speaks. An RDMA device is chosen by the address that the broker listens on, if that is a certain one.
    pub fabric: FabricChoice,
    /// The pages of the pool.
    pub huge_pages: HugePages,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pool_size: 512 << 20,
            segment_size: 4 << 20,
            topic_segments: None,
            record_max: RECORD_MAX_DEFAULT.into(),
            sessions_max: 256,
            topics_max: 256,
            quarantine: Duration::from_secs(300),
            offer_timeout: Duration::from_millis(250),
            grace_max: Duration::from_secs(60),
            bootstrap_timeout: Duration::from_secs(5),
            idle: Idle::Balanced,
            fabric: FabricChoice::Soft,
            huge_pages: HugePages::Off,
        }
    }
}

/// Settings that fit each other, in the units of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) segments: u32,
    pub(crate) segment_size: u32,
    pub(crate) topic_segments: u32,
    pub(crate) record_max: u32,
    pub(crate) grace_max_ms: u32,
}

impl Sizes {
    pub(crate) const fn pool_len(&self) -> u64 {
        self.segments as u64 * self.segment_size as u64
    }
}

impl Settings {
    /// Checks each setting and whether they fit each other.
    ///
    /// # Errors
    ///
    /// The first one that is out of its range or does not fit, with its value and what it must be.
    pub fn check(&self) -> Result<(), BrokerError> {
        self.sizes().map(|_| ())
    }

    /// The most descriptors that a broker with these settings holds at once: two for each session (its bootstrap stream and
    /// its endpoint's stream), one for each connection whose bootstrap is not done, and some for itself.
    pub fn descriptors_max(&self) -> u64 {
        2 * u64::from(self.sessions_max) + 3 * CONNECTIONS_MAX as u64 + DESCRIPTORS_ITSELF
    }

    pub(crate) fn sizes(&self) -> Result<Sizes, BrokerError> {
        let segment_size = self.check_segment_size()?;
        let record_max = self.check_record_max()?;
        let segments = self.check_pool()?;
        let topic_segments = self.check_topic_segments(segments)?;
        within("sessions-max", self.sessions_max.into(), 1, SESSIONS_CEILING.into())?;
        within("topics-max", self.topics_max.into(), 1, TOPICS_CEILING.into())?;
        duration("quarantine", self.quarantine, Duration::ZERO)?;
        duration("offer-timeout", self.offer_timeout, Duration::from_millis(1))?;
        duration("grace-max", self.grace_max, Duration::from_millis(1))?;
        duration("bootstrap-timeout", self.bootstrap_timeout, Duration::from_millis(1))?;
        let grace_max_ms = u32::try_from(self.grace_max.as_millis()).expect("a week has fewer than 2^32 milliseconds");
        Ok(Sizes { segments, segment_size, topic_segments, record_max, grace_max_ms })
    }

    fn check_segment_size(&self) -> Result<u32, BrokerError> {
        let size = self.segment_size;
        let (min, max) = (u64::from(SEGMENT_MIN), u64::from(SEGMENT_MAX));
        u32::try_from(size).ok().filter(|_| size >= min && size <= max && size.is_multiple_of(PAGE)).ok_or_else(|| {
            let expected = format!("a multiple of {PAGE} bytes from {} to {}", ByteSize(min), ByteSize(max));
            BrokerError::Setting { setting: "segment-size", value: bytes(size), expected }
        })
    }

    fn check_record_max(&self) -> Result<u32, BrokerError> {
        let (size, ceiling) = (self.record_max, u64::from(RECORD_MAX_CEILING));
        let record_max = u32::try_from(size).ok().filter(|_| size >= 1 && size <= ceiling).ok_or_else(|| {
            let expected = format!("from 1 byte to {}", ByteSize(ceiling));
            BrokerError::Setting { setting: "record-max", value: bytes(size), expected }
        })?;
        let batch = (BATCH_HEADER_LEN + encoded_len(record_max as usize)) as u64;
        let room = self.segment_size - u64::from(SEGMENT_HEADER) - END_KEPT_FREE;
        if batch > room {
            return Err(BrokerError::SegmentTooSmall {
                record_max: size,
                batch,
                segment_size: self.segment_size,
                room,
            });
        }
        Ok(record_max)
    }

    fn check_pool(&self) -> Result<u32, BrokerError> {
        let segments = self.pool_size / self.segment_size;
        if segments < SEGMENTS_MIN {
            return Err(BrokerError::PoolTooSmall {
                pool_size: self.pool_size,
                segment_size: self.segment_size,
                segments,
                needed: SEGMENTS_MIN,
            });
        }
        u32::try_from(segments).map_err(|_| BrokerError::Setting {
            setting: "pool-size",
            value: bytes(self.pool_size),
            expected: format!("fewer than 2^32 segments of {}", ByteSize(self.segment_size)),
        })
    }

    fn check_topic_segments(&self, segments: u32) -> Result<u32, BrokerError> {
        let Some(chosen) = self.topic_segments else {
            return Ok((segments / 2).clamp(TOPIC_SEGMENTS_MIN, TOPIC_SEGMENTS_DEFAULT));
        };
        within("topic-segments", chosen.into(), SEGMENTS_MIN, segments.into())?;
        Ok(chosen)
    }
}

fn within(setting: &'static str, value: u64, min: u64, max: u64) -> Result<(), BrokerError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(BrokerError::Setting { setting, value: value.to_string(), expected: format!("from {min} to {max}") })
}

fn duration(setting: &'static str, value: Duration, min: Duration) -> Result<(), BrokerError> {
    if (min..=DURATION_CEILING).contains(&value) {
        return Ok(());
    }
    let text = humantime::format_duration;
    let expected = format!("from {} to {}", text(min), text(DURATION_CEILING));
    Err(BrokerError::Setting { setting, value: text(value).to_string(), expected })
}

/// A size with its exact number of bytes: what does not fit often misses by a few.
fn bytes(size: u64) -> String {
    format!("{} ({size} bytes)", ByteSize(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(settings: &Settings) -> String {
        settings.check().expect_err("these settings do not fit").to_string()
    }

    #[test]
    fn the_defaults_fit_each_other() {
        let sizes = Settings::default().sizes().unwrap();
        assert_eq!(sizes.segments, 128);
        assert_eq!(sizes.topic_segments, 32);
        assert_eq!(sizes.pool_len(), 512 << 20);
    }

    #[test]
    fn a_topic_gets_half_of_a_small_pool_and_a_piece_of_a_segment_is_left() {
        for (segments, topic_segments) in [(2, 2), (3, 2), (5, 2), (40, 20), (63, 31), (64, 32), (1000, 32)] {
            let settings = Settings { pool_size: segments * (4 << 20) + 5, ..Settings::default() };
            let sizes = settings.sizes().unwrap();
            assert_eq!((u64::from(sizes.segments), sizes.topic_segments), (segments, topic_segments));
            assert_eq!(sizes.pool_len(), segments * (4 << 20));
        }
    }

    #[test]
    fn a_pool_of_one_segment_is_refused_with_both_sizes() {
        let error = refused(&Settings { pool_size: 7 << 20, ..Settings::default() });
        assert!(error.contains("a pool of 7.0 MiB holds 1 segments of 4.0 MiB, and at least 2"), "{error}");
    }

    #[test]
    fn a_segment_holds_exactly_the_batch_of_the_largest_record() {
        let room = (64 << 10) - SEGMENT_HEADER as usize - 8 - BATCH_HEADER_LEN - 8;
        let fits = Settings { segment_size: 64 << 10, record_max: room as u64, ..Settings::default() };
        fits.check().unwrap();
        let error = refused(&Settings { record_max: room as u64 + 1, ..fits });
        assert!(error.contains("raise segment-size or lower record-max"), "{error}");
    }

    #[test]
    fn each_setting_is_held_to_its_range() {
        let default = Settings::default;
        let cases = [
            (Settings { segment_size: 5000 << 10 | 1, ..default() }, "segment-size is"),
            (Settings { segment_size: 0, ..default() }, "segment-size is"),
            (Settings { segment_size: u64::MAX, ..default() }, "segment-size is"),
            (Settings { record_max: 0, ..default() }, "record-max is"),
            (Settings { record_max: u64::MAX, ..default() }, "record-max is"),
            (Settings { pool_size: u64::MAX, segment_size: 64 << 10, record_max: 100, ..default() }, "pool-size is"),
            (Settings { topic_segments: Some(1), ..default() }, "topic-segments is 1, and must be from 2 to 128"),
            (Settings { topic_segments: Some(129), ..default() }, "topic-segments is 129"),
            (Settings { sessions_max: 0, ..default() }, "sessions-max is 0"),
            (Settings { topics_max: 0, ..default() }, "topics-max is 0"),
            (Settings { grace_max: Duration::ZERO, ..default() }, "grace-max is 0s, and must be from 1ms to 7days"),
            (Settings { quarantine: Duration::MAX, ..default() }, "quarantine is"),
        ];
        for (settings, expected) in cases {
            let error = refused(&settings);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
