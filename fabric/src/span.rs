//! Where bytes are: in a local slot, in shared memory, or at a peer.

use std::fmt;

use crate::memory::SlotRange;
use crate::{Key, LocalId, SharedId};

/// Bytes in one slot of local memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalSpan {
    /// The memory.
    pub local: LocalId,
    /// The slot in it.
    pub slot: u32,
    /// The first byte, counted from the slot's start.
    pub offset: u32,
    /// How many bytes.
    pub len: u32,
}

impl LocalSpan {
    /// The span within its memory.
    pub const fn range(self) -> SlotRange {
        SlotRange { slot: self.slot, offset: self.offset, len: self.len }
    }

    /// The first byte behind the span, counted from the slot's start.
    pub const fn end(self) -> u32 {
        self.offset + self.len
    }

    /// The part of this span that begins `offset` bytes into it and is `len` bytes long.
    ///
    /// # Panics
    ///
    /// If the part is not within the span.
    pub fn part(self, offset: u32, len: u32) -> Self {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits, "the part {offset}+{len} is not within {self:?}");
        Self { offset: self.offset + offset, len, ..self }
    }
}

impl fmt::Debug for LocalSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}][{}..{}]", self.local, self.slot, self.offset, u64::from(self.offset) + u64::from(self.len))
    }
}

/// Bytes in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedSpan {
    /// The memory.
    pub shared: SharedId,
    /// The first byte, counted from the memory's start.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

impl SharedSpan {
    /// The first byte behind the span.
    pub const fn end(self) -> u64 {
        self.offset + self.len
    }

    /// The part of this span that begins `offset` bytes into it and is `len` bytes long.
    ///
    /// # Panics
    ///
    /// If the part is not within the span.
    pub fn part(self, offset: u64, len: u64) -> Self {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits, "the part {offset}+{len} is not within {self:?}");
        Self { offset: self.offset + offset, len, ..self }
    }
}

impl fmt::Debug for SharedSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}..{}]", self.shared, self.offset, self.offset.saturating_add(self.len))
    }
}

/// Bytes at a peer, as that peer named them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteSpan {
    /// The first byte's address in the peer's own numbering.
    pub address: u64,
    /// How many bytes.
    pub len: u32,
    /// What opens them.
    pub key: Key,
}

impl fmt::Debug for RemoteSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "remote[{:#x}+{}] under {:?}", self.address, self.len, self.key)
    }
}
