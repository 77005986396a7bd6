//! Segment scope: reading a ring segment behind its moving tail.
//!
//! Behind a tail that is known, the reader fetches exactly what is committed, in chunks, several in flight. With the last of
//! them it *probes*: it READs the tail word and, in the same round trip, whatever stands behind the tail that it knew. What
//! comes so is used as far as the new tail reaches and as it proves to be the expected batch; else it is READ again. A probe
//! that finds nothing makes the subscription arm and sleep.
//!
//! The reader stays within one segment at a time: it enters the next one when everything before it was handed out.

use keyway_fabric::Memory;
use keyway_schema::limits::SEGMENT_HEADER;
use keyway_schema::segment::{TAIL_AT, Tail, segment_of, segment_start};

use super::batches::{Expected, Invalid, Verdict};
use super::epochs::Grant;
use super::fault::Fault;
use super::flights::{Fetch, Flight, Plan};
use super::landing::ARENA_SLACK;
use super::parts::Parts;

/// The most bytes of one READ: long enough that neither its round trip nor whoever wakes for its end counts, short enough that
/// several are in flight.
pub(super) const CHUNK: u32 = 512 << 10;

/// The most bytes that are on their way: as many as fill any link. More would only keep the key of an epoch that is over for
/// longer in use.
const ON_THEIR_WAY_MAX: u32 = 2 << 20;

/// The least that is fetched on the chance that it has been committed: a few small batches.
const GUESS_MIN: u32 = 1 << 10;

/// The most: what comes in vain costs the broker as much as what does not.
const GUESS_MAX: u32 = 64 << 10;

/// How often what is committed may be READ without becoming valid. Memory that a device shows out of order is in order
/// within microseconds; sixty-four round trips are longer than that on every link.
pub(super) const REREADS_MAX: u32 = 64;

/// A subscription's place in the ring.
#[derive(Clone, Debug)]
pub(super) struct SegmentReader {
    expected: Expected,
    segment_size: u32,
    reads_max: usize,
    /// The number of the segment that is read.
    segment: u64,
    /// The log offset of the next batch to hand out; at most the segment's end. What was fetched behind it lies in the
    /// landing.
    parse: u64,
    /// What is known of the segment's tail; never before `parse`.
    tail: Tail,
    /// How much to fetch behind the known tail.
    guess: u32,
    probe: Option<Probe>,
    hold: Option<Hold>,
    /// The lengths of the last batches.
    lengths: Lengths,
    /// The last probe found the tail where it was known to be.
    tail_rests: bool,
    rereads: u32,
}

/// A tail word, and the data behind it, on their way.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// The tail that was known before.
    known: u64,
    /// How far the data is to be believed: to the tail word that came with it. A `Wake` may tell more meanwhile.
    valid: u64,
    /// How much was guessed.
    guess: u32,
    /// How much data is still to be asked for behind the word.
    unposted: u32,
    /// The word comes without data: there is nowhere to put any.
    alone: bool,
}

/// Why nothing is fetched until the READs in flight are over.
#[derive(Clone, Copy, Debug)]
enum Hold {
    /// The next batch does not fit the arena.
    NextArena,
    /// The next batch is not valid yet.
    Reread(Invalid),
}

/// What the lengths of the last batches tell of those to come.
#[derive(Clone, Copy, Debug, Default)]
struct Lengths {
    last: u32,
    /// The last two were the same.
    steady: bool,
    /// The longest, as far as it is remembered.
    longest: u32,
}

impl Lengths {
    fn note(&mut self, len: u32) {
        self.steady = len == self.last;
        self.last = len;
        self.longest = len.max(self.longest - self.longest / 16);
    }

    /// How long the next ones will be; zero if that is not known.
    const fn expected(&self) -> u32 {
        if self.steady { self.last } else { 0 }
    }

    /// How much of a batch may stand at the end of an arena that it does not end in.
    const fn cut_off(&self) -> u32 {
        if self.last == 0 { u32::MAX } else { self.longest }
    }
}

impl SegmentReader {
    pub(super) fn new(expected: Expected, segment_size: u32, reads_max: usize, offset: u64) -> Self {
        Self {
            expected,
            segment_size,
            reads_max,
            segment: segment_of(offset, segment_size),
            parse: offset,
            tail: Tail { offset, sealed: false },
            guess: GUESS_MIN,
            probe: None,
            hold: None,
            lengths: Lengths::default(),
            tail_rests: false,
            rereads: 0,
        }
    }

    /// The log offset of the segment's first byte, and that behind its last.
    fn bounds(&self) -> (u64, u64) {
        let size = u64::from(self.segment_size);
        let start = self.segment * size;
        (start, start + size)
    }

    /// Goes on at this offset. Nothing is in flight, and what was fetched and not handed out is forgotten.
    pub(super) fn go_to(&mut self, parts: &mut Parts<'_>, offset: u64) {
        parts.landing.rewind();
        self.segment = segment_of(offset, self.segment_size);
        self.parse = offset;
        self.tail = Tail { offset, sealed: false };
        self.probe = None;
        self.hold = None;
        self.look_again();
        parts.epochs.finish_before(self.bounds().0);
    }

