//! A world: its nodes, its time, and everything that happens, one step after the other.
//!
//! A step is one happening: a piece of work that arrives, a process that gets the processor, a death. After every step the
//! judges look at what it did.

use std::collections::BTreeMap;
use std::time::Duration;

use keyway_broker::core::{SegmentState, SessionId};
use keyway_fabric::*;
use keyway_schema::message::{Start, Subscribed};
use keyway_schema::{ToBrokerRef, ToClient, ToClientRef};
use rkyv::util::AlignedVec;

use crate::broker::{Broker, Hello, SessionAt, Welcome};
use crate::client::{Client, Link};
use crate::device::{Deed, DeviceTraits, SimFabric};
use crate::network::Network;
use crate::oracle::{
    Failure, Invariant, KeyBook, LogBook, ReaderBook, Verdict, WakeBook, audit_broker, audit_client, broken,
    cross_check,
};
use crate::payload::Mark;
use crate::puppet::{Manners, PuppetConsumer, PuppetProducer, Subscription};
use crate::scenario::{ConsumerPart, Disturbance, ProducerPart, Scenario};
use crate::schedule::Happening;
use crate::session::Session;
use crate::trace::{Note, Trace};
use crate::{NodeId, Place, machines};

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

    // ---- Processes ----

    /// Wants a node to get the processor, after the usual wait.
    fn want_turn(&mut self, node: NodeId, after: Duration) {
        let most = self.scenario.turn_delay.as_nanos() as u64;
        let at = self.net.now() + after + Duration::from_nanos(self.rng.u64(0..=most));
        let stalled = match &self.broker {
            Some(broker) if broker.node == node => broker.stalled_until,
            _ => self.client_at(node).map_or(Time::ZERO, |client| client.stalled_until),
        };
        let at = at.max(stalled);
        if self.turn_at.get(&node).is_none_or(|planned| at < *planned) {
            self.turn_at.insert(node, at);
            self.net.schedule.at(at, Happening::Turn { node });
        }
    }

    fn client_at(&self, node: NodeId) -> Option<&Client> {
        self.actors.iter().filter_map(|actor| actor.client.as_ref()).find(|client| client.node == node)
    }

    fn actor_at(&self, node: NodeId) -> Option<usize> {
        self.actors.iter().position(|actor| actor.client.as_ref().is_some_and(|client| client.node == node))
    }

    /// Gives a turn to every node for which something has happened.
    fn wake(&mut self) {
        let soon = self.net.now() + self.scenario.turn_delay;
        let waits = |fabric: &&SimFabric| {
            fabric.has_events() && self.turn_at.get(&fabric.node).is_none_or(|planned| *planned > soon)
        };
        let nodes: Vec<NodeId> = self.net.nodes().filter(waits).map(|fabric| fabric.node).collect();
        for node in nodes {
            self.want_turn(node, Duration::ZERO);
        }
    }

    fn turn(&mut self, node: NodeId) -> Result<Option<NodeId>, Failure> {
        if self.net.alive(node).is_none() || self.turn_at.get(&node) != Some(&self.net.now()) {
            return Ok(None);
        }
        // A stall that began after the turn was planned.
        let stalled = match &self.broker {
            Some(broker) if broker.node == node => broker.stalled_until,
            _ => self.client_at(node).map_or(Time::ZERO, |client| client.stalled_until),
        };
        self.turn_at.remove(&node);
        if stalled > self.net.now() {
            self.want_turn(node, Duration::ZERO);
            return Ok(None);
        }
        if self.broker.as_ref().is_some_and(|broker| broker.node == node) {
            self.broker_turn()?;
        } else if let Some(actor) = self.actor_at(node) {
            self.client_turn(actor)?;
        }
        self.net.collect(node);
        Ok(Some(node))
    }

    fn broker_turn(&mut self) -> Verdict {
        let now = self.now();
        let Some(broker) = &mut self.broker else { return Ok(()) };
        let closed = match broker.turn(now, self.net.fabric(broker.node)) {
            Ok(closed) => closed,
            Err(error) => return broken(Invariant::Machine, format!("the broker's fabric refused its work: {error}")),
        };
        let (node, timeout) = (broker.node, broker.core.timeout());
        if !broker.core.segments().any(|segment| segment.state == SegmentState::Free) {
            self.log.exhausted();
        }
        for segment in broker.core.segments() {
            if let SegmentState::Live { topic, number } = segment.state {
                self.log.reserved(broker.instance(), topic, number);
            }
        }
        for (_, at) in closed {
            self.end_stream(node, at);
        }
        if let Some(at) = timeout.filter(|at| *at != Time::NEVER) {
            self.want_turn(node, at.since(now.time).max(Duration::from_nanos(1)));
        }
        Ok(())
    }

    fn client_turn(&mut self, actor: usize) -> Verdict {
        let now = self.now();
        let state = &mut self.actors[actor];
        let Some(client) = &mut state.client else { return Ok(()) };
        let node = client.node;
        let before = client.instance;
        let ended = match client.turn(now, self.net.fabric(node)) {
            Ok(ended) => ended,
            Err(error) => {
                return broken(Invariant::Machine, format!("the fabric of client {actor} refused its work: {error}"));
            }
        };
        // What it got may have come right before its session ended.
        let instance = before.or(client.instance);
        let topic = state.topic;
        for receipt in client.session.receipts() {
            let Some((instance, topic)) = instance.zip(topic) else {
                return broken(Invariant::I8, format!("producer {actor} has {receipt:?} without a session"));
            };
            self.readers.receipted(instance, topic, &receipt, &self.log)?;
        }
        let state = &mut self.actors[actor];
        let Some(client) = &mut state.client else { return Ok(()) };
        for delivery in client.session.deliveries() {
            let instance = client.instance.unwrap_or_default();
            self.readers.got(state.reader, (instance, state.topic), &delivery, &self.log)?;
        }
        if ended {
            state.topic = None;
            self.drop_stream(actor);
        }
        self.connect(actor);
        let Some(client) = &self.actors[actor].client else { return Ok(()) };
        if let Some(at) = client.timeout().filter(|at| *at != Time::NEVER) {
            self.want_turn(node, at.since(now.time).max(Duration::from_nanos(1)));
        }
        Ok(())
    }

    fn start(&mut self, actor: usize) {
        self.ids += 1;
        let id = self.ids;
        let traits = DeviceTraits { windows_max: 1_024, ..self.scenario.device };
        let node = self.net.add(|node, rng| SimFabric::new(node, traits, rng));
        let rng = self.rng.fork();
        let state = &mut self.actors[actor];
        state.author = id;
        state.next_record = 0;
        state.reader = id as usize;
        state.topic = None;
        state.processes += 1;
        let (mut session, good) = make_session(&state.part, &self.scenario, rng);
        let fabric = self.net.fabric(node);
        let domain = fabric.domain().expect("the simulated device makes what it is asked for");
        session.prepare(domain, fabric);
        state.client = Some(Client::new(actor, node, domain, session, good));
        self.want_turn(node, Duration::ZERO);
    }

    fn kill(&mut self, actor: usize, back_after: Duration) {
        let Some(client) = self.actors[actor].client.take() else { return };
        self.net.trace.note(self.net.schedule.now, Note::Text { node: client.node, text: "killed".into() });
        self.drop_stream(actor);
        self.net.kill(client.node);
        self.net.schedule.at(self.net.now() + back_after, Happening::Start { actor });
    }

    fn publish(&mut self, actor: usize) {
        if self.stopping {
            return;
        }
        let now = self.now();
        let state = &mut self.actors[actor];
        let Part::Producer(part) = &state.part else { return };
        let mean = part.pause.as_nanos() as u64;
        let pause = Duration::from_nanos(self.rng.u64(0..=2 * mean));
        if let Some(client) = state.client.as_mut().filter(|client| client.stalled_until <= now.time) {
            let mark = Mark { author: state.author, number: state.next_record };
            let len = self.rng.usize(0..part.record_max);
            if client.session.publish(now, mark, &mark.payload(len)) {
                state.next_record += 1;
            }
            let node = client.node;
            self.want_turn(node, Duration::ZERO);
        }
        self.net.schedule.at(self.net.now() + pause, Happening::Publish { actor });
    }

    fn start_broker(&mut self) {
        let scenario = &self.scenario;
        let traits = scenario.device;
        let node = self.net.add(|node, rng| SimFabric::new(node, traits, rng));
        let instance = self.rng.u64(1..);
        let broker = Broker::new(node, instance, scenario, self.net.fabric(node));
        let fabric = self.net.fabric(node);
        let base = fabric.address(SharedSpan { shared: broker.pool, offset: 0, len: 0 });
        self.keys = KeyBook::new(scenario.quarantine, traits.bounds_enforced, base);
        self.log.restart(scenario.pool_len());
        self.wakes = WakeBook::default();
        self.broker = Some(broker);
        self.figures.brokers += 1;
        self.want_turn(node, Duration::ZERO);
    }

    fn restart_broker(&mut self, back_after: Duration) {
        let Some(broker) = self.broker.take() else { return };
        self.figures.grants += self.keys.grants;
        self.net.trace.note(self.net.schedule.now, Note::Text { node: broker.node, text: "broker killed".into() });
        for at in broker.sessions.values() {
            self.end_stream(broker.node, *at);
        }
        self.net.kill(broker.node);
        self.net.schedule.at(self.net.now() + back_after, Happening::StartBroker);
    }

    // ---- Bootstrap ----

    /// Begins an attempt to connect, if the client wants one.
    fn connect(&mut self, actor: usize) {
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

    fn hello(&mut self, hello: Hello) {
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

    fn is_present(&self, at: SessionAt) -> bool {
        let client = self.actors[at.actor].client.as_ref();
        client.is_some_and(|client| client.node == at.node && client.attempt == at.attempt)
    }

    fn welcome(&mut self, at: SessionAt, broker: NodeId, welcome: Option<Welcome>) {
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
    fn drop_stream(&mut self, actor: usize) {
        let Some((broker, session)) = self.actors[actor].stream.take() else { return };
        let when = self.net.now() + self.net.way();
        self.net.schedule.at(when, Happening::StreamLost { broker, session });
    }

    /// The broker's end of a stream is closed: the client learns of it, however late.
    fn end_stream(&mut self, broker: NodeId, at: SessionAt) {
        let (Ok(when) | Err(when)) = self.net.reach(broker, at.node);
        self.net.schedule.at(when, Happening::StreamEnd { at });
    }

    fn stream_lost(&mut self, node: NodeId, session: u64) {
        let now = self.now();
        let Some(broker) = self.broker.as_mut().filter(|broker| broker.node == node) else { return };
        broker.core.session_lost(now, SessionId(session));
        self.want_turn(node, Duration::ZERO);
    }

    fn stream_end(&mut self, at: SessionAt) {
        if !self.is_present(at) {
            return;
        }
        self.actors[at.actor].stream = None;
        let client = self.actors[at.actor].client.as_mut().expect("it is present");
        client.hang_up(self.net.fabric(at.node));
        self.net.collect(at.node);
        self.want_turn(at.node, Duration::ZERO);
    }

    // ---- Disturbances ----

    fn disturb(&mut self, disturbance: Disturbance) {
        let now = self.net.now();
        let text = format!("{disturbance:?}");
        self.net.trace.note(now, Note::Text { node: NodeId(u32::MAX), text });
        match disturbance {
            Disturbance::Kill { actor, back_after } => self.kill(actor, back_after),
            Disturbance::Stall { actor, length } => {
                if let Some(client) = &mut self.actors[actor].client {
                    client.stalled_until = now + length;
                    client.disturbed = true;
                }
            }
            Disturbance::Cut { actor, length } => {
                let Some((client, broker)) = self.actors[actor].client.as_mut().zip(self.broker.as_ref()) else {
                    return;
                };
                client.disturbed = true;
                let (a, b) = (client.node, broker.node);
                self.net.cut(a, b, now + length);
            }
            Disturbance::Hangup { actor } => {
                if let Some(client) = &self.actors[actor].client {
                    let at = SessionAt { actor, attempt: client.attempt, node: client.node };
                    self.drop_stream(actor);
                    self.stream_end(at);
                }
            }
            Disturbance::Restart { back_after } => self.restart_broker(back_after),
            Disturbance::StallBroker { length } => {
                if let Some(broker) = &mut self.broker {
                    broker.stalled_until = now + length;
                }
                for client in self.actors.iter_mut().filter_map(|actor| actor.client.as_mut()) {
                    client.disturbed = true;
                }
            }
            Disturbance::Jump { nanoseconds } => self.wall_jump = nanoseconds,
        }
    }

    // ---- Judges ----

    /// Shows the judges what the last step did.
    fn judge(&mut self) -> Verdict {
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
    fn judge_sent(&mut self, now: Time, instance: u64, link: LinkId, bytes: &[u8]) -> Verdict {
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
    fn judge_delivered(&mut self, from: Place, to: Place, bytes: &[u8]) -> Verdict {
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

    fn judge_subscribed(&mut self, actor: usize, instance: u64, subscribed: &Subscribed) -> Verdict {
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
    fn judge_request(&mut self, from: Place, to: Place, bytes: &[u8]) {
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
    fn judge_broker(&mut self) -> Verdict {
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

/// A part's client, and whether it keeps the protocol.
fn make_session(part: &Part, scenario: &Scenario, rng: fastrand::Rng) -> (Box<dyn Session>, bool) {
    match part {
        Part::Producer(part) if part.puppet => {
            let batch_max = keyway_schema::record::batch_max(scenario.record_max) as usize;
            let sizes = (batch_max, scenario.slot);
            let producer = PuppetProducer::new(part.topic.clone(), None, sizes, part.manners, rng);
            (Box::new(producer), part.manners == Manners::Good)
        }
        Part::Producer(part) => machines::producer(part, scenario, rng),
        Part::Consumer(part) if part.puppet => {
            let good = match part.manners {
                Manners::Good => true,
                Manners::Late { percent } => percent <= 50,
                _ => false,
            };
            (Box::new(PuppetConsumer::new(part.wish.clone(), part.manners, rng)), good)
        }
        Part::Consumer(part) => machines::consumer(part, rng),
    }
}
