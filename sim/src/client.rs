//! A client process of the world: what the driver does for a role, on simulated time.

use std::time::Duration;

use keyway_channel::ChannelConfig;
use keyway_fabric::*;

use crate::NodeId;
use crate::device::SimFabric;
use crate::session::{Connected, Session};

/// The first pause after a failed attempt or session, and the longest.
const PAUSE: Duration = Duration::from_micros(300);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// How an attempt or a session stands.
#[derive(Debug)]
pub(crate) enum Link {
    /// Until the next attempt.
    Pausing { until: Time },
    /// The bootstrap is under way: `up` and `welcome` both must come.
    Connecting { channel: ChannelConfig, up: bool, welcome: Option<Connected>, give_up: Time },
    /// A session.
    Up { connected: Connected },
    /// Its endpoint was closed; `Down` is awaited.
    Closing { channel: ChannelConfig, told: bool },
    /// It wants no more.
    Ended,
}

/// A client process.
pub(crate) struct Client {
    pub(crate) actor: usize,
    pub(crate) node: NodeId,
    pub(crate) domain: DomainId,
    pub(crate) session: Box<dyn Session>,
    pub(crate) link: Link,
    /// Which attempt to connect it is: answers to earlier ones are late.
    pub(crate) attempt: u64,
    pub(crate) events: Vec<Event>,
    failures: u32,
    /// It gets no processor before.
    pub(crate) stalled_until: Time,
    /// The broker's instance in its present or last session.
    pub(crate) instance: Option<u64>,
    /// Whether it keeps the protocol.
    pub(crate) good: bool,
    /// Whether something was done to it in the present session that may cost it a key.
    pub(crate) disturbed: bool,
}

impl Client {
    pub(crate) fn new(actor: usize, node: NodeId, domain: DomainId, session: Box<dyn Session>, good: bool) -> Self {
        Self {
            actor,
            node,
            domain,
            session,
            link: Link::Pausing { until: Time::ZERO },
            attempt: 0,
            events: Vec::new(),
            failures: 0,
            stalled_until: Time::ZERO,
            instance: None,
            good,
            disturbed: false,
        }
    }

    /// The link of its present session or attempt.
    pub(crate) fn own_link(&self) -> Option<LinkId> {
        match &self.link {
            Link::Connecting { channel, .. } | Link::Closing { channel, .. } => Some(channel.link),
            Link::Up { connected } => Some(connected.channel.link),
            Link::Pausing { .. } | Link::Ended => None,
        }
    }

    pub(crate) fn connected(&self) -> Option<&Connected> {
        match &self.link {
            Link::Up { connected } => Some(connected),
            _ => None,
        }
    }

    /// Whether it wants to connect now.
    pub(crate) fn wants_to_connect(&self, now: Time) -> bool {
        matches!(self.link, Link::Pausing { until } if until <= now) && !self.session.is_over()
    }

    /// Makes endpoint and memory for an attempt, as its bootstrap does, and returns the endpoint's address.
    pub(crate) fn prepare_attempt(&mut self, now: Time, fabric: &mut SimFabric, peer: (u16, u32)) -> EndpointAddress {
        let plan = self.session.plan();
        let (peer_slots, peer_size) = peer;
        let send_slots = plan.send_slots_max.min(peer_slots).max(2);
        let send_size = plan.send_size_max.min(peer_size);
        let config = EndpointConfig {
            domain: self.domain,
            send_depth: u32::from(send_slots) + plan.work_depth,
            receive_depth: u32::from(plan.receive_slots),
            remote_read: plan.remote_read,
        };
        let what = "the simulated device makes what it is asked for";
        let (link, address) = fabric.endpoint(config).expect(what);
        let receive = fabric.local(self.domain, u32::from(plan.receive_slots), plan.receive_size).expect(what);
        let send = fabric.local(self.domain, u32::from(send_slots), send_size).expect(what);
        let channel = ChannelConfig {
            link,
            generation: 0,
            receive,
            receive_slots: plan.receive_slots,
            receive_size: plan.receive_size,
            send,
            send_slots,
            send_size,
            peer_slots,
            peer_size,
        };
        self.attempt += 1;
        self.disturbed = false;
        let give_up = now + Duration::from_millis(50);
        self.link = Link::Connecting { channel, up: false, welcome: None, give_up };
        address
    }

    /// The broker has answered.
    pub(crate) fn welcomed(&mut self, instance: u64, session: u64, generation: u32, offers: u16) {
        let domain = self.domain;
        if let Link::Connecting { channel, welcome, .. } = &mut self.link {
            channel.generation = generation;
            *welcome = Some(Connected { instance, session, channel: *channel, domain, offers });
        }
    }

