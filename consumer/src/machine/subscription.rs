//! A subscription within one session: its grants, its READs, what the broker says about it, and what it answers.

use std::time::Duration;

use keyway_fabric::{Key, Memory, Now, Op, Outcome, Time, WorkError};
use keyway_schema::limits::{DEPTH_MAX, SEGMENT_HEADER, SEGMENT_MAX, SEGMENT_MIN};
use keyway_schema::message::{
    ArchivedGrant, ArchivedLagged, ArchivedRevoked, ArchivedSubscribed, ArchivedWake, Arm, Release, Scope,
};
use keyway_schema::{ToBroker, record};

use super::batches::Expected;
use super::cursor::Gap;
use super::epochs::{Epochs, Grant};
use super::fault::Fault;
use super::flights::{Flights, Plan};
use super::landing::arena_size;
use super::output::Output;
use super::parts::{Lasting, Parts};
use super::pieces::PieceReader;
use super::segment::SegmentReader;
use crate::events::Event;

/// Offsets beyond this are no broker's: a log of a gigabyte a second reaches it after a century.
const OFFSET_MAX: u64 = 1 << 62;

/// Wake-ups in a row that let nothing be read. Each is answered with an `Arm`, so without an end to it two sides that disagree
/// on what is granted would talk for ever.
const VAIN_WAKES_MAX: u32 = 16;

/// A subscription that the broker has confirmed.
#[derive(Clone, Debug)]
pub(super) struct Subscription {
    id: u32,
    scope: Scope,
    segment_size: u32,
    /// The longest grant that is not a segment.
    piece_max: u32,
    grace: Duration,
    /// Releases are gathered up to this many epochs while READs are in flight.
    gather: usize,
    epochs: Epochs,
    flights: Flights,
    reader: Reader,
    /// The broker dropped what is before this place.
    lapped: Option<Place>,
    /// The broker knows that this side waits: after the subscription, and after `Arm`.
    armed: bool,
    /// The broker was told that this side cannot read.
    paused: bool,
    /// Wake-ups since the last READ.
    vain_wakes: u32,
}

#[derive(Clone, Debug)]
enum Reader {
    Segment(SegmentReader),
    Pieces(PieceReader),
}

/// The oldest record that is left, and where its batch begins.
#[derive(Clone, Copy, Debug)]
struct Place {
    sequence: u64,
    offset: u64,
}

impl Subscription {
    /// What the broker has confirmed. `grant_bytes` is what was asked for as the longest grant of batch scope.
    pub(super) fn new(
        told: &ArchivedSubscribed,
        scope: Scope,
        reads_max: usize,
        grant_bytes: u32,
    ) -> Result<Self, Fault> {
        let segment_size = told.segment_size.to_native();
        within("the segment size", segment_size.into(), SEGMENT_MIN.into(), SEGMENT_MAX.into())?;
        let batch_max = told.batch_max.to_native();
        within(
            "the longest batch",
            batch_max.into(),
            record::batch_max(0).into(),
            (segment_size - SEGMENT_HEADER).into(),
        )?;
        let depth = told.depth.to_native();
        within("the depth", depth.into(), 1, DEPTH_MAX.into())?;
        let offset = told.offset.to_native();
        if scope == Scope::Segment {
            check_offset("Subscribed", offset, segment_size)?;
        }
        let grace = Duration::from_millis(told.epoch.grace_ms.to_native().into());
        let expected = Expected { topic: told.topic.to_native(), batch_max };
        let reader = match scope {
            Scope::Segment => Reader::Segment(SegmentReader::new(expected, segment_size, reads_max, offset)),
            _ => Reader::Pieces(PieceReader::new(scope, expected, reads_max, grace / 2)),
        };
        Ok(Self {
            id: told.subscription.to_native(),
            scope,
            segment_size,
            piece_max: grant_bytes.max(batch_max).min(arena_size(batch_max)),
            grace,
            gather: usize::from(depth / 4).max(1),
            epochs: Epochs::new(depth),
            flights: Flights::default(),
            reader,
            lapped: None,
            armed: true,
            paused: false,
            vain_wakes: 0,
        })
    }

