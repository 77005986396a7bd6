//! A topic's log: the segments of its ring, what is committed in them, and where which record lies.
//!
//! A segment is *opened* when the first batch can be committed in it: only then is its first sequence known, because what was
//! placed before it may still become a filler. Segments that are only reserved stand behind the opened ones and are not
//! shown to anybody.

use std::collections::VecDeque;

use keyway_fabric::{Memory, SharedSpan};
use keyway_schema::batch::{BATCH_HEADER_LEN, BatchHeader};
use keyway_schema::limits::SEGMENT_HEADER;
use keyway_schema::segment::{HEADER_AT, HEADER_LEN, SegmentHeader, TAIL_AT, Tail, segment_start};

use super::pool::Pool;

/// Index entries a segment at most, so that an index is small beside what it indexes.
const INDEX_MAX: u32 = 1024;

/// The least distance between index entries in bytes: the walk from one to a record is short beside the way to its reader.
const INDEX_STEP_MIN: u32 = 16 * 1024;

/// The end of a segment that is not opened: later than every sequence, so that ends rise along the ring.
const UNOPENED: u64 = u64::MAX;

/// The log.
#[derive(Clone, Debug)]
pub(super) struct Log {
    topic: u32,
    instance: u64,
    segment_size: u32,
    segments: VecDeque<Segment>,
    /// How many of them are opened.
    opened: usize,
    /// The number of the next segment.
    next_number: u64,
    next_sequence: u64,
    last_time: u64,
    /// A dropped segment's index, whose memory the next one uses.
    spare: Vec<Entry>,
}

/// A segment of the ring. Positions are bytes from its start.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    /// Its place in the pool.
    pub(super) index: u32,
    /// The sequence of its first record, once it is opened.
    pub(super) base_sequence: u64,
    /// The sequence behind its last committed record.
    pub(super) end_sequence: u64,
    /// Up to where batches have their place.
    reserved: u32,
    /// Up to where they are committed.
    pub(super) committed: u32,
    entries: Vec<Entry>,
}

/// A batch that can be found without a walk.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u32,
    sequence: u64,
    time: u64,
}

/// Where a batch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// The segment's number.
    pub(super) segment: u64,
    /// The byte in the segment.
    pub(super) at: u32,
    /// The sequence of the batch's first record.
    pub(super) sequence: u64,
}

impl Log {
    pub(super) fn new(topic: u32, instance: u64, segment_size: u32) -> Self {
        Self {
            topic,
            instance,
            segment_size,
            segments: VecDeque::new(),
            opened: 0,
            next_number: 0,
            next_sequence: 0,
            last_time: 0,
            spare: Vec::new(),
        }
    }

    /// How many segments are in the ring.
    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    /// The number that the next segment will have.
    pub(super) const fn next_number(&self) -> u64 {
        self.next_number
    }

    /// The sequence of the next record to be committed.
    pub(super) const fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// The commit time for a batch committed now: never less than the one before.
    pub(super) fn stamp(&mut self, wall: u64) -> u64 {
        self.last_time = self.last_time.max(wall);
        self.last_time
    }

    /// The opened segments, oldest first.
    pub(super) fn opened(&self) -> impl DoubleEndedIterator<Item = &Segment> + ExactSizeIterator {
        self.segments.range(..self.opened)
    }

    /// An opened segment.
    pub(super) fn segment(&self, number: u64) -> Option<&Segment> {
        let first = self.segments.front()?.number;
        let place = usize::try_from(number.checked_sub(first)?).ok()?;
        if place < self.opened { self.segments.get(place) } else { None }
    }

    /// The number of the oldest segment.
    pub(super) fn oldest_number(&self) -> u64 {
        self.segments.front().map_or(self.next_number, |segment| segment.number)
    }

    /// Where the oldest record that is left begins, or will.
    pub(super) fn oldest(&self) -> Position {
        match self.opened().next() {
            Some(first) => Position { segment: first.number, at: SEGMENT_HEADER, sequence: first.base_sequence },
            None => Position { segment: self.oldest_number(), at: SEGMENT_HEADER, sequence: self.next_sequence },
        }
    }

    /// Up to where batches are committed.
    pub(super) fn tail(&self) -> Position {
        match self.opened().next_back() {
            Some(last) => Position { segment: last.number, at: last.committed, sequence: self.next_sequence },
            None => Position { segment: self.oldest_number(), at: SEGMENT_HEADER, sequence: self.next_sequence },
        }
    }

    /// A position's offset in the log.
    pub(super) const fn offset(&self, position: Position) -> u64 {
        position.segment * self.segment_size as u64 + position.at as u64
    }

