//! A producer made by hand: batches of a few records, sent or offered, and sent again after every reconnect.

use std::collections::VecDeque;

use keyway_channel::Channel;
use keyway_fabric::*;
use keyway_schema::batch::BatchBuilder;
use keyway_schema::bootstrap::Role;
use keyway_schema::limits::CONTROL_SLOT;
use keyway_schema::message::*;
use keyway_schema::record::RecordRef;
use keyway_schema::{ToBroker, ToClient, ToClientRef};

use super::Manners;
use crate::device::SimFabric;
use crate::payload::Mark;
use crate::session::{Connected, Plan, Receipt, Session};

const BIND: u64 = 0x100;
const UNBIND: u64 = 0x200;
const GARBAGE: Op = Op(2);
/// Records that wait for a receipt at most.
const PENDING_MAX: usize = 64;
/// Places for offered batches.
const OFFERS: usize = 2;

/// A batch that has no receipt yet.
#[derive(Debug)]
struct Pending {
    number: u64,
    records: Vec<(Mark, Vec<u8>)>,
    sent: bool,
    /// The place from which it is offered.
    offer: Option<usize>,
}

/// A place from which a batch is offered.
#[derive(Clone, Copy, Debug)]
struct Place {
    window: WindowId,
    state: PlaceState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceState {
    Free,
    Binding,
    Offered,
    Withdrawn,
    Unbinding,
}

#[derive(Debug)]
struct Joined {
    channel: Channel,
    topic: Option<u32>,
    offers: usize,
    left: bool,
    /// Something of it has failed: its end is near, and it does nothing more.
    broken: bool,
}

/// A producer made by hand.
#[derive(Debug)]
pub(crate) struct PuppetProducer {
    topic: String,
    settings: Option<TopicSettings>,
    producer: u64,
    batch_max: usize,
    slot: u32,
    manners: Manners,
    rng: fastrand::Rng,
    offers: Option<SharedId>,
    places: Vec<Place>,
    joined: Option<Joined>,
    pending: VecDeque<Pending>,
    last: u64,
    receipts: Vec<Receipt>,
    garbage: Option<LocalSpan>,
    sent: u64,
    out: VecDeque<Transmit>,
    stopping: bool,
    over: bool,
}

impl PuppetProducer {
    pub(crate) fn new(
        topic: String,
        settings: Option<TopicSettings>,
        (batch_max, slot): (usize, u32),
        manners: Manners,
        mut rng: fastrand::Rng,
    ) -> Self {
        Self {
            topic,
            settings,
            producer: rng.u64(1..),
            batch_max,
            slot,
            manners,
            rng,
            offers: None,
            places: Vec::new(),
            joined: None,
            pending: VecDeque::new(),
            last: 0,
            receipts: Vec::new(),
            garbage: None,
            sent: 0,
            out: VecDeque::new(),
            stopping: false,
            over: false,
        }
    }

    fn message(&mut self, message: ToClient) {
        match message {
            ToClient::TopicOpened(opened) => self.opened(&opened),
            ToClient::Committed(committed) => committed.commits.iter().for_each(|commit| self.committed(commit)),
            ToClient::Withdraw(withdraw) => self.withdrawn(withdraw.number),
            ToClient::Failed(_) => {
                if let Some(joined) = &self.joined {
                    self.out.push_back(Transmit::Close { link: joined.channel.link() });
                }
            }
            _ => (),
        }
    }

    /// Goes on behind the last batch that the broker knows, with numbers of this broker's instance.
    fn opened(&mut self, opened: &TopicOpened) {
        if let Some(joined) = self.joined.as_mut() {
            joined.topic = Some(opened.topic);
        }
        let first = self.pending.front().map_or(self.last + 1, |pending| pending.number);
        if first > opened.last_number + 1 {
            let mut number = opened.last_number;
            for pending in &mut self.pending {
                number += 1;
                pending.number = number;
            }
            self.last = number;
        }
    }

    fn committed(&mut self, commit: &Commit) {
        let Some(at) = self.pending.iter().position(|pending| pending.number == commit.number) else { return };
        let pending = self.pending.remove(at).expect("it was just found");
        for ((mark, _), sequence) in pending.records.iter().zip(commit.base_sequence..) {
            self.receipts.push(Receipt { mark: *mark, sequence: Some(sequence), time: commit.time });
        }
        if let Some(place) = pending.offer {
            self.withdraw(place);
        }
    }

    fn withdrawn(&mut self, number: u64) {
        let place = self.pending.iter().find(|pending| pending.number == number).and_then(|pending| pending.offer);
        if let Some(place) = place {
            self.withdraw(place);
        }
    }

    fn withdraw(&mut self, place: usize) {
        if self.places[place].state == PlaceState::Offered {
            self.places[place].state = PlaceState::Withdrawn;
        }
        let of_place = |pending: &&mut Pending| pending.offer == Some(place);
        if let Some(pending) = self.pending.iter_mut().find(of_place) {
            pending.offer = None;
        }
    }

