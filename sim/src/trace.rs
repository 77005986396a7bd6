//! What happened in a run, in order: the tail is kept to be printed, the whole is hashed to be compared.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};

use keyway_fabric::{DownCause, Key, LinkId, Op, Time, WorkError};

use crate::NodeId;

/// How many of the last entries a failed run prints, unless told otherwise.
pub(crate) const KEPT: usize = 200;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants and fields are named for what is printed")]
pub(crate) enum Note {
    Executed { node: NodeId, link: LinkId, op: Op },
    Fragment { reader: NodeId, key: Key, address: u64, len: u32 },
    Violation { reader: NodeId, link: LinkId, key: Key, address: u64, len: u32 },
    Completed { node: NodeId, link: LinkId, op: Op, error: Option<WorkError> },
    Message { from: NodeId, to: NodeId, name: &'static str, detail: String },
    Down { node: NodeId, link: LinkId, cause: DownCause },
    Text { node: NodeId, text: String },
}

/// The trace of a run.
#[derive(Debug)]
pub(crate) struct Trace {
    last: VecDeque<(u64, Time, Note)>,
    hash: Fnv,
    steps: u64,
    kept: usize,
}

impl Trace {
    pub(crate) fn new(kept: usize) -> Self {
        Self { last: VecDeque::new(), hash: Fnv(0xcbf2_9ce4_8422_2325), steps: 0, kept: kept.max(1) }
    }

    pub(crate) fn note(&mut self, time: Time, note: Note) {
        (time, &note).hash(&mut self.hash);
        if self.last.len() == self.kept {
            self.last.pop_front();
        }
        self.last.push_back((self.steps, time, note));
    }

    pub(crate) fn step(&mut self) {
        self.steps += 1;
    }

    /// How many steps the world has taken.
    pub(crate) const fn steps(&self) -> u64 {
        self.steps
    }

    /// A hash of everything that happened.
    pub(crate) const fn hash(&self) -> u64 {
        self.hash.0
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (step, time, note) in &self.last {
            writeln!(f, "{step:>8} {time:?} {note:?}")?;
        }
        Ok(())
    }
}

/// FNV-1a: the same on every machine and in every run, which the standard library's hashers do not promise.
#[derive(Debug)]
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
