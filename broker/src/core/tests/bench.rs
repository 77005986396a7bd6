//! A bench to try a core on: memory in vectors, a fabric that executes at once (or when told to), clients driven by hand.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use keyway_channel::ChannelConfig;
use keyway_fabric::{
    DomainId, DownCause, Event, Key, LinkId, LocalId, LocalSpan, Machine, Memory, Now, Op, Outcome, RemoteSpan,
    SharedId, SharedSpan, Target, Time, Transmit, WallTime, WindowId, Work, WorkError,
};
use keyway_schema::batch::BatchBuilder;
use keyway_schema::bootstrap::Role;
use keyway_schema::limits::SEGMENT_MIN;
use keyway_schema::message::{
    EpochSettings, Grant, OpenTopic, Publish, Scope, Start, Subscribe, Subscribed, TopicOpened,
};
use keyway_schema::record::RecordRef;
use keyway_schema::{Code, ToBroker, ToClient, ToClientRef};
use rkyv::util::AlignedVec;

use crate::core::{Core, CoreConfig, Notice, SessionId, slots};

pub(super) const POOL: SharedId = SharedId { index: 0, generation: 0 };
pub(super) const SEGMENT: u64 = SEGMENT_MIN as u64;
const GENERATION: u32 = 7;
/// Addresses of the pool begin here, so that a mix-up with offsets shows.
const POOL_ADDRESS: u64 = 0x7000_0000_0000;

/// Memory in vectors.
#[derive(Default)]
pub(super) struct VecMemory {
    locals: HashMap<LocalId, (u32, AlignedVec<64>)>,
    pool: Vec<u8>,
    windows: BTreeMap<WindowId, TestWindow>,
}

struct TestWindow {
    /// Of the last bind or unbind posted.
    key: Key,
    binding: Option<(Key, SharedSpan)>,
    is_busy: bool,
}

impl VecMemory {
    fn range(span: SharedSpan) -> std::ops::Range<usize> {
        span.offset as usize..span.end() as usize
    }

    fn local(&self, span: LocalSpan) -> std::ops::Range<usize> {
        let (size, _) = &self.locals[&span.local];
        assert!(span.end() <= *size, "{span:?} is within its slot");
        let start = (span.slot * size + span.offset) as usize;
        start..start + span.len as usize
    }
}

impl Memory for VecMemory {
    fn bytes(&self, span: LocalSpan) -> &[u8] {
        &self.locals[&span.local].1[self.local(span)]
    }
    fn bytes_mut(&mut self, span: LocalSpan) -> &mut [u8] {
        let range = self.local(span);
        &mut self.locals.get_mut(&span.local).expect("the memory exists").1[range]
    }
    fn copy(&mut self, from: LocalSpan, to: SharedSpan) {
        assert_eq!(u64::from(from.len), to.len);
        let bytes = self.bytes(from).to_vec();
        self.pool[Self::range(to)].copy_from_slice(&bytes);
    }
    fn write(&mut self, to: SharedSpan, bytes: &[u8]) {
        self.pool[Self::range(to)][..bytes.len()].copy_from_slice(bytes);
    }
    fn load(&self, from: SharedSpan, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.pool[Self::range(from)]);
    }
    fn store(&mut self, _shared: SharedId, offset: u64, word: u64) {
        assert!(offset.is_multiple_of(8));
        self.pool[offset as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }
    fn zero(&mut self, span: SharedSpan) {
        self.pool[Self::range(span)].fill(0);
    }
    fn crc32c(&self, span: SharedSpan) -> u32 {
        crc32c::crc32c(&self.pool[Self::range(span)])
    }
    fn address(&self, span: SharedSpan) -> u64 {
        POOL_ADDRESS + span.offset
    }
    fn key(&self, window: WindowId) -> Key {
        self.windows[&window].key
    }
}

/// A core with its surroundings.
pub(super) struct Bench {
    pub(super) core: Core,
    pub(super) memory: VecMemory,
    pub(super) now: Now,
    /// Binds and unbinds are not executed before [`Bench::release_work`].
    pub(super) holds_binds: bool,
    /// READs of offers are not executed.
    pub(super) holds_reads: bool,
    /// SENDs are not executed.
    pub(super) holds_sends: bool,
    /// How many windows may be allocated.
    pub(super) windows_left: u32,
    events: VecDeque<Event>,
    held: VecDeque<(LinkId, Op, Work)>,
    links: BTreeMap<LinkId, Endpoint>,
    next: u32,
    /// Keys with the times of their deaths, by the bench's own account.
    pub(super) dead: HashMap<Key, Time>,
    pub(super) notices: Vec<Notice>,
}

