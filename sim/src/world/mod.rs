//! A world: its nodes, its time, and everything that happens, one step after the other.
//!
//! A step is one happening: a piece of work that arrives, a process that gets the processor, a death. After every step the
//! judges look at what it did.

mod bootstrap;
mod judging;
mod process;

use std::collections::BTreeMap;
use std::time::Duration;

use keyway_fabric::*;
use keyway_schema::message::Start;

use crate::NodeId;
use crate::broker::Broker;
use crate::client::{Client, Link};
use crate::network::Network;
use crate::oracle::{
    Failure, Invariant, KeyBook, LogBook, ReaderBook, Verdict, WakeBook, audit_broker, audit_client, broken,
};
use crate::puppet::{Manners, Subscription};
use crate::scenario::{ConsumerPart, ProducerPart, Scenario};
use crate::schedule::Happening;
use crate::trace::Trace;

/// How long a quiet world may take to come to rest, and to end.
const SETTLE: Duration = Duration::from_secs(3);
/// How often the question is asked whether it has.
const SETTLE_CHECK: u64 = 32;
/// Steps that a world may take in all: far more than any needs, so that one that spins is a failure and not a hang.
const STEPS_MAX: u64 = 3_000_000;

/// What an actor of the world is.
#[derive(Clone, Debug)]
enum Part {
    Producer(ProducerPart),
    Consumer(ConsumerPart),
}

/// An actor: a process that may die and come back.
struct Actor {
    part: Part,
    client: Option<Client>,
    /// A producer's records: their author is new with every process.
    author: u32,
    next_record: u64,
    /// The judges' name for the consumer's application: new with every process.
    reader: usize,
    /// The topic's number in its present session, once known.
    topic: Option<u32>,
    /// The stream of its session: the broker's node, and the session.
    stream: Option<(NodeId, u64)>,
    processes: u32,
}

/// Figures of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Steps.
    pub steps: u64,
    /// A hash of everything that happened.
    pub hash: u64,
    /// Records committed.
    pub committed: u64,
    /// Records delivered.
    pub delivered: u64,
    /// Receipts given.
    pub receipts: u64,
    /// Gaps told.
    pub gaps: u64,
    /// Grants sent.
    pub grants: u64,
    /// Fragments of READs of the pool.
    pub reads: u64,
    /// READs refused.
    pub refused: u64,
    /// Broker processes.
    pub brokers: u64,
}

impl std::ops::AddAssign for Figures {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.hash ^= other.hash;
        self.committed += other.committed;
        self.delivered += other.delivered;
        self.receipts += other.receipts;
        self.gaps += other.gaps;
        self.grants += other.grants;
        self.reads += other.reads;
        self.refused += other.refused;
        self.brokers += other.brokers;
    }
}

/// A world.
pub(crate) struct World {
    scenario: Scenario,
    net: Network,
    rng: fastrand::Rng,
    actors: Vec<Actor>,
    broker: Option<Broker>,
    log: LogBook,
    keys: KeyBook,
    readers: ReaderBook,
    wakes: WakeBook,
    turn_at: BTreeMap<NodeId, Time>,
    wall_jump: i64,
    ids: u32,
    figures: Figures,
    stopping: bool,
    /// How many actors the scenario has; those behind them are auditors.
    people: usize,
}

/// 2026, in nanoseconds since 1970.
const WALL: u64 = 1_767_225_600_000_000_000;

impl World {
    /// A world at its beginning, that remembers the last `kept` things that happen in it.
    pub(crate) fn new(scenario: Scenario, kept: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(scenario.seed);
        let net = Network::new(scenario.network, rng.fork(), Trace::new(kept));
        let actor = |part| Actor {
            part,
            client: None,
            author: 0,
            next_record: 0,
            reader: 0,
            topic: None,
            stream: None,
            processes: 0,
        };
        let producers = scenario.producers.iter().cloned().map(Part::Producer);
        let actors = producers.chain(scenario.consumers.iter().cloned().map(Part::Consumer)).map(actor).collect();
        let people = scenario.producers.len() + scenario.consumers.len();
        let log = LogBook::new(scenario.segment_size, scenario.ring);
        let mut world = Self {
            net,
            rng,
            actors,
            broker: None,
            log,
            keys: KeyBook::default(),
            readers: ReaderBook::default(),
            wakes: WakeBook::default(),
            turn_at: BTreeMap::new(),
            wall_jump: 0,
            ids: 0,
            figures: Figures::default(),
            stopping: false,
            people,
            scenario,
        };
        world.plan();
        world
    }

