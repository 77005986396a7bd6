//! A consumer as a pure state machine: it is told what the fabric did and what time it is, and says what to post.
//!
//! It promises that the application gets every record once and in order, or is told the exact gap; that no READ is posted
//! under a key that was superseded or revoked, and none is repeated outside its grant; that keys are released as soon as
//! nothing is outstanding under them; and that whatever a broker sends ends at worst the session, with a [`Fault`].
//!
//! It has no clock and no thread, makes no memory and no views: a *host* does that, as [`Output`]s ask for it.
//!
//! Inside, `session`, `subscription`, `epochs` and `flights` are one session's talk, grants and READs; `segment` and `pieces` decide
//! what to READ, in segment scope and in the other two; `cursor` and `batches` say where reading goes on and what is valid
//! there; `landing` and `output` are where READs land and what the host is handed. What outlives a session is in `parts`.

mod batches;
mod counters;
mod cursor;
mod epochs;
mod fault;
mod flights;
mod landing;
mod output;
mod parts;
mod pieces;
mod segment;
mod session;
mod subscription;
#[cfg(test)]
mod tests;

use std::time::Duration;

use keyway_channel::ChannelConfig;
use keyway_fabric::{Event as FabricEvent, LocalId, Machine, Memory, Now, Time, Transmit};
use keyway_schema::TopicName;
use keyway_schema::message::{EpochSettings, Scope, Start};

pub use counters::Counters;
pub use fault::Fault;
pub use landing::LandingMemory;
pub use output::{OUTPUTS_MAX, Output};

use crate::events::{Coalesced, Event};
use cursor::Cursor;
use landing::Landing;
use output::Outputs;
use parts::{Lasting, Seek};
use session::Session;

/// READs that a consumer has in flight at once unless configured otherwise: enough to fill any link with the short pieces of
/// message scope. In segment scope two MiB are in flight at most.
pub const READS_DEFAULT: u16 = 8;

/// Landing memory unless configured otherwise.
pub const LANDING_DEFAULT: u64 = 16 << 20;

/// What a consumer wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineConfig {
    /// The topic.
    pub topic: TopicName,
    /// A name for the broker's logs and status, or empty.
    pub name: String,
    /// Where to start.
    pub start: Start,
    /// What one grant covers.
    pub scope: Scope,
    /// When keys are replaced.
    pub epoch: EpochSettings,
    /// The most grants to hold at once; zero for the broker's default.
    pub depth: u16,
    /// Landing memory in bytes; at least two arenas are made whatever it says.
    pub landing: u64,
    /// The most READs of log data in flight at once; with them, one of a tail word.
    pub reads: u16,
    /// How long the broker may take to answer the subscription.
    pub subscribe_timeout: Duration,
}

impl MachineConfig {
    /// The defaults for a topic: from the latest record on, in segment scope.
    pub fn new(topic: TopicName) -> Self {
        Self {
            topic,
            name: String::new(),
            start: Start::Latest,
            scope: Scope::Segment,
            epoch: EpochSettings::default(),
            depth: 0,
            landing: LANDING_DEFAULT,
            reads: READS_DEFAULT,
            subscribe_timeout: Duration::from_secs(5),
        }
    }

    /// How many READs may be outstanding at once: what an endpoint's depth must have beside the channel's slots.
    pub fn work_depth(&self) -> u32 {
        u32::from(self.reads.max(1)) + 1
    }
}

/// A refusal that no later attempt will change, as the broker put it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinalRefusal {
    /// A number of [`Code`](keyway_schema::Code).
    pub code: u16,
    /// The broker's words.
    pub text: String,
}

/// The consumer.
#[derive(Clone, Debug)]
pub struct ConsumerMachine {
    config: MachineConfig,
    lasting: Lasting,
    session: Option<Session>,
    leaving: bool,
    refusal: Option<FinalRefusal>,
    last_fault: Option<Fault>,
}

impl ConsumerMachine {
    /// A consumer without a session.
    pub fn new(config: MachineConfig) -> Self {
        let lasting = Lasting {
            requests: 0,
            seek: None,
            landing: Landing::new(config.landing),
            cursor: Cursor::new(config.start),
            outputs: Outputs::default(),
            counters: Counters::default(),
            events: Coalesced::default(),
        };
        Self { config, lasting, session: None, leaving: false, refusal: None, last_fault: None }
    }

    /// Its configuration.
    pub fn config(&self) -> &MachineConfig {
        &self.config
    }

    /// A session with a broker exists: subscribes.
    pub fn connected(&mut self, now: Now, instance: u64, session: u64, channel: ChannelConfig) {
        if self.lasting.cursor.meet(instance) {
            match &mut self.lasting.seek {
                Some(seek) => seek.restarted = Some(instance),
                None => self.lasting.outputs.push(Output::Restarted { instance }),
            }
            self.lasting.events.push(Event::Restarted { instance });
        }
        self.last_fault = None;
        self.session = Some(Session::new(session, channel, now.time + self.config.subscribe_timeout));
    }