struct Endpoint {
    receives: VecDeque<(Op, LocalSpan)>,
    inbox: VecDeque<ToClient>,
    /// Messages received and not credited.
    credits: u16,
    /// Whether messages are credited at all.
    is_generous: bool,
    is_closed: bool,
    /// What the client offers, by address.
    offers: HashMap<u64, Vec<u8>>,
}

/// A client's end, for tests to hold on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Client {
    pub(super) id: SessionId,
    pub(super) link: LinkId,
}

pub(super) fn config(segments: u64) -> CoreConfig {
    let domain = DomainId { index: 0, generation: 0 };
    let mut config = CoreConfig::new(1, domain, POOL, segments * SEGMENT);
    config.segment_size = SEGMENT as u32;
    config.topic_segments = 4;
    config.record_max = 32 * 1024;
    config
}

impl Bench {
    pub(super) fn new(config: CoreConfig) -> Self {
        let memory = VecMemory { pool: vec![0; config.pool_len as usize], ..VecMemory::default() };
        Self {
            core: Core::new(config),
            memory,
            now: Now { time: Time(1_000_000), wall: WallTime(1_000_000_000) },
            holds_binds: false,
            holds_reads: false,
            holds_sends: false,
            windows_left: u32::MAX,
            events: VecDeque::new(),
            held: VecDeque::new(),
            links: BTreeMap::new(),
            next: 1,
            dead: HashMap::new(),
            notices: Vec::new(),
        }
    }

    fn local(&mut self, slots: u16, size: u32) -> LocalId {
        let id = LocalId { index: self.number(), generation: 0 };
        let mut bytes = AlignedVec::new();
        bytes.resize(usize::from(slots) * size as usize, 0);
        self.memory.locals.insert(id, (size, bytes));
        id
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(super) fn connect(&mut self, role: Role) -> Client {
        let client = self.open(role).expect("the core has room for a session");
        self.events.push_back(Event::Up { link: client.link });
        self.run();
        client
    }

    pub(super) fn open(&mut self, role: Role) -> Result<Client, crate::core::Refusal> {
        let slots = slots(role);
        let link = LinkId { index: self.number(), generation: 0 };
        let channel = ChannelConfig {
            link,
            generation: GENERATION,
            receive: self.local(slots.receive, slots.receive_size),
            receive_slots: slots.receive,
            receive_size: slots.receive_size,
            send: self.local(slots.send, slots.send_size),
            send_slots: slots.send,
            send_size: slots.send_size,
            peer_slots: 64,
            peer_size: 1024,
        };
        let id = SessionId(u64::from(link.index));
        self.core.open_session(self.now, id, role, "test", channel)?;
        let endpoint = Endpoint {
            receives: VecDeque::new(),
            inbox: VecDeque::new(),
            credits: 0,
            is_generous: true,
            is_closed: false,
            offers: HashMap::new(),
        };
        self.links.insert(link, endpoint);
        self.run();
        Ok(Client { id, link })
    }

    /// Runs until nothing is left to do now.
    pub(super) fn run(&mut self) {
        loop {
            while let Some(transmit) = self.core.transmit(self.now, &mut self.memory) {
                self.execute(transmit);
            }
            let Some(event) = self.events.pop_front() else { break };
            self.core.handle(self.now, event, &mut self.memory);
        }
        while let Some(notice) = self.core.poll_notice() {
            self.notices.push(notice);
        }
        self.check();
    }

    /// Lets time pass; what is due on the way happens at its time.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now.time + time;
        let wall = self.now.wall.0 + time.as_nanos() as u64;
        while let Some(at) = self.core.timeout().filter(|at| *at <= end) {
            assert!(at >= self.now.time || at == self.now.time, "a timer of the past");
            self.now.time = at.max(self.now.time);
            self.core.handle_timeout(self.now, &mut self.memory);
            self.run();
        }
        self.now.time = end;
        self.now.wall = WallTime(wall);
        self.run();
    }