    /// Something may have been committed.
    const fn look_again(&mut self) {
        self.tail_rests = false;
    }

    /// A grant has arrived. One of a segment that was read to its end (both sides spoke at once) is done with already.
    pub(super) fn granted(&mut self, parts: &mut Parts<'_>) {
        self.look_again();
        parts.epochs.finish_before(self.bounds().0);
    }

    /// Leaves a segment that it has no key to, if the records behind the cursor begin with a segment that it has one to: the
    /// broker, which knows that nothing but fillers is left in between, does not grant it again.
    fn skip_fillers(&mut self, parts: &mut Parts<'_>) {
        let ((start, end), next) = (self.bounds(), parts.cursor.next());
        if parts.epochs.covering(start, parts.now.time).is_some() {
            return;
        }
        let begins_here = |grant: &&Grant| grant.offset >= end && grant.sequence == next;
        let offset = parts.epochs.usable().find(begins_here).map(|grant| grant.offset);
        if let Some(offset) = offset {
            self.go_to(parts, offset + u64::from(SEGMENT_HEADER));
        }
    }

    /// The broker says that the tail is here.
    pub(super) fn woken(&mut self, tail: u64) -> Result<(), Fault> {
        if !tail.is_multiple_of(8) {
            return Err(Fault::Offset { what: "Wake", offset: tail });
        }
        if segment_of(tail, self.segment_size) == self.segment && !self.tail.sealed {
            self.tail.offset = self.tail.offset.max(tail);
        }
        self.look_again();
        Ok(())
    }

    /// Whether there is nothing to do until the broker says something.
    pub(super) fn is_idle(&self, parts: &Parts<'_>) -> bool {
        let waiting = self.probe.is_some() || self.hold.is_some();
        let keyless = parts.epochs.covering(self.bounds().0, parts.now.time).is_none();
        !waiting && (keyless || (self.tail_rests && self.parse == self.tail.offset))
    }

    /// The next READ to post, if one may be.
    pub(super) fn next_read(&mut self, parts: &mut Parts<'_>, in_flight: usize) -> Option<Plan> {
        if let Some(probe) = &mut self.probe {
            let len = std::mem::take(&mut probe.unposted);
            let plan = self.data(parts, Fetch::Probe, len);
            if let Some(probe) = self.probe.as_mut().filter(|_| len > 0) {
                probe.alone = plan.is_none();
            }
            return plan;
        }
        if self.hold.is_some() || in_flight >= self.reads_max || parts.landing.on_its_way() >= ON_THEIR_WAY_MAX {
            return None;
        }
        let (start, end) = self.bounds();
        let grant = *parts.epochs.covering(start, parts.now.time)?;
        parts.landing.open()?;
        let position = self.parse + u64::from(parts.landing.ahead());
        let batch = self.lengths.expected();
        let mut space = parts.landing.space_for_batches(batch);
        let known = self.tail.offset - position;
        if known == 0 && self.tail_rests {
            return None;
        }
        // Where batches are of one length, the last of an arena ends with its last byte.
        let enough = if batch > 0 { 8 } else { ARENA_SLACK };
        let wanted = if self.tail.sealed { known } else { known + u64::from(self.guess) };
        if u64::from(space) < wanted.min(enough.into()) {
            if parts.landing.has_next() {
                // It is as full as the one that is handed out of, whose end comes first.
                return None;
            }
            if parts.landing.go_on(batch, self.lengths.cut_off()) {
                space = parts.landing.space_for_batches(batch);
            } else if u64::from(space) < known.min(enough.into()) {
                self.hold = Some(Hold::NextArena);
                return None;
            }
        }
        // No rest that would be a tiny READ of its own.
        let chunk = if space <= CHUNK + ARENA_SLACK { space } else { CHUNK };
        let most = (end - position).min(chunk.into());
        if self.tail.sealed || known > most {
            return self.data(parts, Fetch::Data, known.min(most) as u32);
        }
        let len = (known + u64::from(self.guess)).min(most) as u32;
        self.probe = Some(Probe {
            known: self.tail.offset,
            valid: self.tail.offset,
            guess: self.guess,
            unposted: len,
            alone: len == 0,
        });
        let from = grant.remote(start + TAIL_AT, 8);
        Some(Plan { epoch: grant.epoch, fetch: Fetch::Word, from, into: parts.landing.word() })
    }

    fn data(&self, parts: &mut Parts<'_>, fetch: Fetch, len: u32) -> Option<Plan> {
        if len == 0 {
            return None;
        }
        let position = self.parse + u64::from(parts.landing.ahead());
        let grant = parts.epochs.covering(position, parts.now.time)?;
        let (epoch, from) = (grant.epoch, grant.remote(position, len));
        Some(Plan { epoch, fetch, from, into: parts.landing.take(len) })
    }

