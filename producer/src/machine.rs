//! The producer as a pure state machine.
//!
//! It opens the topic in every session, sends batches in the order in which it took them on, each in a slot (`Publish`) or, if it is
//! too large for one, lent through a window (`Offer`), and answers each with one [`Outcome`]: committed, or failed for good.
//! A lost session is no failure: what is not answered is sent again in the next one, and the broker tells from the numbers
//! what it has already.
//!
//! Whoever drives it gives it batches only while it has [`room`](ProducerMachine::room), allocates the memory that it
//! [wants](ProducerMachine::offer_memory_wanted), and takes the outcomes. Records, futures and threads are none of its business.

mod receive;
mod send;
#[cfg(test)]
mod tests;
mod types;

use std::collections::VecDeque;
use std::time::Duration;

use keyway_channel::Channel;
use keyway_client::{Connected, Error};
use keyway_fabric::{
    DomainId, Event, LinkId, Machine, Memory, Now, Outcome as Finished, SharedSpan, Time, Transmit, WindowId,
};
use keyway_schema::ToBroker;
use keyway_schema::limits::RECEIPTS_MAX;

use crate::flight::{Flight, Flights};
use crate::offer::Offers;

pub use crate::flight::Ticket;
pub use crate::offer::OfferMemory;
pub use types::{Counts, Limits, Outcome, ProducerConfig};

/// The most batches that are not answered yet. The broker remembers the commits of at least as many, so that each can be
/// answered again after a reconnect.
pub const IN_FLIGHT_MAX: usize = 64;

const _: () = assert!(IN_FLIGHT_MAX <= RECEIPTS_MAX, "every batch in flight can be answered again");

/// The most batches that are offered at once. More hardly help: the broker READs one after the other into the ring.
pub const OFFERS_MAX: u16 = 4;

/// How long the broker may take to open the topic before the session is given up.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

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
    domain: DomainId,
    offers_max: u16,
    state: State,
    /// A batch whose bind is posted: its `Offer` goes out before anything else.
    bound: Option<Bound>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    window: WindowId,
    span: SharedSpan,
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

    /// The session is over, and its `Down` was handled. `cause` is what else is known of its end, such as the broker's word on the
    /// bootstrap stream, which comes also where a last message could not. Returns the reason that the machine knows, or that.
    pub fn session_over(&mut self, cause: Error) -> Error {
        self.take_reason().unwrap_or_else(|| {
            self.judge(&cause);
            cause
        })
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

    /// The memory for offers goes with its fabric, and the windows with it: it is asked for anew. There is no session.
    pub fn memory_lost(&mut self) {
        self.offers = Offers::default();
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
            Event::Down { link, .. } if ours(link) => {
                if self.shutting_down {
                    let server = self.config.server.clone();
                    self.reason.get_or_insert(Error::ShuttingDown { server });
                }
                self.down();
            }
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
