//! The real producer and consumer machines, as the world's clients.

mod consumer;
mod producer;

use keyway_client::Connected;

use crate::scenario::{ConsumerPart, ProducerPart, Scenario};
use crate::session::{self, Session};

use consumer::MachineConsumer;
use producer::MachineProducer;

/// A producer that is the real machine, and whether it keeps the protocol.
pub(crate) fn producer(part: &ProducerPart, scenario: &Scenario, rng: fastrand::Rng) -> (Box<dyn Session>, bool) {
    (Box::new(MachineProducer::new(part, scenario, rng)), true)
}

/// A consumer that is the real machine, and whether it keeps the protocol.
pub(crate) fn consumer(part: &ConsumerPart, rng: fastrand::Rng) -> (Box<dyn Session>, bool) {
    (Box::new(MachineConsumer::new(part, rng)), true)
}

/// The session as the real roles are told of it.
fn connected(connected: &session::Connected) -> Connected {
    let session::Connected { instance, session, channel, domain, offers } = *connected;
    Connected { instance, session, channel, domain, offers }
}
