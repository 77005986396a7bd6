//! A consumer made by hand: one READ at a time, and no haste.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use keyway_channel::Channel;
use keyway_fabric::*;
use keyway_schema::batch::{Batch, BatchError};
use keyway_schema::bootstrap::Role;
use keyway_schema::limits::CONTROL_SLOT;
use keyway_schema::message::*;
use keyway_schema::record::RecordRef;
use keyway_schema::segment::{Tail, segment_of, segment_start};
use keyway_schema::{ToBroker, ToClient, ToClientRef};

use super::Manners;
use crate::device::SimFabric;
use crate::session::{Connected, Delivery, Plan, Session};

const READ: Op = Op(1);
const GARBAGE: Op = Op(2);
/// Keys that a keeper remembers at most.
const KEPT_MAX: usize = 4_096;

/// What a consumer wants.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) topic: String,
    pub(crate) start: Start,
    pub(crate) scope: Scope,
    pub(crate) epoch: EpochSettings,
    pub(crate) depth: u16,
    pub(crate) landing: u32,
}

/// What the one READ that may be outstanding is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Nothing,
    Tail {
        epoch: u64,
    },
    Data {
        epoch: u64,
        len: u32,
    },
    /// A key that should open nothing any more.
    Stolen,
}

/// Where it stands in the session.
#[derive(Debug)]
struct Joined {
    channel: Channel,
    subscription: Option<u32>,
    segment_size: u32,
    /// Segment scope: where the next batch begins.
    offset: u64,
    /// Grants that may be used, by epoch.
    grants: BTreeMap<u64, Grant>,
    /// The newest epoch granted, and the newest released.
    newest: u64,
    released: u64,
    /// Epochs up to here are not to be used any more.
    barred: u64,
    lagged: Option<(u64, u64)>,
    reading: Reading,
    /// The tail, as last read or told, and whether the segment was sealed there.
    tail: u64,
    sealed: bool,
    armed: bool,
    /// When a release became due, for those who are late.
    due: Option<Time>,
    /// Something of it has failed: its end is near, and it does nothing more.
    broken: bool,
}

/// A consumer made by hand.
#[derive(Debug)]
pub(crate) struct PuppetConsumer {
    wish: Subscription,
    manners: Manners,
    rng: fastrand::Rng,
    landing: Option<LocalSpan>,
    spare: Option<LocalSpan>,
    joined: Option<Joined>,
    instance: Option<u64>,
    /// The next record that the application expects, once it has got or been told of one.
    next: Option<u64>,
    deliveries: Vec<Delivery>,
    out: VecDeque<Transmit>,
    /// Every key that it ever had, with what it opened.
    kept: Vec<RemoteSpan>,
    grants: u64,
    stopping: bool,
    over: bool,
}

impl PuppetConsumer {
    pub(crate) fn new(wish: Subscription, manners: Manners, rng: fastrand::Rng) -> Self {
        Self {
            wish,
            manners,
            rng,
            landing: None,
            spare: None,
            joined: None,
            instance: None,
            next: None,
            deliveries: Vec::new(),
            out: VecDeque::new(),
            kept: Vec::new(),
            grants: 0,
            stopping: false,
            over: false,
        }
    }

    fn stopped(&self) -> bool {
        matches!(self.manners, Manners::Stops { grants } if self.grants >= grants)
    }

