//! The broker's core: topics, sessions, subscriptions, grants, as one pure state machine.
//!
//! It has no clock, thread or socket, and sees bytes only through [`Memory`](keyway_fabric::Memory). What its peers send is not trusted: a message that
//! makes no sense ends the session that it came on, and nothing else.
//!
//! - A topic's bytes: `pool` and `log` (where they are), `append` (how they get there), `producers` (what came before).
//! - A client: `session` and `life`; `requests` and `publish` (what it says), `transmit` (what it is told).
//! - Reading: `subscription` with `segment_scope` and `piece_scope` (what is granted when), `release` (what the consumer says of
//!   it), `window` and `windows` (the life of a key), `stock` (a session's windows), `quarantine` (dead keys), `parked` (windows whose
//!   index has none left for now).
//! - What one session's event means for others goes through `hub`, and is handed on in `turn` before the event is done with.
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
mod parked;
mod piece_scope;
mod pool;
mod producers;
mod publish;
mod quarantine;
mod release;
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
mod turn;
mod window;
mod windows;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use keyway_channel::{Channel, ChannelConfig};
use keyway_fabric::{LinkId, Now, Time};
use keyway_schema::Code;
use keyway_schema::bootstrap::Role;

pub use config::{ConfigError, CoreConfig, QueueDepths, Slots, TOPIC_SEGMENTS_MIN, slots};
pub use counters::Counters;
pub use faults::Faults;
pub use inspect::{GrantView, SegmentState, SegmentView, SubscriptionView, TopicView, WindowView};
pub use notice::{Notice, Refusal, SessionId};
pub use window::{Event as WindowEvent, State as WindowState};

use hub::Hub;
use life::LifeEvent;
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
        if self.sessions.len() == 0 {
            self.hub.unpark(Time::NEVER);
        }
    }

    /// Whether it has stopped and no session is left.
    pub fn is_drained(&self) -> bool {
        let is_empty = self.sessions.len() == 0 && self.hub.windows_parked() == 0 && self.hub.chores.is_empty();
        self.hub.stops_at.is_some() && is_empty
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
            windows_parked: self.hub.windows_parked(),
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
}