    pub(super) fn pass_ms(&mut self, ms: u64) {
        self.pass(Duration::from_millis(ms));
    }

    fn execute(&mut self, transmit: Transmit) {
        match transmit {
            Transmit::Post { link, op, work } => self.post(link, op, work),
            Transmit::Close { link } => self.down(link, DownCause::Closed),
            Transmit::Allocate { op, .. } => {
                let result = if self.windows_left == 0 {
                    Err(keyway_fabric::FabricError::Exhausted { what: "windows", limit: 0 })
                } else {
                    self.windows_left -= 1;
                    let number = self.number();
                    let id = WindowId { index: number, generation: 0 };
                    let key = Key(number << 8 | 0xf0);
                    self.memory.windows.insert(id, TestWindow { key, binding: None, is_busy: false });
                    Ok(id)
                };
                self.events.push_back(Event::Allocated { op, result });
            }
            Transmit::FreeWindow { window } => {
                let freed = self.memory.windows.remove(&window).expect("a window is freed once");
                assert!(!freed.is_busy, "{window} was freed with a bind or unbind outstanding");
                self.windows_left = self.windows_left.saturating_add(1);
                self.dead.extend(freed.binding.map(|(key, _)| (key, self.now.time)));
            }
            Transmit::FreeLocal { local } => {
                self.memory.locals.remove(&local).expect("memory is freed once");
            }
        }
    }

    fn post(&mut self, link: LinkId, op: Op, work: Work) {
        let endpoint = self.links.get_mut(&link).expect("the core posts to links that it was given");
        if endpoint.is_closed {
            self.events.push_back(Event::Done { link, op, result: Err(WorkError::Flushed) });
            return;
        }
        match work {
            Work::Recv { into } => {
                endpoint.receives.push_back((op, into));
                return;
            }
            Work::Bind { window, .. } | Work::Unbind { window } => {
                let window = self.memory.windows.get_mut(&window).expect("the window exists");
                assert!(!window.is_busy, "one bind or unbind of a window is outstanding at a time");
                window.is_busy = true;
                window.key = window.key.next();
                if self.holds_binds {
                    self.held.push_back((link, op, work));
                    return;
                }
            }
            Work::Read { .. } if self.holds_reads => {
                self.held.push_back((link, op, work));
                return;
            }
            Work::Send { .. } if self.holds_sends => {
                self.held.push_back((link, op, work));
                return;
            }
            Work::Read { .. } | Work::Send { .. } => {}
        }
        self.perform(link, op, work);
    }

    fn perform(&mut self, link: LinkId, op: Op, work: Work) {
        let endpoint = self.links.get_mut(&link).expect("the link exists");
        let result = match work {
            Work::Recv { .. } => unreachable!("receives are not performed"),
            Work::Send { from } => {
                let bytes = self.memory.bytes(from);
                let (envelope, message) = ToClientRef::decode(bytes).expect("the core sends valid messages");
                assert_eq!(envelope.generation, GENERATION);
                endpoint.inbox.push_back(message.to_message());
                endpoint.credits += 1;
                Ok(Outcome::Finished)
            }
            Work::Bind { window, span, .. } => {
                let window = self.memory.windows.get_mut(&window).expect("the window exists");
                window.is_busy = false;
                self.dead.extend(window.binding.map(|(key, _)| (key, self.now.time)));
                window.binding = Some((window.key, span));
                Ok(Outcome::Bound(window.key))
            }
            Work::Unbind { window } => {
                let window = self.memory.windows.get_mut(&window).expect("the window exists");
                window.is_busy = false;
                self.dead.extend(window.binding.take().map(|(key, _)| (key, self.now.time)));
                Ok(Outcome::Unbound)
            }
            Work::Read { from, into } => match endpoint.offers.get(&from.address) {
                Some(bytes) if bytes.len() == from.len as usize => {
                    let Target::Shared(into) = into else { panic!("offers are READ into the ring") };
                    let bytes = bytes.clone();
                    self.memory.write(into, &bytes);
                    Ok(Outcome::Finished)
                }
                _ => Err(WorkError::RemoteAccess),
            },
        };
        let failed = result.is_err();
        self.events.push_back(Event::Done { link, op, result });
        if failed {
            self.down(link, DownCause::Work(WorkError::RemoteAccess));
        }
    }