    /// Whether a segment is opened and another one behind it: no batch will follow in it.
    pub(super) fn is_sealed(&self, number: u64) -> bool {
        self.segment(number).is_some() && self.segment(number + 1).is_some()
    }

    /// The position itself, or where the next segment begins if it is behind a sealed segment's last batch.
    pub(super) fn normalized(&self, position: Position) -> Position {
        match self.segment(position.segment) {
            Some(segment) if position.at >= segment.committed && self.is_sealed(segment.number) => {
                Position { segment: position.segment + 1, at: SEGMENT_HEADER, ..position }
            }
            _ => position,
        }
    }

    // ------------------------------------------------------------------------------------------------ reserving

    /// Whether a batch of `len` bytes fits behind what has a place in the last segment. One never ends at the very end of a
    /// segment, so that every offset lies in the segment that it is of.
    pub(super) fn fits(&self, len: u32) -> bool {
        let room = |segment: &Segment| self.segment_size - segment.reserved;
        self.segments.back().is_some_and(|segment| len < room(segment))
    }

    /// Gives a batch its place. Returns the segment's number and the byte in it.
    ///
    /// # Panics
    ///
    /// If it does not [fit](Self::fits).
    pub(super) fn reserve(&mut self, len: u32) -> (u64, u32) {
        assert!(self.fits(len), "whoever places a batch has made room for it");
        let segment = self.segments.back_mut().expect("a batch fits, so there is a segment");
        let at = segment.reserved;
        segment.reserved += len;
        (segment.number, at)
    }

    /// Appends a segment of the pool to the ring.
    pub(super) fn push(&mut self, index: u32) {
        let mut entries = std::mem::take(&mut self.spare);
        entries.clear();
        self.segments.push_back(Segment {
            number: self.next_number,
            index,
            base_sequence: self.next_sequence,
            end_sequence: UNOPENED,
            reserved: SEGMENT_HEADER,
            committed: SEGMENT_HEADER,
            entries,
        });
        self.next_number += 1;
    }

    /// Whether the oldest segment can be dropped: nothing that has a place in it waits to be committed.
    pub(super) fn can_drop(&self) -> bool {
        let settled = |segment: &Segment| segment.committed == segment.reserved;
        self.opened > 0 && self.segments.front().is_some_and(settled)
    }

    /// Drops the oldest segment.
    ///
    /// # Panics
    ///
    /// If it [cannot be](Self::can_drop).
    pub(super) fn drop_oldest(&mut self) -> Segment {
        assert!(self.can_drop(), "the oldest segment is dropped only when everything in it is committed");
        let mut dropped = self.segments.pop_front().expect("there is an oldest segment");
        self.opened -= 1;
        self.spare = std::mem::take(&mut dropped.entries);
        dropped
    }

    /// Opens the next segment if everything before it is committed: its header is written, and the seal of the one before it
    /// stored. Returns its number, if it was opened.
    pub(super) fn open_next(&mut self, pool: &Pool, memory: &mut dyn Memory) -> Option<u64> {
        let before = self.opened.checked_sub(1).map(|place| &self.segments[place]);
        if before.is_some_and(|segment| segment.committed < segment.reserved) {
            return None;
        }
        let sequence = self.next_sequence;
        let segment = self.segments.get_mut(self.opened)?;
        segment.base_sequence = sequence;
        segment.end_sequence = sequence;
        let header = SegmentHeader {
            topic: self.topic,
            number: segment.number,
            base_sequence: sequence,
            instance: self.instance,
        };
        let (number, span) = (segment.number, pool.span(segment.index));
        memory.write(span.part(HEADER_AT, HEADER_LEN as u64), &header.to_bytes());
        let start = Tail { offset: segment_start(number, self.segment_size), sealed: false };
        // Paired with the reader's acquire of the tail word: it sees the header that it belongs to.
        memory.store(span.shared, span.offset + TAIL_AT, start.word());
        if let Some(place) = self.opened.checked_sub(1) {
            self.store_tail(place, true, pool, memory);
        }
        self.opened += 1;
        Some(number)
    }

    // ----------------------------------------------------------------------------------------------- committing

    /// Takes a batch that is in its place into the log: what is before it is committed, its header is in the pool.
    pub(super) fn commit(&mut self, header: &BatchHeader, pool: &Pool, memory: &mut dyn Memory) {
        let step = INDEX_STEP_MIN.max(self.segment_size / INDEX_MAX);
        let place = self.opened - 1;
        let segment = &mut self.segments[place];
        let at = segment.committed;
        if segment.entries.last().is_none_or(|last| at - last.at >= step) {
            segment.entries.push(Entry { at, sequence: header.base_sequence, time: header.time });
        }
        segment.committed += header.len;
        segment.end_sequence = header.end_sequence();
        self.next_sequence = segment.end_sequence;
        self.store_tail(place, false, pool, memory);
    }