    fn message(&mut self, now: Now, message: ToClient) {
        let Some(joined) = self.joined.as_mut() else { return };
        match message {
            ToClient::Subscribed(subscribed) => {
                joined.subscription = Some(subscribed.subscription);
                joined.segment_size = subscribed.segment_size;
                joined.offset = subscribed.offset;
                joined.tail = subscribed.offset;
                if let Some(next) = self.next
                    && subscribed.sequence > next
                {
                    self.deliveries.push(Delivery::Gap { from: next, to: subscribed.sequence });
                }
                self.next = Some(subscribed.sequence);
            }
            ToClient::Grant(grant) => {
                self.grants += 1;
                joined.newest = joined.newest.max(grant.epoch);
                joined.armed = false;
                if grant.supersedes > 0 {
                    joined.grants.remove(&grant.supersedes);
                    joined.barred = joined.barred.max(grant.supersedes);
                }
                let span = RemoteSpan { address: grant.address, len: grant.len, key: Key(grant.key) };
                if self.kept.len() < KEPT_MAX {
                    self.kept.push(span);
                }
                joined.grants.insert(grant.epoch, grant);
            }
            ToClient::Wake(wake) => {
                joined.armed = false;
                // A tail in a later segment says nothing of where this one ends: its own tail word does.
                if segment_of(wake.tail, joined.segment_size.max(1))
                    == segment_of(joined.offset, joined.segment_size.max(1))
                {
                    joined.tail = joined.tail.max(wake.tail);
                }
            }
            ToClient::Lagged(lagged) => joined.lagged = Some((lagged.sequence, lagged.offset)),
            ToClient::Revoked(revoked) => {
                joined.armed = false;
                joined.barred = joined.barred.max(revoked.epoch);
                joined.grants.retain(|epoch, _| *epoch > revoked.epoch);
            }
            ToClient::Failed(_) => self.out.push_back(Transmit::Close { link: joined.channel.link() }),
            _ => (),
        }
        let _ = now;
    }

