//! The machine against a broker that is played by hand: a log in plain vectors, READs that end when the test says so, and
//! real landing memory, which panics when bytes in flight or under a view would be touched.

mod arbitrary;
mod lapped;
mod pieces;
mod protocol;
mod seek;
mod segment;

use std::collections::{HashMap, VecDeque};

use keyway_channel::ChannelConfig;
use keyway_fabric::memory::{Claim, LocalMemory, Use};
use keyway_fabric::{
    Event, Key, LinkId, LocalId, LocalSpan, Machine, Memory, Now, Op, Outcome, RemoteSpan, SharedId, SharedSpan,
    Target, Time, Transmit, View, Waker, WallTime, WindowId, Work, WorkError,
};
use keyway_schema::batch::{BATCH_HEADER_LEN, Batch, BatchBuilder, BatchHeader};
use keyway_schema::limits::{CONTROL_SLOT, SEGMENT_HEADER};
use keyway_schema::message::*;
use keyway_schema::record::RecordRef;
use keyway_schema::segment::{TAIL_AT, Tail, segment_of, segment_start};
use keyway_schema::{ToBroker, ToBrokerRef, ToClient};

use super::{ConsumerMachine, LandingMemory, MachineConfig, Output};

const SEGMENT: u32 = 64 * 1024;
const TOPIC: u32 = 7;
const BATCH_MAX: u32 = 16 * 1024;
const GENERATION: u32 = 3;
const LINK: LinkId = LinkId { index: 1, generation: 1 };
const SLOTS: u16 = 64;

/// A segment's first byte lies at this address times its number plus one.
const STRIDE: u64 = 1 << 32;

/// The address of a place in the log.
fn address_of(offset: u64) -> u64 {
    (segment_of(offset, SEGMENT) + 1) * STRIDE + offset % u64::from(SEGMENT)
}

fn local(index: u32) -> LocalId {
    LocalId { index, generation: 0 }
}

/// Local memory by id; nothing else of [`Memory`] is a consumer's business.
#[derive(Default)]
struct Locals {
    all: HashMap<LocalId, LocalMemory>,
    made: u32,
}

impl Locals {
    fn make(&mut self, slots: u32, size: u32) -> LocalId {
        self.made += 1;
        let id = local(self.made);
        self.all.insert(id, LocalMemory::new(slots, size, Waker::new().unwrap()).unwrap());
        id
    }
    fn of(&mut self, span: LocalSpan) -> &mut LocalMemory {
        self.all.get_mut(&span.local).unwrap()
    }
}

impl Memory for Locals {
    fn bytes(&self, span: LocalSpan) -> &[u8] {
        self.all[&span.local].bytes(span.range())
    }
    fn bytes_mut(&mut self, span: LocalSpan) -> &mut [u8] {
        self.of(span).bytes_mut(span.range())
    }
    fn copy(&mut self, _: LocalSpan, _: SharedSpan) {
        unreachable!("a consumer has no shared memory");
    }
    fn write(&mut self, _: SharedSpan, _: &[u8]) {
        unreachable!("a consumer has no shared memory");
    }
    fn load(&self, _: SharedSpan, _: &mut [u8]) {
        unreachable!("a consumer has no shared memory");
    }
    fn store(&mut self, _: SharedId, _: u64, _: u64) {
        unreachable!("a consumer has no shared memory");
    }
    fn zero(&mut self, _: SharedSpan) {
        unreachable!("a consumer has no shared memory");
    }
    fn crc32c(&self, _: SharedSpan) -> u32 {
        unreachable!("a consumer has no shared memory");
    }
    fn address(&self, _: SharedSpan) -> u64 {
        unreachable!("a consumer has no shared memory");
    }
    fn key(&self, _: WindowId) -> Key {
        unreachable!("a consumer has no windows");
    }
}

/// A topic's log, as it lies in the broker's segments.
#[derive(Default)]
struct Log {
    segments: HashMap<u64, Vec<u8>>,
    tail: u64,
    next: u64,
}

