//! The core, and what its sessions need outside of it: endpoints, memory, byte streams, and deadlines for peers that do not
//! come.
//!
//! It is a [`Machine`] around the core's: it sees endpoints come up and go down on their way to the core.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use keyway_channel::ChannelConfig;
use keyway_fabric::soft::Token;
use keyway_fabric::{
    EndpointAddress, EndpointConfig, Event, Fabric, FabricError, LinkId, LocalId, Machine, Memory, Now, Stream, Time,
    Transmit,
};
use keyway_schema::Code;
use keyway_schema::bootstrap::Role;
use tokio::sync::oneshot;

use crate::core::{Core, CoreConfig, Refusal, SessionId, slots};
use crate::inbox::{Inbox, Opened, Opening};

/// The core and its sessions' surroundings.
pub(super) struct Engine {
    pub(super) core: Core,
    config: CoreConfig,
    /// How long a session has, from its opening, until its endpoint is up.
    up_timeout: Duration,
    last_id: u64,
    sessions: HashMap<SessionId, Session>,
    /// The sessions of endpoints that are not down.
    by_link: HashMap<LinkId, SessionId>,
    /// Endpoints that wait for their byte stream.
    by_token: HashMap<Token, SessionId>,
    /// When sessions whose endpoint is not up are given up.
    deadlines: BTreeSet<(Time, SessionId)>,
}

/// A session, from its opening until the core says that it is closed.
struct Session {
    link: LinkId,
    token: Option<Token>,
    deadline: Time,
    /// Tells the listener.
    closed: oneshot::Sender<Option<Refusal>>,
    /// Why it is being closed, where the core does not know.
    reason: Option<Refusal>,
}

impl Engine {
    pub(super) fn new(config: CoreConfig, up_timeout: Duration) -> Self {
        Self {
            core: Core::new(config.clone()),
            config,
            up_timeout,
            last_id: 0,
            sessions: HashMap::new(),
            by_link: HashMap::new(),
            by_token: HashMap::new(),
            deadlines: BTreeSet::new(),
        }
    }

    /// Makes a session's memory and endpoint, and opens it. Nothing is left of it if that fails.
    pub(super) fn open(
        &mut self,
        now: Now,
        fabric: &mut dyn Fabric,
        inbox: &Inbox,
        opening: &Opening,
    ) -> Result<Opened, Refusal> {
        self.core.admit(opening.role)?;
        let slots = slots(opening.role);
        let receive = fabric.local(self.config.domain, slots.receive.into(), slots.receive_size).map_err(shortage)?;
        let send = match fabric.local(self.config.domain, slots.send.into(), slots.send_size) {
            Ok(send) => send,
            Err(error) => return Err(undo(fabric, None, &[receive], shortage(error))),
        };
        let depths = self.config.queue_depths(opening.role);
        let endpoint = fabric.endpoint(EndpointConfig {
            domain: self.config.domain,
            send_depth: depths.send,
            receive_depth: depths.receive,
            remote_read: opening.role == Role::Consumer,
        });
        let (link, endpoint) = match endpoint {
            Ok(made) => made,
            Err(error) => return Err(undo(fabric, None, &[receive, send], shortage(error))),
        };
        self.last_id += 1;
        let id = SessionId(self.last_id);
        // The number wraps; a session of 2^32 sessions ago is long gone.
        let generation = self.last_id as u32;
        let channel = ChannelConfig {
            link,
            generation,
            receive,
            receive_slots: slots.receive,
            receive_size: slots.receive_size,
            send,
            send_slots: slots.send,
            send_size: slots.send_size,
            peer_slots: opening.receive_slots,
            peer_size: opening.receive_size,
        };
        if let Err(refusal) = self.core.open_session(now, id, opening.role, &opening.name, channel) {
            return Err(undo(fabric, Some(link), &[receive, send], refusal));
        }
        // An endpoint of a fabric that needs no stream has an address without a token.
        let token = if fabric.needs_stream() { Token::of(&endpoint).ok() } else { None };
        let closed = self.remember(now, id, link, token);
        Ok(Opened {
            session: inbox.open_session(id),
            instance: self.config.instance,
            generation,
            endpoint,
            receive_slots: slots.receive,
            receive_size: slots.receive_size,
            offers: self.config.offers_max,
            closed,
        })
    }

    fn remember(
        &mut self,
        now: Now,
        id: SessionId,
        link: LinkId,
        token: Option<Token>,
    ) -> oneshot::Receiver<Option<Refusal>> {
        let (closed, receiver) = oneshot::channel();
        let deadline = now.time + self.up_timeout;
        self.sessions.insert(id, Session { link, token, deadline, closed, reason: None });
        self.by_link.insert(link, id);
        if let Some(token) = token {
            self.by_token.insert(token, id);
        }
        self.deadlines.insert((deadline, id));
        receiver
    }

