//! What was posted to an endpoint and is not over: SENDs, READs, binds and unbinds in their order.
//!
//! Entries have numbers that grow by one for ever; an entry is *submitted*, then *issued*, then has a result, and leaves
//! from the front only, so that completions are in order whatever order the results came in.

use std::collections::VecDeque;

use super::completion::{Completion, Completions, LocalClaim, Release};
use crate::memory::SharedMemory;
use crate::{Access, Event, LinkId, Op, Outcome, RemoteSpan, SharedSpan, WindowId, WorkError};

/// READs at least this long are waited for with a small receive buffer, so that most of them lands without a copy.
const LARGE_READ: u32 = 8 * 1024;

/// A posted piece of work.
pub(super) struct Entry {
    pub(super) op: Op,
    pub(super) job: Job,
    pub(super) result: Option<Result<Outcome, WorkError>>,
}

/// What is to be done.
pub(super) enum Job {
    Send { from: LocalClaim },
    Read { from: RemoteSpan, into: Landing, landed: u32 },
    Bind { window: WindowId, span: SharedSpan, access: Access },
    Unbind { window: WindowId },
}

/// Where a READ lands.
pub(super) enum Landing {
    Local(LocalClaim),
    Shared { memory: SharedMemory, offset: u64 },
}

/// The send queue of an endpoint.
#[derive(Default)]
pub(super) struct SendQueue {
    entries: VecDeque<Entry>,
    /// The number of the first entry.
    first: u64,
    /// Entries below this number may be executed.
    submitted: u64,
    /// Entries below this number were.
    issued: u64,
    /// The READs that are asked and not fully there, oldest first.
    reads: VecDeque<u64>,
    /// How many of them are large.
    large_reads: usize,
    /// The SENDs that are under way and not acknowledged, oldest first.
    unacknowledged: VecDeque<u64>,
}

impl SendQueue {
    pub(super) fn push(&mut self, op: Op, job: Job) {
        self.entries.push_back(Entry { op, job, result: None });
    }

    /// Everything posted so far may be executed.
    pub(super) fn submit(&mut self) {
        self.submitted = self.first + self.entries.len() as u64;
    }

    /// The next entry to execute.
    pub(super) fn next(&self) -> Option<(u64, &Entry)> {
        (self.issued < self.submitted).then(|| (self.issued, self.entry(self.issued)))
    }

    pub(super) fn entry(&self, number: u64) -> &Entry {
        &self.entries[self.index(number)]
    }

    pub(super) fn entry_mut(&mut self, number: u64) -> &mut Entry {
        let index = self.index(number);
        &mut self.entries[index]
    }

    fn index(&self, number: u64) -> usize {
        usize::try_from(number - self.first).expect("an entry's number is at most a queue's length past the first")
    }

    /// The next entry, a SEND, is under way.
    pub(super) fn issue_send(&mut self) {
        self.unacknowledged.push_back(self.issued);
        self.issued += 1;
    }

    /// The next entry, a READ of `len` bytes, is asked.
    pub(super) fn issue_read(&mut self, len: u32) {
        self.reads.push_back(self.issued);
        self.large_reads += usize::from(len >= LARGE_READ);
        self.issued += 1;
    }

    /// The next entry, a bind or unbind, is over.
    pub(super) fn issue_done(&mut self, result: Result<Outcome, WorkError>) {
        let number = self.issued;
        self.issued += 1;
        self.finish(number, result);
    }

    pub(super) fn finish(&mut self, number: u64, result: Result<Outcome, WorkError>) {
        self.entry_mut(number).result = Some(result);
    }

    /// How many READs are asked and not fully there.
    pub(super) fn reads(&self) -> usize {
        self.reads.len()
    }

    /// Whether a large READ is among them.
    pub(super) fn expects_large(&self) -> bool {
        self.large_reads > 0
    }

    /// The oldest READ that is asked and not fully there.
    pub(super) fn oldest_read(&self) -> Option<u64> {
        self.reads.front().copied()
    }

    /// How many bytes of the oldest READ are still to come.
    pub(super) fn missing(&self) -> Option<u32> {
        match self.entry(self.oldest_read()?).job {
            Job::Read { from, landed, .. } => Some(from.len - landed),
            _ => None,
        }
    }

    /// Where the oldest READ lands, and how much of it has.
    pub(super) fn landing(&mut self) -> Option<(&mut Landing, &u32)> {
        let number = self.oldest_read()?;
        match &mut self.entry_mut(number).job {
            Job::Read { into, landed, .. } => Some((into, landed)),
            _ => None,
        }
    }

    /// So many more bytes of the oldest READ are there; ends it if they were the last.
    pub(super) fn land(&mut self, count: u32) {
        let Some(number) = self.oldest_read() else { return };
        let entry = self.entry_mut(number);
        let Job::Read { from, landed, .. } = &mut entry.job else { return };
        *landed += count;
        if *landed == from.len {
            let large = from.len >= LARGE_READ;
            entry.result = Some(Ok(Outcome::Finished));
            self.reads.pop_front();
            self.large_reads -= usize::from(large);
        }
    }

    /// How many SENDs are under way and not acknowledged.
    pub(super) fn unacknowledged(&self) -> usize {
        self.unacknowledged.len()
    }

    /// The oldest SEND that is under way and not acknowledged.
    pub(super) fn oldest_send(&self) -> Option<u64> {
        self.unacknowledged.front().copied()
    }

    /// The oldest `count` SENDs have arrived.
    pub(super) fn acknowledge(&mut self, count: usize) {
        for _ in 0..count {
            let Some(number) = self.unacknowledged.pop_front() else { return };
            self.finish(number, Ok(Outcome::Finished));
        }
    }

    /// The oldest entry that was issued and has no result.
    pub(super) fn oldest_open(&self) -> Option<u64> {
        (self.first..self.issued).find(|&number| self.entry(number).result.is_none())
    }

    /// Reports what is over, from the front on.
    pub(super) fn retire(&mut self, link: LinkId, completions: &mut Completions) {
        while let Some(Entry { result: Some(_), .. }) = self.entries.front() {
            self.report_first(link, completions);
        }
    }

    /// Reports everything: what has no result was flushed.
    pub(super) fn flush(&mut self, link: LinkId, completions: &mut Completions) {
        while !self.entries.is_empty() {
            self.report_first(link, completions);
        }
        self.submitted = self.first;
        self.issued = self.first;
        self.reads.clear();
        self.large_reads = 0;
        self.unacknowledged.clear();
    }

    fn report_first(&mut self, link: LinkId, completions: &mut Completions) {
        let Some(entry) = self.entries.pop_front() else { return };
        self.first += 1;
        let result = entry.result.unwrap_or(Err(WorkError::Flushed));
        let release = match entry.job {
            Job::Send { from } => Release::Send(Some(from)),
            Job::Read { into: Landing::Local(into), .. } => Release::Send(Some(into)),
            Job::Read { into: Landing::Shared { .. }, .. } => Release::Send(None),
            Job::Bind { window, .. } | Job::Unbind { window } => Release::Window(window),
        };
        completions.push_back(Completion { event: Event::Done { link, op: entry.op, result }, release });
    }
}