    pub(super) const fn id(&self) -> u32 {
        self.id
    }

    fn check_id(&self, id: u32, kind: &'static str) -> Result<(), Fault> {
        if id == self.id { Ok(()) } else { Err(Fault::Unexpected { kind, when: "for another subscription" }) }
    }

    /// A grant has arrived.
    pub(super) fn granted(&mut self, now: Now, told: &ArchivedGrant, lasting: &mut Lasting) -> Result<(), Fault> {
        self.check_id(told.subscription.to_native(), "Grant")?;
        let grant = self.check_grant(now, told)?;
        self.epochs.admit(grant)?;
        lasting.counters.epochs += 1;
        if grant.supersedes != 0 {
            lasting.counters.rekeys += 1;
            lasting.events.push(Event::Rekeyed { epoch: grant.epoch });
        }
        self.armed = false;
        let mut parts = Parts::new(now, &mut self.epochs, lasting);
        match &mut self.reader {
            // The key was replaced and nothing can be read: a consumer does not sit on keys.
            Reader::Segment(_) if grant.supersedes != 0 && self.flights.is_empty() && !parts.can_read() => {
                self.paused = true;
            }
            Reader::Segment(reader) => reader.granted(&mut parts),
            Reader::Pieces(_) => {}
        }
        if self.paused {
            self.epochs.finish_all();
        }
        Ok(())
    }

    fn check_grant(&self, now: Now, told: &ArchivedGrant) -> Result<Grant, Fault> {
        let epoch = told.epoch.to_native();
        let current = Duration::from_micros(told.current_us.to_native().into());
        let grant = Grant {
            epoch,
            supersedes: told.supersedes.to_native(),
            offset: told.offset.to_native(),
            len: told.len.to_native(),
            address: told.address.to_native(),
            key: Key(told.key.to_native()),
            sequence: told.sequence.to_native(),
            records: told.records.to_native(),
            time: told.time.to_native(),
            crc: told.crc.to_native(),
            at: now.time,
            until: now.time + current + self.grace / 2,
        };
        let impossible = |what, value, expected: String| Err(Fault::Grant { epoch, what, value, expected });
        let (len, size) = (grant.len, self.segment_size);
        if grant.offset > OFFSET_MAX || !grant.offset.is_multiple_of(8) {
            return impossible("the offset", grant.offset, "a place in the log".into());
        }
        if grant.address.checked_add(len.into()).is_none() {
            return impossible("the address", grant.address, format!("one that {len} bytes can follow"));
        }
        if grant.sequence.checked_add(grant.records.into()).is_none() {
            return impossible("the sequence", grant.sequence, format!("one that {} more can follow", grant.records));
        }
        match self.scope {
            Scope::Segment => {
                if !grant.offset.is_multiple_of(size.into()) {
                    return impossible("the offset", grant.offset, format!("the start of a segment of {size} bytes"));
                }
                if len != size {
                    return impossible("the length", len.into(), format!("a segment's {size}"));
                }
            }
            Scope::Batch | Scope::Message => {
                if len == 0 || len > self.piece_max || !len.is_multiple_of(8) {
                    return impossible("the length", len.into(), format!("at most {}", self.piece_max));
                }
                if self.scope == Scope::Message && grant.records != 1 {
                    return impossible("the number of records", grant.records.into(), "one".into());
                }
            }
        }
        Ok(grant)
    }

    /// The tail has passed the cursor.
    pub(super) fn woken(&mut self, told: &ArchivedWake) -> Result<(), Fault> {
        self.check_id(told.subscription.to_native(), "Wake")?;
        self.armed = false;
        self.vain_wakes += 1;
        if self.vain_wakes > VAIN_WAKES_MAX {
            return Err(Fault::Unexpected { kind: "Wake", when: "again and again, without a key to what it tells of" });
        }
        match &mut self.reader {
            Reader::Segment(reader) => reader.woken(told.tail.to_native()),
            Reader::Pieces(_) => Err(Fault::Unexpected { kind: "Wake", when: "outside segment scope" }),
        }
    }

