//! A subscription: what a consumer reads of a topic, and the grants that it holds.
//!
//! It is looked after level by level, not event by event: whatever happened, [`Subscription::step`] looks at how things stand and says
//! the next thing to do, until there is none. The two kinds of scope differ in what they grant, in
//! [`segment_scope`](super::segment_scope) and [`piece_scope`](super::piece_scope).

use std::collections::VecDeque;

use keyway_fabric::{Memory, Now, SharedSpan, Time};
use keyway_schema::ToClient;
use keyway_schema::message::{EpochSettings, Grant, Lagged, Revoked, Scope};

use super::hub::{Cause, Hub};
use super::inspect::SubscriptionView;
use super::log::Position;
use super::notice::{Notice, SessionId};
use super::piece_scope::PieceScope;
use super::segment_scope::SegmentScope;
use super::slab::Place;
use super::stock::{Spare, Stock};
use super::topic::SubscriptionRef;
use super::window::Event;

/// A subscription.
#[derive(Clone, Debug)]
pub(super) struct Subscription {
    pub(super) me: SubscriptionRef,
    pub(super) session_id: SessionId,
    pub(super) topic: u32,
    pub(super) name: String,
    pub(super) settings: EpochSettings,
    pub(super) depth: u16,
    pub(super) scope: ScopeState,
    /// The next record that the consumer wants, as it last said.
    pub(super) sequence: u64,
    /// The last epoch.
    pub(super) epoch: u64,
    /// Its grants in the order of their epochs, until their keys are dead.
    pub(super) grants: VecDeque<Held>,
    /// Spares taken for grants that are to be bound together.
    pub(super) prepared: Vec<Place>,
    /// It waits to hear of the next record.
    pub(super) is_armed: bool,
    /// It takes no grants.
    pub(super) is_paused: bool,
    /// Unsubscribed: it only waits for its windows.
    pub(super) is_ended: bool,
    /// In which of the topic's lists it stands.
    pub(super) listens: Listens,
    /// The oldest record that it was told is left.
    pub(super) told: u64,
    tell_lagged: bool,
    /// The epoch up to which it is to be told that they are revoked; zero for none.
    pub(super) tell_revoked: u64,
    /// Whether it stands in its session's queue.
    pub(super) is_due: bool,
    /// When its timer goes off.
    pub(super) timer: Option<Time>,
}

/// A grant whose key may be alive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) window: Place,
    pub(super) epoch: u64,
    /// The number of the segment that it is in.
    pub(super) segment: u64,
    /// The records that it opens; in segment scope, the first one of the segment.
    pub(super) sequence: u64,
    pub(super) end_sequence: u64,
}

/// What its scope needs.
#[derive(Clone, Debug)]
pub(super) enum ScopeState {
    Segment(SegmentScope),
    Piece(PieceScope),
}

/// In which of the topic's lists a subscription stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Listens {
    pub(super) commits: bool,
    pub(super) openings: bool,
    pub(super) limits: bool,
}

/// What to do next for a subscription.
#[derive(Debug)]
pub(super) enum Step {
    /// Send this; there is room.
    Say(ToClient),
    /// Bind this window and send the grant.
    Bind(Draft),
    /// Unbind this spare, to move its key on.
    MoveOn(Place),
    /// Allocate a window.
    Allocate,
    /// Something was done; ask again.
    Again,
    /// It cannot go on before the session's endpoint has moved.
    Stuck,
    /// Nothing to do.
    Rest,
}

/// A grant to be bound and sent; its epoch, address and key are filled in then.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) window: Place,
    pub(super) subscription: u32,
    /// The segment's number.
    pub(super) segment: u64,
    /// Its place in the pool.
    pub(super) index: u32,
    pub(super) span: SharedSpan,
    pub(super) end_sequence: u64,
    pub(super) grant: Grant,
}

/// What a step may look at and use.
pub(super) struct Around<'a> {
    pub(super) hub: &'a mut Hub,
    pub(super) stock: &'a mut Stock,
    /// Messages that may be sent.
    pub(super) room: usize,
    pub(super) now: Now,
    pub(super) memory: &'a dyn Memory,
}