    /// Enters what the scenario has decided.
    fn plan(&mut self) {
        let schedule = &mut self.net.schedule;
        schedule.at(Time::ZERO, Happening::StartBroker);
        for (actor, state) in self.actors.iter().enumerate() {
            let at = match &state.part {
                Part::Producer(_) => Time::ZERO,
                Part::Consumer(part) => part.starts_at,
            };
            schedule.at(at, Happening::Start { actor });
            if matches!(state.part, Part::Producer(_)) {
                schedule.at(at, Happening::Publish { actor });
            }
        }
        for (at, (when, _)) in self.scenario.disturbances.iter().enumerate() {
            schedule.at(*when, Happening::Plan { at });
        }
    }

    /// The trace so far.
    pub(crate) fn trace(&self) -> &Trace {
        &self.net.trace
    }

    fn now(&self) -> Now {
        let time = self.net.now();
        Now { time, wall: WallTime((WALL + time.0).saturating_add_signed(self.wall_jump)) }
    }

    /// Runs to the end: until the plan is over, until everything is delivered, until every session is closed.
    ///
    /// # Errors
    ///
    /// The first invariant that was broken.
    pub(crate) fn run(&mut self) -> Result<Figures, Failure> {
        let end = Time::ZERO + self.scenario.run_for;
        while self.net.schedule.peek().is_some_and(|at| at < end) {
            self.step()?;
        }
        self.stopping = true;
        self.add_auditors(end);
        self.until("come to rest", |world| world.unsettled())?;
        for actor in 0..self.actors.len() {
            let now = self.now();
            if let Some(client) = &mut self.actors[actor].client {
                client.session.stop(now);
                if matches!(client.link, Link::Pausing { .. }) && client.session.is_over() {
                    client.link = Link::Ended;
                }
                let node = client.node;
                self.want_turn(node, Duration::ZERO);
            }
        }
        self.until("end every session", |world| world.unended())?;
        self.audit()?;
        self.figures.steps = self.net.trace.steps();
        self.figures.hash = self.net.trace.hash();
        self.figures.committed = self.log.records() as u64;
        self.figures.delivered = self.readers.delivered();
        self.figures.receipts = self.readers.receipts() as u64;
        self.figures.gaps = self.readers.gaps();
        self.figures.grants += self.keys.grants;
        Ok(self.figures)
    }

    /// Readers from the earliest record, one a topic: what has a receipt and was not dropped is read once more.
    fn add_auditors(&mut self, starts_at: Time) {
        let topics: std::collections::BTreeSet<String> =
            self.scenario.producers.iter().map(|part| part.topic.clone()).collect();
        for topic in topics {
            let landing = keyway_schema::record::batch_max(self.scenario.record_max);
            let epoch =
                keyway_schema::message::EpochSettings { interval_us: 20_000, grace_ms: 100, bytes: 0, records: 0 };
            let scope = keyway_schema::message::Scope::Segment;
            let wish = Subscription { topic, start: Start::Earliest, scope, epoch, depth: 0, landing };
            let (manners, dwell) = (Manners::Good, Duration::ZERO);
            let part = Part::Consumer(ConsumerPart { wish, manners, starts_at, dwell, puppet: true });
            let actor = self.actors.len();
            let (client, topic, stream) = (None, None, None);
            let state = Actor { part, client, author: 0, next_record: 0, reader: 0, topic, stream, processes: 0 };
            self.actors.push(state);
            self.net.schedule.at(starts_at, Happening::Start { actor });
        }
    }

    /// Steps until nothing is left to wait for.
    fn until(&mut self, what: &str, waiting: impl Fn(&mut Self) -> Option<String>) -> Verdict {
        let deadline = self.net.now() + SETTLE;
        loop {
            let mut left = None;
            for _ in 0..SETTLE_CHECK {
                if !self.step()? {
                    left = waiting(self);
                    break;
                }
            }
            let idle = self.net.schedule.peek().is_none();
            let Some(reason) = left.or_else(|| waiting(self)) else { return Ok(()) };
            if idle || self.net.now() > deadline {
                let clients = self.actors.iter().filter_map(|actor| actor.client.as_ref());
                let clients: Vec<_> = clients.map(|client| (client.actor, &client.link, &client.session)).collect();
                return broken(Invariant::Progress, format!("the world does not {what}: {reason}\n{clients:#?}"));
            }
        }
    }

