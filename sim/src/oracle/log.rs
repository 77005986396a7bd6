//! The log: a model of what is committed, built from the bytes that the broker writes to the pool (I3, I5, I8).
//!
//! The tail word is the truth: what is before it is what consumers may read. At every store of a tail, what it newly covers
//! is read from a shadow of the pool and appended to the model.

use std::collections::BTreeMap;

use keyway_schema::batch::Batch;
use keyway_schema::message::Commit;
use keyway_schema::segment::{HEADER_AT, HEADER_LEN, SegmentHeader, TAIL_AT, Tail, segment_of, segment_start};

use super::{Invariant, KeyBook, Verdict, broken};
use crate::payload::Mark;

/// A record of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogRecord {
    pub(crate) mark: Mark,
    pub(crate) time: u64,
    pub(crate) len: u32,
}

/// A topic's log in one broker instance.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) records: Vec<LogRecord>,
    /// The first sequence of each segment.
    segments: BTreeMap<u64, u64>,
    /// The batches by their base sequence: producer and number.
    batches: BTreeMap<u64, (u64, u64)>,
    /// The last batch number of each producer, and the last record of each author.
    producers: BTreeMap<u64, u64>,
    authors: BTreeMap<u32, u64>,
    time: u64,
}

/// Who owns a segment of the pool, by what is written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    instance: u64,
    topic: u32,
    number: u64,
    tail: u64,
    sealed: bool,
}

/// The model.
#[derive(Debug)]
pub(crate) struct LogBook {
    segment_size: u32,
    /// The segments of every ring.
    ring: u64,
    /// Whether the pool has ever had no segment to give: then a ring may lose its oldest before it is full.
    tight: bool,
    shadow: Vec<u8>,
    owners: Vec<Option<Owner>>,
    logs: BTreeMap<(u64, u32), Log>,
    /// The newest segment of each ring that has a place and maybe no header yet: offered batches are READ into it.
    reserved: BTreeMap<(u64, u32), u64>,
    empty: Log,
}

impl LogBook {
    pub(crate) fn new(segment_size: u32, ring: u32) -> Self {
        Self {
            segment_size,
            ring: u64::from(ring),
            tight: false,
            shadow: Vec::new(),
            owners: Vec::new(),
            logs: BTreeMap::new(),
            reserved: BTreeMap::new(),
            empty: Log::default(),
        }
    }

    /// A new broker, with a zeroed pool of this length.
    pub(crate) fn restart(&mut self, pool_len: u64) {
        self.shadow = vec![0; pool_len as usize];
        self.owners = vec![None; (pool_len / u64::from(self.segment_size)) as usize];
    }

    pub(crate) fn log(&self, instance: u64, topic: u32) -> &Log {
        self.logs.get(&(instance, topic)).unwrap_or(&self.empty)
    }

    /// The pool has nothing to give.
    pub(crate) const fn exhausted(&mut self) {
        self.tight = true;
    }

    /// A topic's ring has a segment of this number.
    pub(crate) fn reserved(&mut self, instance: u64, topic: u32, number: u64) {
        let newest = self.reserved.entry((instance, topic)).or_default();
        *newest = number.max(*newest);
    }

    fn segment_at(&self, offset: u64) -> usize {
        (offset / u64::from(self.segment_size)) as usize
    }

    /// Whose segment a byte of the pool is in: instance, topic and number.
    pub(crate) fn owner_at(&self, offset: u64) -> Option<(u64, u32, u64)> {
        let owner = self.owners.get(self.segment_at(offset)).copied().flatten()?;
        Some((owner.instance, owner.topic, owner.number))
    }

