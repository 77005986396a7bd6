//! What a producer says to the broker, and in which order.

use keyway_client::Error;
use keyway_fabric::{Memory, Now, Transmit};
use keyway_schema::message::{Goodbye, Offer, OpenTopic, Publish};
use keyway_schema::{Code, ToBroker};

use super::{Bound, OPEN_TIMEOUT, Outcome, ProducerMachine, State};
use crate::flight::Flight;

impl ProducerMachine {
    /// Writes the next messages into the channel, or returns a bind that must come first.
    pub(super) fn fill(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        let session = self.session.as_mut()?;
        loop {
            if session.channel.room() == 0 {
                return None;
            }
            match session.state {
                State::ToOpen => {
                    self.requests += 1;
                    let message = ToBroker::from(OpenTopic {
                        request: self.requests,
                        topic: self.config.topic.to_string(),
                        settings: self.config.settings,
                        producer: self.config.producer,
                    });
                    session.state = State::ExpectOpened { request: self.requests, until: now.time + OPEN_TIMEOUT };
                    session.channel.send(memory, &message).expect("a request with the longest topic name fits a slot");
                }
                State::Open { topic } => {
                    if let Some(bound) = session.bound.take() {
                        let message = ToBroker::from(Offer {
                            topic,
                            number: bound.number,
                            address: memory.address(bound.span),
                            len: bound.span.len as u32,
                            key: memory.key(bound.window).0,
                        });
                        session.channel.send(memory, &message).expect("an offer fits a slot");
                        continue;
                    }
                    let limits = self.limits?;
                    match self.flights.next_len() {
                        // A broker that stops waits for its sessions to end.
                        None if (self.leaving || self.shutting_down)
                            && self.flights.len() == 0
                            && self.offers.is_idle() =>
                        {
                            session.channel.send(memory, &ToBroker::from(Goodbye {})).expect("a goodbye fits a slot");
                            session.state = State::Left;
                        }
                        None => return None,
                        Some(len) if len as u64 > u64::from(limits.batch_max) => {
                            // The topic is another one than when the batch was built.
                            let text = format!("the batch has {len} bytes, the topic takes {}", limits.batch_max);
                            let cause = Error::refused("a batch", Code::BatchTooLarge.number(), text);
                            let flight = self.flights.drop_next().expect("there is a next batch");
                            let Flight { ticket, bytes, .. } = flight;
                            self.outcomes.push_back(Outcome { ticket, result: Err(cause), bytes });
                        }
                        Some(len) if len as u64 <= u64::from(limits.publish_max) => {
                            let flight = self.flights.next(topic, self.config.producer).expect("there is a next batch");
                            let message = ToBroker::from(Publish { topic });
                            let sent = session.channel.send_with(memory, &message, len, |to| {
                                to.copy_from_slice(&flight.bytes);
                            });
                            sent.expect("a batch up to publish_max fits a slot");
                            self.counts.retries += u64::from(self.flights.mark_sent());
                        }
                        Some(len) => {
                            let ready = self.offers.ready(len as u64, session.offers_max, session.domain)?;
                            let flight = self.flights.next(topic, self.config.producer).expect("there is a next batch");
                            memory.write(ready.span, &flight.bytes);
                            let number = flight.number;
                            let (bind, window) = self.offers.bind(session.channel.link(), ready, number);
                            session.bound = Some(Bound { window, span: ready.span, number });
                            self.counts.offers += 1;
                            self.counts.retries += u64::from(self.flights.mark_sent());
                            return Some(bind);
                        }
                    }
                }
                State::ExpectOpened { .. } | State::Left | State::ToClose | State::ExpectDown => return None,
            }
        }
    }
}
