//! The broker's core: topics, sessions, subscriptions, grants, as one pure state machine.
//!
//! It has no clock, thread or socket, and sees bytes only through [`Memory`]. What its peers send is not trusted: a message that
//! makes no sense ends the session that it came on, and nothing else.
//!
//! - A topic's bytes: `pool` and `log` (where they are), `append` (how they get there), `producers` (what came before).
//! - A client: `session` and `life`; `requests` and `publish` (what it says), `transmit` (what it is told).
//! - Reading: `subscription` with `segment_scope` and `piece_scope` (what is granted when), `window` and `windows` (the life of a
//!   key), `stock` (a session's windows), `quarantine` (dead keys).
//! - What one session's event means for others goes through `hub`, and is handed on before the event is done with.
//!
//! Appending a batch costs one copy and a constant amount of work, whoever is subscribed; only those who wait for it are
//! looked at. Nothing ever scans all sessions, but the end of the broker.

mod append;
mod config;
mod counters;
mod faults;
mod hub;
mod inspect;
mod life;
mod log;
mod notice;
mod piece_scope;
mod pool;
mod producers;
mod publish;
mod quarantine;
mod requests;
mod segment_scope;
mod session;
mod slab;
mod stock;
mod subscription;
#[cfg(test)]
mod tests;
mod timers;
mod topic;
mod transmit;
mod window;
mod windows;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use keyway_channel::{Channel, ChannelConfig};
use keyway_fabric::{Event, FabricError, LinkId, LocalSpan, Machine, Memory, Now, Op, Time, Transmit, WindowId};
use keyway_schema::Code;
use keyway_schema::bootstrap::Role;

pub use config::{ConfigError, CoreConfig, QueueDepths, Slots, TOPIC_SEGMENTS_MIN, slots};
pub use counters::Counters;
pub use faults::Faults;
pub use inspect::{GrantView, SegmentState, SegmentView, SubscriptionView, TopicView, WindowView};
pub use notice::{Notice, Refusal, SessionId};
pub use window::{Event as WindowEvent, State as WindowState};

use hub::Hub;
use life::{Life, LifeEvent};
use requests::Slot;
use session::Session;
use slab::{Place, Slab};
use timers::Timer;

/// The broker core.
#[derive(Clone, Debug)]
pub struct Core {
    hub: Hub,
    sessions: Slab<Session>,
    ids: HashMap<SessionId, Place>,
    links: HashMap<LinkId, Place>,
    /// Sessions that may have something to post.
    ready: VecDeque<Place>,
    stop_timer: Option<Time>,
}

impl Core {
    /// A core without topics and sessions.
    ///
    /// # Panics
    ///
    /// If the configuration does not pass [`CoreConfig::check`].
    pub fn new(config: CoreConfig) -> Self {
        if let Err(error) = config.check() {
            panic!("{error}");
        }
        Self {
            hub: Hub::new(config),
            sessions: Slab::new(),
            ids: HashMap::new(),
            links: HashMap::new(),
            ready: VecDeque::new(),
            stop_timer: None,
        }
    }

    /// Its configuration.
    pub const fn config(&self) -> &CoreConfig {
        &self.hub.config
    }

