//! Segment scope: the consumer's segment and the next one, re-keyed together at every tick of its epoch.
//!
//! The broker hears of a busy consumer only at its releases, so it does not know how far it has read; it knows the first
//! segment that the consumer may still need, and moves that on as segments are released at their ends. A grant of a segment
//! that the consumer is through with already is released at once by it, and moves the broker on.

use std::cmp::Reverse;
use std::collections::VecDeque;

use keyway_fabric::{Now, Time};
use keyway_schema::message::{EpochSettings, Grant, Wake};

use super::hub::Hub;
use super::log::{Log, Position};
use super::slab::Place;
use super::subscription::{Around, Draft, ScopeState, Step, Subscription};
use super::window::{Event, State};

/// The depth from which two segments can be granted at once: both must be re-keyed before either is released.
const DEPTH_OF_TWO: u16 = 4;

/// Where a subscription of segment scope stands.
#[derive(Clone, Debug)]
pub(super) struct SegmentScope {
    /// The first segment that the consumer may still need.
    position: u64,
    /// When the keys that are current are replaced, if there are any.
    tick: Option<Time>,
    /// The tail and the next sequence at the last tick.
    ticked_at: (u64, u64),
    /// The tick is over and waits for a release.
    waits_for_release: bool,
    /// The consumer's next record and the topic's at the last wake-up, if no grant was sent since. Who arms in the same place
    /// again has no key to what is new, and another wake-up would bring no more than the first: the next grant will.
    woken_at: Option<(u64, u64)>,
    /// Segments to be re-keyed with the spares that are prepared.
    plan: VecDeque<u64>,
}

impl SegmentScope {
    pub(super) fn new(start: Position) -> Self {
        Self {
            position: start.segment,
            tick: None,
            ticked_at: (0, 0),
            waits_for_release: false,
            woken_at: None,
            plan: VecDeque::new(),
        }
    }

    /// Moves on to the oldest segment that is left. Returns whether the place before is lost.
    pub(super) const fn skip_to(&mut self, oldest: Position) -> bool {
        let is_lost = self.position < oldest.segment;
        if is_lost {
            self.position = oldest.segment;
        }
        is_lost
    }

    /// The consumer wants `sequence` next and has released its grant of the segment `finished`, if that was the newest one.
    pub(super) fn released(&mut self, finished: Option<u64>, sequence: u64, log: &Log) {
        self.position = self.position.max(log.segment_for(sequence));
        let is_through = |number: &u64| {
            log.is_sealed(*number) && log.segment(*number).is_some_and(|segment| sequence >= segment.end_sequence)
        };
        if let Some(number) = finished.filter(is_through) {
            self.position = self.position.max(number + 1);
        }
    }

    /// A grant could not be sent: the tick is tried again at once.
    pub(super) const fn retry(&mut self, now: Time) {
        self.tick = Some(now);
    }

    /// When the next tick is to be looked at.
    pub(super) const fn wanted_tick(&self) -> Option<Time> {
        if self.waits_for_release { None } else { self.tick }
    }

    fn is_over(&self, settings: &EpochSettings, now: Time, tail: (u64, u64)) -> bool {
        let passed = |limit: u64, from: u64, to: u64| limit > 0 && to.saturating_sub(from) >= limit;
        self.tick.is_some_and(|tick| tick <= now)
            || passed(settings.bytes, self.ticked_at.0, tail.0)
            || passed(settings.records, self.ticked_at.1, tail.1)
    }

    fn begin_epoch(&mut self, now: Time, interval: std::time::Duration, tail: (u64, u64)) {
        self.tick = Some(now + interval);
        self.ticked_at = tail;
        self.waits_for_release = false;
    }
}

impl Subscription {
    fn segments(&mut self) -> &mut SegmentScope {
        match &mut self.scope {
            ScopeState::Segment(scope) => scope,
            ScopeState::Piece(_) => unreachable!("asked of a subscription of segment scope only"),
        }
    }

    /// The next thing to do in segment scope.
    pub(super) fn step_segments(&mut self, around: &mut Around<'_>) -> Step {
        let log = &around.hub.known(self.topic).log;
        let (offset, sequence) = (log.offset(log.normalized(log.tail())), log.next_sequence());
        self.leave_passed_segments(around.hub);
        let current = self.current(around.hub).count();
        let has_news = sequence > self.sequence;
        if self.is_armed && has_news {
            if current > 0 && around.room == 0 {
                return Step::Stuck;
            }
            self.is_armed = false;
            let place = Some((self.sequence, sequence));
            let is_vain = std::mem::replace(&mut self.segments().woken_at, place) == place;
            // Without a grant, the next grant is the wake-up.
            if current > 0 && !is_vain && !around.hub.faults.lose_wake {
                around.hub.counters.wakes += 1;
                return Step::Say(Wake { subscription: self.me.subscription, tail: offset }.into());
            }
        }
        if self.is_paused {
            let scope = self.segments();
            (scope.tick, scope.waits_for_release) = (None, false);
            scope.plan.clear();
            return Step::Rest;
        }
        if let Some(step) = self.follow_plan(around) {
            return step;
        }
        if current == 0 {
            self.segments().tick = None;
        } else if let Some(step) = self.tick(current, (offset, sequence), around) {
            return step;
        }
        let may_hold_keys = current > 0 || has_news || !self.is_armed;
        if may_hold_keys && let Some(step) = self.grant_missing(current, (offset, sequence), around) {
            return step;
        }
        self.listen(around.hub);
        Step::Rest
    }

