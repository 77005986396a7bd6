//! What is going to happen, and when.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use keyway_fabric::{DownCause, Outcome, Time, WorkError};

use crate::broker::{Hello, SessionAt, Welcome};
use crate::{NodeId, Place};

/// Something that is going to happen at a time.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    /// Two endpoints that know each other are connected.
    Greet { place: Place },
    /// A piece of work reaches the peer, or the device's own turn to execute it.
    Arrive { place: Place, number: u64 },
    /// A part of a READ is taken from the peer's memory.
    Fragment { place: Place, number: u64, at: u32, len: u32 },
    /// The answer to a piece of work is back.
    Answer { place: Place, number: u64, result: Result<Outcome, WorkError> },
    /// An endpoint learns that it is over.
    Break { place: Place, cause: DownCause },
    /// `Down` may be reported.
    DownDue { place: Place },
    /// A node's driver gets the processor.
    Turn { node: NodeId },
    /// A client's process is started.
    Start { actor: usize },
    /// A producer's application has a record.
    Publish { actor: usize },
    /// The broker's process is started.
    StartBroker,
    /// A client's first word reaches the broker.
    Hello(Hello),
    /// The broker's answer reaches the client; `None` is a refusal.
    Welcome { at: SessionAt, broker: NodeId, welcome: Option<Welcome> },
    /// The broker learns that a session's stream has ended.
    StreamLost { broker: NodeId, session: u64 },
    /// A client learns that its session's stream has ended.
    StreamEnd { at: SessionAt },
    /// The seed's plan does something.
    Plan { at: usize },
}

struct Entry {
    time: Time,
    number: u64,
    happening: Happening,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The earliest is the greatest; of two at one time, the one that was planned first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.time, other.number).cmp(&(self.time, self.number))
    }
}

/// The future, in order.
pub(crate) struct Schedule {
    heap: BinaryHeap<Entry>,
    numbers: u64,
    pub(crate) now: Time,
}

impl Schedule {
    pub(crate) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), numbers: 0, now: Time::ZERO }
    }

    pub(crate) fn at(&mut self, time: Time, happening: Happening) {
        self.numbers += 1;
        self.heap.push(Entry { time: time.max(self.now), number: self.numbers, happening });
    }

    /// Takes the next happening out and moves the time on to it.
    pub(crate) fn next(&mut self) -> Option<Happening> {
        let entry = self.heap.pop()?;
        self.now = entry.time;
        Some(entry.happening)
    }

    /// When the next happening is.
    pub(crate) fn peek(&self) -> Option<Time> {
        self.heap.peek().map(|entry| entry.time)
    }
}