    /// Whether another session could be opened: to be asked before anything is made for it.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn admit(&mut self, _role: Role) -> Result<(), Refusal> {
        if self.hub.stops_at.is_some() {
            return Err(Refusal::new(Code::ShuttingDown, "the broker is shutting down and takes no new sessions"));
        }
        let (open, max) = (self.sessions.len(), self.hub.config.sessions_max);
        if open >= max as usize {
            self.hub.counters.refusals += 1;
            let text = format!("{open} sessions are open, which is the most; close one or raise the limit");
            return Err(Refusal::new(Code::SessionsExhausted, text));
        }
        Ok(())
    }

    /// Opens a session on an endpoint that exists; its `Up` follows as an event. From now on the endpoint and the channel's
    /// local memories are the core's: it closes the one and, after its `Down`, frees the others.
    ///
    /// # Errors
    ///
    /// As [`admit`](Self::admit); endpoint and memories stay the caller's.
    pub fn open_session(
        &mut self,
        _now: Now,
        id: SessionId,
        role: Role,
        name: &str,
        channel: ChannelConfig,
    ) -> Result<(), Refusal> {
        self.admit(role)?;
        if self.ids.contains_key(&id) {
            return Err(Refusal::new(Code::Internal, format!("{id} is open already")));
        }
        let place = self.sessions.insert(Session::new(id, role, name, Channel::new(channel)));
        if let Some(session) = self.sessions.get_mut(place) {
            session.me = place;
        }
        self.ids.insert(id, place);
        self.links.insert(channel.link, place);
        self.make_ready(place);
        Ok(())
    }

    /// Ends a session whose bootstrap stream has ended.
    pub fn session_lost(&mut self, _now: Now, id: SessionId) {
        if let Some(session) = self.ids.get(&id).and_then(|place| self.sessions.get_mut(*place)) {
            session.live(LifeEvent::Leave, &mut self.hub);
        }
    }

    /// Stops: tells everybody, refuses what is new, ends each session as soon as nothing of it is left to do, and at the
    /// deadline those that are left.
    pub fn shut_down(&mut self, now: Now, deadline: Duration) {
        if self.hub.stops_at.is_some() {
            return;
        }
        let stops_at = now.time + deadline;
        self.hub.stops_at = Some(stops_at);
        self.hub.timers.set(Timer::Stop, &mut self.stop_timer, Some(stops_at));
        let all: Vec<_> = self.sessions.iter().map(|(place, _)| place).collect();
        all.into_iter().for_each(|place| self.make_ready(place));
    }

    /// Whether it has stopped and no session is left.
    pub fn is_drained(&self) -> bool {
        self.hub.stops_at.is_some() && self.sessions.len() == 0 && self.hub.chores.is_empty()
    }

    /// What happened since, oldest first.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.hub.notices.pop()
    }

    /// The figures.
    pub fn counters(&self) -> Counters {
        let segments = |wanted: fn(&SegmentState) -> bool| {
            self.hub.pool.iter().filter(|segment| wanted(&segment.state)).count() as u32
        };
        Counters {
            notices_dropped: self.hub.notices.dropped(),
            sessions: self.sessions.len() as u32,
            topics: self.hub.topics().len() as u32,
            subscriptions: self.sessions.iter().map(|(_, session)| session.subscriptions.len() as u32).sum(),
            windows: self.hub.windows.len() as u32,
            windows_live: self.windows().filter(|window| window.grant.is_some()).count() as u32,
            segments_live: segments(|state| matches!(state, SegmentState::Live { .. })),
            segments_limbo: segments(|state| matches!(state, SegmentState::Limbo { .. })),
            segments_free: segments(|state| matches!(state, SegmentState::Free)),
            batches_waiting: self.hub.topics().iter().map(|topic| topic.waiting.len() as u32).sum(),
            quarantined_indices: self.hub.quarantine.len() as u32,
            ..self.hub.counters
        }
    }

    /// Every window.
    pub fn windows(&self) -> impl Iterator<Item = WindowView> + '_ {
        self.hub.windows.iter()
    }

    /// Every segment of the pool.
    pub fn segments(&self) -> impl Iterator<Item = SegmentView> + '_ {
        self.hub.pool.iter()
    }

    /// Every topic.
    pub fn topics(&self) -> impl Iterator<Item = TopicView> + '_ {
        self.hub.topics().iter().map(topic::Topic::view)
    }

    /// Every subscription.
    pub fn subscriptions(&self) -> impl Iterator<Item = SubscriptionView> + '_ {
        self.sessions.iter().flat_map(|(_, session)| session.subscriptions.values().map(|it| it.view()))
    }

    /// A session's side of the channel, for the account of credits.
    pub fn channel(&self, id: SessionId) -> Option<&Channel> {
        self.ids.get(&id).and_then(|place| self.sessions.get(*place)).map(|session| &session.channel)
    }

    // ------------------------------------------------------------------------------------------------------ events

    fn make_ready(&mut self, place: Place) {
        if let Some(session) = self.sessions.get_mut(place)
            && !std::mem::replace(&mut session.is_ready, true)
        {
            self.ready.push_back(place);
        }
    }

    fn received(&mut self, place: Place, op: Op, span: LocalSpan, now: Now, memory: &mut dyn Memory) {
        let Some(session) = self.sessions.get_mut(place) else { return };
        if session.hears_until.is_some() {
            session.listens_on(now.time, &mut self.hub);
        }
        match session.life {
            Life::Connecting | Life::Open => match session.receive(op, span, now, &mut self.hub, memory) {
                Ok(Slot::Done) => session.repost(op),
                Ok(Slot::Kept) => {}
                Err(refusal) => session.end(refusal, now, &mut self.hub),
            },
            // Only its credits still matter: they may be what the last message waits for.
            Life::Ending => {
                let _ = session.channel.receive::<keyway_schema::ToBrokerRef<'_>>(memory, span);
            }
            Life::Closing => {}
        }
    }

    fn done(
        &mut self,
        place: Place,
        op: Op,
        result: Result<keyway_fabric::Outcome, keyway_fabric::WorkError>,
        now: Now,
        memory: &mut dyn Memory,
    ) {
        let Some(session) = self.sessions.get_mut(place) else { return };
        if session.channel.done(op) {
            if session.life == Life::Ending && session.is_told && session.channel.is_drained() {
                session.live(LifeEvent::Told, &mut self.hub);
            }
        } else if transmit::is_read(op) {
            session.read_done(result.is_ok(), now, &mut self.hub, memory);
        } else if let Some(window) = self.hub.windows.of_op(op) {
            session.window_done(window, result, now, &mut self.hub);
        }
    }

    fn allocated(&mut self, op: Op, result: Result<WindowId, FabricError>, now: Now) {
        let Some(tag) = transmit::allocation_of(op) else { return };
        let session = self.sessions.of_tag(tag).and_then(|place| self.sessions.get_mut(place));
        let Some(session) = session else {
            // The session has ended meanwhile.
            self.hub.chores.extend(result.ok().map(|window| Transmit::FreeWindow { window }));
            return;
        };
        let (place, id) = (session.me, session.id);
        let refusal = result.as_ref().err().map(ToString::to_string);
        session.stock.allocated(result.ok(), id, &mut self.hub);
        if let Some(why) = refusal.filter(|_| session.stock.len() == 0) {
            let text = format!("no memory window could be had for a subscription: {why}");
            self.hub.counters.refusals += 1;
            session.end(Refusal::new(Code::WindowsExhausted, text), now, &mut self.hub);
        }
        self.make_ready(place);
    }

    /// Hands on what an event means for others, until nothing is left.
    fn settle(&mut self, now: Now, memory: &mut dyn Memory) {
        loop {
            if let Some((subscription, cause)) = self.hub.due.pop_front() {
                if let Some(session) = self.sessions.get_mut(subscription.session) {
                    if let Some(entry) = session.subscriptions.get_mut(&subscription.subscription) {
                        entry.caused(cause);
                    }
                    session.needs_care(subscription.subscription);
                    self.make_ready(subscription.session);
                }
            } else if let Some((place, topic, commit)) = self.hub.commits.pop_front() {
                if let Some(session) = self.sessions.get_mut(place) {
                    session.commits.push_back((topic, commit));
                    self.make_ready(place);
                }
            } else if let Some((place, refusal)) = self.hub.endings.pop_front() {
                if let Some(session) = self.sessions.get_mut(place) {
                    session.end(refusal, now, &mut self.hub);
                    self.make_ready(place);
                }
            } else if let Some(topic) = self.hub.retries.pop_front() {
                self.retry(topic, now, memory);
            } else if !self.serve_waiting(now, memory) {
                break;
            }
        }
        if self.hub.stops_at.is_some() {
            self.end_drained(now);
        }
    }

    /// Gives free segments to the topics that wait for them, in turn. Returns whether one was given.
    fn serve_waiting(&mut self, now: Now, memory: &mut dyn Memory) -> bool {
        if !self.hub.pool.has_free() {
            return false;
        }
        for _ in 0..self.hub.pool.waiting() {
            let Some(topic) = self.hub.pool.next_waiting() else { break };
            let (entry, _) = self.hub.topic_and_pool(topic);
            entry.is_queued = false;
            if self.retry(topic, now, memory) {
                return true;
            }
        }
        false
    }

    /// Appends the batches of a topic that wait, as far as there is room. Returns whether any was.
    fn retry(&mut self, topic: u32, now: Now, memory: &mut dyn Memory) -> bool {
        let mut moved = false;
        while let Some(waiting) = self.hub.known(topic).waiting.front().copied() {
            let Some(session) = self.sessions.get_mut(waiting.session) else {
                self.hub.topic_and_pool(topic).0.waiting.pop_front();
                continue;
            };
            if !session.append(topic, waiting.batch, now, &mut self.hub, memory) {
                break;
            }
            self.hub.topic_and_pool(topic).0.waiting.pop_front();
            session.waiting -= 1;
            session.repost(waiting.op);
            self.make_ready(waiting.session);
            moved = true;
        }
        let (entry, pool) = self.hub.topic_and_pool(topic);
        if !entry.waiting.is_empty() && !std::mem::replace(&mut entry.is_queued, true) {
            pool.wait(topic);
        }
        moved
    }

    /// Ends the sessions of which nothing is left to do.
    fn end_drained(&mut self, now: Now) {
        let drained: Vec<_> =
            self.sessions.iter().filter(|(_, it)| it.is_drained(now.time, &self.hub)).map(|it| it.0).collect();
        for place in drained {
            self.end_stopping(place, now);
        }
    }

    fn end_stopping(&mut self, place: Place, now: Now) {
        let Some(session) = self.sessions.get_mut(place) else { return };
        session.end(Refusal::new(Code::ShuttingDown, "the broker is shutting down"), now, &mut self.hub);
        self.make_ready(place);
    }
}