impl Log {
    fn new() -> Self {
        let mut log = Self::default();
        log.enter(0);
        log
    }

    fn enter(&mut self, segment: u64) {
        self.segments.insert(segment, vec![0; SEGMENT as usize]);
        self.tail = segment_start(segment, SEGMENT);
        self.store_tail(false);
    }

    fn store_tail(&mut self, sealed: bool) {
        let segment = if sealed { segment_of(self.tail - 1, SEGMENT) } else { segment_of(self.tail, SEGMENT) };
        let word = Tail { offset: self.tail, sealed }.word();
        self.segments.get_mut(&segment).unwrap()[..8].copy_from_slice(&word.to_le_bytes());
    }

    fn space(&self) -> u64 {
        u64::from(SEGMENT) - self.tail % u64::from(SEGMENT)
    }

    /// Writes bytes behind the tail, without moving it.
    fn write(&mut self, bytes: &[u8]) {
        let (segment, at) = (segment_of(self.tail, SEGMENT), (self.tail % u64::from(SEGMENT)) as usize);
        self.segments.get_mut(&segment).unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Appends a batch of records with such payloads, in a new segment if need be. Returns its offset.
    fn append(&mut self, payloads: &[Vec<u8>]) -> u64 {
        let bytes = batch(TOPIC, self.next, payloads);
        if (bytes.len() as u64) >= self.space() {
            self.seal();
        }
        let offset = self.tail;
        self.write(&bytes);
        self.tail += bytes.len() as u64;
        self.next += payloads.len() as u64;
        self.store_tail(false);
        offset
    }

    /// Seals the segment and begins the next.
    fn seal(&mut self) {
        self.store_tail(true);
        let segment = segment_of(self.tail - 1, SEGMENT);
        self.enter(segment + 1);
    }

    /// Appends one record whose payload names it.
    fn append_one(&mut self, len: usize) -> u64 {
        let payload = payload(self.next, len);
        self.append(&[payload])
    }

    fn read(&self, from: RemoteSpan) -> &[u8] {
        let (segment, at) = (from.address / STRIDE - 1, (from.address % STRIDE) as usize);
        &self.segments[&segment][at..at + from.len as usize]
    }
}

/// A payload that says which record it is in every word.
fn payload(sequence: u64, len: usize) -> Vec<u8> {
    (sequence + 1).to_le_bytes().into_iter().cycle().take(len).collect()
}

fn batch(topic: u32, base_sequence: u64, payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Vec::new());
    for payload in payloads {
        builder.push(RecordRef { key: b"", headers: b"", payload });
    }
    patched(builder.finish(topic, 1, 1), base_sequence)
}

fn patched(mut bytes: Vec<u8>, base_sequence: u64) -> Vec<u8> {
    let header = BatchHeader { base_sequence, time: base_sequence, ..BatchHeader::read(&bytes).unwrap() };
    bytes[..BATCH_HEADER_LEN].copy_from_slice(&header.to_bytes());
    bytes
}

fn filler(base_sequence: u64, len: u32) -> Vec<u8> {
    let header = BatchHeader {
        len,
        crc: 0,
        records: 0,
        base_sequence,
        time: 0,
        producer: 1,
        number: 1,
        topic: TOPIC,
        filler: true,
    };
    let mut bytes = vec![0xee; len as usize];
    bytes[..BATCH_HEADER_LEN].copy_from_slice(&header.to_bytes());
    bytes
}

/// A READ that the machine has posted.
struct Pending {
    op: Op,
    from: RemoteSpan,
    claim: Claim,
    into: LocalSpan,
}

/// What the application got.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Record(u64),
    Lagged { from: u64, to: u64 },
    Restarted(u64),
    Sought { ticket: u64, sequence: u64 },
}

