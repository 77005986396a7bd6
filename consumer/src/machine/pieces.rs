//! Batch and message scope: every grant is READ once.
//!
//! Grants come in the order of the log, and each is fetched whole into the current arena, several at a time. In batch scope
//! one covers whole batches; in message scope one record, whose time and CRC the grant has told, since they stand in no
//! batch header. A grant that is not the next piece of the log (both sides paused or lagged meanwhile) is given back unread.

use std::collections::VecDeque;
use std::time::Duration;

use keyway_fabric::{LocalSpan, Memory, Time};
use keyway_schema::message::Scope;
use keyway_schema::record::RecordRef;

use super::batches::{Expected, Verdict};
use super::epochs::{Epochs, Grant};
use super::fault::Fault;
use super::flights::{Fetch, Flight, Plan};
use super::output::Output;
use super::parts::Parts;
use super::segment::REREADS_MAX;

/// A subscription whose grants are READ one by one.
#[derive(Clone, Debug)]
pub(super) struct PieceReader {
    scope: Scope,
    expected: Expected,
    reads_max: usize,
    /// How long a grant may lie unread: half of its grace.
    patience: Duration,
    /// What has been fetched, or is on its way, in log order.
    pieces: VecDeque<Piece>,
    /// The next piece does not fit the arena.
    arena_full: bool,
    rereads: u32,
}

/// A grant that is READ.
#[derive(Clone, Copy, Debug)]
struct Piece {
    grant: Grant,
    into: LocalSpan,
    /// How much of it was handed out.
    done: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    OnItsWay,
    There,
    /// It was not valid and is to be READ again.
    Again,
}

impl PieceReader {
    pub(super) fn new(scope: Scope, expected: Expected, reads_max: usize, patience: Duration) -> Self {
        let pieces = VecDeque::with_capacity(reads_max);
        Self { scope, expected, reads_max, patience, pieces, arena_full: false, rereads: 0 }
    }

    /// When the oldest unread grant must be read, or given up.
    pub(super) fn deadline(&self, epochs: &Epochs) -> Option<Time> {
        let fetched = self.pieces.back().map_or(0, |piece| piece.grant.epoch);
        let unread = epochs.usable().find(|grant| grant.epoch > fetched)?;
        Some(unread.at + self.patience)
    }

    /// The record behind everything that was fetched.
    fn planned(&self, parts: &Parts<'_>) -> u64 {
        self.pieces.back().map_or(parts.cursor.next(), |piece| piece.grant.end_sequence())
    }

    /// The next READ to post, if one may be.
    pub(super) fn next_read(&mut self, parts: &mut Parts<'_>, in_flight: usize) -> Option<Plan> {
        if in_flight >= self.reads_max || self.pieces.len() >= self.reads_max || self.arena_full {
            return None;
        }
        if let Some(piece) = self.pieces.iter_mut().find(|piece| piece.state == State::Again) {
            piece.state = State::OnItsWay;
            return Some(piece.plan());
        }
        if !parts.outputs.has_room() {
            return None;
        }
        let grant = self.next_grant(parts)?;
        parts.landing.open()?;
        if parts.landing.space() < grant.len {
            self.arena_full = true;
            return None;
        }
        let piece = Piece { grant, into: parts.landing.take(grant.len), done: 0, state: State::OnItsWay };
        self.pieces.push_back(piece);
        Some(piece.plan())
    }

    /// The grant of the next piece. Those that are none are finished with.
    fn next_grant(&self, parts: &mut Parts<'_>) -> Option<Grant> {
        loop {
            let fetched = self.pieces.back().map_or(0, |piece| piece.grant.epoch);
            let grant = *parts.epochs.usable().find(|grant| grant.epoch > fetched)?;
            let planned = self.planned(parts);
            let in_place = grant.sequence <= planned && planned < grant.end_sequence();
            // A grant that covers fillers only has no records; it is read past like any other.
            if in_place || (grant.records == 0 && grant.sequence == planned) {
                return Some(grant);
            }
            parts.epochs.finish(grant.epoch);
            parts.counters.stale_grants += 1;
        }
    }

