//! What clients ask for: topics, subscriptions, releases. Nothing of it is trusted.

use keyway_fabric::{LocalSpan, Memory, Now, Op};
use keyway_schema::bootstrap::Role;
use keyway_schema::limits::{
    CLIENT_NAME_MAX, DEPTH_DEFAULT, DEPTH_MAX, EPOCH_DEFAULT_US, GRACE_DEFAULT_MS, error_text,
};
use keyway_schema::message::{
    EpochSettings, Failed, Offer, OpenTopic, Scope, Start, Subscribe, Subscribed, TopicOpened,
};
use keyway_schema::{Code, ToBroker, ToBrokerRef, ToClient};

use super::hub::Hub;
use super::life::LifeEvent;
use super::log::Position;
use super::notice::Refusal;
use super::session::Session;
use super::subscription::{Around, Subscription};
use super::topic::{Reservation, ReservationState, SubscriptionRef};

/// Grants that a subscription of segment scope holds at once unless it asks otherwise: two segments, each under an old and a
/// new key.
const SEGMENT_DEPTH_DEFAULT: u16 = 4;

/// The fewest grants that each scope works with: in segment scope a key must be replaced before it is released.
const fn depth_min(scope: Scope) -> u16 {
    match scope {
        Scope::Segment => 2,
        Scope::Batch | Scope::Message => 1,
    }
}

/// Whether a message's receive slot is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// It can be posted again.
    Done,
    /// What is in it is still needed.
    Kept,
}

impl Session {
    /// Takes in a message.
    ///
    /// # Errors
    ///
    /// Why the session must end.
    pub(super) fn receive(
        &mut self,
        op: Op,
        span: LocalSpan,
        now: Now,
        hub: &mut Hub,
        memory: &mut dyn Memory,
    ) -> Result<Slot, Refusal> {
        let received = self.channel.receive::<ToBrokerRef<'_>>(memory, span);
        let received = received.map_err(|error| Refusal::new(error.code(), error.to_string()))?;
        let (message, attachment) = (received.message.to_message(), received.attachment);
        match (self.role, message) {
            (_, ToBroker::Credit(_)) => {}
            (_, ToBroker::Goodbye(_)) => self.live(LifeEvent::Leave, hub),
            (Role::Producer, ToBroker::Publish(publish)) => {
                return self.publish(publish.topic, attachment, op, now, hub, memory);
            }
            (Role::Producer, ToBroker::Offer(offer)) => return self.offer(&offer, op, now, hub, memory),
            (Role::Producer, ToBroker::OpenTopic(open)) => {
                let request = open.request;
                let answer = self.open_topic(&open, hub, memory);
                self.answer(request, answer, hub);
            }
            (Role::Consumer, ToBroker::Subscribe(subscribe)) => {
                let request = subscribe.request;
                let answer = self.subscribe(subscribe, now, hub, memory);
                self.answer(request, answer, hub);
            }
            (Role::Consumer, ToBroker::Release(release)) => {
                let (epoch, sequence, pause) = (release.epoch, release.sequence, release.pause);
                self.with(release.subscription, now, hub, memory, |subscription, around| {
                    subscription.release(epoch, sequence, pause, around)
                })?;
            }
            (Role::Consumer, ToBroker::Arm(arm)) => {
                self.with(arm.subscription, now, hub, memory, |subscription, around| {
                    subscription.arm(arm.sequence, around)
                })?;
            }
            (Role::Consumer, ToBroker::Unsubscribe(unsubscribe)) => {
                let number = unsubscribe.subscription;
                self.with(number, now, hub, memory, |subscription, around| {
                    subscription.end(around);
                    Ok(())
                })?;
                if self.subscriptions.get(&number).is_some_and(|subscription| subscription.grants.is_empty()) {
                    self.forget_subscription(number, now.time, hub);
                }
            }
            (role, message) => {
                let text = format!("a {} is not for a {role:?} to send", message.name());
                return Err(Refusal::new(Code::Protocol, text));
            }
        }
        Ok(Slot::Done)
    }