/// The machine, its memory and what it has posted.
struct Bench {
    machine: ConsumerMachine,
    locals: Locals,
    now: Now,
    log: Log,
    /// The subscription's number, and its last epoch.
    subscription: u32,
    epoch: u64,
    /// Seeks asked for.
    seeks: u64,
    receives: VecDeque<(Op, LocalSpan)>,
    reads: VecDeque<Pending>,
    /// How far the log was READ, and how many bytes of it again.
    read_to: u64,
    read_again: u64,
    sent: Vec<ToBroker>,
    /// Messages taken in that the machine has no credits for yet.
    owed: u16,
    items: Vec<Item>,
    /// Views that the application keeps.
    kept: Option<Vec<View>>,
    retired: Vec<(LocalId, u32)>,
    closed: bool,
    /// Whether the host takes outputs.
    taking: bool,
}

impl Bench {
    fn new(config: impl FnOnce(&mut MachineConfig)) -> Self {
        let mut settings = MachineConfig::new("topic".parse().unwrap());
        settings.start = Start::Earliest;
        settings.landing = 0;
        config(&mut settings);
        Self {
            machine: ConsumerMachine::new(settings),
            locals: Locals::default(),
            now: Now { time: Time(1), wall: WallTime(1) },
            log: Log::new(),
            subscription: 5,
            epoch: 0,
            seeks: 0,
            receives: VecDeque::new(),
            reads: VecDeque::new(),
            read_to: 0,
            read_again: 0,
            sent: Vec::new(),
            owed: 0,
            items: Vec::new(),
            kept: None,
            retired: Vec::new(),
            closed: false,
            taking: true,
        }
    }

    /// A bench whose subscription starts at the log's beginning.
    fn subscribed(scope: Scope) -> Self {
        let mut bench = Self::new(|config| config.scope = scope);
        bench.connect(1);
        bench.confirm(0, segment_start(0, SEGMENT));
        bench
    }

    fn connect(&mut self, instance: u64) {
        let receive = self.locals.make(SLOTS.into(), CONTROL_SLOT);
        let send = self.locals.make(SLOTS.into(), CONTROL_SLOT);
        let channel = ChannelConfig {
            link: LINK,
            generation: GENERATION,
            receive,
            receive_slots: SLOTS,
            receive_size: CONTROL_SLOT,
            send,
            send_slots: SLOTS,
            send_size: CONTROL_SLOT,
            peer_slots: SLOTS,
            peer_size: CONTROL_SLOT,
        };
        self.receives.clear();
        self.closed = false;
        self.epoch = 0;
        self.owed = 0;
        self.machine.connected(self.now, instance, 42, channel);
        self.run();
    }

    fn subscribed_message(&self, sequence: u64, offset: u64) -> Subscribed {
        Subscribed {
            request: self.machine.lasting.requests,
            subscription: self.subscription,
            topic: TOPIC,
            segment_size: SEGMENT,
            batch_max: BATCH_MAX,
            sequence,
            offset,
            epoch: EpochSettings { grace_ms: 1000, ..EpochSettings::default() },
            depth: 4,
        }
    }

    fn confirm(&mut self, sequence: u64, offset: u64) {
        assert!(matches!(self.sent.pop(), Some(ToBroker::Subscribe(_))));
        let told = self.subscribed_message(sequence, offset);
        self.tell(told);
    }

    /// Hands a message of the broker's to the machine.
    fn tell(&mut self, message: impl Into<ToClient>) {
        let (op, span) = self.receives.pop_front().expect("the machine has receives posted");
        let owed = std::mem::take(&mut self.owed);
        let len = message.into().encode(GENERATION, owed, 0, self.locals.bytes_mut(span)).unwrap();
        self.event(Event::Message { link: LINK, op, span: span.part(0, len as u32) });
    }

    fn event(&mut self, event: Event) {
        self.machine.handle(self.now, event, &mut self.locals);
        self.run();
    }

    /// Lets the machine post everything that it wants, and takes its outputs, until nothing changes.
    fn run(&mut self) {
        loop {
            let mut changed = false;
            while let Some(transmit) = self.machine.transmit(self.now, &mut self.locals) {
                changed = true;
                self.take(transmit);
            }
            changed |= self.taking && self.take_outputs();
            if !changed {
                break;
            }
        }
    }