impl Machine for Core {
    fn handle(&mut self, now: Now, event: Event, memory: &mut dyn Memory) {
        let place = match &event {
            Event::Up { link } | Event::Message { link, .. } | Event::Done { link, .. } => {
                self.links.get(link).copied()
            }
            Event::Down { link, .. } => self.links.remove(link),
            Event::Allocated { .. } => None,
        };
        match (event, place) {
            (Event::Up { .. }, Some(place)) => {
                if let Some(session) = self.sessions.get_mut(place) {
                    session.live(LifeEvent::Up, &mut self.hub);
                }
            }
            (Event::Message { op, span, .. }, Some(place)) => self.received(place, op, span, now, memory),
            (Event::Done { op, result, .. }, Some(place)) => self.done(place, op, result, now, memory),
            (Event::Down { cause, .. }, Some(place)) => {
                if let Some(session) = self.sessions.remove(place) {
                    self.ids.remove(&session.id);
                    session.dissolve(cause, now, &mut self.hub, memory);
                }
            }
            (Event::Allocated { op, result }, _) => self.allocated(op, result, now),
            (_, None) => {}
        }
        if let Some(place) = place {
            self.make_ready(place);
        }
        self.settle(now, memory);
    }

    fn handle_timeout(&mut self, now: Now, memory: &mut dyn Memory) {
        while let Some(timer) = self.hub.timers.pop(now.time) {
            match timer {
                Timer::Stop => {
                    self.stop_timer = None;
                    let all: Vec<_> = self.sessions.iter().map(|(place, _)| place).collect();
                    all.into_iter().for_each(|place| self.end_stopping(place, now));
                }
                Timer::Session(place) => {
                    if let Some(session) = self.sessions.get_mut(place) {
                        session.time_out(now, &mut self.hub);
                        self.make_ready(place);
                    }
                }
                Timer::Subscription(place, number) => {
                    if let Some(session) = self.sessions.get_mut(place) {
                        session.time_out_subscription(number, now, &mut self.hub);
                        self.make_ready(place);
                    }
                }
            }
        }
        self.settle(now, memory);
    }

    fn timeout(&self) -> Option<Time> {
        self.hub.timers.first()
    }

    fn transmit(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        loop {
            if let Some(chore) = self.hub.chores.pop_front() {
                return Some(chore);
            }
            let place = *self.ready.front()?;
            if let Some(session) = self.sessions.get_mut(place) {
                if let Some(transmit) = session.transmit(now, &mut self.hub, memory) {
                    return Some(transmit);
                }
                session.is_ready = false;
            }
            self.ready.pop_front();
            if self.hub.stops_at.is_some() {
                self.end_drained(now);
            }
        }
    }
}