    /// A READ is over: the next of those posted.
    pub(super) fn read_done(
        &mut self,
        parts: &mut Parts<'_>,
        flight: &Flight,
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        if let Some(piece) = self.pieces.iter_mut().find(|piece| piece.grant.epoch == flight.epoch) {
            piece.state = State::There;
        }
        while let Some(piece) = self.pieces.front().filter(|piece| piece.state == State::There).copied() {
            let outcome = match self.scope {
                Scope::Message => hand_out_record(parts, &piece, memory),
                Scope::Segment | Scope::Batch => self.hand_out_batches(parts, memory),
            };
            if let Err(reason) = outcome {
                self.rereads += 1;
                parts.counters.rereads += 1;
                if self.rereads > REREADS_MAX || !parts.epochs.is_usable(piece.grant.epoch) {
                    return Err(Fault::Unreadable { offset: piece.grant.offset, tries: self.rereads, reason });
                }
                self.pieces[0].state = State::Again;
                break;
            }
            self.rereads = 0;
            self.pieces.pop_front();
            parts.epochs.finish(piece.grant.epoch);
        }
        Ok(())
    }

    /// Hands out a grant of whole batches, as far as they are valid.
    fn hand_out_batches(&mut self, parts: &mut Parts<'_>, memory: &dyn Memory) -> Result<(), String> {
        let piece = &mut self.pieces[0];
        while piece.done < piece.into.len {
            let rest = piece.rest();
            let header = match self.expected.examine(memory.bytes(rest), rest.len.into(), parts.cursor) {
                Verdict::Valid(header) => header,
                Verdict::Incomplete(len) => return Err(format!("a batch of {len} bytes ends behind the grant")),
                Verdict::Invalid(invalid) => return Err(invalid.to_string()),
            };
            let span = rest.part(0, header.len);
            parts.deliver(&header, span);
            parts.landing.handed_out(span.end());
            piece.done += header.len;
        }
        Ok(())
    }

    /// Does what waited for the READs in flight, once there are none.
    pub(super) fn settle(&mut self, parts: &mut Parts<'_>) {
        if self.arena_full && self.pieces.is_empty() {
            self.arena_full = false;
            parts.retire();
        }
    }

    /// Forgets what was fetched and not handed out. Nothing is in flight.
    pub(super) fn forget(&mut self, parts: &mut Parts<'_>) {
        for piece in self.pieces.drain(..) {
            parts.epochs.finish(piece.grant.epoch);
        }
        parts.landing.rewind();
    }
}

impl Piece {
    fn rest(&self) -> LocalSpan {
        self.into.part(self.done, self.into.len - self.done)
    }

    fn plan(&self) -> Plan {
        let into = self.rest();
        let from = self.grant.remote(self.grant.offset + u64::from(self.done), into.len);
        Plan { epoch: self.grant.epoch, fetch: Fetch::Piece, from, into }
    }
}

/// Hands out a grant of one record, if it is valid.
fn hand_out_record(parts: &mut Parts<'_>, piece: &Piece, memory: &dyn Memory) -> Result<(), String> {
    let bytes = memory.bytes(piece.into);
    let crc = crc32c::crc32c(bytes);
    if crc != piece.grant.crc {
        return Err(format!("its CRC is {crc:#010x}, the grant told {:#010x}", piece.grant.crc));
    }
    let record = RecordRef::read(bytes).filter(|record| record.encoded_len() == bytes.len());
    if record.is_none() {
        return Err(format!("its {} bytes are not one record", bytes.len()));
    }
    let (sequence, time) = (piece.grant.sequence, piece.grant.time);
    parts.outputs.push(Output::Record { span: piece.into, sequence, time });
    parts.counters.records += 1;
    parts.counters.bytes += u64::from(piece.into.len);
    parts.cursor.advance(sequence + 1);
    parts.landing.handed_out(piece.into.end());
    Ok(())
}
