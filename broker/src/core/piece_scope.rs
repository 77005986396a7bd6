//! Batch and message scope: each grant opens a piece of the log once, whole batches or one record.

use keyway_fabric::Memory;
use keyway_schema::batch::BATCH_HEADER_LEN;
use keyway_schema::message::{EpochSettings, Grant};
use keyway_schema::record::{RECORD_HEADER_LEN, encoded_len};

use super::hub::Hub;
use super::log::Position;
use super::subscription::{Around, Draft, ScopeState, Step, Subscription};

/// Batches or records that are looked at in one step at most, so that a step is short whatever stands in the log.
const LOOKS_MAX: u32 = 1024;

/// Where a subscription of batch or message scope stands.
#[derive(Clone, Debug)]
pub(super) struct PieceScope {
    /// The next batch that is not granted.
    at: Position,
    piece: Piece,
}

#[derive(Clone, Debug)]
enum Piece {
    /// As many whole batches as fit.
    Batches { bytes_max: u64, records_max: u64 },
    /// One record, from `wanted` on.
    Message { wanted: u64, inside: Option<Inside> },
}

/// Where the next record is in a batch that is granted record by record.
#[derive(Clone, Copy, Debug)]
struct Inside {
    segment: u64,
    at: u32,
    sequence: u64,
    left: u32,
    time: u64,
}

/// What can be granted next.
enum Next {
    Found(Found),
    /// Nothing is committed that is not granted.
    CaughtUp,
    /// It was a long way, and is not over.
    Again,
}

struct Found {
    segment: u64,
    at: u32,
    len: u32,
    sequence: u64,
    records: u32,
    time: u64,
    crc: u32,
}

impl PieceScope {
    /// A subscription that takes `grant_bytes` at once; a grant of one batch may be longer.
    pub(super) fn batches(start: Position, grant_bytes: u32, settings: &EpochSettings) -> Self {
        let or_all = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        let bytes_max = or_all(settings.bytes).min(grant_bytes.into());
        Self { at: start, piece: Piece::Batches { bytes_max, records_max: or_all(settings.records) } }
    }

    pub(super) const fn messages(start: Position, wanted: u64) -> Self {
        Self { at: start, piece: Piece::Message { wanted, inside: None } }
    }

    /// Moves on to the oldest record that is left, if its place is gone.
    pub(super) fn skip_to(&mut self, oldest: Position) {
        if self.at.segment < oldest.segment {
            self.at = oldest;
        }
        if let Piece::Message { inside, .. } = &mut self.piece {
            *inside = inside.filter(|inside| inside.segment >= oldest.segment);
        }
    }

    pub(super) fn move_to(&mut self, at: Position, sequence: u64) {
        self.at = at;
        if let Piece::Message { wanted, inside } = &mut self.piece {
            (*wanted, *inside) = (sequence, None);
        }
    }

    /// The sequence of the next record to be granted.
    fn next_sequence(&self) -> u64 {
        match &self.piece {
            Piece::Message { wanted, inside: Some(inside) } => inside.sequence.max(*wanted),
            Piece::Message { wanted, inside: None } => self.at.sequence.max(*wanted),
            Piece::Batches { .. } => self.at.sequence,
        }
    }

    fn next(&mut self, topic: u32, hub: &Hub, memory: &dyn Memory) -> Next {
        match &mut self.piece {
            Piece::Batches { bytes_max, records_max } => {
                next_batches(&mut self.at, (*bytes_max, *records_max), topic, hub, memory)
            }
            Piece::Message { wanted, inside } => next_record(&mut self.at, *wanted, inside, topic, hub, memory),
        }
    }
}

/// The next whole batches of one segment, within the limits; at least one, and no filler first: what a grant of one batch
/// covers is no longer than the longest batch.
fn next_batches(
    at: &mut Position,
    (bytes_max, records_max): (u64, u64),
    topic: u32,
    hub: &Hub,
    memory: &dyn Memory,
) -> Next {
    let (log, pool) = (&hub.known(topic).log, &hub.pool);
    let mut first = None;
    for _ in 0..LOOKS_MAX {
        *at = log.normalized(*at);
        let Some(header) = log.header(pool, *at, memory) else { return Next::CaughtUp };
        if header.records > 0 {
            first = Some(header);
            break;
        }
        at.at += header.len;
    }
    let (Some(first), Some(segment)) = (first, log.segment(at.segment)) else { return Next::Again };
    let start = *at;
    let fits =
        |end: Position| u64::from(end.at - start.at) <= bytes_max && end.sequence - start.sequence <= records_max;
    let rest = Position { at: segment.committed, sequence: segment.end_sequence, ..start };
    let mut end = Position { at: start.at + first.len, sequence: first.end_sequence(), ..start };
    if fits(rest) {
        end = rest;
    }
    for _ in 0..LOOKS_MAX {
        let Some(header) = log.header(pool, end, memory) else { break };
        let longer = Position { at: end.at + header.len, sequence: header.end_sequence(), ..start };
        if !fits(longer) {
            break;
        }
        end = longer;
    }
    *at = end;
    Next::Found(Found {
        segment: start.segment,
        at: start.at,
        len: end.at - start.at,
        sequence: start.sequence,
        records: (end.sequence - start.sequence) as u32,
        time: 0,
        crc: 0,
    })
}

