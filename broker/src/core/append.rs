//! Appending: room in the ring, a place for each batch, commits in order.
//!
//! A batch takes its place when its message is handled. While an offered batch is being READ into its place, what stands behind
//! it waits; where one is given up, a filler is committed instead, so the log has no holes.

use keyway_fabric::{Memory, Now, RemoteSpan, SharedSpan};
use keyway_schema::Code;
use keyway_schema::batch::{BATCH_HEADER_LEN, BatchHeader};
use keyway_schema::limits::{RECORD_HEADERS_MAX, RECORD_KEY_MAX};
use keyway_schema::message::Commit;
use keyway_schema::record::{RECORD_HEADER_LEN, encoded_len};

use super::config::TOPIC_SEGMENTS_MIN;
use super::hub::{Cause, Hub};
use super::notice::Refusal;
use super::slab::Place;
use super::topic::{Incoming, Reservation, ReservationState, Topic};

/// How many bytes are looked at once when records are checked in shared memory: a cache line each for a few records,
/// without fetching payloads that are not looked at.
const CHUNK: usize = 512;

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Appended {
    /// It is in the ring, committed or about to be.
    Taken,
    /// It is to be READ into its place.
    Read {
        /// Its reservation.
        ticket: u64,
        /// From where.
        from: RemoteSpan,
        /// Its place.
        into: SharedSpan,
    },
    /// There is no room for it now.
    NoRoom,
}

impl Hub {
    /// Appends a batch that has been checked and is its producer's next.
    pub(super) fn append(
        &mut self,
        topic: u32,
        session: Place,
        batch: Incoming,
        now: Now,
        memory: &mut dyn Memory,
    ) -> Appended {
        if !self.make_room(topic, batch.len(), memory) {
            return Appended::NoRoom;
        }
        let tail_before_copy = self.faults.tail_before_copy;
        let (entry, pool) = self.topic_and_pool(topic);
        let (segment, at) = entry.log.reserve(batch.len());
        let place = entry.log.span(pool, segment, at, batch.len()).expect("the batch has just got its place");
        let (producer, number) = batch.origin();
        let reservation = |state| Reservation { segment, at, len: batch.len(), producer, number, session, state };
        match batch {
            Incoming::Published { mut header, span } if entry.reservations.is_empty() => {
                header.base_sequence = entry.log.next_sequence();
                header.time = entry.log.stamp(now.wall.0);
                memory.bytes_mut(span.part(0, BATCH_HEADER_LEN as u32)).copy_from_slice(&header.to_bytes());
                if !tail_before_copy {
                    memory.copy(span, place);
                }
                self.commit(topic, &header, Some(session), memory);
                Appended::Taken
            }
            Incoming::Published { header, span } => {
                memory.copy(span, place);
                entry.reservations.push_back(reservation(ReservationState::Ready(header)));
                Appended::Taken
            }
            Incoming::Offered { from, .. } => {
                entry.reservations.push_back(reservation(ReservationState::Reading));
                let ticket = entry.first_ticket + entry.reservations.len() as u64 - 1;
                Appended::Read { ticket, from, into: place }
            }
        }
    }

    /// Makes room for a batch of `len` bytes at the end of the ring, dropping the oldest segment if the ring is full.
    fn make_room(&mut self, topic: u32, len: u32, memory: &mut dyn Memory) -> bool {
        let entry = self.known(topic);
        if entry.log.fits(len) {
            return true;
        }
        if entry.log.len() >= entry.segments_max as usize && !self.drop_oldest(topic) {
            return false;
        }
        if !self.pool.has_free() {
            let is_small = self.known(topic).log.len() < TOPIC_SEGMENTS_MIN as usize;
            match is_small.then(|| self.take_from_the_largest()).flatten() {
                Some(is_free) if is_free => {}
                // It is free when its windows are gone; until then the topic keeps what it has.
                Some(_) => return false,
                // The pool has nothing to give, so the ring is as large as it gets. If one of its segments is in limbo already,
                // that is the one to wait for: dropping more would lose records and free nothing sooner.
                None if self.known(topic).limbo > 0 || !self.drop_oldest(topic) => return false,
                None => {}
            }
        }
        let (entry, pool) = self.topic_and_pool(topic);
        let Some(segment) = pool.take(topic, entry.log.next_number(), memory) else { return false };
        entry.log.push(segment);
        self.open_segments(topic, memory);
        true
    }

    /// Drops the oldest segment of the largest ring, for a topic that has fewer than a ring needs while the pool has none to give:
    /// a ring's size is a limit, not a reservation, and whoever came first must not shut later topics out. Returns whether the
    /// segment is free at once, or `None` if no ring has one to spare. A ring with a segment in limbo is left alone.
    pub(super) fn take_from_the_largest(&mut self) -> Option<bool> {
        let large =
            |topic: &&Topic| topic.log.len() > TOPIC_SEGMENTS_MIN as usize && topic.limbo == 0 && topic.log.can_drop();
        let largest = self.topics().iter().filter(large).max_by_key(|topic| topic.log.len());
        let number = largest?.number;
        self.drop_oldest(number).then(|| self.pool.has_free())
    }