impl Subscription {
    /// A subscription that begins at `start`.
    #[allow(clippy::too_many_arguments, reason = "the request's own fields, already checked")]
    pub(super) fn new(
        me: SubscriptionRef,
        session_id: SessionId,
        topic: u32,
        name: String,
        scope: Scope,
        settings: EpochSettings,
        depth: u16,
        grant_bytes: u32,
        sequence: u64,
        start: Position,
    ) -> Self {
        let scope = match scope {
            Scope::Segment => ScopeState::Segment(SegmentScope::new(start)),
            Scope::Batch => ScopeState::Piece(PieceScope::batches(start, grant_bytes, &settings)),
            Scope::Message => ScopeState::Piece(PieceScope::messages(start, sequence)),
        };
        Self {
            me,
            session_id,
            topic,
            name,
            settings,
            depth,
            scope,
            sequence,
            epoch: 0,
            grants: VecDeque::with_capacity(usize::from(depth)),
            prepared: Vec::new(),
            is_armed: false,
            is_paused: false,
            is_ended: false,
            listens: Listens::default(),
            told: 0,
            tell_lagged: false,
            tell_revoked: 0,
            is_due: false,
            timer: None,
        }
    }

    /// How long its keys live at most.
    pub(super) fn key_life(&self) -> std::time::Duration {
        self.interval() + std::time::Duration::from_millis(self.settings.grace_ms.into())
    }

    /// Its epoch interval.
    pub(super) fn interval(&self) -> std::time::Duration {
        std::time::Duration::from_micros(self.settings.interval_us.into())
    }

    /// Why it is looked after: it may not stand in a list of its topic any more.
    pub(super) const fn caused(&mut self, cause: Cause) {
        match cause {
            Cause::Commit => self.listens.commits = false,
            Cause::Opening => self.listens.openings = false,
            Cause::Limit => self.listens.limits = false,
            Cause::Dropped => {}
        }
    }

    /// The next thing to do.
    pub(super) fn step(&mut self, around: &mut Around<'_>) -> Step {
        if self.is_ended {
            return Step::Rest;
        }
        self.notice_drops(around.hub);
        if self.grants.is_empty() {
            self.tell_revoked = 0;
        }
        if self.tell_lagged || self.tell_revoked > 0 {
            // Who holds nothing and takes nothing is told when it arms: by then it may be further behind.
            if !(self.is_paused && self.grants.is_empty()) {
                return self.tell(around);
            }
        }
        match self.scope {
            ScopeState::Segment(_) => self.step_segments(around),
            ScopeState::Piece(_) => self.step_pieces(around),
        }
    }

    /// Notices what the ring has dropped: revokes the grants that cover it, and moves on to what is left.
    fn notice_drops(&mut self, hub: &mut Hub) {
        let oldest = hub.known(self.topic).log.oldest();
        let covers = |held: &&Held| held.segment < oldest.segment;
        let dropped = self.grants.iter().filter(covers).map(|held| held.epoch).max().unwrap_or(0);
        if dropped > 0 {
            self.revoke(dropped, hub);
        }
        let has_lost_its_place = match &mut self.scope {
            ScopeState::Segment(scope) => scope.skip_to(oldest) && self.sequence <= oldest.sequence,
            ScopeState::Piece(scope) => {
                scope.skip_to(oldest);
                false
            }
        };
        if has_lost_its_place || self.sequence < oldest.sequence {
            self.tell_lagged = true;
        }
    }

    /// Takes the grants up to an epoch out of use. The consumer is told if any of them was in use.
    pub(super) fn revoke(&mut self, epoch: u64, hub: &mut Hub) {
        let mut was_current = false;
        for held in self.grants.iter().take_while(|held| held.epoch <= epoch) {
            let window = hub.windows.get_mut(held.window);
            if window.state.is_current() {
                window.take(Event::Supersede);
                was_current = true;
            }
        }
        if was_current {
            self.tell_revoked = self.tell_revoked.max(epoch);
        }
    }