    /// What its last READ brought.
    fn landed(&mut self, memory: &dyn Memory) {
        let Some(joined) = self.joined.as_mut() else { return };
        let landing = self.landing.expect("prepared before the first session");
        match std::mem::replace(&mut joined.reading, Reading::Nothing) {
            Reading::Nothing | Reading::Stolen => (),
            Reading::Tail { .. } => {
                let bytes = memory.bytes(LocalSpan { len: 8, ..landing });
                let tail = Tail::from_word(u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
                joined.tail = joined.tail.max(tail.offset);
                joined.sealed = tail.sealed;
            }
            Reading::Data { epoch, len } => {
                let bytes = memory.bytes(LocalSpan { len, ..landing }).to_vec();
                let grant = joined.grants.remove(&epoch);
                match self.wish.scope {
                    Scope::Segment => {
                        if let Some(grant) = grant {
                            joined.grants.insert(epoch, grant);
                        }
                        self.batches(&bytes);
                    }
                    Scope::Batch => {
                        self.batches(&bytes);
                    }
                    Scope::Message => {
                        if let Some((grant, record)) = grant.zip(RecordRef::read(&bytes)) {
                            self.deliver(grant.sequence, grant.time, record.payload);
                        }
                    }
                }
            }
        }
    }

    /// Delivers every whole batch and moves the offset behind it.
    fn batches(&mut self, mut bytes: &[u8]) {
        loop {
            let batch = match Batch::read(bytes) {
                Ok(batch) => batch,
                Err(BatchError::Truncated { .. }) => return,
                // Delivered as what it is: the judges will say that it cannot be.
                Err(_) => {
                    let sequence = self.next.unwrap_or_default();
                    return self.deliver(sequence, 0, b"torn");
                }
            };
            let header = *batch.header();
            let records: Vec<Vec<u8>> = batch.records().map(|record| record.payload.to_vec()).collect();
            for (sequence, payload) in (header.base_sequence..).zip(&records) {
                self.deliver(sequence, header.time, payload);
            }
            if let Some(joined) = self.joined.as_mut() {
                joined.offset += u64::from(header.len);
            }
            let Some(rest) = bytes.get(header.len as usize..).filter(|rest| !rest.is_empty()) else { return };
            bytes = rest;
        }
    }

    fn deliver(&mut self, sequence: u64, time: u64, payload: &[u8]) {
        // A batch may begin before the record that was asked for.
        if self.next.is_some_and(|next| sequence < next) {
            return;
        }
        self.next = Some(sequence + 1);
        self.deliveries.push(Delivery::Record { sequence, time, payload: payload.to_vec() });
    }

    /// Decides what to do next.
    fn act(&mut self, now: Now, memory: &mut dyn Memory) {
        if self.stopped() || self.joined.as_ref().is_none_or(|joined| joined.broken) {
            return;
        }
        self.lag();
        self.release(now, memory);
        let Some(joined) = self.joined.as_ref() else { return };
        if joined.reading != Reading::Nothing || joined.subscription.is_none() || self.stopping {
            return;
        }
        let keeps = match self.manners {
            Manners::KeepsKeys { turns } => !self.kept.is_empty() && self.rng.u32(0..turns.max(1)) == 0,
            _ => false,
        };
        match self.wish.scope {
            _ if keeps => self.steal(),
            Scope::Segment => self.read_segment(memory),
            Scope::Batch | Scope::Message => self.read_grant(memory),
        }
    }

    /// Goes on behind what was dropped, once nothing is in flight.
    fn lag(&mut self) {
        let Some(joined) = self.joined.as_mut() else { return };
        if joined.reading != Reading::Nothing {
            return;
        }
        let Some((sequence, offset)) = joined.lagged.take() else { return };
        if let Some(next) = self.next.filter(|next| *next < sequence) {
            self.deliveries.push(Delivery::Gap { from: next, to: sequence });
            self.next = Some(sequence);
        }
        // Nothing may have been lost, and the segment that it stands in be gone all the same.
        if joined.offset < offset {
            joined.offset = offset;
            joined.tail = joined.tail.max(offset);
            joined.sealed = false;
        }
    }

    /// Releases what is not used any more.
    fn release(&mut self, now: Now, memory: &mut dyn Memory) {
        let Some(joined) = self.joined.as_mut() else { return };
        let Some(subscription) = joined.subscription else { return };
        if self.wish.scope == Scope::Segment && joined.segment_size > 0 {
            // Keys of segments that were read to their end, made anew while it was moving on.
            let (size, here) = (joined.segment_size, segment_of(joined.offset, joined.segment_size));
            joined.grants.retain(|_, grant| segment_of(grant.offset, size) >= here);
        }
        let in_use = match joined.reading {
            Reading::Tail { epoch } | Reading::Data { epoch, .. } => epoch,
            Reading::Nothing | Reading::Stolen => u64::MAX,
        };
        let first = joined.grants.keys().next().copied().unwrap_or(joined.newest + 1).min(in_use);
        let epoch = first - 1;
        if epoch <= joined.released {
            joined.due = None;
            return;
        }
        let due = *joined.due.get_or_insert(now.time);
        if let Manners::Late { percent } = self.manners
            && now.time < due + Duration::from_micros(u64::from(self.wish.epoch.grace_ms) * 10 * u64::from(percent))
        {
            return;
        }
        if joined.channel.room() == 0 {
            return;
        }
        let sequence = self.next.unwrap_or_default();
        let message = ToBroker::from(Release { subscription, epoch, sequence, pause: false });
        joined.channel.send(memory, &message).expect("a Release fits every slot");
        joined.released = epoch;
        joined.due = None;
    }

    fn arm(&mut self, memory: &mut dyn Memory) {
        let Some(joined) = self.joined.as_mut() else { return };
        let Some(subscription) = joined.subscription else { return };
        if joined.armed || joined.channel.room() == 0 {
            return;
        }
        joined.armed = true;
        let message = ToBroker::from(Arm { subscription, sequence: self.next.unwrap_or_default() });
        joined.channel.send(memory, &message).expect("an Arm fits every slot");
    }

    fn read_segment(&mut self, memory: &mut dyn Memory) {
        let Some(joined) = self.joined.as_mut() else { return };
        let size = joined.segment_size;
        if joined.sealed && joined.offset >= joined.tail {
            // What was read of it is all that it will ever hold: the next segment's first batch comes next.
            let done = segment_of(joined.offset, size);
            joined.offset = segment_start(done + 1, size);
            joined.tail = joined.offset;
            joined.sealed = false;
            let done: Vec<u64> = joined
                .grants
                .iter()
                .filter(|(_, grant)| segment_of(grant.offset, size) <= done)
                .map(|(epoch, _)| *epoch)
                .collect();
            for epoch in done {
                joined.grants.remove(&epoch);
            }
        }
        let segment = segment_of(joined.offset, size);
        let found = joined.grants.values().rev().find(|grant| segment_of(grant.offset, size) == segment).cloned();
        let Some(grant) = found else { return self.arm(memory) };
        let link = joined.channel.link();
        let landing = self.landing.expect("prepared before the first session");
        let end = joined.tail.min(grant.offset + u64::from(grant.len));
        if end > joined.offset {
            let len = (end - joined.offset).min(u64::from(landing.len)) as u32;
            let address = grant.address + (joined.offset - grant.offset);
            joined.reading = Reading::Data { epoch: grant.epoch, len };
            let from = RemoteSpan { address, len, key: Key(grant.key) };
            let work = Work::Read { from, into: Target::Local(LocalSpan { len, ..landing }) };
            self.out.push_back(Transmit::Post { link, op: READ, work });
        } else if !joined.armed {
            joined.reading = Reading::Tail { epoch: grant.epoch };
            let from = RemoteSpan { address: grant.address, len: 8, key: Key(grant.key) };
            let work = Work::Read { from, into: Target::Local(LocalSpan { len: 8, ..landing }) };
            self.out.push_back(Transmit::Post { link, op: READ, work });
        }
    }

    /// Having read the tail and found nothing, it waits to be woken.
    fn after_tail(&mut self, memory: &mut dyn Memory) {
        let Some(joined) = self.joined.as_ref() else { return };
        if self.wish.scope == Scope::Segment && joined.tail <= joined.offset && !joined.sealed && !self.stopped() {
            self.arm(memory);
        }
    }

    fn read_grant(&mut self, memory: &mut dyn Memory) {
        let Some(joined) = self.joined.as_mut() else { return };
        let Some((&epoch, grant)) = joined.grants.iter().next() else { return self.arm(memory) };
        let landing = self.landing.expect("prepared before the first session");
        let from = RemoteSpan { address: grant.address, len: grant.len, key: Key(grant.key) };
        joined.reading = Reading::Data { epoch, len: grant.len };
        let work = Work::Read { from, into: Target::Local(LocalSpan { len: grant.len, ..landing }) };
        self.out.push_back(Transmit::Post { link: joined.channel.link(), op: READ, work });
    }

    /// Tries a key that it should have forgotten.
    fn steal(&mut self) {
        let Some(joined) = self.joined.as_mut() else { return };
        let Some(spare) = self.spare else { return };
        let kept = self.kept[self.rng.usize(..self.kept.len())];
        let len = kept.len.min(spare.len).min(self.rng.u32(1..=spare.len));
        joined.reading = Reading::Stolen;
        let work = Work::Read { from: RemoteSpan { len, ..kept }, into: Target::Local(LocalSpan { len, ..spare }) };
        self.out.push_back(Transmit::Post { link: joined.channel.link(), op: READ, work });
    }

    fn garbage(&mut self, memory: &mut dyn Memory) {
        let Some((joined, spare)) = self.joined.as_ref().zip(self.spare) else { return };
        let span = LocalSpan { len: 64, ..spare };
        if joined.reading == Reading::Stolen || joined.broken {
            return;
        }
        let noise: Vec<u8> = (0..64).map(|_| self.rng.u8(..)).collect();
        memory.bytes_mut(span).copy_from_slice(&noise);
        if self.rng.bool() {
            memory.bytes_mut(span)[..3].copy_from_slice(b"KW\x01");
        }
        self.out.push_back(Transmit::Post {
            link: joined.channel.link(),
            op: GARBAGE,
            work: Work::Send { from: span },
        });
        self.manners = Manners::Good;
    }
}

impl Machine for PuppetConsumer {
    fn handle(&mut self, now: Now, event: Event, memory: &mut dyn Memory) {
        match event {
            Event::Message { op, span, .. } => {
                let Some(joined) = self.joined.as_mut() else { return };
                let message = match joined.channel.receive::<ToClientRef<'_>>(memory, span) {
                    Ok(received) => Some(received.message.to_message()),
                    Err(_) => None,
                };
                joined.channel.repost(op);
                match message {
                    Some(message) => self.message(now, message),
                    None => self.out.push_back(Transmit::Close { link: joined.channel.link() }),
                }
            }
            Event::Done { op: READ, result, .. } => {
                let tail = self.joined.as_ref().is_some_and(|joined| matches!(joined.reading, Reading::Tail { .. }));
                match result {
                    Ok(_) => self.landed(memory),
                    Err(_) => {
                        if let Some(joined) = self.joined.as_mut() {
                            joined.reading = Reading::Nothing;
                            joined.broken = true;
                        }
                    }
                }
                if tail {
                    self.after_tail(memory);
                }
            }
            Event::Done { op, result, .. } => {
                if let Some(joined) = self.joined.as_mut() {
                    joined.channel.done(op);
                    joined.broken |= result.is_err();
                }
            }
            Event::Down { .. } => {
                self.joined = None;
                self.out.clear();
                return;
            }
            _ => (),
        }
        self.act(now, memory);
        if matches!(self.manners, Manners::Garbage { grants } if self.grants >= grants) {
            self.garbage(memory);
        }
    }