    /// The ring has dropped what is before a record.
    pub(super) fn lagged(&mut self, told: &ArchivedLagged) -> Result<(), Fault> {
        self.check_id(told.subscription.to_native(), "Lagged")?;
        let place = Place { sequence: told.sequence.to_native(), offset: told.offset.to_native() };
        check_offset("Lagged", place.offset, self.segment_size)?;
        if self.lapped.is_none_or(|before| before.sequence <= place.sequence) {
            self.lapped = Some(place);
        }
        Ok(())
    }

    /// Epochs are taken away.
    pub(super) fn revoked(&mut self, told: &ArchivedRevoked) -> Result<(), Fault> {
        self.check_id(told.subscription.to_native(), "Revoked")?;
        self.epochs.revoke(told.epoch.to_native())
    }

    /// The next READ to post.
    pub(super) fn next_read(&mut self, now: Now, lasting: &mut Lasting) -> Result<Option<(Op, Plan)>, Fault> {
        if self.lapped.is_some() || self.paused {
            return Ok(None);
        }
        let in_flight = self.flights.len();
        let mut parts = Parts::new(now, &mut self.epochs, lasting);
        let mut plan = self.reader.next_read(&mut parts, in_flight);
        if plan.is_none() && in_flight == 0 {
            // What it put off until nothing is in flight can be done at once, and may be all that is in the way.
            self.reader.settle(&mut parts)?;
            plan = self.reader.next_read(&mut parts, in_flight);
        }
        Ok(plan.map(|plan| {
            self.vain_wakes = 0;
            self.epochs.read_posted(plan.epoch);
            lasting.counters.reads += 1;
            (self.flights.post(&plan), plan)
        }))
    }

    /// A piece of work is over. Returns whether it was a READ of this subscription.
    pub(super) fn done(
        &mut self,
        now: Now,
        op: Op,
        result: Result<Outcome, WorkError>,
        lasting: &mut Lasting,
        memory: &mut dyn Memory,
    ) -> Result<bool, Fault> {
        let Some(epoch) = self.flights.done(op) else { return Ok(false) };
        self.epochs.read_done(epoch);
        result.map_err(|error| Fault::Work { what: "READ", error })?;
        let mut parts = Parts::new(now, &mut self.epochs, lasting);
        while let Some(flight) = self.flights.next_done() {
            match &mut self.reader {
                Reader::Segment(reader) => reader.read_done(&mut parts, &flight, memory)?,
                Reader::Pieces(reader) => reader.read_done(&mut parts, &flight, memory)?,
            }
        }
        self.settle(now, lasting)?;
        Ok(true)
    }

    /// Does what waited for the READs in flight, once there are none: a new arena, another try, or the jump over a gap.
    pub(super) fn settle(&mut self, now: Now, lasting: &mut Lasting) -> Result<(), Fault> {
        if !self.flights.is_empty() {
            return Ok(());
        }
        let mut parts = Parts::new(now, &mut self.epochs, lasting);
        self.reader.settle(&mut parts)?;
        let Some(place) = self.lapped.take() else { return Ok(()) };
        // What was in flight has been handed out. A cursor beyond the told record was not overtaken at all.
        if parts.cursor.next() <= place.sequence {
            let gap = parts.cursor.place(place.sequence);
            self.reader.go_to(&mut parts, place.offset);
            if let Some(gap) = gap {
                tell_gap(lasting, gap);
            }
            self.armed &= !self.epochs.usable().any(|grant| grant.end() > place.offset);
        }
        Ok(())
    }

