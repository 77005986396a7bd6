//! The broker process of the world: its core, and what listener and reactor do for it.

use std::collections::BTreeMap;

use keyway_broker::core::{Core, CoreConfig, Notice, SessionId, slots};
use keyway_channel::ChannelConfig;
use keyway_fabric::*;
use keyway_schema::bootstrap::Role;

use crate::NodeId;
use crate::device::SimFabric;
use crate::scenario::Scenario;

/// Whose session it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionAt {
    pub(crate) actor: usize,
    pub(crate) attempt: u64,
    pub(crate) node: NodeId,
}

/// A client that wants a session.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    pub(crate) actor: usize,
    pub(crate) attempt: u64,
    pub(crate) node: NodeId,
    pub(crate) role: Role,
    pub(crate) receive_slots: u16,
    pub(crate) receive_size: u32,
    pub(crate) address: EndpointAddress,
}

/// What the broker answers.
#[derive(Clone, Debug)]
pub(crate) struct Welcome {
    pub(crate) instance: u64,
    pub(crate) session: u64,
    pub(crate) generation: u32,
    pub(crate) offers: u16,
    pub(crate) address: EndpointAddress,
}

/// A broker process.
pub(crate) struct Broker {
    pub(crate) node: NodeId,
    pub(crate) core: Core,
    pub(crate) pool: SharedId,
    domain: DomainId,
    events: Vec<Event>,
    pub(crate) sessions: BTreeMap<u64, SessionAt>,
    next_session: u64,
    pub(crate) stalled_until: Time,
}

impl Broker {
    pub(crate) fn new(node: NodeId, instance: u64, scenario: &Scenario, fabric: &mut SimFabric) -> Self {
        let what = "the simulated device makes what it is asked for";
        let domain = fabric.domain().expect(what);
        let pool = fabric.shared(domain, scenario.pool_len()).expect(what);
        fabric.observed = Some(pool);
        let config = CoreConfig {
            segment_size: scenario.segment_size,
            topic_segments: scenario.ring,
            record_max: scenario.record_max,
            sessions_max: scenario.sessions_max,
            windows_max: scenario.windows_max,
            quarantine: scenario.quarantine,
            offer_timeout: scenario.offer_timeout,
            faults: scenario.faults,
            ..CoreConfig::new(instance, domain, pool, scenario.pool_len())
        };
        Self {
            node,
            core: Core::new(config),
            pool,
            domain,
            events: Vec::new(),
            sessions: BTreeMap::new(),
            next_session: 1,
            stalled_until: Time::ZERO,
        }
    }

    pub(crate) fn instance(&self) -> u64 {
        self.core.config().instance
    }

    /// The receive slots that a client of a role may send to.
    pub(crate) fn receives(role: Role, scenario: &Scenario) -> (u16, u32) {
        let slots = slots(role);
        let size = if role == Role::Producer { scenario.slot } else { slots.receive_size };
        (slots.receive, size)
    }

    /// Makes a session, as listener and reactor do together; `None` if it is refused.
    pub(crate) fn welcome(
        &mut self,
        now: Now,
        hello: &Hello,
        scenario: &Scenario,
        fabric: &mut SimFabric,
    ) -> Option<Welcome> {
        self.core.admit(hello.role).ok()?;
        let what = "the simulated device makes what it is asked for";
        let depths = self.core.config().queue_depths(hello.role);
        let config = EndpointConfig {
            domain: self.domain,
            send_depth: depths.send,
            receive_depth: depths.receive,
            remote_read: true,
        };
        let (link, address) = fabric.endpoint(config).expect(what);
        let slots = slots(hello.role);
        let (receive_slots, receive_size) = Self::receives(hello.role, scenario);
        let receive = fabric.local(self.domain, u32::from(receive_slots), receive_size).expect(what);
        let send = fabric.local(self.domain, u32::from(slots.send), slots.send_size).expect(what);
        let session = self.next_session;
        self.next_session += 1;
        let channel = ChannelConfig {
            link,
            generation: session as u32,
            receive,
            receive_slots,
            receive_size,
            send,
            send_slots: slots.send,
            send_size: slots.send_size,
            peer_slots: hello.receive_slots,
            peer_size: hello.receive_size,
        };
        fabric.connect(link, &hello.address).expect(what);
        self.core.open_session(now, SessionId(session), hello.role, "", channel).ok()?;
        self.sessions.insert(session, SessionAt { actor: hello.actor, attempt: hello.attempt, node: hello.node });
        let offers = self.core.config().offers_max;
        Some(Welcome { instance: self.instance(), session, generation: channel.generation, offers, address })
    }

    /// One turn of the reactor. Returns the sessions that are over.
    pub(crate) fn turn(&mut self, now: Now, fabric: &mut SimFabric) -> Result<Vec<(u64, SessionAt)>, FabricError> {
        while drive(&mut self.core, fabric, now, &mut self.events)? > 0 {}
        let mut closed = Vec::new();
        while let Some(notice) = self.core.poll_notice() {
            if let Notice::SessionClosed { id, .. } = notice
                && let Some(at) = self.sessions.remove(&id.0)
            {
                closed.push((id.0, at));
            }
        }
        Ok(closed)
    }
}