    /// Executes what was held.
    pub(super) fn release_work(&mut self) {
        (self.holds_binds, self.holds_reads) = (false, false);
        for (link, op, work) in std::mem::take(&mut self.held) {
            self.perform(link, op, work);
        }
        self.run();
    }

    /// An endpoint goes down: everything posted is flushed first.
    pub(super) fn down(&mut self, link: LinkId, cause: DownCause) {
        let endpoint = self.links.get_mut(&link).expect("the link exists");
        if std::mem::replace(&mut endpoint.is_closed, true) {
            return;
        }
        let mut flushed: Vec<_> = endpoint.receives.drain(..).map(|(op, _)| op).collect();
        let (mine, others): (VecDeque<_>, _) = self.held.drain(..).partition(|(other, ..)| *other == link);
        self.held = others;
        for (_, op, work) in mine {
            if let Work::Bind { window, .. } | Work::Unbind { window } = work {
                let window = self.memory.windows.get_mut(&window).expect("the window exists");
                window.is_busy = false;
                window.key = window.binding.map_or(Key(window.key.0.wrapping_sub(1)), |(key, _)| key);
            }
            flushed.push(op);
        }
        for op in flushed {
            self.events.push_back(Event::Done { link, op, result: Err(WorkError::Flushed) });
        }
        self.events.push_back(Event::Down { link, cause });
    }

    // ------------------------------------------------------------------------------------------------ clients' side

    /// Sends raw bytes into the next receive slot. Returns whether there was one.
    pub(super) fn send_raw(&mut self, client: Client, bytes: &[u8]) -> bool {
        let endpoint = self.links.get_mut(&client.link).expect("the link exists");
        if endpoint.is_closed {
            return false;
        }
        let Some((op, slot)) = endpoint.receives.pop_front() else { return false };
        let span = slot.part(0, bytes.len() as u32);
        self.memory.bytes_mut(span).copy_from_slice(bytes);
        self.events.push_back(Event::Message { link: client.link, op, span });
        self.run();
        true
    }

    pub(super) fn encode(&mut self, client: Client, message: &ToBroker, attachment: &[u8]) -> Vec<u8> {
        let endpoint = self.links.get_mut(&client.link).expect("the link exists");
        let credits = if endpoint.is_generous { std::mem::take(&mut endpoint.credits) } else { 0 };
        let mut slot: AlignedVec<64> = AlignedVec::new();
        slot.resize(64 * 1024, 0);
        let start = message.encode(GENERATION, credits, attachment.len(), &mut slot).expect("the message fits");
        slot[start..start + attachment.len()].copy_from_slice(attachment);
        slot[..start + attachment.len()].to_vec()
    }

    pub(super) fn send(&mut self, client: Client, message: impl Into<ToBroker>) {
        self.send_with(client, &message.into(), &[]);
    }

    pub(super) fn send_with(&mut self, client: Client, message: &ToBroker, attachment: &[u8]) {
        let bytes = self.encode(client, message, attachment);
        assert!(self.send_raw(client, &bytes), "the client has a credit");
    }

    pub(super) fn stops_crediting(&mut self, client: Client) {
        self.links.get_mut(&client.link).expect("the link exists").is_generous = false;
    }

    /// How many local memories there are.
    pub(super) fn locals(&self) -> usize {
        self.memory.locals.len()
    }

    /// How many receive slots the broker has posted for a client.
    pub(super) fn receives(&self, client: Client) -> usize {
        self.links[&client.link].receives.len()
    }

    pub(super) fn is_closed(&self, client: Client) -> bool {
        self.links[&client.link].is_closed
    }

    /// What has arrived at a client, without credits.
    pub(super) fn inbox(&mut self, client: Client) -> Vec<ToClient> {
        let endpoint = self.links.get_mut(&client.link).expect("the link exists");
        endpoint.inbox.drain(..).filter(|message| !matches!(message, ToClient::Credit(_))).collect()
    }

    pub(super) fn offer_bytes(&mut self, client: Client, address: u64, bytes: Vec<u8>) {
        self.links.get_mut(&client.link).expect("the link exists").offers.insert(address, bytes);
    }

