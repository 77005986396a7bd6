//! Publishing: what a producer's batches must be, before they get a place in the log.

use keyway_fabric::{Key, LocalSpan, Memory, Now, Op, RemoteSpan};
use keyway_schema::Code;
use keyway_schema::batch::Batch;
use keyway_schema::message::{Offer, Withdraw};

use super::append::Appended;
use super::hub::Hub;
use super::notice::Refusal;
use super::producers::Number;
use super::requests::{Slot, check_offer};
use super::session::{Read, Session};
use super::topic::{Incoming, Waiting};

impl Session {
    /// A batch has arrived in a receive slot.
    pub(super) fn publish(
        &mut self,
        topic: u32,
        span: LocalSpan,
        op: Op,
        now: Now,
        hub: &mut Hub,
        memory: &mut dyn Memory,
    ) -> Result<Slot, Refusal> {
        let producer = self.producer_of(topic)?;
        let invalid = |why: String| Refusal::new(Code::BatchInvalid, format!("a batch for topic {topic}: {why}"));
        let bytes = memory.bytes(span);
        let batch = Batch::read(bytes).map_err(|error| invalid(error.to_string()))?;
        let header = *batch.header();
        if header.len as usize != bytes.len() || header.filler || (header.topic, header.producer) != (topic, producer) {
            return Err(invalid("its header is not that of this message, topic and producer".to_owned()));
        }
        let entry = hub.known(topic);
        check_len(header.len, topic, hub)?;
        // No record of a batch that is shorter than the largest record can be too large.
        if header.len > entry.record_max {
            for record in batch.records() {
                let checked = record.check(entry.record_max);
                checked.map_err(|error| Refusal::new(Code::BatchTooLarge, error.to_string()))?;
            }
        }
        if !self.is_next(topic, producer, header.number, hub)? {
            return Ok(Slot::Done);
        }
        let batch = Incoming::Published { header, span };
        Ok(self.place(topic, batch, op, now, hub, memory))
    }

    /// A batch is at the producer, to be READ.
    pub(super) fn offer(
        &mut self,
        offer: &Offer,
        op: Op,
        now: Now,
        hub: &mut Hub,
        memory: &mut dyn Memory,
    ) -> Result<Slot, Refusal> {
        let producer = self.producer_of(offer.topic)?;
        check_offer(offer)?;
        check_len(offer.len, offer.topic, hub)?;
        let (open, max) = (self.reads.len(), usize::from(hub.config.offers_max));
        if open >= max {
            let text = format!("{open} batches are offered and not READ, which is the most");
            return Err(Refusal::new(Code::Protocol, text));
        }
        let (topic, number) = (offer.topic, offer.number);
        if !self.is_next(topic, producer, number, hub)? {
            let is_read = |read: &Read| (read.topic, read.number) == (topic, number);
            let waits = |it: &Waiting| it.session == self.me && it.batch.origin() == (producer, number);
            // Offered twice on one session, it is still to be READ from where it is.
            if !self.reads.iter().any(is_read) && !hub.known(topic).waiting.iter().any(waits) {
                self.replies.push_back(Withdraw { topic, number }.into());
            }
            return Ok(Slot::Done);
        }
        let from = RemoteSpan { address: offer.address, len: offer.len, key: Key(offer.key) };
        let batch = Incoming::Offered { producer, number, from };
        Ok(self.place(topic, batch, op, now, hub, memory))
    }

    fn producer_of(&self, topic: u32) -> Result<u64, Refusal> {
        let unknown = || {
            let text = format!("topic {topic} was not opened by this session");
            Refusal::new(Code::Protocol, text)
        };
        self.opened.get(&topic).copied().ok_or_else(unknown)
    }

    /// Whether a batch is its producer's next. One that was sent before is answered here.
    fn is_next(&mut self, topic: u32, producer: u64, number: u64, hub: &mut Hub) -> Result<bool, Refusal> {
        let me = self.me;
        let skip_dedup = hub.faults.skip_dedup;
        let (entry, _) = hub.topic_and_pool(topic);
        match entry.producers.look(producer, number) {
            Number::Next => {}
            Number::Committed(_) if skip_dedup => return Ok(true),
            Number::Committed(commit) => {
                self.commits.push_back((topic, commit));
                hub.counters.duplicates += 1;
                return Ok(false);
            }
            Number::Taken => {
                // It is answered when it is committed, on the session on which it came last.
                let same = entry.reservations.iter_mut().find(|it| (it.producer, it.number) == (producer, number));
                same.into_iter().for_each(|reservation| reservation.session = me);
                hub.counters.duplicates += 1;
                return Ok(false);
            }
            Number::Forgotten => {
                let text = format!("batch {number} was committed so long ago that its receipt is forgotten");
                return Err(Refusal::new(Code::BatchOrder, text));
            }
            Number::Gap { expected } => {
                let text = format!("batch {number} came where {expected} was to come");
                return Err(Refusal::new(Code::BatchOrder, text));
            }
        }
        entry.producers.take(producer, number);
        Ok(true)
    }

    /// Gives a batch its place in the log, or lets it wait for one.
    fn place(&mut self, topic: u32, batch: Incoming, op: Op, now: Now, hub: &mut Hub, memory: &mut dyn Memory) -> Slot {
        if hub.known(topic).waiting.is_empty() && self.append(topic, batch, now, hub, memory) {
            return Slot::Done;
        }
        let session = self.me;
        self.waiting += 1;
        let (entry, pool) = hub.topic_and_pool(topic);
        entry.waiting.push_back(Waiting { session, op, batch });
        if !std::mem::replace(&mut entry.is_queued, true) {
            pool.wait(topic);
        }
        Slot::Kept
    }

    /// Appends a batch, if there is room.
    pub(super) fn append(
        &mut self,
        topic: u32,
        batch: Incoming,
        now: Now,
        hub: &mut Hub,
        memory: &mut dyn Memory,
    ) -> bool {
        match hub.append(topic, self.me, batch, now, memory) {
            Appended::NoRoom => return false,
            Appended::Taken => {}
            Appended::Read { ticket, from, into } => {
                let (_, number) = batch.origin();
                let deadline = now.time + hub.config.offer_timeout;
                let (is_posted, is_given_up) = (false, false);
                let read = Read { topic, ticket, number, from, into, deadline, is_posted, is_given_up };
                self.reads.push_back(read);
                self.set_timer(now.time, hub);
            }
        }
        true
    }

    /// The oldest READ that is posted is over.
    pub(super) fn read_done(&mut self, is_read: bool, now: Now, hub: &mut Hub, memory: &mut dyn Memory) {
        let Some(read) = self.reads.pop_front() else { return };
        let (topic, number) = (read.topic, read.number);
        match hub.read_ended(topic, read.ticket, is_read, now, memory) {
            Some(Ok(number)) => {
                hub.counters.offers += 1;
                self.replies.push_back(Withdraw { topic, number }.into());
            }
            Some(Err(refusal)) => {
                let (id, code) = (self.id, refusal.code);
                hub.notices.push(super::notice::Notice::OfferFailed { id, topic, number, code });
                self.end(refusal, now, hub);
            }
            None => {}
        }
        self.set_timer(now.time, hub);
    }
}

fn check_len(len: u32, topic: u32, hub: &Hub) -> Result<(), Refusal> {
    let max = hub.known(topic).batch_max();
    if len <= max {
        return Ok(());
    }
    Err(Refusal::new(Code::BatchTooLarge, format!("a batch of {len} bytes came, topic {topic} takes at most {max}")))
}
