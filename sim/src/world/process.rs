//! The processes of a world: when they get the processor, how they start, die, are stalled and cut off.

use std::time::Duration;

use keyway_broker::core::SegmentState;
use keyway_fabric::*;

use super::{Part, World};
use crate::broker::{Broker, SessionAt};
use crate::client::Client;
use crate::device::{DeviceTraits, SimFabric};
use crate::oracle::{Failure, Invariant, KeyBook, Verdict, WakeBook, broken};
use crate::payload::Mark;
use crate::puppet::{Manners, PuppetConsumer, PuppetProducer};
use crate::scenario::{Disturbance, Scenario};
use crate::schedule::Happening;
use crate::session::Session;
use crate::trace::Note;
use crate::{NodeId, machines};

impl World {
    /// Wants a node to get the processor, after the usual wait.
    pub(super) fn want_turn(&mut self, node: NodeId, after: Duration) {
        let most = self.scenario.turn_delay.as_nanos() as u64;
        let at = self.net.now() + after + Duration::from_nanos(self.rng.u64(0..=most));
        let stalled = match &self.broker {
            Some(broker) if broker.node == node => broker.stalled_until,
            _ => self.client_at(node).map_or(Time::ZERO, |client| client.stalled_until),
        };
        let at = at.max(stalled);
        if self.turn_at.get(&node).is_none_or(|planned| at < *planned) {
            self.turn_at.insert(node, at);
            self.net.schedule.at(at, Happening::Turn { node });
        }
    }

    pub(super) fn client_at(&self, node: NodeId) -> Option<&Client> {
        self.actors.iter().filter_map(|actor| actor.client.as_ref()).find(|client| client.node == node)
    }

    pub(super) fn actor_at(&self, node: NodeId) -> Option<usize> {
        self.actors.iter().position(|actor| actor.client.as_ref().is_some_and(|client| client.node == node))
    }

    /// Gives a turn to every node for which something has happened.
    pub(super) fn wake(&mut self) {
        let soon = self.net.now() + self.scenario.turn_delay;
        let waits = |fabric: &&SimFabric| {
            fabric.has_events() && self.turn_at.get(&fabric.node).is_none_or(|planned| *planned > soon)
        };
        let nodes: Vec<NodeId> = self.net.nodes().filter(waits).map(|fabric| fabric.node).collect();
        for node in nodes {
            self.want_turn(node, Duration::ZERO);
        }
    }

    pub(super) fn turn(&mut self, node: NodeId) -> Result<Option<NodeId>, Failure> {
        if self.net.alive(node).is_none() || self.turn_at.get(&node) != Some(&self.net.now()) {
            return Ok(None);
        }
        // A stall that began after the turn was planned.
        let stalled = match &self.broker {
            Some(broker) if broker.node == node => broker.stalled_until,
            _ => self.client_at(node).map_or(Time::ZERO, |client| client.stalled_until),
        };
        self.turn_at.remove(&node);
        if stalled > self.net.now() {
            self.want_turn(node, Duration::ZERO);
            return Ok(None);
        }
        if self.broker.as_ref().is_some_and(|broker| broker.node == node) {
            self.broker_turn()?;
        } else if let Some(actor) = self.actor_at(node) {
            self.client_turn(actor)?;
        }
        self.net.collect(node);
        Ok(Some(node))
    }

    pub(super) fn broker_turn(&mut self) -> Verdict {
        let now = self.now();
        let Some(broker) = &mut self.broker else { return Ok(()) };
        let closed = match broker.turn(now, self.net.fabric(broker.node)) {
            Ok(closed) => closed,
            Err(error) => return broken(Invariant::Machine, format!("the broker's fabric refused its work: {error}")),
        };
        let (node, timeout) = (broker.node, broker.core.timeout());
        if !broker.core.segments().any(|segment| segment.state == SegmentState::Free) {
            self.log.exhausted();
        }
        for segment in broker.core.segments() {
            if let SegmentState::Live { topic, number } = segment.state {
                self.log.reserved(broker.instance(), topic, number);
            }
        }
        for (_, at) in closed {
            self.end_stream(node, at);
        }
        if let Some(at) = timeout.filter(|at| *at != Time::NEVER) {
            self.want_turn(node, at.since(now.time).max(Duration::from_nanos(1)));
        }
        Ok(())
    }

