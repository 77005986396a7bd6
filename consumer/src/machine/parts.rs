//! What a reader works with: borrowed for one step from the machine and its session.

use keyway_fabric::{LocalSpan, Memory, Now};
use keyway_schema::batch::BatchHeader;

use super::counters::Counters;
use super::cursor::Cursor;
use super::epochs::Epochs;
use super::landing::Landing;
use super::output::{Output, Outputs};
use crate::events::Coalesced;

/// What outlives a session.
#[derive(Clone, Debug)]
pub(super) struct Lasting {
    /// Subscriptions asked for so far: each request has a number of its own.
    pub(super) requests: u32,
    /// The seek that is under way.
    pub(super) seek: Option<Seek>,
    pub(super) landing: Landing,
    pub(super) cursor: Cursor,
    pub(super) outputs: Outputs,
    pub(super) counters: Counters,
    pub(super) events: Coalesced,
}

/// A seek that the broker has not confirmed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seek {
    pub(super) ticket: u64,
    /// The broker was started anew meanwhile, which is told once the seek is over.
    pub(super) restarted: Option<u64>,
}

/// What a reader works with.
pub(super) struct Parts<'a> {
    pub(super) now: Now,
    pub(super) epochs: &'a mut Epochs,
    pub(super) landing: &'a mut Landing,
    pub(super) cursor: &'a mut Cursor,
    pub(super) outputs: &'a mut Outputs,
    pub(super) counters: &'a mut Counters,
}

impl<'a> Parts<'a> {
    pub(super) fn new(now: Now, epochs: &'a mut Epochs, lasting: &'a mut Lasting) -> Self {
        let Lasting { landing, cursor, outputs, counters, .. } = lasting;
        Self { now, epochs, landing, cursor, outputs, counters }
    }

    /// Hands out a batch that stands at the cursor. Of a filler nothing is handed out.
    pub(super) fn deliver(&mut self, header: &BatchHeader, span: LocalSpan) {
        let from = self.cursor.next();
        if !header.filler {
            self.outputs.push(Output::Batches { span, from });
            self.counters.batches += 1;
            self.counters.records += header.end_sequence() - from;
            self.counters.bytes += u64::from(span.len);
        }
        self.cursor.advance(header.end_sequence());
    }

    /// Goes from the current arena, of which everything has arrived, to the next. What is left of the one is carried over to the front
    /// of the other; returns whether there was room for it.
    pub(super) fn switch(&mut self, memory: &mut dyn Memory) -> bool {
        let Some((from, to, retired)) = self.landing.switch() else { return false };
        if from.len > 0 {
            let left = memory.bytes(from).to_vec();
            memory.bytes_mut(to).copy_from_slice(&left);
        }
        self.outputs.push(retired);
        true
    }

    /// Ends the current arena.
    pub(super) fn retire(&mut self) {
        if let Some(retired) = self.landing.retire() {
            self.outputs.push(retired);
        }
    }

    /// Whether something that is READ now could be handed out.
    pub(super) fn can_read(&self) -> bool {
        self.landing.is_available() && self.outputs.has_room()
    }
}
