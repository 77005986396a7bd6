//! Somebody who must not notice what others do.

use keyway::Scope;
use keyway_schema::message::Release;

use super::raw::{RawSession, Way, granted, subscription};

/// Somebody who publishes and reads all the while, and must not notice anything.
pub(crate) struct Bystander {
    producer: RawSession,
    consumer: RawSession,
    topic: u32,
    subscription: u32,
    number: u64,
}

impl Bystander {
    pub(crate) fn start(way: &Way) -> Self {
        let mut producer = RawSession::producer(way);
        let topic = producer.open_topic("bystander", 1).topic;
        let mut consumer = RawSession::consumer(way);
        let subscribed = consumer.subscribe(subscription("bystander", Scope::Message, 1_000_000, 8));
        Self { producer, consumer, topic, subscription: subscribed.subscription, number: 0 }
    }

    /// One record from the producer to the consumer.
    pub(crate) fn exchange(&mut self) {
        self.number += 1;
        let payload = self.number.to_le_bytes();
        self.producer.commit(self.topic, 1, self.number, &[&payload]);
        let grant = self.consumer.receive_grant();
        let bytes = self.consumer.read(granted(&grant)).expect("the bystander's key is live");
        assert_eq!(bytes[8..16], payload);
        let sequence = grant.sequence + 1;
        self.consumer.send(Release { subscription: self.subscription, epoch: grant.epoch, sequence, pause: false });
    }
}