    /// Moves the subscription: the READs in flight are let end and not used, what was not taken yet is forgotten, and the broker
    /// is asked for a subscription from `start` on, in the present session or the next one. [`Output::Sought`] tells when it is
    /// there. A later seek overtakes an earlier one, which is not told of then.
    pub fn seek(&mut self, ticket: u64, start: Start) {
        let restarted = self.lasting.seek.and_then(|before| before.restarted);
        self.lasting.seek = Some(Seek { ticket, restarted });
        self.lasting.counters.seeks += 1;
        self.lasting.cursor.seek(start);
        self.lasting.outputs.pass_over();
        if let Some(session) = &mut self.session {
            session.give_up_subscription();
        }
    }

    /// The session is over. After its `Down`, this changes nothing more; without one, READs may still be on their way into
    /// the landing memory, which is given up.
    pub fn disconnected(&mut self) {
        if self.session.take().is_some() {
            self.lasting.landing.forsake();
        }
    }

    /// Begins to end the consumer in order: lets the READs in flight end, says so to the broker, and closes the session.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// Whether it was asked to leave and has no session any more.
    pub fn has_left(&self) -> bool {
        self.leaving && self.session.is_none()
    }

    /// Whether the broker has confirmed the subscription in the present session.
    pub fn is_subscribed(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_subscribed)
    }

    /// The next record that will be handed out; 0 before the first subscription.
    pub fn next_sequence(&self) -> u64 {
        self.lasting.cursor.next()
    }

    /// The figures.
    pub fn counters(&self) -> &Counters {
        &self.lasting.counters
    }

    /// Why this side ended the last session, if it did.
    pub fn last_fault(&self) -> Option<&Fault> {
        self.last_fault.as_ref()
    }

    /// The refusal that ends the consumer, if there was one.
    pub fn refusal(&self) -> Option<&FinalRefusal> {
        self.refusal.as_ref()
    }

    /// The next output, which stays the next until it is taken.
    pub fn peek_output(&self) -> Option<&Output> {
        self.lasting.outputs.next()
    }

    /// Takes the next output.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.lasting.outputs.pop()
    }

    /// The events that wait.
    pub(crate) fn events(&mut self) -> &mut Coalesced {
        &mut self.lasting.events
    }

    /// Answers [`Output::Land`].
    pub fn landed(&mut self, memory: LandingMemory) {
        self.lasting.landing.provide(memory);
    }

    /// The landing memory goes with its fabric: it is asked for anew. There is no session, and no output waits.
    pub fn landing_lost(&mut self) {
        self.lasting.landing = Landing::new(self.config.landing);
    }

    /// Whether it is worth while to look which retired arenas are free.
    pub fn wants_arenas(&self) -> bool {
        self.lasting.landing.wants_arenas()
    }

    /// No view of a retired arena is left: it may be written again.
    pub fn arena_free(&mut self, local: LocalId, slot: u32) {
        self.lasting.landing.give_back(local, slot);
    }
}

#[cfg(test)]
impl ConsumerMachine {
    /// Makes an output wait, as if it had been read.
    pub(crate) fn put_output(&mut self, output: Output) {
        self.lasting.outputs.push(output);
    }

    /// What landing memory it would ask for, now that it knows the longest batch.
    pub(crate) fn wanted(&mut self, batch_max: u32) -> Option<Output> {
        self.lasting.landing.want(batch_max)
    }
}

impl Machine for ConsumerMachine {
    fn handle(&mut self, now: Now, event: FabricEvent, memory: &mut dyn Memory) {
        let Some(session) = &mut self.session else { return };
        let outcome = match event {
            FabricEvent::Down { link, .. } if link == session.link() => {
                self.session = None;
                self.lasting.landing.rewind();
                return;
            }
            FabricEvent::Message { link, op, span } if link == session.link() => {
                session.message(now, op, span, &self.config, &mut self.lasting, memory)
            }
            FabricEvent::Done { link, op, result } if link == session.link() => {
                session.done(now, op, result, &mut self.lasting, memory)
            }
            _ => Ok(()),
        };
        if let Err(fault) = outcome {
            self.fail(fault);
        }
    }

    fn handle_timeout(&mut self, now: Now, _memory: &mut dyn Memory) {
        let Some(session) = &mut self.session else { return };
        if let Err(fault) = session.handle_timeout(now, self.config.subscribe_timeout) {
            self.fail(fault);
        }
    }

    fn timeout(&self) -> Option<Time> {
        self.session.as_ref().and_then(Session::timeout)
    }

    fn transmit(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        let session = self.session.as_mut()?;
        match session.transmit(now, &self.config, self.leaving, &mut self.lasting, memory) {
            Ok(transmit) => transmit,
            Err(fault) => {
                let link = session.link();
                self.fail(fault);
                Some(Transmit::Close { link })
            }
        }
    }
}

impl ConsumerMachine {
    /// The session cannot go on. A refusal that will not change ends the consumer too.
    fn fail(&mut self, fault: Fault) {
        let Some(session) = &mut self.session else { return };
        if !session.end() {
            return;
        }
        if let Fault::Refused { code, text } | Fault::Ended { code, text } = &fault {
            if fault.is_final() {
                self.refusal = Some(FinalRefusal { code: *code, text: text.clone() });
            }
        } else {
            self.lasting.counters.faults += 1;
        }
        self.lasting.counters.remote_access_errors += u64::from(fault.is_remote_access());
        let code = keyway_schema::Code::from_number(fault.code());
        self.lasting.events.push(Event::SessionLost { code, reason: fault.to_string() });
        self.last_fault = Some(fault);
    }
}