    fn act(&mut self, memory: &mut dyn Memory) {
        if self.joined.as_ref().is_some_and(|joined| joined.broken) {
            return;
        }
        self.unbind();
        while self.send_next(memory) {}
        if self.stopping && self.pending.is_empty() {
            self.leave();
        }
        if matches!(self.manners, Manners::Garbage { grants } if self.sent >= grants) {
            self.send_garbage(memory);
        }
    }

    fn leave(&mut self) {
        match &mut self.joined {
            Some(joined) if joined.left => (),
            Some(joined) => {
                joined.left = true;
                self.out.push_back(Transmit::Close { link: joined.channel.link() });
            }
            None => self.over = true,
        }
    }

    fn unbind(&mut self) {
        let Some(joined) = &self.joined else { return };
        for (at, place) in self.places.iter_mut().enumerate() {
            if place.state == PlaceState::Withdrawn {
                place.state = PlaceState::Unbinding;
                let work = Work::Unbind { window: place.window };
                self.out.push_back(Transmit::Post { link: joined.channel.link(), op: Op(UNBIND | at as u64), work });
            }
        }
    }

    /// Sends or offers the first batch that was not sent in this session, in order.
    fn send_next(&mut self, memory: &mut dyn Memory) -> bool {
        let Some(joined) = self.joined.as_mut() else { return false };
        let Some(topic) = joined.topic else { return false };
        let Some(at) = self.pending.iter().position(|pending| !pending.sent) else { return false };
        let pending = &mut self.pending[at];
        let mut builder = BatchBuilder::new(Vec::new());
        for (_, payload) in &pending.records {
            builder.push(RecordRef { key: b"", headers: b"", payload });
        }
        let bytes = builder.finish(topic, self.producer, pending.number);
        if joined.channel.room() < 2 {
            return false;
        }
        if bytes.len() <= joined.channel.publish_max() {
            let message = ToBroker::from(Publish { topic });
            let fill = |slot: &mut [u8]| slot.copy_from_slice(&bytes);
            joined.channel.send_with(memory, &message, bytes.len(), fill).expect("it was measured");
            pending.sent = true;
            self.sent += 1;
            return true;
        }
        let Some((shared, place)) =
            self.offers.zip(self.places.iter().position(|place| place.state == PlaceState::Free))
        else {
            return false;
        };
        if self.places.iter().filter(|place| place.state != PlaceState::Free).count() >= joined.offers {
            return false;
        }
        let span = SharedSpan { shared, offset: (place * self.batch_max) as u64, len: bytes.len() as u64 };
        memory.write(span, &bytes);
        self.places[place].state = PlaceState::Binding;
        pending.offer = Some(place);
        pending.sent = true;
        self.sent += 1;
        let (window, link) = (self.places[place].window, joined.channel.link());
        let work = Work::Bind { window, span, access: Access::Read };
        self.out.push_back(Transmit::Post { link, op: Op(BIND | place as u64), work });
        // The next batch may only follow once this one has been announced.
        false
    }

    /// A bind is in force: its batch is offered. Nothing else was sent meanwhile.
    fn bound(&mut self, place: usize, key: Key, memory: &mut dyn Memory) {
        self.places[place].state = PlaceState::Offered;
        let (Some(shared), Some(joined)) = (self.offers, self.joined.as_mut()) else { return };
        let Some(topic) = joined.topic else { return };
        let Some(pending) = self.pending.iter().find(|pending| pending.offer == Some(place)) else { return };
        let mut builder = BatchBuilder::new(Vec::new());
        for (_, payload) in &pending.records {
            builder.push(RecordRef { key: b"", headers: b"", payload });
        }
        let span = SharedSpan { shared, offset: (place * self.batch_max) as u64, len: builder.len() as u64 };
        let (number, len) = (pending.number, builder.len() as u32);
        let offer = Offer { topic, number, address: memory.address(span), len, key: key.0 };
        joined.channel.send(memory, &ToBroker::from(offer)).expect("an Offer fits every slot");
    }

    fn binding(&self) -> bool {
        self.places.iter().any(|place| place.state == PlaceState::Binding)
    }