    /// A READ is over: the next of those posted.
    pub(super) fn read_done(
        &mut self,
        parts: &mut Parts<'_>,
        flight: &Flight,
        memory: &mut dyn Memory,
    ) -> Result<(), Fault> {
        if flight.fetch == Fetch::Word {
            self.take_tail(memory.bytes(flight.into))?;
        } else if let Some(arena) = parts.landing.arena(flight.into.slot) {
            arena.landed += flight.into.len;
        }
        let over = |probe: &mut Probe| flight.fetch == Fetch::Probe || (flight.fetch == Fetch::Word && probe.alone);
        if let Some(probe) = self.probe.take_if(over) {
            self.probed(parts, probe);
        }
        self.hand_out(parts, memory)
    }

    fn take_tail(&mut self, word: &[u8]) -> Result<(), Fault> {
        let word = word.first_chunk().expect("the tail word's READ brings eight bytes");
        let tail = Tail::from_word(u64::from_le_bytes(*word));
        let segment = self.segment;
        let first = segment_start(segment, self.segment_size);
        let within = (first..=self.bounds().1).contains(&tail.offset) && tail.offset.is_multiple_of(8);
        // A sealed segment's tail is final; an open one's may be older than what a `Wake` has told meanwhile.
        let believable = tail.offset >= self.parse && (!tail.sealed || tail.offset >= self.tail.offset);
        if !within || !believable {
            return Err(Fault::Tail { segment, offset: tail.offset });
        }
        self.tail.offset = self.tail.offset.max(tail.offset);
        self.tail.sealed |= tail.sealed;
        if let Some(probe) = &mut self.probe {
            probe.valid = probe.valid.max(tail.offset);
        }
        Ok(())
    }

    /// A probe is over: forgets what it brought from behind the tail, and learns from what it found.
    fn probed(&mut self, parts: &mut Parts<'_>, probe: Probe) {
        parts.landing.cut(probe.valid - self.parse);
        let found = probe.valid - probe.known;
        self.tail_rests = self.tail == Tail { offset: probe.known, sealed: false };
        if found >= u64::from(probe.guess) {
            self.guess = (probe.guess * 2).min(GUESS_MAX);
        } else if found < u64::from(probe.guess / 4) {
            self.guess = (probe.guess / 2).max(GUESS_MIN);
        }
    }

    /// Hands out the batches that have arrived whole.
    fn hand_out(&mut self, parts: &mut Parts<'_>, memory: &mut dyn Memory) -> Result<(), Fault> {
        // A full landing does not keep what is in it from being handed out; a batch that must be READ again does.
        while !matches!(self.hold, Some(Hold::Reread(_))) {
            let limit = self.tail.offset - self.parse;
            if limit == 0 {
                if !self.tail.sealed || parts.landing.ahead() > 0 {
                    break;
                }
                self.enter_next(parts)?;
                break;
            }
            let Some(span) = parts.landing.unparsed(limit) else { break };
            if span.len == 0 {
                if parts.landing.is_spent() && parts.switch(memory) {
                    continue;
                }
                break;
            }
            match self.expected.examine(memory.bytes(span), limit, parts.cursor) {
                Verdict::Valid(header) => {
                    self.rereads = 0;
                    if !header.filler {
                        self.lengths.note(header.len);
                    }
                    self.parse += u64::from(header.len);
                    parts.deliver(&header, span.part(0, header.len));
                    parts.landing.handed_out(span.offset + header.len);
                }
                Verdict::Incomplete(_) if parts.landing.is_spent() => {
                    if !parts.switch(memory) {
                        // It came as a surprise. Without expectations it fits the next arena, whatever it is.
                        self.lengths.steady = false;
                        self.hold = Some(Hold::NextArena);
                        break;
                    }
                }
                Verdict::Incomplete(len) => {
                    if len > parts.landing.room() && !parts.landing.can_go_on() {
                        self.hold = Some(Hold::NextArena);
                    }
                    break;
                }
                Verdict::Invalid(invalid) => self.hold = Some(Hold::Reread(invalid)),
            }
        }
        Ok(())
    }

    fn enter_next(&mut self, parts: &mut Parts<'_>) -> Result<(), Fault> {
        let segment = self.segment + 1;
        let offset = segment.checked_mul(self.segment_size.into()).filter(|start| start.leading_zeros() > 0);
        let offset = offset.ok_or(Fault::Tail { segment, offset: self.tail.offset })?;
        self.go_to(parts, offset + u64::from(SEGMENT_HEADER));
        Ok(())
    }

    /// Does what waited for the READs in flight, once there are none.
    pub(super) fn settle(&mut self, parts: &mut Parts<'_>) -> Result<(), Fault> {
        match self.hold.take() {
            None => {}
            Some(Hold::NextArena) => parts.retire(),
            Some(Hold::Reread(invalid)) => {
                self.rereads += 1;
                parts.counters.rereads += 1;
                if self.rereads > REREADS_MAX {
                    let reason = invalid.to_string();
                    return Err(Fault::Unreadable { offset: self.parse, tries: self.rereads, reason });
                }
                parts.landing.rewind();
            }
        }
        self.skip_fillers(parts);
        Ok(())
    }
}