    /// Takes the grants of segments out of use that the consumer is certainly through with: its next record is behind them. It
    /// has said so before it could release their latest keys, where releases take longer than an epoch; re-keyed again
    /// and again they would take the place of what it needs.
    fn leave_passed_segments(&mut self, hub: &mut Hub) {
        let position = self.segments().position;
        for held in self.grants.iter().filter(|held| held.segment < position) {
            let window = hub.windows.get_mut(held.window);
            if window.state.is_current() {
                window.take(Event::Supersede);
            }
        }
    }

    /// Binds the next segment of a tick.
    fn follow_plan(&mut self, around: &mut Around<'_>) -> Option<Step> {
        while let Some(segment) = self.segments().plan.pop_front() {
            if around.room == 0 || !around.stock.has_queue_room(1) {
                self.segments().plan.push_front(segment);
                return Some(Step::Stuck);
            }
            let window = self.prepared.pop()?;
            match self.draft_segment(window, segment, around.hub, around.now) {
                Some(draft) => return Some(Step::Bind(draft)),
                // Dropped meanwhile.
                None => around.stock.put_back(window),
            }
        }
        None
    }

    /// Ends the epoch if it is over: all keys together, or none as long as there is no room for all.
    fn tick(&mut self, current: usize, tail: (u64, u64), around: &mut Around<'_>) -> Option<Step> {
        let (now, interval) = (around.now.time, self.interval());
        let settings = self.settings;
        if !self.segments().is_over(&settings, now, tail) {
            return None;
        }
        if self.is_armed {
            // Nothing to read: it need not hold a key.
            self.segments().tick = None;
            self.revoke(self.epoch, around.hub);
            return Some(Step::Again);
        }
        if self.depth_left(around.hub) < current {
            self.segments().waits_for_release = true;
            return Some(Step::Rest);
        }
        if let Some(step) = self.prepare(current, around) {
            return Some(step);
        }
        let mut plan = std::mem::take(&mut self.segments().plan);
        plan.extend(self.current(around.hub).map(|held| held.segment));
        let scope = self.segments();
        scope.plan = plan;
        scope.begin_epoch(now, interval, tail);
        Some(Step::Again)
    }

    /// Grants the consumer's segment and the next one, as far as they exist and are not granted.
    fn grant_missing(&mut self, current: usize, tail: (u64, u64), around: &mut Around<'_>) -> Option<Step> {
        let first = self.current(around.hub).map(|held| held.segment).min().unwrap_or(self.segments().position);
        let ahead = u64::from(self.depth >= DEPTH_OF_TWO);
        for segment in first..=first + ahead {
            let is_granted = self.current(around.hub).any(|held| held.segment == segment);
            if is_granted || around.hub.known(self.topic).log.segment(segment).is_none() {
                continue;
            }
            if self.depth_left(around.hub) == 0 {
                return None;
            }
            if let Some(step) = self.prepare(1, around) {
                return Some(step);
            }
            if current == 0 {
                let (now, interval) = (around.now.time, self.interval());
                self.segments().begin_epoch(now, interval, tail);
            }
            let window = self.prepared.pop().expect("one was prepared");
            let draft = self.draft_segment(window, segment, around.hub, around.now);
            return Some(Step::Bind(draft.expect("the segment was just there")));
        }
        None
    }

    fn draft_segment(&mut self, window: Place, number: u64, hub: &Hub, now: Now) -> Option<Draft> {
        let topic = hub.known(self.topic);
        let segment = topic.log.segment(number)?;
        let span = hub.pool.span(segment.index);
        let open = |state: State| matches!(state, State::Binding | State::Live | State::Superseded { .. });
        let superseded =
            |held: &&super::subscription::Held| held.segment == number && open(hub.windows.get(held.window).state);
        let supersedes = self.grants.iter().rev().find(superseded).map_or(0, |held| held.epoch);
        let start = topic.log.offset(Position { segment: number, at: 0, sequence: 0 });
        let (index, base_sequence) = (segment.index, segment.base_sequence);
        let subscription = self.me.subscription;
        self.segments().woken_at = None;
        let tick = self.segments().tick.unwrap_or(now.time);
        let grant = Grant {
            subscription,
            epoch: 0,
            supersedes,
            offset: start,
            len: span.len as u32,
            address: 0,
            key: 0,
            sequence: base_sequence,
            records: 0,
            time: 0,
            crc: 0,
            current_us: u32::try_from(tick.since(now.time).as_micros()).unwrap_or(u32::MAX),
        };
        Some(Draft { window, subscription, segment: number, index, span, end_sequence: base_sequence, grant })
    }

    /// Enters the topic's lists where it waits for something.
    fn listen(&mut self, hub: &mut Hub) {
        let me = self.me;
        let settings = self.settings;
        let (first, ticked_at) = {
            let position = self.segments().position;
            let ticked_at = self.segments().tick.map(|_| self.segments().ticked_at);
            (self.current(hub).map(|held| held.segment).min().unwrap_or(position), ticked_at)
        };
        let ahead = u64::from(self.depth >= DEPTH_OF_TWO);
        let wants_opening = hub.known(self.topic).log.segment(first + ahead).is_none();
        let Some(topic) = hub.topic_mut(self.topic) else { return };
        if self.is_armed && !self.listens.commits {
            self.listens.commits = true;
            topic.listeners.commits.push(me);
        }
        if wants_opening && !self.listens.openings {
            self.listens.openings = true;
            topic.listeners.openings.push(me);
        }
        let Some((offset, sequence)) = ticked_at.filter(|_| !self.listens.limits) else { return };
        if settings.bytes > 0 {
            self.listens.limits = true;
            topic.listeners.offsets.push(Reverse((offset.saturating_add(settings.bytes), me)));
        }
        if settings.records > 0 {
            self.listens.limits = true;
            topic.listeners.sequences.push(Reverse((sequence.saturating_add(settings.records), me)));
        }
    }
}
