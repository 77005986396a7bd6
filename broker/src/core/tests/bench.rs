//! A bench to try a core on: memory in vectors, a fabric that executes at once (or when told to), clients driven by hand.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use keyway_channel::ChannelConfig;
use keyway_fabric::{
    DomainId, DownCause, Event, FabricError, Key, LinkId, LocalId, LocalSpan, Machine, Memory, Now, Op, Outcome,
    SharedId, Target, Time, Transmit, WallTime, WindowId, Work, WorkError,
};
use keyway_schema::bootstrap::Role;
use keyway_schema::limits::SEGMENT_MIN;
use keyway_schema::{ToClient, ToClientRef};
use rkyv::util::AlignedVec;

use super::memory::{TestWindow, VecMemory};
use crate::core::{Core, CoreConfig, Notice, Refusal, SegmentState, SessionId, slots};

pub(super) const POOL: SharedId = SharedId { index: 0, generation: 0 };
pub(super) const SEGMENT: u64 = SEGMENT_MIN as u64;
pub(super) const GENERATION: u32 = 7;

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
    /// The first keys of the next windows, where it matters.
    pub(super) first_keys: VecDeque<Key>,
    /// Keys that the next bind passes over.
    pub(super) keys_passed: u8,
    /// The device gives the index of the window freed last to the next one, as some do.
    pub(super) reuses_indices: bool,
    freed_indices: Vec<u32>,
    /// Unbinds posted so far.
    pub(super) unbinds: u64,
    /// How many windows may be allocated.
    pub(super) windows_left: u32,
    pub(super) events: VecDeque<Event>,
    held: VecDeque<(LinkId, Op, Work)>,
    pub(super) links: BTreeMap<LinkId, Endpoint>,
    next: u32,
    /// Keys with the times of their deaths, by the bench's own account.
    pub(super) dead: HashMap<Key, Time>,
    pub(super) notices: Vec<Notice>,
}

pub(super) struct Endpoint {
    pub(super) receives: VecDeque<(Op, LocalSpan)>,
    pub(super) inbox: VecDeque<ToClient>,
    /// Messages received and not credited.
    pub(super) credits: u16,
    /// Whether messages are credited at all.
    pub(super) is_generous: bool,
    pub(super) is_closed: bool,
    /// What the client offers, by address.
    pub(super) offers: HashMap<u64, Vec<u8>>,
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
            first_keys: VecDeque::new(),
            keys_passed: 0,
            reuses_indices: false,
            freed_indices: Vec::new(),
            unbinds: 0,
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

    pub(super) fn open(&mut self, role: Role) -> Result<Client, Refusal> {
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
                    Err(FabricError::Exhausted { what: "windows", limit: 0 })
                } else {
                    self.windows_left -= 1;
                    let number = self.number();
                    let id = WindowId { index: number, generation: 0 };
                    let reused = self.freed_indices.pop().filter(|_| self.reuses_indices);
                    let index = reused.unwrap_or(number);
                    // As a device does that counts its allocations in the low byte.
                    let key = self.first_keys.pop_front().unwrap_or(Key(index << 8 | (0xf0 + number) & 0xff));
                    self.memory.windows.insert(id, TestWindow { key, binding: None, is_busy: false });
                    Ok(id)
                };
                self.events.push_back(Event::Allocated { op, result });
            }
            Transmit::FreeWindow { window } => {
                let freed = self.memory.windows.remove(&window).expect("a window is freed once");
                assert!(!freed.is_busy, "{window} was freed with a bind or unbind outstanding");
                self.windows_left = self.windows_left.saturating_add(1);
                self.freed_indices.push(freed.key.index());
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
                self.unbinds += u64::from(matches!(work, Work::Unbind { .. }));
                let window = self.memory.windows.get_mut(&window).expect("the window exists");
                assert!(!window.is_busy, "one bind or unbind of a window is outstanding at a time");
                window.is_busy = true;
                for _ in 0..=std::mem::take(&mut self.keys_passed) {
                    window.key = window.key.next();
                }
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

    // ------------------------------------------------------------------------------------------------------ checks

    /// What must hold at any time.
    fn check(&self) {
        let views: Vec<_> = self.core.windows().collect();
        let parked = self.core.counters().windows_parked as usize;
        assert_eq!(views.len() + parked, self.memory.windows.len(), "the core knows every window");
        for segment in self.core.segments() {
            let start = u64::from(segment.index) * SEGMENT;
            let covered = views.iter().filter_map(|view| view.grant);
            let count = covered.filter(|grant| grant.span.offset / SEGMENT == start / SEGMENT).count();
            assert_eq!(segment.windows as usize, count, "windows are counted at {segment:?}");
            if segment.state == SegmentState::Free {
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