    fn drop_oldest(&mut self, topic: u32) -> bool {
        let recycle = self.faults.recycle_under_window;
        let (entry, pool) = self.topic_and_pool(topic);
        if !entry.log.can_drop() {
            return false;
        }
        let dropped = entry.log.drop_oldest();
        if !pool.drop_segment(dropped.index, recycle) {
            entry.limbo += 1;
        }
        let mut due = std::mem::take(&mut self.due);
        due.extend(self.known(topic).listeners.all.iter().map(|subscription| (*subscription, Cause::Dropped)));
        self.due = due;
        true
    }

    fn open_segments(&mut self, topic: u32, memory: &mut dyn Memory) {
        let mut due = std::mem::take(&mut self.due);
        let (entry, pool) = self.topic_and_pool(topic);
        while entry.log.open_next(pool, memory).is_some() {
            due.extend(entry.listeners.openings.drain(..).map(|subscription| (subscription, Cause::Opening)));
        }
        self.due = due;
    }

    /// Takes a batch that is in its place, header included, into the log, and tells who wants to know.
    fn commit(&mut self, topic: u32, header: &BatchHeader, session: Option<Place>, memory: &mut dyn Memory) {
        let mut due = std::mem::take(&mut self.due);
        let (entry, pool) = self.topic_and_pool(topic);
        entry.log.commit(header, pool, memory);
        let commit = Commit { number: header.number, base_sequence: header.base_sequence, time: header.time };
        let tail = entry.log.offset(entry.log.tail());
        if !header.filler {
            entry.producers.commit(header.producer, commit);
            due.extend(entry.listeners.commits.drain(..).map(|subscription| (subscription, Cause::Commit)));
        }
        while let Some(subscription) = entry.listeners.pop_over(tail, entry.log.next_sequence()) {
            due.push_back((subscription, Cause::Limit));
        }
        self.due = due;
        if header.filler {
            self.counters.fillers += 1;
        } else {
            self.counters.batches += 1;
            self.counters.records += u64::from(header.records);
            self.counters.bytes += u64::from(header.len);
        }
        if let Some(session) = session {
            self.commits.push_back((session, topic, commit));
        }
        self.open_segments(topic, memory);
    }

    /// Commits what is ready at the front of the reservations.
    pub(super) fn advance(&mut self, topic: u32, now: Now, memory: &mut dyn Memory) {
        let mut moved = false;
        loop {
            let (entry, pool) = self.topic_and_pool(topic);
            let Some(front) = entry.reservations.front().copied() else { break };
            let mut header = match front.state {
                ReservationState::Ready(header) => header,
                ReservationState::Filler => BatchHeader {
                    len: front.len,
                    crc: 0,
                    records: 0,
                    base_sequence: 0,
                    time: 0,
                    producer: front.producer,
                    number: front.number,
                    topic,
                    filler: true,
                },
                ReservationState::Reading | ReservationState::Failing => break,
            };
            header.base_sequence = entry.log.next_sequence();
            header.time = entry.log.stamp(now.wall.0);
            let place = entry.log.span(pool, front.segment, front.at, front.len);
            let place = place.expect("a segment is not dropped while something in it waits to be committed");
            memory.write(place.part(0, BATCH_HEADER_LEN as u64), &header.to_bytes());
            entry.reservations.pop_front();
            entry.first_ticket += 1;
            self.commit(topic, &header, (!header.filler).then_some(front.session), memory);
            moved = true;
        }
        if moved && !self.known(topic).waiting.is_empty() {
            self.retries.push_back(topic);
        }
    }

    /// An offered batch has been READ into its place, or its READ has failed or was never posted. Returns its number, or why it was
    /// given up now; `None` if it had been given up before.
    pub(super) fn read_ended(
        &mut self,
        topic: u32,
        ticket: u64,
        is_read: bool,
        now: Now,
        memory: &mut dyn Memory,
    ) -> Option<Result<u64, Refusal>> {
        let reservation = *self.topic_and_pool(topic).0.reservation(ticket)?;
        let outcome = match reservation.state {
            ReservationState::Reading if is_read => Some(self.check_offered(topic, &reservation, memory)),
            ReservationState::Reading => {
                let text = format!("the READ of batch {} failed", reservation.number);
                Some(Err(Refusal::new(Code::OfferTimeout, text)))
            }
            _ => None,
        };
        if let Some(Err(_)) = outcome {
            self.give_up(topic, ticket);
        }
        let state = match outcome {
            Some(Ok(header)) => ReservationState::Ready(header),
            // Nothing writes to its place any more.
            Some(Err(_)) | None => ReservationState::Filler,
        };
        if let Some(reservation) = self.topic_and_pool(topic).0.reservation(ticket) {
            reservation.state = state;
        }
        self.advance(topic, now, memory);
        Some(outcome?.map(|header| header.number))
    }

