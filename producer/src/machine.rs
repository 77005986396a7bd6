//! The producer as a pure state machine.
//!
//! It opens the topic in every session, sends batches in the order in which it took them on, each in a slot (`Publish`) or, if it is
//! too large for one, lent through a window (`Offer`), and answers each with one [`Outcome`]: committed, or failed for good.
//! A lost session is no failure: what is not answered is sent again in the next one, and the broker tells from the numbers
//! what it has already.
//!
//! Whoever drives it gives it batches only while it has [`room`](ProducerMachine::room), allocates the memory that it
//! [wants](ProducerMachine::offer_memory_wanted), and takes the outcomes. Records, futures and threads are none of its business.

use std::collections::VecDeque;
use std::time::Duration;

use keyway_channel::{Channel, Received};
use keyway_client::{Connected, Error};
use keyway_fabric::{Event, LinkId, LocalSpan, Machine, Memory, Now, Op, Outcome as Finished, Time, Transmit};
use keyway_schema::message::{ArchivedFailed, ArchivedTopicOpened, Goodbye, Offer, OpenTopic, Publish, TopicSettings};
use keyway_schema::{Code, ToBroker, ToClientRef, TopicName};

use crate::flight::{Flight, Flights};
use crate::offer::Offers;

pub use crate::flight::Ticket;
pub use crate::offer::OfferMemory;

/// The most batches that are not answered yet. The broker remembers the commits of at least as many, so that each can be
/// answered again after a reconnect.
pub const IN_FLIGHT_MAX: usize = 64;

/// The most batches that are offered at once. More hardly help: the broker READs one after the other into the ring.
pub const OFFERS_MAX: u16 = 4;

/// How long the broker may take to open the topic before the session is given up.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// What a producer machine is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerConfig {
    /// The topic.
    pub topic: TopicName,
    /// The settings to create it with.
    pub settings: Option<TopicSettings>,
    /// The number that the producer goes by for its life: chosen at random.
    pub producer: u64,
    /// The broker's address, for messages.
    pub server: String,
    /// The most memory for offers, beyond the one slot that a producer of large records cannot do without.
    pub offer_memory: u64,
}

/// What has become of a batch.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which.
    pub ticket: Ticket,
    /// The sequence of its first record and when it was committed, in nanoseconds since 1970; or why it never will be.
    pub result: Result<(u64, u64), Error>,
    /// Its bytes, for the next batch to be built in.
    pub bytes: Vec<u8>,
}

/// What an open topic takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest record, in bytes of key, headers and payload.
    pub record_max: u32,
    /// The largest batch, header included.
    pub batch_max: u32,
    /// The largest batch that fits a slot; larger ones are offered.
    pub publish_max: u32,
}

/// Figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches committed.
    pub batches: u64,
    /// Batches offered through a window.
    pub offers: u64,
    /// Batches sent again after a session was lost.
    pub retries: u64,
    /// Sessions in which the topic was opened, beyond the first.
    pub reconnects: u64,
}

/// The machine.
#[derive(Debug)]
pub struct ProducerMachine {
    config: ProducerConfig,
    session: Option<Session>,
    flights: Flights,
    offers: Offers,
    outcomes: VecDeque<Outcome>,
    limits: Option<Limits>,
    instance: Option<u64>,
    requests: u32,
    /// The batch refusal that ended the last session: the first batch that the broker does not have is to blame.
    blame: Option<Error>,
    /// Why the machine closed the session itself.
    reason: Option<Error>,
    /// A refusal that no other session will change.
    fatal: Option<Error>,
    shutting_down: bool,
    leaving: bool,
    counts: Counts,
}

#[derive(Debug)]
struct Session {
    channel: Channel,
    instance: u64,
    domain: keyway_fabric::DomainId,
    offers_max: u16,
    state: State,
    /// A batch whose bind is posted: its `Offer` goes out before anything else.
    bound: Option<Bound>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    window: keyway_fabric::WindowId,
    span: keyway_fabric::SharedSpan,
    number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The request is to be sent.
    ToOpen,
    ExpectOpened {
        request: u32,
        until: Time,
    },
    Open {
        topic: u32,
    },
    /// `Goodbye` was sent.
    Left,
    /// The link is to be closed.
    ToClose,
    ExpectDown,
}