    /// The next thing to tell the broker.
    pub(super) fn answer(&mut self, now: Now, lasting: &mut Lasting) -> Option<ToBroker> {
        let next = lasting.cursor.next();
        let releasable = self.epochs.releasable();
        let gathered = self.scope == Scope::Segment || self.flights.is_empty() || releasable >= self.gather;
        if releasable > 0 && gathered {
            let epoch = self.epochs.release().expect("it was just counted");
            lasting.counters.releases += 1;
            lasting.counters.pauses += u64::from(self.paused);
            return Some(Release { subscription: self.id, epoch, sequence: next, pause: self.paused }.into());
        }
        if self.needs_wake(now, lasting) {
            self.armed = true;
            self.paused = false;
            lasting.counters.arms += 1;
            return Some(Arm { subscription: self.id, sequence: next }.into());
        }
        None
    }

    fn needs_wake(&mut self, now: Now, lasting: &mut Lasting) -> bool {
        if self.armed || self.lapped.is_some() || !self.flights.is_empty() {
            return false;
        }
        let parts = Parts::new(now, &mut self.epochs, lasting);
        let idle = match &self.reader {
            Reader::Segment(reader) => reader.is_idle(&parts),
            // In these scopes the next grant is the wake-up.
            Reader::Pieces(_) => false,
        };
        parts.can_read() && (self.paused || idle)
    }

    /// When grants that lie unread must be given up.
    pub(super) fn timeout(&self) -> Option<Time> {
        match &self.reader {
            Reader::Pieces(reader) if !self.paused => reader.deadline(&self.epochs),
            _ => None,
        }
    }

    /// Gives up the grants that lay unread for too long.
    pub(super) fn handle_timeout(&mut self, now: Now) {
        if self.timeout().is_some_and(|at| at <= now.time) {
            self.paused = true;
            self.epochs.finish_all();
        }
    }

    /// Gives it up where it is. Returns its number, and the READs that must end before the broker is told.
    pub(super) fn give_up(&mut self) -> (u32, Flights) {
        (self.id, std::mem::take(&mut self.flights))
    }

    /// Whether no READ is in flight.
    pub(super) fn is_quiet(&self) -> bool {
        self.flights.is_empty()
    }
}

impl Reader {
    fn next_read(&mut self, parts: &mut Parts<'_>, in_flight: usize) -> Option<Plan> {
        match self {
            Self::Segment(reader) => reader.next_read(parts, in_flight),
            Self::Pieces(reader) => reader.next_read(parts, in_flight),
        }
    }

    fn settle(&mut self, parts: &mut Parts<'_>) -> Result<(), Fault> {
        match self {
            Self::Segment(reader) => reader.settle(parts),
            Self::Pieces(reader) => {
                reader.settle(parts);
                Ok(())
            }
        }
    }

    fn go_to(&mut self, parts: &mut Parts<'_>, offset: u64) {
        match self {
            Self::Segment(reader) => reader.go_to(parts, offset),
            Self::Pieces(reader) => reader.forget(parts),
        }
    }
}

/// Tells the application of records that are gone.
pub(super) fn tell_gap(lasting: &mut Lasting, gap: Gap) {
    let Gap { from, to } = gap;
    lasting.counters.gaps += 1;
    // A broker may say anything, again and again.
    lasting.counters.lagged = lasting.counters.lagged.saturating_add(to - from);
    lasting.events.push(Event::Lagged { from, to, records: to - from });
    lasting.outputs.push(Output::Lagged { from, to });
}

fn within(what: &'static str, value: u64, min: u64, max: u64) -> Result<(), Fault> {
    let expected = || format!("{min} to {max}");
    if (min..=max).contains(&value) { Ok(()) } else { Err(Fault::Subscribed { what, value, expected: expected() }) }
}

fn check_offset(what: &'static str, offset: u64, segment_size: u32) -> Result<(), Fault> {
    let in_segment = offset % u64::from(segment_size);
    let possible = offset <= OFFSET_MAX && offset.is_multiple_of(8) && in_segment >= SEGMENT_HEADER.into();
    if possible { Ok(()) } else { Err(Fault::Offset { what, offset }) }
}
