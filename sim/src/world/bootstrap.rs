//! How clients and broker come together: a connection with delay, refusal and loss, and a stream that ends.
//!
//! What is said on that stream is not modelled; what matters to the machines is when each side learns what.

use keyway_broker::core::SessionId;
use keyway_fabric::*;

use super::World;
use crate::NodeId;
use crate::broker::{Broker, Hello, SessionAt, Welcome};
use crate::schedule::Happening;
use std::time::Duration;

impl World {
    /// Begins an attempt to connect, if the client wants one.
    pub(super) fn connect(&mut self, actor: usize) {
        let now = self.net.now();
        let Some(client) = self.actors[actor].client.as_mut().filter(|client| client.wants_to_connect(now)) else {
            return;
        };
        let plan = client.session.plan();
        let fabric = self.net.fabric(client.node);
        let address = client.prepare_attempt(now, fabric, Broker::receives(plan.role, &self.scenario));
        let hello = Hello {
            actor,
            attempt: client.attempt,
            node: client.node,
            role: plan.role,
            receive_slots: plan.receive_slots,
            receive_size: plan.receive_size,
            address,
        };
        let at = SessionAt { actor, attempt: hello.attempt, node: hello.node };
        let (from, to) = (client.node, self.broker.as_ref().map(|broker| broker.node));
        match to.map(|to| self.net.reach(from, to)) {
            Some(Ok(when)) => self.net.schedule.at(when, Happening::Hello(hello)),
            Some(Err(when)) => self.net.schedule.at(when, Happening::StreamEnd { at }),
            None => {
                let when = now + self.net.way();
                self.net.schedule.at(when, Happening::StreamEnd { at });
            }
        }
    }

    pub(super) fn hello(&mut self, hello: Hello) {
        let now = self.now();
        let at = SessionAt { actor: hello.actor, attempt: hello.attempt, node: hello.node };
        let Some(broker) = &mut self.broker else {
            let when = self.net.now() + self.net.way();
            return self.net.schedule.at(when, Happening::StreamEnd { at });
        };
        let node = broker.node;
        if broker.stalled_until > now.time {
            let until = broker.stalled_until;
            return self.net.schedule.at(until, Happening::Hello(hello));
        }
        let welcome = broker.welcome(now, &hello, &self.scenario, self.net.fabric(node));
        self.net.collect(node);
        let session = welcome.as_ref().map(|welcome| welcome.session);
        match self.net.reach(node, hello.node) {
            Ok(when) if self.rng.u32(0..1_000) >= self.scenario.bootstrap_lost => {
                self.net.schedule.at(when, Happening::Welcome { at, broker: node, welcome });
            }
            Ok(when) | Err(when) => {
                // The answer is lost with the stream; both sides learn of it.
                self.net.schedule.at(when, Happening::StreamEnd { at });
                if let Some(session) = session {
                    self.net.schedule.at(when, Happening::StreamLost { broker: node, session });
                }
            }
        }
        self.want_turn(node, Duration::ZERO);
    }

    pub(super) fn is_present(&self, at: SessionAt) -> bool {
        let client = self.actors[at.actor].client.as_ref();
        client.is_some_and(|client| client.node == at.node && client.attempt == at.attempt)
    }

    pub(super) fn welcome(&mut self, at: SessionAt, broker: NodeId, welcome: Option<Welcome>) {
        if !self.is_present(at) {
            if let Some(welcome) = welcome {
                self.net.schedule.at(self.net.now(), Happening::StreamLost { broker, session: welcome.session });
            }
            return;
        }
        let Some(welcome) = welcome else { return self.stream_end(at) };
        self.actors[at.actor].stream = Some((broker, welcome.session));
        let client = self.actors[at.actor].client.as_mut().expect("it is present");
        let Some(link) = client.own_link() else { return self.drop_stream(at.actor) };
        let fabric = self.net.fabric(at.node);
        fabric.connect(link, &welcome.address).expect("the attempt's endpoint exists");
        client.welcomed(welcome.instance, welcome.session, welcome.generation, welcome.offers);
        self.net.collect(at.node);
        self.want_turn(at.node, Duration::ZERO);
    }

    /// A client's session or attempt is over: its stream ends, and the broker learns of that.
    pub(super) fn drop_stream(&mut self, actor: usize) {
        let Some((broker, session)) = self.actors[actor].stream.take() else { return };
        let when = self.net.now() + self.net.way();
        self.net.schedule.at(when, Happening::StreamLost { broker, session });
    }

    /// The broker's end of a stream is closed: the client learns of it, however late.
    pub(super) fn end_stream(&mut self, broker: NodeId, at: SessionAt) {
        let (Ok(when) | Err(when)) = self.net.reach(broker, at.node);
        self.net.schedule.at(when, Happening::StreamEnd { at });
    }

    pub(super) fn stream_lost(&mut self, node: NodeId, session: u64) {
        let now = self.now();
        let Some(broker) = self.broker.as_mut().filter(|broker| broker.node == node) else { return };
        broker.core.session_lost(now, SessionId(session));
        self.want_turn(node, Duration::ZERO);
    }

    pub(super) fn stream_end(&mut self, at: SessionAt) {
        if !self.is_present(at) {
            return;
        }
        self.actors[at.actor].stream = None;
        let client = self.actors[at.actor].client.as_mut().expect("it is present");
        client.hang_up(self.net.fabric(at.node));
        self.net.collect(at.node);
        self.want_turn(at.node, Duration::ZERO);
    }
}