impl ProducerMachine {
    /// A machine without a session.
    pub fn new(config: ProducerConfig) -> Self {
        Self {
            config,
            session: None,
            flights: Flights::default(),
            offers: Offers::default(),
            outcomes: VecDeque::new(),
            limits: None,
            instance: None,
            requests: 0,
            blame: None,
            reason: None,
            fatal: None,
            shutting_down: false,
            leaving: false,
            counts: Counts::default(),
        }
    }

    /// A session exists: the topic is opened in it.
    pub fn connected(&mut self, connected: &Connected) {
        self.session = Some(Session {
            channel: Channel::new(connected.channel),
            instance: connected.instance,
            domain: connected.domain,
            offers_max: connected.offers.min(OFFERS_MAX),
            state: State::ToOpen,
            bound: None,
        });
        self.reason = None;
    }

    /// Why the machine closed its last session itself, if it did.
    pub fn take_reason(&mut self) -> Option<Error> {
        self.reason.take()
    }

    /// The refusal that no other session will change, if there was one.
    pub fn fatal(&self) -> Option<&Error> {
        self.fatal.as_ref()
    }

    /// What the topic takes, as of the last time it was opened.
    pub fn limits(&self) -> Option<Limits> {
        self.limits
    }

    /// Whether the topic is open in the present session.
    pub fn is_open(&self) -> bool {
        matches!(self.session, Some(Session { state: State::Open { .. }, .. }))
    }