    fn send_garbage(&mut self, memory: &mut dyn Memory) {
        let Some((joined, span)) = self.joined.as_ref().zip(self.garbage) else { return };
        let noise: Vec<u8> = (0..span.len).map(|_| self.rng.u8(..)).collect();
        memory.bytes_mut(span).copy_from_slice(&noise);
        self.out.push_back(Transmit::Post {
            link: joined.channel.link(),
            op: GARBAGE,
            work: Work::Send { from: span },
        });
        self.manners = Manners::Good;
    }
}

impl Machine for PuppetProducer {
    fn handle(&mut self, _now: Now, event: Event, memory: &mut dyn Memory) {
        match event {
            Event::Message { op, span, .. } => {
                let Some(joined) = self.joined.as_mut() else { return };
                let message = match joined.channel.receive::<ToClientRef<'_>>(memory, span) {
                    Ok(received) => Some(received.message.to_message()),
                    Err(_) => None,
                };
                joined.channel.repost(op);
                match message {
                    Some(message) => self.message(message),
                    None => self.out.push_back(Transmit::Close { link: joined.channel.link() }),
                }
            }
            Event::Done { op, result, .. } if op.0 & !0xff == BIND => match result {
                Ok(Outcome::Bound(key)) => self.bound((op.0 & 0xff) as usize, key, memory),
                _ => self.places[(op.0 & 0xff) as usize].state = PlaceState::Free,
            },
            Event::Done { op, .. } if op.0 & !0xff == UNBIND => {
                self.places[(op.0 & 0xff) as usize].state = PlaceState::Free;
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
        if !self.binding() {
            self.act(memory);
        }
    }

    fn handle_timeout(&mut self, _now: Now, _memory: &mut dyn Memory) {}

    fn timeout(&self) -> Option<Time> {
        None
    }

    fn transmit(&mut self, _now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        if let Some(joined) = self.joined.as_mut()
            && let Some(post) = joined.channel.transmit::<ToBroker>(memory)
        {
            return Some(Transmit::Post { link: joined.channel.link(), op: post.op, work: post.work });
        }
        self.out.pop_front()
    }
}

impl Session for PuppetProducer {
    fn plan(&self) -> Plan {
        Plan {
            role: Role::Producer,
            receive_slots: 32,
            receive_size: CONTROL_SLOT,
            send_slots_max: 8,
            send_size_max: self.slot,
            work_depth: 8,
            remote_read: true,
        }
    }

    fn prepare(&mut self, domain: DomainId, fabric: &mut SimFabric) {
        let memory = "the system has memory left";
        self.offers = Some(fabric.shared(domain, (self.batch_max * OFFERS) as u64).expect(memory));
        let place = |_| Place { window: fabric.window(domain).expect("a window is left"), state: PlaceState::Free };
        self.places = (0..OFFERS).map(place).collect();
        let local = fabric.local(domain, 1, 64).expect(memory);
        self.garbage = Some(LocalSpan { local, slot: 0, offset: 0, len: 64 });
    }

    fn connected(&mut self, _now: Now, connected: &Connected, memory: &mut dyn Memory) {
        self.out.clear();
        let mut channel = Channel::new(connected.channel);
        let (topic, settings, producer) = (self.topic.clone(), self.settings, self.producer);
        let open = OpenTopic { request: 1, topic, settings, producer };
        channel.send(memory, &ToBroker::from(open)).expect("an OpenTopic fits every slot");
        self.joined =
            Some(Joined { channel, topic: None, offers: connected.offers as usize, left: false, broken: false });
        // What was offered in the last session is offered anew; its windows are bound again over the same bytes.
        for pending in &mut self.pending {
            pending.sent = false;
            pending.offer = None;
        }
        for place in &mut self.places {
            place.state = PlaceState::Free;
        }
    }

    fn disconnected(&mut self, _now: Now) {
        self.joined = None;
        self.out.clear();
        self.over |= self.stopping && self.pending.is_empty();
    }

    fn turn(&mut self, _now: Now, fabric: &mut SimFabric) -> usize {
        let before = (self.sent, self.out.len());
        if !self.binding() {
            self.act(fabric);
        }
        usize::from(before != (self.sent, self.out.len()))
    }

    fn publish(&mut self, _now: Now, mark: Mark, payload: &[u8]) -> bool {
        if self.pending.len() >= PENDING_MAX {
            return false;
        }
        // A batch that was not sent grows now and then, so that there are batches of many sizes.
        let grows = self.rng.bool();
        let batch_max = self.batch_max;
        let len = |pending: &Pending| pending.records.iter().map(|(_, payload)| payload.len() + 16).sum::<usize>();
        if let Some(pending) = self.pending.back_mut().filter(|pending| !pending.sent && grows)
            && len(pending) + payload.len() + 128 < batch_max
        {
            pending.records.push((mark, payload.to_vec()));
            return true;
        }
        self.last += 1;
        let records = vec![(mark, payload.to_vec())];
        self.pending.push_back(Pending { number: self.last, records, sent: false, offer: None });
        true
    }

    fn receipts(&mut self) -> Vec<Receipt> {
        std::mem::take(&mut self.receipts)
    }

    fn stop(&mut self, _now: Now) {
        self.stopping = true;
        if self.pending.is_empty() {
            self.leave();
        }
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }

    fn dissolve(&mut self, fabric: &mut SimFabric) {
        for place in self.places.drain(..) {
            fabric.free_window(place.window).expect("it was made by `prepare`, and nothing of it is outstanding");
        }
        if let Some(shared) = self.offers.take() {
            fabric.free_shared(shared).expect("no window is left");
        }
        if let Some(garbage) = self.garbage.take() {
            fabric.free_local(garbage.local).expect("it was made by `prepare`");
        }
    }
}
