//! What all sessions share: topics, pool, windows, keys in quarantine, timers; and what one session's event means for others,
//! queued until the core hands it on.

use std::collections::{HashMap, VecDeque};

use keyway_fabric::{Memory, Time, Transmit, WindowId};
use keyway_schema::message::{Commit, TopicSettings};
use keyway_schema::{Code, TopicName};

use super::config::{CoreConfig, TOPIC_SEGMENTS_MIN};
use super::counters::Counters;
use super::faults::Faults;
use super::log::Log;
use super::notice::{Notice, Notices, Refusal};
use super::parked::Parked;
use super::pool::Pool;
use super::quarantine::Quarantine;
use super::slab::Place;
use super::timers::{Timer, Timers};
use super::topic::{SubscriptionRef, Topic};
use super::windows::Windows;

/// What all sessions share.
#[derive(Clone, Debug)]
pub(super) struct Hub {
    pub(super) config: CoreConfig,
    pub(super) faults: Faults,
    /// Topic `n` is at place `n - 1`: a subject of zero on the wire means none.
    topics: Vec<Topic>,
    names: HashMap<Box<str>, u32>,
    pub(super) pool: Pool,
    pub(super) windows: Windows,
    /// Windows that sessions have or may have at any time.
    pub(super) windows_claimed: u32,
    pub(super) quarantine: Quarantine,
    /// Windows of indices whose keys are used up for now.
    parked: Parked,
    parked_timer: Option<Time>,
    pub(super) timers: Timers,
    pub(super) counters: Counters,
    pub(super) notices: Notices,
    /// What concerns no channel: closing endpoints, freeing memory.
    pub(super) chores: VecDeque<Transmit>,
    /// Segments of windows that the chores free.
    uncovers: VecDeque<u32>,
    /// Until when what is committed can be read, once the core stops.
    pub(super) stops_at: Option<Time>,
    /// Subscriptions to look after.
    pub(super) due: VecDeque<(SubscriptionRef, Cause)>,
    /// Producers to tell of commits.
    pub(super) commits: VecDeque<(Place, u32, Commit)>,
    /// Sessions to end.
    pub(super) endings: VecDeque<(Place, Refusal)>,
    /// Topics whose waiting batches may have room now.
    pub(super) retries: VecDeque<u32>,
}

/// Why a subscription is to be looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A batch was committed; it does not stand in the list of those who wait for one any more.
    Commit,
    /// A segment was opened; the same.
    Opening,
    /// The tail has reached the limit of its epoch; the same.
    Limit,
    /// The ring has dropped a segment.
    Dropped,
}

impl Hub {
    pub(super) fn new(config: CoreConfig) -> Self {
        Self {
            faults: config.faults(),
            topics: Vec::new(),
            names: HashMap::new(),
            pool: Pool::new(config.pool, config.segment_size, config.segments()),
            windows: Windows::new(),
            windows_claimed: 0,
            quarantine: Quarantine::new(config.quarantine),
            parked: Parked::default(),
            parked_timer: None,
            timers: Timers::default(),
            counters: Counters::default(),
            notices: Notices::default(),
            chores: VecDeque::new(),
            uncovers: VecDeque::new(),
            stops_at: None,
            due: VecDeque::new(),
            commits: VecDeque::new(),
            endings: VecDeque::new(),
            retries: VecDeque::new(),
            config,
        }
    }

    pub(super) fn topics(&self) -> &[Topic] {
        &self.topics
    }

    pub(super) fn topic_mut(&mut self, number: u32) -> Option<&mut Topic> {
        self.topics.get_mut((number as usize).checked_sub(1)?)
    }

    /// Topic and pool at once.
    ///
    /// # Panics
    ///
    /// If there is no such topic: topics are never removed, so whoever has a number has a topic.
    pub(super) fn topic_and_pool(&mut self, number: u32) -> (&mut Topic, &mut Pool) {
        (&mut self.topics[number as usize - 1], &mut self.pool)
    }

    /// A topic that exists.
    ///
    /// # Panics
    ///
    /// If it does not: topics are never removed, so whoever has a number has a topic.
    pub(super) fn known(&self, number: u32) -> &Topic {
        &self.topics[number as usize - 1]
    }