    /// Tells what it is to be told, in the order that the consumer needs.
    fn tell(&mut self, around: &mut Around<'_>) -> Step {
        if around.room == 0 {
            return Step::Stuck;
        }
        let subscription = self.me.subscription;
        if std::mem::take(&mut self.tell_lagged) {
            let log = &around.hub.known(self.topic).log;
            let oldest = log.oldest();
            let lagged = Lagged { subscription, sequence: oldest.sequence, offset: log.offset(oldest) };
            self.sequence = self.sequence.max(oldest.sequence);
            self.told = oldest.sequence;
            around.hub.counters.lapped += 1;
            let (id, topic, sequence) = (self.session_id, self.topic, oldest.sequence);
            around.hub.notices.push(Notice::Lapped { id, subscription, topic, sequence });
            if around.hub.faults.lose_lagged {
                return Step::Again;
            }
            return Step::Say(lagged.into());
        }
        let epoch = std::mem::take(&mut self.tell_revoked);
        Step::Say(Revoked { subscription, epoch, code: 0 }.into())
    }

    /// Takes spares until `count` are prepared; what to do if there are not enough.
    pub(super) fn prepare(&mut self, count: usize, around: &mut Around<'_>) -> Option<Step> {
        while self.prepared.len() < count {
            match around.stock.spare(around.hub, around.now.time, around.memory) {
                Spare::Window(place) => self.prepared.push(place),
                Spare::MoveOn(place) if around.stock.has_queue_room(1) => return Some(Step::MoveOn(place)),
                Spare::MoveOn(place) => {
                    around.stock.put_back(place);
                    return Some(Step::Stuck);
                }
                Spare::Allocate => return Some(Step::Allocate),
                Spare::None => return Some(Step::Stuck),
            }
        }
        if around.room < count || !around.stock.has_queue_room(count as u32) {
            return Some(Step::Stuck);
        }
        None
    }

    /// Gives prepared spares back.
    pub(super) fn unprepare(&mut self, stock: &mut Stock) {
        for place in self.prepared.drain(..).rev() {
            stock.put_back(place);
        }
    }

    /// How many windows it may still bind.
    pub(super) fn depth_left(&self, hub: &Hub) -> usize {
        let depth = usize::from(self.depth) + usize::from(hub.faults.exceed_depth);
        depth.saturating_sub(self.grants.len())
    }

    /// The grants that the consumer may begin READs under.
    pub(super) fn current<'a>(&'a self, hub: &'a Hub) -> impl DoubleEndedIterator<Item = &'a Held> {
        self.grants.iter().filter(|held| hub.windows.get(held.window).state.is_current())
    }

    /// A window of its grants is dead.
    pub(super) fn forget(&mut self, window: Place) {
        if let Some(place) = self.grants.iter().position(|held| held.window == window) {
            self.grants.remove(place);
        }
    }

    /// When it wants to be looked after next, whatever happens. What is past was just done, or waits for something else.
    pub(super) fn wanted_time(&self, now: Time, hub: &Hub) -> Option<Time> {
        let deadline = self.grants.front().and_then(|held| hub.windows.get(held.window).grant);
        let deadline = deadline.map(|grant| grant.deadline).filter(|_| !hub.faults.ignore_deadline);
        let tick = match &self.scope {
            ScopeState::Segment(scope) if !self.is_ended => scope.wanted_tick(),
            _ => None,
        };
        [deadline, tick].into_iter().flatten().filter(|at| *at > now).min()
    }

    pub(super) fn view(&self) -> SubscriptionView {
        SubscriptionView {
            session: self.session_id,
            subscription: self.me.subscription,
            name: self.name.clone(),
            topic: self.topic,
            depth: self.depth,
            sequence: self.sequence,
            epoch: self.epoch,
            windows: self.grants.len() as u32,
            armed: self.is_armed,
            paused: self.is_paused,
        }
    }
}
