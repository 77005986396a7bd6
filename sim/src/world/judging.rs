//! What the judges are shown after every step.

use keyway_fabric::*;
use keyway_schema::message::Subscribed;
use keyway_schema::{ToBrokerRef, ToClient, ToClientRef};
use rkyv::util::AlignedVec;

use super::World;
use crate::Place;
use crate::device::Deed;
use crate::oracle::{Invariant, Verdict, broken, cross_check};
use crate::trace::Note;

impl World {
    /// Shows the judges what the last step did.
    pub(super) fn judge(&mut self) -> Verdict {
        let now = self.net.now();
        if let Some(broker) = &self.broker {
            let (node, instance) = (broker.node, broker.instance());
            for deed in std::mem::take(&mut self.net.fabric(node).deeds) {
                match deed {
                    Deed::Bound { window, key, span } => self.keys.bound(now, window, key, span)?,
                    Deed::Ended { key } => self.keys.ended(now, key),
                    Deed::Wrote { span, bytes } => self.log.wrote(span.offset, &bytes, &self.keys)?,
                    Deed::Stored { offset, word } => self.log.stored(offset, word, &self.keys)?,
                    Deed::Sent { link, bytes } => self.judge_sent(now, instance, link, &bytes)?,
                }
            }
        }
        for delivered in std::mem::take(&mut self.net.delivered) {
            self.judge_delivered(delivered.from, delivered.to, &delivered.bytes)?;
        }
        let broker = self.broker.as_ref().map(|broker| broker.node);
        for read in std::mem::take(&mut self.net.reads) {
            if Some(read.owner) == broker {
                self.figures.reads += 1;
                self.keys.read(read.key, read.span, &self.log)?;
            }
        }
        for refused in std::mem::take(&mut self.net.refused) {
            self.figures.refused += 1;
            let Some(client) = self.client_at(refused.reader.node) else { continue };
            let present = client.connected().is_some_and(|connected| connected.channel.link == refused.reader.link);
            if client.good && !client.disturbed && present {
                let text = format!("client {} keeps the protocol and was refused under {}", client.actor, refused.key);
                return broken(Invariant::I7, text);
            }
        }
        Ok(())
    }

    /// A message that the broker posted.
    pub(super) fn judge_sent(&mut self, now: Time, instance: u64, link: LinkId, bytes: &[u8]) -> Verdict {
        match decode(bytes) {
            Some(ToClient::Subscribed(subscribed)) => {
                self.keys.subscribed(link, &subscribed);
                self.wakes.subscribed(link, subscribed.subscription, subscribed.topic);
            }
            Some(ToClient::Grant(grant)) => {
                self.wakes.told(link, grant.subscription);
                self.keys.granted(now, link, &grant, &self.log)?;
            }
            Some(ToClient::Wake(wake)) => self.wakes.told(link, wake.subscription),
            Some(ToClient::Revoked(revoked)) => self.wakes.told(link, revoked.subscription),
            Some(ToClient::Lagged(lagged)) => self.wakes.told(link, lagged.subscription),
            Some(ToClient::Failed(_)) => self.wakes.ended(link),
            Some(ToClient::Committed(committed)) => {
                for commit in &committed.commits {
                    self.log.receipted(instance, committed.topic, commit)?;
                }
            }
            _ => (),
        }
        Ok(())
    }

    /// A message that has arrived.
    pub(super) fn judge_delivered(&mut self, from: Place, to: Place, bytes: &[u8]) -> Verdict {
        let Some(broker) = &self.broker else { return Ok(()) };
        let (node, instance) = (broker.node, broker.instance());
        if to.node == node {
            self.judge_request(from, to, bytes);
            return Ok(());
        }
        let Some(message) = decode(bytes).filter(|_| from.node == node) else { return Ok(()) };
        let (now, name, detail) = (self.net.now(), message.name(), format!("{message:?}"));
        self.net.trace.note(now, Note::Message { from: from.node, to: to.node, name, detail });
        match (message, self.actor_at(to.node)) {
            (ToClient::Grant(grant), _) => self.keys.arrived(&grant),
            (ToClient::TopicOpened(opened), Some(actor)) => {
                self.actors[actor].topic = Some(opened.topic);
                Ok(())
            }
            (ToClient::Subscribed(subscribed), Some(actor)) => self.judge_subscribed(actor, instance, &subscribed),
            _ => Ok(()),
        }
    }

    pub(super) fn judge_subscribed(&mut self, actor: usize, instance: u64, subscribed: &Subscribed) -> Verdict {
        let state = &mut self.actors[actor];
        state.topic = Some(subscribed.topic);
        let latest = self.log.earliest_max(instance, subscribed.topic);
        if self.stopping && actor >= self.people && subscribed.sequence > latest {
            let text = format!("the log begins at {latest} at the latest, its reader was told {subscribed:?}");
            return broken(Invariant::I8, text);
        }
        self.readers.subscribed(state.reader, instance, subscribed.topic, subscribed.sequence);
        Ok(())
    }

    /// A message that has reached the broker.
    pub(super) fn judge_request(&mut self, from: Place, to: Place, bytes: &[u8]) {
        let mut aligned = AlignedVec::<16>::with_capacity(bytes.len());
        aligned.extend_from_slice(bytes);
        let (name, detail) = match ToBrokerRef::decode(&aligned) {
            Ok((_, message)) => {
                match &message {
                    ToBrokerRef::Arm(arm) => {
                        let (subscription, sequence) = (arm.subscription.to_native(), arm.sequence.to_native());
                        self.wakes.armed(to.link, subscription, from.node, sequence);
                    }
                    ToBrokerRef::Release(release) if release.pause => {
                        self.wakes.told(to.link, release.subscription.to_native());
                    }
                    ToBrokerRef::Unsubscribe(_) | ToBrokerRef::Goodbye(_) => self.wakes.ended(to.link),
                    _ => (),
                }
                (message.name(), format!("{message:?}"))
            }
            Err(error) => {
                self.wakes.ended(to.link);
                ("garbage", error.to_string())
            }
        };
        let now = self.net.now();
        self.net.trace.note(now, Note::Message { from: from.node, to: to.node, name, detail });
    }

    /// Looks at the broker after its turn.
    pub(super) fn judge_broker(&mut self) -> Verdict {
        let Some(broker) = &self.broker else { return Ok(()) };
        let Some(fabric) = self.net.alive(broker.node) else { return Ok(()) };
        let now = self.net.now();
        let lenient = self.scenario.mix == crate::Mix::Exhaustion;
        let actors = &self.actors;
        let judged = |link, node| {
            let clients = actors.iter().filter_map(|actor| actor.client.as_ref());
            let client = clients.into_iter().find(|client| client.node == node);
            let steady = client.is_some_and(|client| client.good && !client.disturbed && client.connected().is_some());
            steady && !lenient && fabric.links().contains(&link)
        };
        self.wakes.turned(now, broker.instance(), &self.log, judged)?;
        let verdict = self.keys.turned(now, |window| fabric.is_busy(window));
        verdict.and_then(|()| cross_check(&broker.core, &self.keys)).map_err(|mut failure| {
            let windows: Vec<_> = broker.core.windows().collect();
            failure.text +=
                &format!("\nthe core wants to be called at {:?} and knows {windows:#?}", broker.core.timeout());
            failure
        })
    }
}

/// A message of the broker, if the judges care for it.
fn decode(bytes: &[u8]) -> Option<ToClient> {
    let mut aligned = AlignedVec::<16>::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    let (_, message) = ToClientRef::decode(&aligned).ok()?;
    Some(message.to_message())
}