    fn store_tail(&self, place: usize, sealed: bool, pool: &Pool, memory: &mut dyn Memory) {
        let segment = &self.segments[place];
        let offset = segment.number * u64::from(self.segment_size) + u64::from(segment.committed);
        let span = pool.span(segment.index);
        // Release: a reader that sees this tail sees the batches before it.
        memory.store(span.shared, span.offset + TAIL_AT, Tail { offset, sealed }.word());
    }

    // --------------------------------------------------------------------------------------------------- finding

    /// Where a span of an opened segment is in the pool.
    pub(super) fn span(&self, pool: &Pool, number: u64, at: u32, len: u32) -> Option<SharedSpan> {
        let segment = self.segments.get(usize::try_from(number.checked_sub(self.oldest_number())?).ok()?)?;
        Some(pool.span(segment.index).part(u64::from(at), u64::from(len)))
    }

    /// The header of the committed batch at a position, or `None` at the end of what is committed in its segment.
    pub(super) fn header(&self, pool: &Pool, position: Position, memory: &dyn Memory) -> Option<BatchHeader> {
        let segment = self.segment(position.segment)?;
        if position.at >= segment.committed {
            return None;
        }
        let mut bytes = [0; BATCH_HEADER_LEN];
        memory.load(pool.span(segment.index).part(u64::from(position.at), BATCH_HEADER_LEN as u64), &mut bytes);
        Some(
            BatchHeader::read(&bytes).expect("only checked batches are committed, and only the broker writes the pool"),
        )
    }

    /// The number of the first opened segment that a reader who wants `sequence` next may still need.
    pub(super) fn segment_for(&self, sequence: u64) -> u64 {
        let place = self.segments.partition_point(|segment| segment.end_sequence < sequence);
        let last = self.opened.saturating_sub(1);
        self.segments.get(place.min(last)).map_or(self.next_number, |segment| segment.number)
    }

    /// Where the batch of a record begins, or the next batch if the record is the next to come. Older than the oldest is the
    /// oldest.
    pub(super) fn find(&self, sequence: u64, pool: &Pool, memory: &dyn Memory) -> Position {
        if sequence >= self.next_sequence {
            return self.tail();
        }
        let place = self.segments.partition_point(|segment| segment.end_sequence <= sequence);
        let Some(segment) = self.segments.get(place) else { return self.tail() };
        if sequence <= segment.base_sequence {
            let start = Position { segment: segment.number, at: SEGMENT_HEADER, sequence: segment.base_sequence };
            return self.normalized(start);
        }
        let entry = segment.entries.partition_point(|entry| entry.sequence <= sequence);
        self.walk(segment, entry, pool, memory, |header| header.end_sequence() > sequence)
    }

    /// Where the first batch that was committed at `time` or later begins.
    pub(super) fn find_time(&self, time: u64, pool: &Pool, memory: &dyn Memory) -> Position {
        // The last segment that begins before `time` holds the first batch that does not, if any segment does.
        let begins_before = |segment: &Segment| segment.entries.first().is_some_and(|first| first.time < time);
        let mut position = self.oldest();
        if let Some(segment) = self.opened().rev().find(|segment| begins_before(segment)) {
            let entry = segment.entries.partition_point(|entry| entry.time < time);
            position = self.walk(segment, entry, pool, memory, |header| header.time >= time);
        }
        self.normalized(position)
    }

    /// Walks from the index entry before `entry` to the first batch that `found` takes; at most to the end of the segment.
    fn walk(
        &self,
        segment: &Segment,
        entry: usize,
        pool: &Pool,
        memory: &dyn Memory,
        found: impl Fn(&BatchHeader) -> bool,
    ) -> Position {
        let start = entry.checked_sub(1).and_then(|entry| segment.entries.get(entry));
        let mut position = match start {
            Some(entry) => Position { segment: segment.number, at: entry.at, sequence: entry.sequence },
            None => Position { segment: segment.number, at: SEGMENT_HEADER, sequence: segment.base_sequence },
        };
        while let Some(header) = self.header(pool, position, memory) {
            if found(&header) {
                break;
            }
            position.at += header.len;
            position.sequence = header.end_sequence();
        }
        self.normalized(position)
    }
}