    /// Whether the broker is about to stop.
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }

    /// Whether it would send a batch at once, so that waiting for more records is of no use.
    pub fn room(&self) -> bool {
        let Some(session) = self.session.as_ref().filter(|_| self.is_open()) else { return false };
        // One that waits for an offer's slot holds up what is behind it.
        let held_up = session.bound.is_some() || self.next_is_offer();
        let unsent = self.flights.unsent();
        // A broker that is about to stop takes nothing new: what waits is for the next one.
        let takes = !self.leaving && !self.shutting_down;
        takes && !held_up && self.flights.len() < IN_FLIGHT_MAX && unsent < session.channel.room()
    }

    fn next_is_offer(&self) -> bool {
        let publish_max = self.limits.map_or(0, |limits| limits.publish_max as usize);
        self.flights.next_len().is_some_and(|len| len > publish_max)
    }

    /// Takes on a batch: a header's room and behind it the encoded records. It is sealed when it is sent.
    pub fn submit(&mut self, bytes: Vec<u8>, records: u32) -> Ticket {
        self.flights.push(bytes, records)
    }

    /// The next outcome. Each batch has one, in no particular order when some fail.
    pub fn poll_outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// Batches taken on and not answered.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Figures.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The shape of the memory that it needs for the batch that is next: how many slots of which length. To be answered
    /// with [`lend`](Self::lend); memory lent before may be freed then.
    pub fn offer_memory_wanted(&self) -> Option<(u32, u64)> {
        let session = self.session.as_ref()?;
        let limits = self.limits?;
        let len = self.flights.next_len()? as u64;
        if len <= u64::from(limits.publish_max) || len <= self.offers.len_max() || !self.offers.is_idle() {
            return None;
        }
        // Windows are bound to whole pages at no more cost, and batches of neighbours share none.
        let slot_len = u64::from(limits.batch_max).next_multiple_of(4096);
        let slots = (self.config.offer_memory / slot_len).clamp(1, session.offers_max.max(1).into());
        Some((slots as u32, slot_len))
    }

    /// Gives it memory for offers.
    pub fn lend(&mut self, memory: OfferMemory) {
        self.offers.lend(memory);
    }

    /// The memory for offers could not be had: the batch that needed it fails.
    pub fn lend_nothing(&mut self, cause: Error) {
        if let Some(flight) = self.flights.drop_next() {
            self.fail_batch(flight, cause);
        }
    }

    /// Leaves the session once everything is answered.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// Whether everything is answered and, if there is a session, the broker was told goodbye.
    pub fn has_left(&self) -> bool {
        let told = self.session.as_ref().is_none_or(|session| match session.state {
            State::Left => session.channel.is_drained(),
            State::Open { .. } => false,
            // There is nothing to say goodbye to.
            _ => true,
        });
        self.leaving && self.flights.len() == 0 && told
    }

    /// Gives up everything that is not answered.
    pub fn abandon(&mut self, cause: &Error) {
        self.outcomes.extend(self.flights.drain().map(|Flight { ticket, bytes, .. }| Outcome {
            ticket,
            result: Err(cause.clone()),
            bytes,
        }));
    }

    fn fail_batch(&mut self, flight: Flight, cause: Error) {
        self.outcomes.push_back(Outcome { ticket: flight.ticket, result: Err(cause), bytes: flight.bytes });
    }

    /// Ends the session; another one may follow.
    fn close(&mut self, reason: Error) {
        let Some(session) = &mut self.session else { return };
        if !matches!(session.state, State::ToClose | State::ExpectDown) {
            session.state = State::ToClose;
            self.reason = Some(reason);
        }
    }

    fn broke(&mut self, what: String) {
        let server = self.config.server.clone();
        self.close(Error::Lost { server, reason: format!("the broker broke the protocol: {what}") });
    }

    fn message(&mut self, op: Op, span: LocalSpan, memory: &dyn Memory) {
        let Some(session) = &mut self.session else { return };
        session.channel.repost(op);
        if matches!(session.state, State::ToClose | State::ExpectDown) {
            return;
        }
        let received: Received<ToClientRef<'_>> = match session.channel.receive(memory, span) {
            Ok(received) => received,
            Err(error) => return self.broke(error.to_string()),
        };
        match received.message {
            ToClientRef::Credit(_) => {}
            ToClientRef::TopicOpened(opened) => self.opened(opened),
            ToClientRef::Committed(committed) => {
                let topic = committed.topic.to_native();
                for commit in committed.commits.iter().map(|commit| commit.to_native()) {
                    self.committed(topic, commit.number, (commit.base_sequence, commit.time));
                }
            }
            ToClientRef::Withdraw(withdraw) => self.offers.ended(withdraw.number.to_native()),
            ToClientRef::Failed(failed) => self.failed(failed),
            ToClientRef::ShuttingDown(_) => self.shutting_down = true,
            other => self.broke(format!("a {} came to a producer", other.name())),
        }
    }

    fn opened(&mut self, opened: &ArchivedTopicOpened) {
        let Some(session) = &mut self.session else { return };
        let State::ExpectOpened { request, .. } = session.state else {
            return self.broke("a topic was opened that was not asked for".into());
        };
        if opened.request.to_native() != request {
            return self.broke(format!("TopicOpened answers {}, asked was {request}", opened.request));
        }
        session.state = State::Open { topic: opened.topic.to_native() };
        self.limits = Some(Limits {
            record_max: opened.record_max.to_native(),
            batch_max: opened.batch_max.to_native(),
            publish_max: u32::try_from(session.channel.publish_max()).unwrap_or(u32::MAX),
        });
        let last_number = opened.last_number.to_native();
        let fresh = self.instance.is_some_and(|instance| instance != session.instance);
        self.counts.reconnects += u64::from(self.instance.is_some());
        self.instance = Some(session.instance);
        self.shutting_down = false;
        let blame = self.blame.take();
        let reopened = self.flights.reopened(last_number, fresh, blame.is_some());
        for flight in reopened.unknown {
            let server = self.config.server.clone();
            let reason = "the broker has forgotten this producer: the batch may be in the log or not".into();
            self.fail_batch(flight, Error::Lost { server, reason });
        }
        if let (Some(flight), Some(cause)) = (reopened.refused, blame) {
            self.fail_batch(flight, cause);
        }
    }

    fn committed(&mut self, topic: u32, number: u64, receipt: (u64, u64)) {
        let state = self.session.as_ref().map(|session| session.state);
        if !matches!(state, Some(State::Open { topic: open } ) if open == topic) {
            return self.broke(format!("a batch of topic {topic} was committed, which is not open"));
        }
        self.offers.ended(number);
        match self.flights.committed(number) {
            Ok(Some(Flight { ticket, bytes, .. })) => {
                self.counts.batches += 1;
                self.outcomes.push_back(Outcome { ticket, result: Ok(receipt), bytes });
            }
            Ok(None) => {}
            Err(expected) => self.broke(format!("batch {number} was committed while {expected} is not")),
        }
    }

    fn failed(&mut self, failed: &ArchivedFailed) {
        let request = failed.request.to_native();
        let code = failed.code.to_native();
        let known = Code::from_number(code);
        let refused = |what: &str| Error::refused(what, code, failed.text.as_str());
        let Some(session) = &self.session else { return };
        if matches!(session.state, State::ExpectOpened { request: asked, .. } if asked == request) {
            let error = refused(&format!("to open the topic {}", self.config.topic));
            if !error.is_retryable() {
                self.fatal = Some(error.clone());
            }
            return self.close(error);
        }
        match known {
            Some(Code::BatchTooLarge | Code::BatchInvalid | Code::PoolExhausted | Code::TopicRemoved) => {
                let error = refused("a batch");
                self.blame = Some(error.clone());
                self.close(error);
            }
            Some(Code::Evicted) => {
                self.fatal = Some(refused("to go on with the session"));
                self.close(refused("to go on with the session"));
            }
            _ => self.close(refused("to go on with the session")),
        }
    }

    /// Writes the next messages into the channel, or returns a bind that must come first.
    fn fill(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
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
                        None if self.leaving && self.flights.len() == 0 && self.offers.is_idle() => {
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

    fn down(&mut self) {
        self.session = None;
        self.flights.session_lost();
        self.offers.session_lost();
    }
}

impl Machine for ProducerMachine {
    fn handle(&mut self, _now: Now, event: Event, memory: &mut dyn Memory) {
        let ours = |link: LinkId| self.session.as_ref().is_some_and(|session| session.channel.link() == link);
        match event {
            Event::Message { link, op, span } if ours(link) => self.message(op, span, memory),
            Event::Done { link, op, result } if ours(link) => {
                let succeeded = matches!(result, Ok(Finished::Finished | Finished::Bound(_) | Finished::Unbound));
                let session = self.session.as_mut().expect("the link is the session's");
                if !self.offers.done(op, succeeded) {
                    session.channel.done(op);
                }
            }
            Event::Down { link, .. } if ours(link) => self.down(),
            Event::Allocated { op, result } => {
                let (window, error) = match result {
                    Ok(window) => (Some(window), None),
                    Err(error) => (None, Some(error)),
                };
                if self.offers.allocated(op, window)
                    && let Some(error) = error
                {
                    self.close(Error::fabric("allocating a window for an offer")(error));
                }
            }
            // `Up` is the driver's, and events of another link are of a session that is over.
            _ => {}
        }
    }

    fn handle_timeout(&mut self, now: Now, _memory: &mut dyn Memory) {
        if self.timeout().is_some_and(|at| at <= now.time) {
            let what = format!("opening the topic {}", self.config.topic);
            self.close(Error::Timeout { what, after: OPEN_TIMEOUT, last: None });
        }
    }

    fn timeout(&self) -> Option<Time> {
        match self.session.as_ref()?.state {
            State::ExpectOpened { until, .. } => Some(until),
            _ => None,
        }
    }

    fn transmit(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        let link = match &mut self.session {
            Some(Session { channel, state: state @ State::ToClose, .. }) => {
                *state = State::ExpectDown;
                return Some(Transmit::Close { link: channel.link() });
            }
            Some(Session { state: State::ExpectDown, .. }) | None => None,
            Some(session) => Some(session.channel.link()),
        };
        // Before messages: an unbind frees the slot that the next batch waits for.
        if let Some(transmit) = self.offers.transmit(link) {
            return Some(transmit);
        }
        let link = link?;
        if let Some(transmit) = self.fill(now, memory) {
            // A bind: what was written before it must be posted before it, and is, since an endpoint's order is the order
            // of posting; the offer that needs the bind is written behind it.
            return Some(transmit);
        }
        // `fill` may have asked for a window.
        if let Some(transmit) = self.offers.transmit(None) {
            return Some(transmit);
        }
        let session = self.session.as_mut()?;
        let post = session.channel.transmit::<ToBroker>(memory)?;
        Some(Transmit::Post { link, op: post.op, work: post.work })
    }
}

#[cfg(test)]
mod tests;