    /// The attempt has failed, or the stream of the session has ended: closes the endpoint.
    pub(crate) fn hang_up(&mut self, fabric: &mut SimFabric) {
        let (channel, told) = match &self.link {
            Link::Connecting { channel, .. } => (*channel, false),
            Link::Up { connected } => (connected.channel, true),
            _ => return,
        };
        fabric.close(channel.link);
        self.link = Link::Closing { channel, told };
    }

    /// One turn of its driver. Returns whether its session ended in it.
    pub(crate) fn turn(&mut self, now: Now, fabric: &mut SimFabric) -> Result<bool, FabricError> {
        let mut ended = false;
        loop {
            let mut report = Report::default();
            let shared = matches!(self.link, Link::Up { .. } | Link::Closing { told: true, .. });
            let own = self.own_link();
            let mut attended = Attended { session: &mut *self.session, report: &mut report, own, shared };
            let mut work = drive(&mut attended, fabric, now, &mut self.events)?;
            work += self.session.turn(now, fabric);
            if let Link::Connecting { up, .. } = &mut self.link {
                *up |= report.up;
            }
            if report.down {
                ended |= self.down(now, fabric);
            }
            if let Link::Connecting { up: true, welcome: Some(connected), .. } = self.link {
                self.link = Link::Up { connected };
                self.instance = Some(connected.instance);
                self.session.connected(now, &connected, fabric);
                work += 1;
            }
            if matches!(self.link, Link::Connecting { give_up, .. } if give_up <= now.time) {
                self.hang_up(fabric);
                ended = true;
            }
            if self.session.is_over() && matches!(self.link, Link::Up { .. } | Link::Connecting { .. }) {
                self.hang_up(fabric);
                work += 1;
            }
            if work == 0 {
                return Ok(ended);
            }
        }
    }

    /// Its endpoint is gone.
    fn down(&mut self, now: Now, fabric: &mut SimFabric) -> bool {
        let (channel, told) = match &self.link {
            Link::Connecting { channel, .. } => (*channel, false),
            Link::Closing { channel, told } => (*channel, *told),
            Link::Up { connected } => (connected.channel, true),
            Link::Pausing { .. } | Link::Ended => return false,
        };
        for local in [channel.receive, channel.send] {
            fabric.free_local(local).expect("an attempt's memory is freed once");
        }
        self.failures = if told && matches!(self.link, Link::Up { .. }) { 0 } else { self.failures + 1 };
        if told {
            self.session.disconnected(now);
        }
        let pause = (PAUSE * (1 << self.failures.min(6))).min(PAUSE_MAX);
        self.link = if self.session.is_over() { Link::Ended } else { Link::Pausing { until: now.time + pause } };
        true
    }

    /// When it wants another turn.
    pub(crate) fn timeout(&self) -> Option<Time> {
        let own = match self.link {
            Link::Pausing { until } => Some(until),
            Link::Connecting { give_up, .. } => Some(give_up),
            _ => None,
        };
        [own, self.session.timeout(), self.session.wants_turn_at()].into_iter().flatten().min()
    }
}

#[derive(Debug, Default)]
struct Report {
    up: bool,
    down: bool,
}

/// A session's machine, with its driver listening.
struct Attended<'a> {
    session: &'a mut dyn Session,
    report: &'a mut Report,
    own: Option<LinkId>,
    /// Whether the link is the session's, which then hears of its events.
    shared: bool,
}

impl Machine for Attended<'_> {
    fn handle(&mut self, now: Now, event: Event, memory: &mut dyn Memory) {
        let link = match &event {
            Event::Up { link } | Event::Message { link, .. } | Event::Done { link, .. } => *link,
            Event::Down { link, .. } => *link,
            Event::Allocated { .. } => return self.session.handle(now, event, memory),
        };
        if self.own != Some(link) {
            return;
        }
        match event {
            Event::Up { .. } => self.report.up = true,
            Event::Down { .. } => {
                self.report.down = true;
                if self.shared {
                    self.session.handle(now, event, memory);
                }
            }
            event if self.shared => self.session.handle(now, event, memory),
            _ => (),
        }
    }

    fn handle_timeout(&mut self, now: Now, memory: &mut dyn Memory) {
        self.session.handle_timeout(now, memory);
    }

    fn timeout(&self) -> Option<Time> {
        self.session.timeout()
    }

    fn transmit(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        self.session.transmit(now, memory)
    }
}