/// The next record.
fn next_record(
    at: &mut Position,
    wanted: u64,
    inside: &mut Option<Inside>,
    topic: u32,
    hub: &Hub,
    memory: &dyn Memory,
) -> Next {
    let (log, pool) = (&hub.known(topic).log, &hub.pool);
    for _ in 0..LOOKS_MAX {
        let Some(record) = inside else {
            *at = log.normalized(*at);
            let Some(header) = log.header(pool, *at, memory) else { return Next::CaughtUp };
            if header.records > 0 && header.end_sequence() > wanted {
                *inside = Some(Inside {
                    segment: at.segment,
                    at: at.at + BATCH_HEADER_LEN as u32,
                    sequence: header.base_sequence,
                    left: header.records,
                    time: header.time,
                });
            }
            *at = Position { segment: at.segment, at: at.at + header.len, sequence: header.end_sequence() };
            continue;
        };
        let Some(segment) = log.segment(record.segment) else { return Next::CaughtUp };
        let span = pool.span(segment.index);
        let mut head = [0; RECORD_HEADER_LEN];
        memory.load(span.part(record.at.into(), RECORD_HEADER_LEN as u64), &mut head);
        let word = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let payload = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let len = encoded_len(word(4) + word(6) + payload) as u32;
        let found = Found {
            segment: record.segment,
            at: record.at,
            len,
            sequence: record.sequence,
            records: 1,
            time: record.time,
            crc: 0,
        };
        record.at += len;
        record.sequence += 1;
        record.left -= 1;
        if record.left == 0 {
            *inside = None;
        }
        if found.sequence >= wanted {
            let crc = memory.crc32c(span.part(found.at.into(), len.into()));
            return Next::Found(Found { crc, ..found });
        }
    }
    Next::Again
}

impl Subscription {
    fn pieces(&mut self) -> &mut PieceScope {
        match &mut self.scope {
            ScopeState::Piece(scope) => scope,
            ScopeState::Segment(_) => unreachable!("asked of a subscription of batch or message scope only"),
        }
    }

    /// The next thing to do in batch or message scope.
    pub(super) fn step_pieces(&mut self, around: &mut Around<'_>) -> Step {
        if self.is_paused || self.depth_left(around.hub) == 0 {
            return Step::Rest;
        }
        let log = &around.hub.known(self.topic).log;
        if self.pieces().next_sequence() >= log.next_sequence() {
            return self.listen_for_commits(around.hub);
        }
        if let Some(step) = self.prepare(1, around) {
            return step;
        }
        let (topic, interval_us) = (self.topic, self.settings.interval_us);
        let found = match self.pieces().next(topic, around.hub, around.memory) {
            Next::Found(found) => found,
            Next::CaughtUp => return self.listen_for_commits(around.hub),
            Next::Again => return Step::Again,
        };
        let window = self.prepared.pop().expect("one was prepared");
        let log = &around.hub.known(self.topic).log;
        let segment = log.segment(found.segment).expect("what was found is in the ring");
        let span = around.hub.pool.span(segment.index).part(found.at.into(), found.len.into());
        let subscription = self.me.subscription;
        let grant = Grant {
            subscription,
            epoch: 0,
            supersedes: 0,
            offset: log.offset(Position { segment: found.segment, at: found.at, sequence: found.sequence }),
            len: found.len,
            address: 0,
            key: 0,
            sequence: found.sequence,
            records: found.records,
            time: found.time,
            crc: found.crc,
            current_us: interval_us,
        };
        let end_sequence = found.sequence + u64::from(found.records);
        let index = segment.index;
        Step::Bind(Draft { window, subscription, segment: found.segment, index, span, end_sequence, grant })
    }

    fn listen_for_commits(&mut self, hub: &mut Hub) -> Step {
        let me = self.me;
        if !std::mem::replace(&mut self.listens.commits, true)
            && let Some(topic) = hub.topic_mut(self.topic)
        {
            topic.listeners.commits.push(me);
        }
        Step::Rest
    }

    /// Grants from `self.sequence` on again, unless that is what the consumer holds or is granted next anyway.
    pub(super) fn go_back_to(&mut self, sequence: u64, around: &mut Around<'_>) {
        let oldest = around.hub.known(self.topic).log.oldest().sequence;
        let sequence = sequence.max(self.sequence).max(oldest);
        let held = self.current(around.hub).next().map(|held| held.sequence..held.end_sequence);
        let is_next = match held {
            Some(records) => records.contains(&sequence),
            None => self.pieces().next_sequence() == sequence,
        };
        if is_next {
            return;
        }
        self.revoke_silently(self.epoch, around.hub);
        let at = around.hub.known(self.topic).log.find(sequence, &around.hub.pool, around.memory);
        self.pieces().move_to(at, sequence);
    }

    /// A grant could not be sent: what it would have opened is granted again.
    pub(super) fn deny(&mut self, draft: &Draft, hub: &Hub, memory: &dyn Memory) {
        let now = hub.windows.get(draft.window).grant.map(|grant| grant.granted_at);
        match &mut self.scope {
            ScopeState::Segment(scope) => now.into_iter().for_each(|now| scope.retry(now)),
            ScopeState::Piece(scope) => {
                let at = hub.known(self.topic).log.find(draft.grant.sequence, &hub.pool, memory);
                scope.move_to(at, draft.grant.sequence);
            }
        }
    }
}