    fn take(&mut self, transmit: Transmit) {
        match transmit {
            Transmit::Post { op, work: Work::Recv { into }, .. } => self.receives.push_back((op, into)),
            Transmit::Post { op, work: Work::Send { from }, .. } => {
                let (_, message) =
                    ToBrokerRef::decode(self.locals.bytes(from)).expect("the machine sends valid messages");
                let message = message.to_message();
                self.owed += 1;
                if let ToBroker::Unsubscribe(_) = message {
                    self.subscription += 1;
                    self.epoch = 0;
                }
                if !matches!(message, ToBroker::Credit(_)) {
                    self.sent.push(message);
                }
                self.machine.handle(
                    self.now,
                    Event::Done { link: LINK, op, result: Ok(Outcome::Finished) },
                    &mut self.locals,
                );
            }
            Transmit::Post { op, work: Work::Read { from, into: Target::Local(into) }, .. } => {
                assert_eq!(from.len, into.len);
                let claim = self.locals.of(into).begin(into.range(), Use::Write);
                let claim = claim.unwrap_or_else(|| panic!("{into:?} is in flight or under a view"));
                if from.address % STRIDE != TAIL_AT {
                    // What was guessed to stand behind the tail does not count.
                    self.read_again += self.read_to.min(address_of(self.log.tail)).saturating_sub(from.address);
                    self.read_to = from.address + u64::from(from.len);
                }
                self.reads.push_back(Pending { op, from, claim, into });
            }
            Transmit::Close { link: LINK } => self.closed = true,
            other => panic!("a consumer does not ask for {other:?}"),
        }
    }

    fn take_outputs(&mut self) -> bool {
        let mut changed = false;
        while let Some(output) = self.machine.poll_output() {
            changed = true;
            match output {
                Output::Land { arenas, size } => {
                    let local = self.locals.make(arenas, size);
                    let word = self.locals.make(1, 64);
                    self.machine.landed(LandingMemory { local, arenas, size, word });
                }
                Output::Batches { span, from } => self.take_batches(span, from),
                Output::Record { span, sequence, time } => {
                    let view = self.locals.of(span).view(span.range());
                    let record = RecordRef::read(&view).unwrap();
                    assert_eq!(record.payload, payload(sequence, record.payload.len()));
                    assert_eq!(time, sequence * 10);
                    self.items.push(Item::Record(sequence));
                    self.keep(view);
                }
                Output::Lagged { from, to } => self.items.push(Item::Lagged { from, to }),
                Output::Sought { ticket, sequence } => self.items.push(Item::Sought { ticket, sequence }),
                Output::Restarted { instance } => self.items.push(Item::Restarted(instance)),
                Output::Retired { local, slot } => self.retired.push((local, slot)),
            }
        }
        let mut retired = std::mem::take(&mut self.retired);
        retired.retain(|(local, slot)| {
            let free = self.locals.all.get_mut(local).unwrap().reset(*slot);
            if free {
                self.machine.arena_free(*local, *slot);
                changed = true;
            }
            !free
        });
        self.retired = retired;
        changed
    }

    fn take_batches(&mut self, span: LocalSpan, from: u64) {
        let view = self.locals.of(span).view(span.range());
        let mut rest = &view[..];
        while !rest.is_empty() {
            let batch = Batch::read(rest).expect("only valid batches are handed out");
            for (sequence, record) in (batch.header().base_sequence..).zip(batch.records()) {
                if sequence >= from {
                    assert_eq!(record.payload, payload(sequence, record.payload.len()), "of record {sequence}");
                    self.items.push(Item::Record(sequence));
                }
            }
            rest = &rest[batch.header().len as usize..];
        }
        self.keep(view);
    }

    fn keep(&mut self, view: View) {
        if let Some(kept) = &mut self.kept {
            kept.push(view);
        }
    }

