//! The broker's core: topics, sessions, subscriptions, grants, as one pure state machine.
//!
//! It has no clock, thread or socket, and sees bytes only through [`Memory`]. What its peers send is not trusted: a message that
//! makes no sense ends the session that it came on, and nothing else.

mod config;
mod counters;
mod faults;
mod inspect;
mod notice;
mod session;
mod slab;
mod window;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use keyway_channel::{Channel, ChannelConfig};
use keyway_fabric::{Event, LinkId, Machine, Memory, Now, Time, Transmit};
use keyway_schema::Code;
use keyway_schema::bootstrap::Role;

pub use config::{ConfigError, CoreConfig, QueueDepths, Slots, TOPIC_SEGMENTS_MIN, slots};
pub use counters::Counters;
pub use faults::Faults;
pub use inspect::{GrantView, SegmentState, SegmentView, SubscriptionView, TopicView, WindowView};
pub use notice::{Notice, Refusal, SessionId};
pub use window::{Event as WindowEvent, State as WindowState};

use notice::Notices;
use session::Session;
use slab::{Place, Slab};

/// The broker core.
#[derive(Clone, Debug)]
pub struct Core {
    config: CoreConfig,
    sessions: Slab<Session>,
    ids: HashMap<SessionId, Place>,
    links: HashMap<LinkId, Place>,
    /// What concerns no channel: closing endpoints, freeing memory.
    chores: VecDeque<Transmit>,
    notices: Notices,
    counters: Counters,
    /// Set once the core stops: until when what is committed can be read.
    stops_at: Option<Time>,
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
            config,
            sessions: Slab::new(),
            ids: HashMap::new(),
            links: HashMap::new(),
            chores: VecDeque::new(),
            notices: Notices::default(),
            counters: Counters::default(),
            stops_at: None,
        }
    }

    /// Its configuration.
    pub const fn config(&self) -> &CoreConfig {
        &self.config
    }

    /// Whether another session could be opened: to be asked before anything is made for it.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn admit(&self, _role: Role) -> Result<(), Refusal> {
        if self.stops_at.is_some() {
            return Err(Refusal::new(Code::ShuttingDown, "the broker is shutting down and takes no new sessions"));
        }
        let (open, max) = (self.sessions.len(), self.config.sessions_max);
        if open >= max as usize {
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
        self.ids.insert(id, place);
        self.links.insert(channel.link, place);
        Ok(())
    }

    /// Ends a session whose bootstrap stream has ended.
    pub fn session_lost(&mut self, _now: Now, id: SessionId) {
        let Some(session) = self.ids.get(&id).and_then(|place| self.sessions.get_mut(*place)) else { return };
        if session.close() {
            self.chores.push_back(Transmit::Close { link: session.channel().link() });
        }
    }

    /// Stops: tells everybody, refuses what is new, and ends the sessions that are left at the deadline.
    pub fn shut_down(&mut self, now: Now, deadline: Duration) {
        self.stops_at.get_or_insert(now.time + deadline);
    }

    /// Whether it has stopped and no session is left.
    pub fn is_drained(&self) -> bool {
        self.stops_at.is_some() && self.sessions.len() == 0 && self.chores.is_empty()
    }

    /// What happened since, oldest first.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop()
    }

    /// The figures.
    pub fn counters(&self) -> Counters {
        Counters { sessions: self.sessions.len() as u32, notices_dropped: self.notices.dropped(), ..self.counters }
    }

    /// Every window.
    pub fn windows(&self) -> impl Iterator<Item = WindowView> + '_ {
        std::iter::empty()
    }

    /// Every segment of the pool.
    pub fn segments(&self) -> impl Iterator<Item = SegmentView> + '_ {
        (0..self.config.segments()).map(|index| SegmentView { index, state: SegmentState::Free, windows: 0 })
    }

    /// Every topic.
    pub fn topics(&self) -> impl Iterator<Item = TopicView> + '_ {
        std::iter::empty()
    }

    /// Every subscription.
    pub fn subscriptions(&self) -> impl Iterator<Item = SubscriptionView> + '_ {
        std::iter::empty()
    }

    /// A session's side of the channel, for the account of credits.
    pub fn channel(&self, id: SessionId) -> Option<&Channel> {
        self.ids.get(&id).and_then(|place| self.sessions.get(*place)).map(Session::channel)
    }
}

impl Machine for Core {
    fn handle(&mut self, _now: Now, event: Event, _memory: &mut dyn Memory) {
        if let Event::Down { link, cause } = event
            && let Some(session) = self.links.remove(&link).and_then(|place| self.sessions.remove(place))
        {
            self.ids.remove(&session.id());
            let config = session.channel().config();
            self.chores.push_back(Transmit::FreeLocal { local: config.receive });
            self.chores.push_back(Transmit::FreeLocal { local: config.send });
            self.notices.push(session.closed(cause));
        }
    }

    fn handle_timeout(&mut self, _now: Now, _memory: &mut dyn Memory) {}

    fn timeout(&self) -> Option<Time> {
        self.stops_at
    }

    fn transmit(&mut self, _now: Now, _memory: &mut dyn Memory) -> Option<Transmit> {
        self.chores.pop_front()
    }
}