    /// What a READ under a key gets.
    pub(super) fn read(&self, key: u32, address: u64, len: u32) -> Option<Vec<u8>> {
        let remote = RemoteSpan { address, len, key: Key(key) };
        let bound = self.memory.windows.values().filter_map(|window| window.binding);
        let (_, span) = bound.into_iter().find(|(key, _)| *key == remote.key)?;
        let from = address.checked_sub(POOL_ADDRESS)?;
        let within = from >= span.offset && from + u64::from(len) <= span.end();
        within.then(|| self.memory.pool[from as usize..][..len as usize].to_vec())
    }

    pub(super) fn read_grant(&self, grant: &Grant) -> Option<Vec<u8>> {
        self.read(grant.key, grant.address, grant.len)
    }

    // ------------------------------------------------------------------------------------------------------ checks

    /// What must hold at any time.
    fn check(&self) {
        let views: Vec<_> = self.core.windows().collect();
        assert_eq!(views.len(), self.memory.windows.len(), "the core knows every window");
        for segment in self.core.segments() {
            let start = u64::from(segment.index) * SEGMENT;
            let covered = views.iter().filter_map(|view| view.grant);
            let count = covered.filter(|grant| grant.span.offset / SEGMENT == start / SEGMENT).count();
            assert_eq!(segment.windows as usize, count, "windows are counted at {segment:?}");
            if segment.state == crate::core::SegmentState::Free {
                assert_eq!(count, 0, "a free segment is covered by no window");
            }
        }
        for subscription in self.core.subscriptions() {
            assert!(subscription.windows <= u32::from(subscription.depth), "{subscription:?} has more than its depth");
        }
        for view in views {
            if let Some(grant) = view.grant {
                assert!(grant.deadline + Duration::from_millis(1) > self.now.time, "{grant:?} outlived its deadline");
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------------ shorthands

pub(super) fn batch(topic: u32, producer: u64, number: u64, payloads: &[&[u8]]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Vec::new());
    for payload in payloads {
        builder.push(RecordRef { key: &[], headers: &[], payload });
    }
    builder.finish(topic, producer, number)
}

pub(super) fn subscribe(scope: Scope, start: Start) -> Subscribe {
    Subscribe {
        request: 1,
        topic: "t".to_owned(),
        name: String::new(),
        start,
        scope,
        epoch: EpochSettings { interval_us: 10_000, grace_ms: 100, bytes: 0, records: 0 },
        depth: 0,
        grant_bytes: 0,
    }
}

impl Bench {
    pub(super) fn opens(&mut self, client: Client, producer: u64) -> TopicOpened {
        self.send(client, OpenTopic { request: 1, topic: "t".to_owned(), settings: None, producer });
        match self.inbox(client).pop() {
            Some(ToClient::TopicOpened(opened)) => opened,
            other => panic!("a topic was to be opened, and the answer is {other:?}"),
        }
    }

    /// A producer with topic `t` open.
    pub(super) fn producer(&mut self, producer: u64) -> Client {
        let client = self.connect(Role::Producer);
        self.opens(client, producer);
        client
    }

    pub(super) fn publish(&mut self, client: Client, producer: u64, number: u64, payloads: &[&[u8]]) {
        let bytes = batch(1, producer, number, payloads);
        self.send_with(client, &Publish { topic: 1 }.into(), &bytes);
    }

    pub(super) fn subscribes(&mut self, client: Client, request: Subscribe) -> Subscribed {
        self.send(client, request);
        let endpoint = self.links.get_mut(&client.link).expect("the link exists");
        match endpoint.inbox.pop_front() {
            Some(ToClient::Subscribed(subscribed)) => subscribed,
            other => panic!("a subscription was to be made, and the answer is {other:?}"),
        }
    }

    /// The grants that have arrived, nothing else having done so.
    pub(super) fn grants(&mut self, client: Client) -> Vec<Grant> {
        let grant = |message| match message {
            ToClient::Grant(grant) => grant,
            other => panic!("a grant was to come, and {other:?} did"),
        };
        self.inbox(client).into_iter().map(grant).collect()
    }

    /// The code with which a session was ended.
    pub(super) fn ended(&mut self, client: Client) -> Option<Code> {
        self.notices.iter().find_map(|notice| match notice {
            Notice::SessionClosed { id, refusal, .. } if *id == client.id => {
                refusal.as_ref().map(|refusal| refusal.code)
            }
            _ => None,
        })
    }
}