    /// Ends the oldest READ with what is in the log now.
    fn complete(&mut self) {
        let read = self.reads.pop_front().expect("a READ is in flight");
        let bytes = self.log.read(read.from).to_vec();
        self.complete_with(read, &bytes);
    }

    fn complete_with(&mut self, mut read: Pending, bytes: &[u8]) {
        read.claim.bytes_mut().copy_from_slice(bytes);
        self.locals.of(read.into).end(read.claim);
        self.event(Event::Done { link: LINK, op: read.op, result: Ok(Outcome::Finished) });
    }

    /// Ends READs until none is in flight.
    fn complete_all(&mut self) {
        for _ in 0..10_000 {
            if self.reads.is_empty() {
                return;
            }
            self.complete();
        }
        panic!("the machine does not stop READing");
    }

    /// Fails the oldest READ and flushes the others, as an endpoint in the error state does.
    fn fail_reads(&mut self, error: WorkError) {
        let mut error = error;
        while let Some(read) = self.reads.pop_front() {
            self.locals.of(read.into).end(read.claim);
            self.event(Event::Done { link: LINK, op: read.op, result: Err(error) });
            error = WorkError::Flushed;
        }
    }

    /// Ends the session as the fabric does: everything flushed, then `Down`.
    fn down(&mut self) {
        self.fail_reads(WorkError::Flushed);
        self.event(Event::Down { link: LINK, cause: keyway_fabric::DownCause::PeerLost });
        self.machine.disconnected();
    }

    /// Asks for a seek. Returns its ticket.
    fn seek(&mut self, start: Start) -> u64 {
        self.seeks += 1;
        self.machine.seek(self.seeks, start);
        self.run();
        self.seeks
    }

    /// A grant of a whole segment, under the next epoch. Returns the epoch.
    fn grant(&mut self, segment: u64, supersedes: u64) -> u64 {
        self.epoch += 1;
        let grant = self.segment_grant(self.epoch, segment, supersedes);
        self.tell(grant);
        self.epoch
    }

    fn segment_grant(&self, epoch: u64, segment: u64, supersedes: u64) -> Grant {
        let offset = segment * u64::from(SEGMENT);
        Grant {
            subscription: self.subscription,
            epoch,
            supersedes,
            offset,
            len: SEGMENT,
            address: address_of(offset),
            key: epoch as u32,
            sequence: 0,
            records: 0,
            time: 0,
            crc: 0,
            current_us: 1_000_000,
        }
    }

    fn wake(&mut self) {
        let tail = self.log.tail;
        self.tell(Wake { subscription: self.subscription, tail });
    }

    /// The messages sent since the last call.
    fn sent(&mut self) -> Vec<ToBroker> {
        std::mem::take(&mut self.sent)
    }

    /// The items handed out since the last call.
    fn items(&mut self) -> Vec<Item> {
        std::mem::take(&mut self.items)
    }

    /// Advances the clock and fires the timer if it is due.
    fn advance(&mut self, by: std::time::Duration) {
        self.now.time = self.now.time + by;
        if self.machine.timeout().is_some_and(|at| at <= self.now.time) {
            self.machine.handle_timeout(self.now, &mut self.locals);
        }
        self.run();
    }
}

fn records(sequences: std::ops::Range<u64>) -> Vec<Item> {
    sequences.map(Item::Record).collect()
}

fn release(epoch: u64, sequence: u64) -> ToBroker {
    Release { subscription: 5, epoch, sequence, pause: false }.into()
}

fn pause(epoch: u64, sequence: u64) -> ToBroker {
    Release { subscription: 5, epoch, sequence, pause: true }.into()
}

fn arm(sequence: u64) -> ToBroker {
    Arm { subscription: 5, sequence }.into()
}

/// The offset of a segment's first batch.
const fn start_of(segment: u64) -> u64 {
    segment * SEGMENT as u64 + SEGMENT_HEADER as u64
}