    fn answer(&mut self, request: u32, answer: Result<ToClient, Refusal>, hub: &mut Hub) {
        let message = answer.unwrap_or_else(|refusal| {
            hub.counters.refusals += 1;
            let (code, text) = (refusal.code.number(), error_text(&refusal.text).to_owned());
            Failed { request, subject: 0, code, text }.into()
        });
        self.replies.push_back(message);
    }

    /// Does something with a subscription, and looks after it.
    fn with(
        &mut self,
        number: u32,
        now: Now,
        hub: &mut Hub,
        memory: &dyn Memory,
        act: impl FnOnce(&mut Subscription, &mut Around<'_>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let Some(subscription) = self.subscriptions.get_mut(&number).filter(|subscription| !subscription.is_ended)
        else {
            return Err(Refusal::new(Code::SubscriptionUnknown, format!("this session has no subscription {number}")));
        };
        act(subscription, &mut Around { hub, stock: &mut self.stock, room: 0, now, memory })?;
        self.needs_care(number);
        Ok(())
    }

    // -------------------------------------------------------------------------------------------------- for producers

    fn open_topic(&mut self, open: &OpenTopic, hub: &mut Hub, memory: &mut dyn Memory) -> Result<ToClient, Refusal> {
        refuse_if_stopping(hub)?;
        let number = hub.open_topic(&open.topic, open.settings, memory)?;
        self.take_over(number, open.producer, hub);
        if let Some(before) = self.opened.insert(number, open.producer)
            && before != open.producer
            && let Some(topic) = hub.topic_mut(number)
            && topic.publishers.get(&before) == Some(&self.me)
        {
            topic.publishers.remove(&before);
        }
        let me = self.me;
        let (topic, _) = hub.topic_and_pool(number);
        topic.publishers.insert(open.producer, me);
        let opened = TopicOpened {
            request: open.request,
            topic: number,
            next_sequence: topic.log.next_sequence(),
            record_max: topic.record_max,
            batch_max: topic.batch_max(),
            last_number: topic.producers.last(open.producer),
        };
        Ok(opened.into())
    }

    /// A producer that comes back on a new session ends its old one: what that has offered is given up, what of it waits is
    /// forgotten, so that the number of its last batch is certain.
    fn take_over(&self, number: u32, producer: u64, hub: &mut Hub) {
        let (topic, _) = hub.topic_and_pool(number);
        let Some(other) = topic.publishers.get(&producer).copied().filter(|other| *other != self.me) else { return };
        let reading = |reservation: &Reservation| {
            reservation.producer == producer && matches!(reservation.state, ReservationState::Reading)
        };
        let offered = topic.reservations.iter().position(reading);
        let offered = offered.map(|place| topic.first_ticket + place as u64);
        if let Some(ticket) = offered {
            hub.give_up(number, ticket);
        }
        hub.forget_waiting(number, other);
        let text = format!("producer {producer:#x} has opened topic {number} in a newer session");
        hub.endings.push_back((other, Refusal::new(Code::Protocol, text)));
    }

    // -------------------------------------------------------------------------------------------------- for consumers

    fn subscribe(
        &mut self,
        subscribe: Subscribe,
        _now: Now,
        hub: &mut Hub,
        memory: &mut dyn Memory,
    ) -> Result<ToClient, Refusal> {
        refuse_if_stopping(hub)?;
        if subscribe.name.len() > CLIENT_NAME_MAX {
            let text =
                format!("a name of {} bytes was given, at most {CLIENT_NAME_MAX} are allowed", subscribe.name.len());
            return Err(Refusal::new(Code::Name, text));
        }
        let (open, max) = (self.subscriptions.len(), hub.config.subscriptions_max);
        if open >= max as usize {
            let text = format!("the session has {open} subscriptions, which is the most; end one first");
            return Err(Refusal::new(Code::SubscriptionsExhausted, text));
        }
        let number = self.next_subscription;
        let Some(next_subscription) = number.checked_add(1) else {
            let text = "the session has used up its subscription numbers; open a new one";
            return Err(Refusal::new(Code::SubscriptionsExhausted, text));
        };
        let topic_number = hub.open_topic(&subscribe.topic, None, memory)?;
        let depth = depth_in_force(&subscribe);
        if !self.stock.reserve(depth, hub) {
            let (claimed, max) = (hub.windows_claimed, hub.config.windows_max);
            let text = format!("{claimed} of {max} memory windows are taken, which leaves too few for a subscription");
            return Err(Refusal::new(Code::WindowsExhausted, text));
        }
        self.next_subscription = next_subscription;
        let settings = settings_in_force(subscribe.epoch, hub);
        let topic = hub.known(topic_number);
        let (sequence, start) = beginning(&subscribe.start, topic_number, hub, memory);
        let subscribed = Subscribed {
            request: subscribe.request,
            subscription: number,
            topic: topic_number,
            segment_size: hub.config.segment_size,
            batch_max: topic.batch_max(),
            sequence,
            offset: topic.log.offset(start),
            epoch: settings,
            depth,
        };
        let grant_bytes = if subscribe.grant_bytes == 0 { subscribed.batch_max } else { subscribe.grant_bytes };
        let me = SubscriptionRef { session: self.me, subscription: number };
        let subscription = Subscription::new(
            me,
            self.id,
            topic_number,
            subscribe.name,
            subscribe.scope,
            settings,
            depth,
            grant_bytes,
            sequence,
            start,
        );
        self.subscriptions.insert(number, subscription);
        hub.topic_and_pool(topic_number).0.listeners.all.push(me);
        self.needs_care(number);
        Ok(subscribed.into())
    }
}

fn refuse_if_stopping(hub: &Hub) -> Result<(), Refusal> {
    if hub.stops_at.is_none() {
        return Ok(());
    }
    Err(Refusal::new(Code::ShuttingDown, "the broker is shutting down and opens nothing new"))
}

/// The depth that a subscription gets.
fn depth_in_force(subscribe: &Subscribe) -> u16 {
    let default = match subscribe.scope {
        Scope::Segment => SEGMENT_DEPTH_DEFAULT,
        Scope::Batch | Scope::Message => DEPTH_DEFAULT,
    };
    let asked = if subscribe.depth == 0 { default } else { subscribe.depth };
    asked.clamp(depth_min(subscribe.scope), DEPTH_MAX)
}

/// The epoch settings that a subscription gets.
fn settings_in_force(asked: EpochSettings, hub: &Hub) -> EpochSettings {
    let or = |asked: u32, default: u32| if asked == 0 { default } else { asked };
    EpochSettings {
        interval_us: or(asked.interval_us, EPOCH_DEFAULT_US).max(hub.config.epoch_min_us),
        grace_ms: or(asked.grace_ms, GRACE_DEFAULT_MS).min(hub.config.grace_max_ms),
        ..asked
    }
}

/// The first record of a subscription, and where its batch begins.
fn beginning(start: &Start, topic: u32, hub: &Hub, memory: &dyn Memory) -> (u64, Position) {
    let log = &hub.known(topic).log;
    let position = match *start {
        Start::Latest => log.tail(),
        Start::Earliest => log.oldest(),
        Start::Time(time) => log.find_time(time, &hub.pool, memory),
        Start::Sequence(sequence) => {
            // What is gone is told by `Subscribed.sequence`; what is not there yet begins at the tail.
            let sequence = sequence.clamp(log.oldest().sequence, log.next_sequence());
            return (sequence, log.normalized(log.find(sequence, &hub.pool, memory)));
        }
    };
    let position = log.normalized(position);
    (position.sequence, position)
}

/// The parts of an offer that can be checked before anything is READ.
pub(super) fn check_offer(offer: &Offer) -> Result<(), Refusal> {
    let is_possible = offer.len as usize > keyway_schema::batch::BATCH_HEADER_LEN
        && offer.len.is_multiple_of(8)
        && offer.address.checked_add(u64::from(offer.len)).is_some();
    if is_possible {
        return Ok(());
    }
    let text = format!("{} bytes at {:#x} were offered, which no batch can be", offer.len, offer.address);
    Err(Refusal::new(Code::BatchInvalid, text))
}