    /// The number of the topic of a name, creating it if need be.
    pub(super) fn open_topic(
        &mut self,
        name: &str,
        settings: Option<TopicSettings>,
        memory: &mut dyn Memory,
    ) -> Result<u32, Refusal> {
        if let Some(number) = self.names.get(name) {
            return Ok(*number);
        }
        let name = TopicName::new(name).map_err(|error| Refusal::new(Code::Name, error.to_string()))?;
        let (segments_max, record_max) = self.ring_settings(settings)?;
        let (count, max) = (self.topics.len(), self.config.topics_max);
        if count >= max as usize {
            let text = format!("there are {count} topics, which is the most; topic {name} was not created");
            return Err(Refusal::new(Code::TopicsExhausted, text));
        }
        if !self.pool.has_free() {
            self.take_from_the_largest();
        }
        let number = count as u32 + 1;
        let mut log = Log::new(number, self.config.instance, self.config.segment_size);
        let Some(segment) = self.pool.take(number, log.next_number(), memory) else {
            let text = format!("the pool has no free segment, so topic {name} was not created");
            return Err(Refusal::new(Code::PoolExhausted, text));
        };
        log.push(segment);
        log.open_next(&self.pool, memory);
        self.topics.push(Topic::new(number, name.as_str(), segments_max, record_max, log));
        self.names.insert(name.as_str().into(), number);
        self.notices.push(Notice::TopicCreated { topic: number, name: name.as_str().to_owned() });
        Ok(number)
    }

    fn ring_settings(&self, settings: Option<TopicSettings>) -> Result<(u32, u32), Refusal> {
        let config = &self.config;
        let or = |asked: u32, default: u32| if asked == 0 { default } else { asked };
        let Some(settings) = settings else { return Ok((config.topic_segments, config.record_max)) };
        let segments = or(settings.segments, config.topic_segments);
        let record_max = or(settings.record_max, config.record_max);
        let most = config.topic_segments_max;
        if !(TOPIC_SEGMENTS_MIN..=most).contains(&segments) {
            let text =
                format!("a ring of {segments} segments was asked for; {TOPIC_SEGMENTS_MIN} to {most} are possible");
            return Err(Refusal::new(Code::Settings, text));
        }
        if record_max > config.record_max {
            let most = config.record_max;
            let text = format!("records of up to {record_max} bytes were asked for; this broker takes {most}");
            return Err(Refusal::new(Code::Settings, text));
        }
        Ok((segments, record_max))
    }

    /// How many more windows may be promised or allocated.
    pub(super) fn windows_left(&self) -> u32 {
        self.config.windows_max.saturating_sub(self.windows_claimed + self.parked.len())
    }

    /// How many windows are kept unused.
    pub(super) fn windows_parked(&self) -> u32 {
        self.parked.len()
    }

    /// Keeps a window that was allocated until the quarantine of its index is over.
    pub(super) fn park(&mut self, window: WindowId, until: Time) {
        self.parked.insert(window, until);
        self.timers.set(Timer::Parked, &mut self.parked_timer, self.parked.first());
    }

    /// Frees the parked windows whose quarantine is over.
    pub(super) fn unpark(&mut self, now: Time) {
        self.parked_timer = None;
        while let Some(window) = self.parked.pop(now) {
            self.chores.push_back(Transmit::FreeWindow { window });
        }
        self.timers.set(Timer::Parked, &mut self.parked_timer, self.parked.first());
    }

    /// A window that covers a segment is about to be freed, and covers it until that is done: see
    /// [`uncover_freed`](Self::uncover_freed).
    pub(super) fn uncover_later(&mut self, segment: u32) {
        self.uncovers.push_back(segment);
    }

    /// Whatever was to be freed has been freed: the segments that those windows covered may be written anew. Returns whether
    /// there were any.
    pub(super) fn uncover_freed(&mut self) -> bool {
        debug_assert!(self.chores.is_empty(), "a window that waits to be freed still shows its segment");
        let any = !self.uncovers.is_empty();
        while let Some(segment) = self.uncovers.pop_front() {
            self.uncover(segment);
        }
        any
    }

    /// A window covers a segment no more.
    pub(super) fn uncover(&mut self, segment: u32) {
        if let Some(topic) = self.pool.uncover(segment) {
            let topic = &mut self.topics[topic as usize - 1];
            topic.limbo = topic.limbo.saturating_sub(1);
        }
    }
}