    fn handle_timeout(&mut self, now: Now, memory: &mut dyn Memory) {
        self.act(now, memory);
    }

    fn timeout(&self) -> Option<Time> {
        let due = self.joined.as_ref()?.due?;
        let Manners::Late { percent } = self.manners else { return None };
        Some(due + Duration::from_micros(u64::from(self.wish.epoch.grace_ms) * 10 * u64::from(percent)))
    }

    fn transmit(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        let _ = now;
        if let Some(joined) = self.joined.as_mut()
            && let Some(post) = joined.channel.transmit::<ToBroker>(memory)
        {
            return Some(Transmit::Post { link: joined.channel.link(), op: post.op, work: post.work });
        }
        self.out.pop_front()
    }
}

impl Session for PuppetConsumer {
    fn plan(&self) -> Plan {
        Plan {
            role: Role::Consumer,
            receive_slots: 64,
            receive_size: CONTROL_SLOT,
            send_slots_max: 16,
            send_size_max: CONTROL_SLOT,
            work_depth: 4,
            remote_read: false,
        }
    }

    fn prepare(&mut self, domain: DomainId, fabric: &mut SimFabric) {
        let len = self.wish.landing.max(4_096);
        let local = fabric.local(domain, 2, len).expect("the system has memory left");
        self.landing = Some(LocalSpan { local, slot: 0, offset: 0, len });
        self.spare = Some(LocalSpan { local, slot: 1, offset: 0, len });
    }