    /// Connects a session's endpoint to its client's.
    pub(super) fn confirm(
        &mut self,
        fabric: &mut dyn Fabric,
        id: SessionId,
        endpoint: &EndpointAddress,
    ) -> Result<(), Refusal> {
        let link = self.sessions.get(&id).map(|session| session.link).filter(|link| self.by_link.contains_key(link));
        let Some(link) = link else {
            let text = format!("{id} was closed before its client confirmed it");
            return Err(Refusal { code: Code::Timeout, text });
        };
        fabric.connect(link, endpoint).map_err(|error| Refusal { code: Code::Protocol, text: error.to_string() })
    }

    /// Gives a byte stream to the endpoint that it was dialled for. Whether there is one that waits for it.
    pub(super) fn attach(&mut self, now: Now, fabric: &mut dyn Fabric, token: Token, stream: Stream) -> bool {
        let Some(id) = self.by_token.remove(&token) else { return false };
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        session.token = None;
        match fabric.attach(session.link, stream) {
            Ok(()) => true,
            Err(error) => {
                session.reason = Some(Refusal { code: Code::Internal, text: error.to_string() });
                self.core.session_lost(now, id);
                false
            }
        }
    }

    /// A session's bootstrap stream has ended.
    pub(super) fn lost(&mut self, now: Now, id: SessionId) {
        if self.sessions.contains_key(&id) {
            self.core.session_lost(now, id);
        }
    }

    /// The core has closed a session: the listener may close its bootstrap stream.
    pub(super) fn closed(&mut self, id: SessionId, refusal: Option<&Refusal>) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.settle(&session, id);
        self.by_link.remove(&session.link);
        // The listener may have let go of the connection already.
        drop(session.closed.send(session.reason.or_else(|| refusal.cloned())));
    }

    /// Stops waiting for a session's peer.
    fn settle(&mut self, session: &Session, id: SessionId) {
        self.deadlines.remove(&(session.deadline, id));
        if let Some(token) = session.token {
            self.by_token.remove(&token);
        }
    }

    /// An endpoint has come up: its session's peer is no longer waited for. Whether it is a session's.
    fn is_up(&mut self, link: LinkId) -> bool {
        let Some(id) = self.by_link.get(&link) else { return false };
        if let Some(session) = self.sessions.get(id) {
            self.deadlines.remove(&(session.deadline, *id));
        }
        true
    }

    /// An endpoint is gone. Whether it was a session's.
    fn is_down(&mut self, link: LinkId) -> bool {
        self.by_link.remove(&link).is_some()
    }

    /// Gives up the sessions whose peer has not come in time.
    fn give_up(&mut self, now: Now) {
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now.time
        {
            self.deadlines.pop_first();
            if let Some(session) = self.sessions.get_mut(&id) {
                let text = format!("the endpoint's peer did not connect within {:?}", self.up_timeout);
                session.reason = Some(Refusal { code: Code::Timeout, text });
                self.core.session_lost(now, id);
            }
        }
    }
}

impl Machine for Engine {
    fn handle(&mut self, now: Now, event: Event, memory: &mut dyn Memory) {
        let known = match &event {
            Event::Up { link } => self.is_up(*link),
            Event::Down { link, .. } => self.is_down(*link),
            _ => true,
        };
        // An endpoint whose session could not be opened is closed unseen.
        if known {
            self.core.handle(now, event, memory);
        }
    }

    fn handle_timeout(&mut self, now: Now, memory: &mut dyn Memory) {
        self.give_up(now);
        if self.core.timeout().is_some_and(|at| at <= now.time) {
            self.core.handle_timeout(now, memory);
        }
    }

    fn timeout(&self) -> Option<Time> {
        let first = self.deadlines.first().map(|(deadline, _)| *deadline);
        self.core.timeout().into_iter().chain(first).min()
    }

    fn transmit(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        self.core.transmit(now, memory)
    }
}

/// Frees what a session that cannot be opened had already got.
fn undo(fabric: &mut dyn Fabric, link: Option<LinkId>, locals: &[LocalId], refusal: Refusal) -> Refusal {
    if let Some(link) = link {
        fabric.close(link);
    }
    for local in locals {
        if let Err(error) = fabric.free_local(*local) {
            tracing::error!(%error, "cannot free the memory of a session that was not opened");
        }
    }
    refusal
}

fn shortage(error: FabricError) -> Refusal {
    let text = format!("no endpoint for the session: {}", crate::one_line(&error));
    Refusal { code: Code::SessionsExhausted, text }
}