    /// Why the world is not at rest: a record without its receipt, a consumer behind the tail.
    fn unsettled(&mut self) -> Option<String> {
        let Some(instance) = self.broker.as_ref().map(Broker::instance) else {
            return Some("the broker is not running".into());
        };
        // Where there is too little for all, somebody may wait for ever.
        let lenient = self.scenario.mix == crate::Mix::Exhaustion;
        for (at, actor) in self.actors.iter().enumerate() {
            let Some(client) = &actor.client else { return Some(format!("actor {at} is not running")) };
            if !client.good || lenient {
                continue;
            }
            if client.connected().is_none_or(|connected| connected.instance != instance) {
                return Some(format!("actor {at} is not connected"));
            }
            let Some(topic) = actor.topic else { return Some(format!("actor {at} has no topic")) };
            match actor.part {
                Part::Producer(_) if !client.session.is_settled() => {
                    return Some(format!("producer {at} lacks receipts"));
                }
                Part::Producer(_) => (),
                Part::Consumer(_) => {
                    let end = self.log.log(instance, topic).records.len() as u64;
                    let reader = self.readers.reader(actor.reader);
                    if reader.next != Some(end) || reader.source != Some((instance, topic)) {
                        let text = format!("consumer {at} is at {:?} of {end} records of topic {topic}", reader.next);
                        return Some(text);
                    }
                }
            }
        }
        None
    }

    fn unended(&mut self) -> Option<String> {
        for (at, actor) in self.actors.iter().enumerate() {
            if let Some(client) = &actor.client
                && !matches!(client.link, Link::Ended)
            {
                return Some(format!("actor {at} has not ended: {:?}", client.link));
            }
        }
        let broker = self.broker.as_ref()?;
        let windows = self.net.alive(broker.node).map_or(0, |fabric| fabric.holdings().windows);
        let counters = broker.core.counters();
        (!broker.sessions.is_empty())
            .then(|| format!("the broker has {:?}, {windows} windows; {counters:?}", broker.sessions))
    }

    /// Accounts for everything, with every session over.
    fn audit(&mut self) -> Verdict {
        for (at, actor) in self.actors.iter_mut().enumerate() {
            let Some(client) = &mut actor.client else { continue };
            let fabric = self.net.fabric(client.node);
            client.session.dissolve(fabric);
            audit_client(at, fabric)?;
        }
        let Some(broker) = &self.broker else { return Ok(()) };
        let fabric = self.net.alive(broker.node).expect("the broker is running");
        audit_broker(&broker.core, fabric)
    }

    /// Lets the next thing happen. Returns whether there was one.
    fn step(&mut self) -> Result<bool, Failure> {
        let Some(happening) = self.net.schedule.next() else { return Ok(false) };
        self.net.trace.step();
        if self.net.trace.steps() > STEPS_MAX {
            return broken(Invariant::Progress, format!("the world has not ended after {STEPS_MAX} steps"));
        }
        let mut turned = None;
        match happening {
            Happening::Turn { node } => turned = self.turn(node)?,
            Happening::Start { actor } => self.start(actor),
            Happening::Publish { actor } => self.publish(actor),
            Happening::StartBroker => self.start_broker(),
            Happening::Hello(hello) => self.hello(hello),
            Happening::Welcome { at, broker, welcome } => self.welcome(at, broker, welcome),
            Happening::StreamLost { broker, session } => self.stream_lost(broker, session),
            Happening::StreamEnd { at } => self.stream_end(at),
            Happening::Plan { at } => self.disturb(self.scenario.disturbances[at].1),
            network => self.net.happen(network),
        }
        self.judge()?;
        if turned.is_some_and(|node| self.broker.as_ref().is_some_and(|broker| broker.node == node)) {
            self.judge_broker()?;
        }
        self.wake();
        Ok(true)
    }
}