    fn connected(&mut self, _now: Now, connected: &Connected, memory: &mut dyn Memory) {
        let restarted = self.instance.is_some_and(|instance| instance != connected.instance);
        self.instance = Some(connected.instance);
        if restarted {
            self.deliveries.push(Delivery::Restarted);
            self.next = Some(0);
        }
        let start = match self.next {
            Some(_) if restarted => Start::Earliest,
            Some(next) => Start::Sequence(next),
            None => self.wish.start,
        };
        let mut channel = Channel::new(connected.channel);
        let subscribe = Subscribe {
            request: 1,
            topic: self.wish.topic.clone(),
            name: String::new(),
            start,
            scope: self.wish.scope,
            epoch: self.wish.epoch,
            depth: self.wish.depth,
            grant_bytes: self.wish.landing,
        };
        channel.send(memory, &ToBroker::from(subscribe)).expect("a Subscribe fits every slot");
        self.out.clear();
        self.joined = Some(Joined {
            channel,
            subscription: None,
            segment_size: 0,
            offset: 0,
            grants: BTreeMap::new(),
            newest: 0,
            released: 0,
            barred: 0,
            lagged: None,
            reading: Reading::Nothing,
            tail: 0,
            sealed: false,
            armed: false,
            due: None,
            broken: false,
        });
    }

    fn disconnected(&mut self, _now: Now) {
        self.joined = None;
        self.out.clear();
        self.over |= self.stopping;
        // It stops anew in its next session, or the broker would never see it again.
        if self.stopped() {
            self.grants = 0;
        }
    }

    fn turn(&mut self, _now: Now, _fabric: &mut SimFabric) -> usize {
        0
    }

    fn deliveries(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }

    fn stop(&mut self, _now: Now) {
        self.stopping = true;
        match &self.joined {
            Some(joined) => self.out.push_back(Transmit::Close { link: joined.channel.link() }),
            None => self.over = true,
        }
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn is_settled(&self) -> bool {
        self.joined.as_ref().is_some_and(|joined| joined.armed)
    }

    fn dissolve(&mut self, fabric: &mut SimFabric) {
        if let Some(landing) = self.landing.take() {
            fabric.free_local(landing.local).expect("it was made by `prepare`");
        }
    }
}