    /// Gives up an offered batch that is still being READ, and what its producer sent behind it: they become fillers, and are
    /// to be sent again. Returns whether it was not given up before.
    pub(super) fn give_up(&mut self, topic: u32, ticket: u64) -> bool {
        let (entry, _) = self.topic_and_pool(topic);
        let Some(Reservation { producer, number, state: ReservationState::Reading, .. }) =
            entry.reservation(ticket).map(|reservation| *reservation)
        else {
            return false;
        };
        let first = (ticket - entry.first_ticket) as usize;
        for reservation in entry.reservations.range_mut(first..).filter(|it| it.producer == producer) {
            reservation.state = match reservation.state {
                ReservationState::Reading => ReservationState::Failing,
                ReservationState::Ready(_) => ReservationState::Filler,
                given_up => given_up,
            };
        }
        // What waits for a segment has no place yet, so it needs no filler.
        entry.waiting.retain(|waiting| waiting.batch.origin().0 != producer);
        entry.producers.take_back(producer, number);
        true
    }

    /// Forgets the batches of a session that wait for a segment.
    pub(super) fn forget_waiting(&mut self, topic: u32, session: Place) {
        let (entry, _) = self.topic_and_pool(topic);
        let before = entry.waiting.len();
        let producers = &mut entry.producers;
        entry.waiting.retain(|waiting| {
            let keep = waiting.session != session;
            if !keep {
                let (producer, number) = waiting.batch.origin();
                producers.take_back(producer, number);
            }
            keep
        });
        if entry.waiting.len() < before && !entry.waiting.is_empty() {
            self.retries.push_back(topic);
        }
    }

    fn check_offered(&self, topic: u32, offer: &Reservation, memory: &dyn Memory) -> Result<BatchHeader, Refusal> {
        let invalid = |why: String| {
            Refusal::new(Code::BatchInvalid, format!("the offered batch {} is not valid: {why}", offer.number))
        };
        let entry = self.known(topic);
        let place = entry.log.span(&self.pool, offer.segment, offer.at, offer.len);
        let place = place.expect("a segment is not dropped while something in it waits to be committed");
        let mut bytes = [0; BATCH_HEADER_LEN];
        memory.load(place.part(0, BATCH_HEADER_LEN as u64), &mut bytes);
        let header = BatchHeader::read(&bytes).map_err(|error| invalid(error.to_string()))?;
        if header.filler
            || (header.len, header.topic, header.producer, header.number)
                != (offer.len, topic, offer.producer, offer.number)
        {
            return Err(invalid("its header is not that of the offer".to_owned()));
        }
        let body = place.part(BATCH_HEADER_LEN as u64, u64::from(offer.len) - BATCH_HEADER_LEN as u64);
        if memory.crc32c(body) != header.crc {
            return Err(invalid("its checksum is wrong".to_owned()));
        }
        check_shared_records(body, header.records, entry.record_max, memory).map_err(invalid)?;
        Ok(header)
    }
}

/// Checks that `count` records of at most `record_max` bytes fill a span of shared memory exactly.
fn check_shared_records(body: SharedSpan, count: u32, record_max: u32, memory: &dyn Memory) -> Result<(), String> {
    let mut chunk = [0; CHUNK];
    let (mut chunk_at, mut chunk_len) = (0_u64, 0_u64);
    let mut at = 0_u64;
    for index in 0..count {
        if body.len - at < RECORD_HEADER_LEN as u64 {
            return Err(format!("record {index} does not fit"));
        }
        if at + RECORD_HEADER_LEN as u64 > chunk_at + chunk_len {
            (chunk_at, chunk_len) = (at, (body.len - at).min(CHUNK as u64));
            memory.load(body.part(chunk_at, chunk_len), &mut chunk[..chunk_len as usize]);
        }
        let head = &chunk[(at - chunk_at) as usize..][..RECORD_HEADER_LEN];
        let payload = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let key = usize::from(u16::from_le_bytes([head[4], head[5]]));
        let headers = usize::from(u16::from_le_bytes([head[6], head[7]]));
        let size = key + headers + payload;
        const { assert!(RECORD_KEY_MAX == u16::MAX as usize && RECORD_HEADERS_MAX == u16::MAX as usize) };
        if size > record_max as usize {
            return Err(format!("record {index} has {size} bytes, the topic takes at most {record_max}"));
        }
        let len = encoded_len(size) as u64;
        if len > body.len - at {
            return Err(format!("record {index} does not fit"));
        }
        at += len;
    }
    if at == body.len { Ok(()) } else { Err(format!("{count} records do not fill it")) }
}