    pub(super) fn client_turn(&mut self, actor: usize) -> Verdict {
        let now = self.now();
        let state = &mut self.actors[actor];
        let Some(client) = &mut state.client else { return Ok(()) };
        let node = client.node;
        let before = client.instance;
        let ended = match client.turn(now, self.net.fabric(node)) {
            Ok(ended) => ended,
            Err(error) => {
                return broken(Invariant::Machine, format!("the fabric of client {actor} refused its work: {error}"));
            }
        };
        // What it got may have come right before its session ended.
        let instance = before.or(client.instance);
        let topic = state.topic;
        for receipt in client.session.receipts() {
            let Some((instance, topic)) = instance.zip(topic) else {
                return broken(Invariant::I8, format!("producer {actor} has {receipt:?} without a session"));
            };
            self.readers.receipted(instance, topic, &receipt, &self.log)?;
        }
        let state = &mut self.actors[actor];
        let Some(client) = &mut state.client else { return Ok(()) };
        for delivery in client.session.deliveries() {
            let instance = client.instance.unwrap_or_default();
            self.readers.got(state.reader, (instance, state.topic), &delivery, &self.log)?;
        }
        if ended {
            state.topic = None;
            self.drop_stream(actor);
        }
        self.connect(actor);
        let Some(client) = &self.actors[actor].client else { return Ok(()) };
        if let Some(at) = client.timeout().filter(|at| *at != Time::NEVER) {
            self.want_turn(node, at.since(now.time).max(Duration::from_nanos(1)));
        }
        Ok(())
    }

    pub(super) fn start(&mut self, actor: usize) {
        self.ids += 1;
        let id = self.ids;
        let traits = DeviceTraits { windows_max: 1_024, ..self.scenario.device };
        let node = self.net.add(|node, rng| SimFabric::new(node, traits, rng));
        let rng = self.rng.fork();
        let state = &mut self.actors[actor];
        state.author = id;
        state.next_record = 0;
        state.reader = id as usize;
        state.topic = None;
        state.processes += 1;
        let (mut session, good) = make_session(&state.part, &self.scenario, rng);
        let fabric = self.net.fabric(node);
        let domain = fabric.domain().expect("the simulated device makes what it is asked for");
        session.prepare(domain, fabric);
        state.client = Some(Client::new(actor, node, domain, session, good));
        self.want_turn(node, Duration::ZERO);
    }

    pub(super) fn kill(&mut self, actor: usize, back_after: Duration) {
        let Some(client) = self.actors[actor].client.take() else { return };
        self.net.trace.note(self.net.schedule.now, Note::Text { node: client.node, text: "killed".into() });
        self.drop_stream(actor);
        self.net.kill(client.node);
        self.net.schedule.at(self.net.now() + back_after, Happening::Start { actor });
    }

    pub(super) fn publish(&mut self, actor: usize) {
        if self.stopping {
            return;
        }
        let now = self.now();
        let state = &mut self.actors[actor];
        let Part::Producer(part) = &state.part else { return };
        let mean = part.pause.as_nanos() as u64;
        let pause = Duration::from_nanos(self.rng.u64(0..=2 * mean));
        if let Some(client) = state.client.as_mut().filter(|client| client.stalled_until <= now.time) {
            let mark = Mark { author: state.author, number: state.next_record };
            let len = self.rng.usize(0..part.record_max);
            if client.session.publish(now, mark, &mark.payload(len)) {
                state.next_record += 1;
            }
            let node = client.node;
            self.want_turn(node, Duration::ZERO);
        }
        self.net.schedule.at(self.net.now() + pause, Happening::Publish { actor });
    }