    /// The broker wrote to the pool.
    pub(crate) fn wrote(&mut self, offset: u64, bytes: &[u8], keys: &KeyBook) -> Verdict {
        let segment = self.segment_at(offset);
        let within = offset % u64::from(self.segment_size);
        let end = within + bytes.len() as u64;
        if end > u64::from(self.segment_size) {
            return broken(Invariant::I8, format!("a write at {offset}+{} leaves its segment", bytes.len()));
        }
        if let Some(owner) = self.owners.get(segment).copied().flatten() {
            let committed = owner.tail - owner.number * u64::from(self.segment_size);
            // The tail word is stored, never written: a write to the header or to what is committed makes something else
            // of the segment.
            if within < committed && !bytes.is_empty() && !self.rewrites_header(offset, bytes) {
                self.recycled(segment, keys)?;
            }
        }
        let at = offset as usize;
        self.shadow[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Whether a write leaves the bytes as they are.
    fn rewrites_header(&self, offset: u64, bytes: &[u8]) -> bool {
        self.shadow.get(offset as usize..offset as usize + bytes.len()) == Some(bytes)
    }

    /// A segment becomes something else: no window may show it, and the policy must have dropped what was in it.
    fn recycled(&mut self, segment: usize, keys: &KeyBook) -> Verdict {
        let Some(owner) = self.owners[segment].take() else { return Ok(()) };
        let from = segment as u64 * u64::from(self.segment_size);
        if let Some((key, bound)) = keys.covering(from, from + u64::from(self.segment_size)).next() {
            let text = format!("segment {segment} of {owner:?} is written anew while {key} of {bound:?} opens it");
            return broken(Invariant::I3, text);
        }
        if !self.is_dropped(owner.instance, owner.topic, owner.number) {
            let text = format!("segment {segment} of {owner:?} is written anew before its ring was full");
            return broken(Invariant::I8, text);
        }
        Ok(())
    }

    /// Whether the policy has dropped a segment, or may be about to: its ring was full.
    fn is_dropped(&self, instance: u64, topic: u32, number: u64) -> bool {
        self.tight || number + self.ring <= self.newest(instance, topic) + 1
    }

    /// The newest segment of a ring, opened or reserved.
    fn newest(&self, instance: u64, topic: u32) -> u64 {
        let opened = self.log(instance, topic).segments.keys().next_back().copied().unwrap_or_default();
        opened.max(self.reserved.get(&(instance, topic)).copied().unwrap_or_default())
    }

    /// The broker stored a word in the pool.
    pub(crate) fn stored(&mut self, offset: u64, word: u64, keys: &KeyBook) -> Verdict {
        let at = offset as usize;
        let segment = self.segment_at(offset);
        if offset % u64::from(self.segment_size) != TAIL_AT {
            return self.wrote(offset, &word.to_le_bytes(), keys);
        }
        self.shadow[at..at + 8].copy_from_slice(&word.to_le_bytes());
        let header_at = at + HEADER_AT as usize;
        let header = SegmentHeader::read(&self.shadow[header_at..header_at + HEADER_LEN]);
        let Some(header) = header else {
            // A tail in a segment without a header belongs to nobody: a segment being wiped.
            return if word == 0 { self.recycled(segment, keys) } else { Ok(()) };
        };
        let SegmentHeader { topic, number, base_sequence, instance } = header;
        let tail = Tail::from_word(word);
        let fresh = Owner { instance, topic, number, tail: segment_start(number, self.segment_size), sealed: false };
        let same = self.owners[segment].is_some_and(|owner| (owner.topic, owner.number) == (topic, number));
        if !same {
            self.recycled(segment, keys)?;
            let log = self.logs.entry((instance, topic)).or_default();
            if log.records.len() as u64 != base_sequence {
                let text = format!("{header:?} begins at {base_sequence}, the log has {} records", log.records.len());
                return broken(Invariant::I8, text);
            }
            log.segments.insert(number, base_sequence);
            self.owners[segment] = Some(fresh);
        }
        let owner = self.owners[segment].expect("it was just set");
        if tail.offset < owner.tail || owner.sealed && tail.offset != owner.tail {
            return broken(Invariant::I8, format!("the tail of {owner:?} goes back to {tail:?}"));
        }
        if segment_of(tail.offset, self.segment_size) != number && tail.offset != owner.tail {
            return broken(Invariant::I8, format!("the tail {tail:?} is not in segment {number}"));
        }
        self.commit(segment, owner, tail.offset)?;
        self.owners[segment] = Some(Owner { tail: tail.offset, sealed: tail.sealed, ..owner });
        Ok(())
    }

    /// Appends what a new tail covers to the model.
    fn commit(&mut self, segment: usize, owner: Owner, tail: u64) -> Verdict {
        let start = segment as u64 * u64::from(self.segment_size);
        let within = |offset: u64| (start + offset - owner.number * u64::from(self.segment_size)) as usize;
        let mut bytes = &self.shadow[within(owner.tail)..within(tail)];
        let log = self.logs.entry((owner.instance, owner.topic)).or_default();
        while !bytes.is_empty() {
            let batch = match Batch::read(bytes) {
                Ok(batch) => batch,
                Err(error) => {
                    return broken(Invariant::I8, format!("what the tail {tail} of {owner:?} covers is torn: {error}"));
                }
            };
            log.append(&batch, owner.topic)?;
            bytes = &bytes[batch.header().len as usize..];
        }
        Ok(())
    }

    /// The broker posted a receipt: what it speaks of must be committed, where it says.
    pub(crate) fn receipted(&self, instance: u64, topic: u32, commit: &Commit) -> Verdict {
        let log = self.log(instance, topic);
        match log.batches.get(&commit.base_sequence) {
            Some((_, number)) if *number == commit.number => Ok(()),
            found => {
                broken(Invariant::I8, format!("{commit:?} of topic {topic} is receipted; committed there is {found:?}"))
            }
        }
    }

    /// Whether records up to `to` were dropped, so that a consumer may be told to go on there.
    pub(crate) fn is_gap_end(&self, instance: u64, topic: u32, to: u64) -> bool {
        let log = self.log(instance, topic);
        // Segments of fillers begin at one sequence. A ring that lost its only segment goes on where the log ends.
        let mut starts = log.segments.iter().filter(|(_, base)| **base == to);
        starts.any(|(number, _)| *number > 0 && self.is_dropped(instance, topic, *number - 1))
            || self.tight && to == log.records.len() as u64
    }

    /// The latest sequence at which a reader from the earliest record may begin: where the ring begins, or would after a drop
    /// that is due.
    pub(crate) fn earliest_max(&self, instance: u64, topic: u32) -> u64 {
        let log = self.log(instance, topic);
        let first = (self.newest(instance, topic) + 2).saturating_sub(self.ring);
        let end = log.records.len() as u64;
        if self.tight { end } else { log.segments.range(first..).next().map_or(end, |(_, base)| *base) }
    }

    /// How many records were committed in all.
    pub(crate) fn records(&self) -> usize {
        self.logs.values().map(|log| log.records.len()).sum()
    }
}

impl Log {
    fn append(&mut self, batch: &Batch<'_>, topic: u32) -> Verdict {
        let header = batch.header();
        let next = self.records.len() as u64;
        if header.base_sequence != next || header.topic != topic || header.time < self.time {
            let text = format!("{header:?} is committed to topic {topic} at {next}, after {}", self.time);
            return broken(Invariant::I8, text);
        }
        self.time = header.time;
        if header.filler {
            return Ok(());
        }
        let last = self.producers.insert(header.producer, header.number);
        if last.is_some_and(|last| header.number <= last) {
            return broken(Invariant::I5, format!("{header:?} is committed again, after batch {last:?}"));
        }
        self.batches.insert(next, (header.producer, header.number));
        for record in batch.records() {
            let Some(mark) = Mark::read(record.payload) else {
                return broken(Invariant::I8, format!("{header:?} holds a record that nobody sent"));
            };
            let last = self.authors.insert(mark.author, mark.number);
            if last.is_some_and(|last| mark.number <= last) {
                return broken(Invariant::I5, format!("{mark:?} is committed at {header:?}, after record {last:?}"));
            }
            let len = record.payload.len() as u32;
            self.records.push(LogRecord { mark, time: header.time, len });
        }
        Ok(())
    }
}