    pub(super) fn start_broker(&mut self) {
        let scenario = &self.scenario;
        let traits = scenario.device;
        let node = self.net.add(|node, rng| SimFabric::new(node, traits, rng));
        let instance = self.rng.u64(1..);
        let broker = Broker::new(node, instance, scenario, self.net.fabric(node));
        let fabric = self.net.fabric(node);
        let base = fabric.address(SharedSpan { shared: broker.pool, offset: 0, len: 0 });
        self.keys = KeyBook::new(scenario.quarantine, traits.bounds_enforced, base);
        self.log.restart(scenario.pool_len());
        self.wakes = WakeBook::default();
        self.broker = Some(broker);
        self.figures.brokers += 1;
        self.want_turn(node, Duration::ZERO);
    }

    pub(super) fn restart_broker(&mut self, back_after: Duration) {
        let Some(broker) = self.broker.take() else { return };
        self.figures.grants += self.keys.grants;
        self.net.trace.note(self.net.schedule.now, Note::Text { node: broker.node, text: "broker killed".into() });
        for at in broker.sessions.values() {
            self.end_stream(broker.node, *at);
        }
        self.net.kill(broker.node);
        self.net.schedule.at(self.net.now() + back_after, Happening::StartBroker);
    }

    pub(super) fn disturb(&mut self, disturbance: Disturbance) {
        let now = self.net.now();
        let text = format!("{disturbance:?}");
        self.net.trace.note(now, Note::Text { node: NodeId(u32::MAX), text });
        match disturbance {
            Disturbance::Kill { actor, back_after } => self.kill(actor, back_after),
            Disturbance::Stall { actor, length } => {
                if let Some(client) = &mut self.actors[actor].client {
                    client.stalled_until = now + length;
                    client.disturbed = true;
                }
            }
            Disturbance::Cut { actor, length } => {
                let Some((client, broker)) = self.actors[actor].client.as_mut().zip(self.broker.as_ref()) else {
                    return;
                };
                client.disturbed = true;
                let (a, b) = (client.node, broker.node);
                self.net.cut(a, b, now + length);
            }
            Disturbance::Hangup { actor } => {
                if let Some(client) = &self.actors[actor].client {
                    let at = SessionAt { actor, attempt: client.attempt, node: client.node };
                    self.drop_stream(actor);
                    self.stream_end(at);
                }
            }
            Disturbance::Restart { back_after } => self.restart_broker(back_after),
            Disturbance::StallBroker { length } => {
                if let Some(broker) = &mut self.broker {
                    broker.stalled_until = now + length;
                }
                for client in self.actors.iter_mut().filter_map(|actor| actor.client.as_mut()) {
                    client.disturbed = true;
                }
            }
            Disturbance::Jump { nanoseconds } => self.wall_jump = nanoseconds,
        }
    }
}

/// A part's client, and whether it keeps the protocol.
fn make_session(part: &Part, scenario: &Scenario, rng: fastrand::Rng) -> (Box<dyn Session>, bool) {
    match part {
        Part::Producer(part) if part.puppet => {
            let batch_max = keyway_schema::record::batch_max(scenario.record_max) as usize;
            let sizes = (batch_max, scenario.slot);
            let producer = PuppetProducer::new(part.topic.clone(), None, sizes, part.manners, rng);
            (Box::new(producer), part.manners == Manners::Good)
        }
        Part::Producer(part) => machines::producer(part, scenario, rng),
        Part::Consumer(part) if part.puppet => {
            let good = match part.manners {
                Manners::Good => true,
                Manners::Late { percent } => percent <= 50,
                _ => false,
            };
            (Box::new(PuppetConsumer::new(part.wish.clone(), part.manners, rng)), good)
        }
        Part::Consumer(part) => machines::consumer(part, rng),
    }
}
