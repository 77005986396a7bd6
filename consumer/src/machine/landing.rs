//! Landing memory: arenas that are filled from front to back, so that batches lie one behind the other across READs.
//!
//! One arena is being filled at a time. A batch that does not fit its rest is READ again into the next one; so an arena is at
//! least as long as the topic's longest batch. A full arena is *retired*, and comes back once the application has dropped
//! every record in it. With none left the landing is full, and the consumer reads nothing: memory never grows.

use keyway_fabric::{LocalId, LocalSpan};

use super::output::Output;

/// The smallest arena: large enough that changing arenas is rare, small enough that a few records which an application keeps
/// do not hold much memory.
const ARENA_MIN: u32 = 1 << 20;

/// Arenas are this much longer than the longest batch, so that the last bytes of one never need a READ of their own.
pub(super) const ARENA_SLACK: u32 = 4096;

/// The fewest arenas: one that is filled while the application holds the other.
const ARENAS_MIN: u64 = 2;

/// The most arenas, for a host that looks at each retired one every turn.
const ARENAS_MAX: u64 = 1024;

/// The memory that the host has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LandingMemory {
    /// The arenas.
    pub local: LocalId,
    /// How many there are.
    pub arenas: u32,
    /// How long each is.
    pub size: u32,
    /// One slot of at least eight bytes, for the tail word.
    pub word: LocalId,
}

/// The arena that is being filled: `parsed <= landed <= filled`, all multiples of eight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arena {
    slot: u32,
    /// What is before this has been handed out.
    pub(super) parsed: u32,
    /// What is before this has arrived.
    pub(super) landed: u32,
    /// What is before this has been asked for.
    pub(super) filled: u32,
}

/// All of a consumer's landing memory.
#[derive(Clone, Debug)]
pub(super) struct Landing {
    /// How many bytes it should have.
    budget: u64,
    /// How long the arenas are that the host was asked for and has not made yet; zero: none.
    requested: u32,
    memory: Option<LandingMemory>,
    free: Vec<u32>,
    current: Option<Arena>,
}

impl Landing {
    pub(super) fn new(budget: u64) -> Self {
        Self { budget, requested: 0, memory: None, free: Vec::new(), current: None }
    }

    /// What to ask the host for, if there is no memory yet or its arenas are too short for such batches. Then what there
    /// is is given up.
    pub(super) fn want(&mut self, batch_max: u32) -> Option<Output> {
        let size = arena_size(batch_max);
        if self.memory.is_some_and(|memory| memory.size >= size) || self.requested >= size {
            return None;
        }
        self.forsake();
        self.requested = size;
        let arenas = (self.budget / u64::from(size)).clamp(ARENAS_MIN, ARENAS_MAX) as u32;
        Some(Output::Land { arenas, size })
    }

    /// Takes the memory that was asked for. What is too short has been overtaken by a later request.
    pub(super) fn provide(&mut self, memory: LandingMemory) {
        if memory.size < self.requested {
            return;
        }
        self.requested = 0;
        self.memory = Some(memory);
        self.free = (0..memory.arenas).rev().collect();
        self.current = None;
    }

    /// Whether something can be landed.
    pub(super) fn is_available(&self) -> bool {
        self.current.is_some() || !self.free.is_empty()
    }

    /// The arena being filled; a free one is begun if there is none. `None`: the landing is full.
    pub(super) fn open(&mut self) -> Option<&mut Arena> {
        if self.current.is_none() {
            self.current = self.free.pop().map(|slot| Arena { slot, ..Arena::default() });
        }
        self.current.as_mut()
    }

    /// The arena being filled, if there is one.
    pub(super) fn current(&mut self) -> Option<&mut Arena> {
        self.current.as_mut()
    }

    /// How much has been asked for behind what was handed out.
    pub(super) fn ahead(&self) -> u32 {
        self.current.map_or(0, |arena| arena.filled - arena.parsed)
    }

    /// How much still fits the current arena; of a full landing, nothing.
    pub(super) fn space(&self) -> u32 {
        match (self.memory, self.current) {
            (Some(memory), Some(arena)) => memory.size - arena.filled,
            (Some(memory), None) if !self.free.is_empty() => memory.size,
            _ => 0,
        }
    }

    /// How much fits between what was handed out and the end of the arena.
    pub(super) fn room(&self) -> u32 {
        self.space() + self.ahead()
    }

    /// The next `len` bytes of the arena being filled.
    pub(super) fn take(&mut self, len: u32) -> LocalSpan {
        let memory = self.memory.expect("there is landing memory before anything is read");
        let arena = self.open().expect("whoever takes has seen that there is an arena");
        let offset = arena.filled;
        let end = offset.checked_add(len).filter(|end| *end <= memory.size);
        arena.filled = end.expect("whoever takes has seen that there is space");
        let slot = arena.slot;
        LocalSpan { local: memory.local, slot, offset, len }
    }

    /// What has arrived and was not handed out yet, at most `limit` bytes of it.
    pub(super) fn unparsed(&self, limit: u64) -> Option<LocalSpan> {
        let (memory, arena) = (self.memory?, self.current?);
        let len = u64::from(arena.landed - arena.parsed).min(limit) as u32;
        Some(LocalSpan { local: memory.local, slot: arena.slot, offset: arena.parsed, len })
    }

    /// Where the tail word lands.
    pub(super) fn word(&self) -> LocalSpan {
        let memory = self.memory.expect("there is landing memory before anything is read");
        LocalSpan { local: memory.word, slot: 0, offset: 0, len: 8 }
    }

    /// What is before this byte of the current arena has been handed out.
    pub(super) fn handed_out(&mut self, end: u32) {
        if let Some(arena) = &mut self.current {
            arena.parsed = end;
            arena.landed = arena.landed.max(end);
        }
    }

    /// Gives up all memory: READs that cannot be awaited may still write to it.
    pub(super) fn forsake(&mut self) {
        *self = Self { requested: self.requested, ..Self::new(self.budget) };
    }

    /// Forgets what was asked for and not handed out. Nothing may be in flight.
    pub(super) fn rewind(&mut self) {
        if let Some(arena) = &mut self.current {
            arena.landed = arena.parsed;
            arena.filled = arena.parsed;
        }
    }

    /// Ends the current arena. Nothing may be in flight into it.
    pub(super) fn retire(&mut self) -> Option<Output> {
        let memory = self.memory?;
        self.current.take().map(|arena| Output::Retired { local: memory.local, slot: arena.slot })
    }

    /// A retired arena is free again. Of memory that was replaced meanwhile, nothing happens.
    pub(super) fn give_back(&mut self, local: LocalId, slot: u32) {
        if self.memory.is_some_and(|memory| memory.local == local && slot < memory.arenas) {
            debug_assert!(!self.free.contains(&slot), "arena {slot} was given back twice");
            self.free.push(slot);
        }
    }
}

/// How long an arena is for batches of at most `batch_max` bytes.
pub(super) fn arena_size(batch_max: u32) -> u32 {
    batch_max.saturating_add(ARENA_SLACK).div_ceil(ARENA_SLACK).saturating_mul(ARENA_SLACK).max(ARENA_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn landing(arenas: u32) -> Landing {
        let mut landing = Landing::new(0);
        let local = LocalId { index: 1, generation: 0 };
        let word = LocalId { index: 2, generation: 0 };
        landing.provide(LandingMemory { local, arenas, size: ARENA_MIN, word });
        landing
    }

    #[test]
    fn the_budget_is_cut_into_arenas_that_hold_the_longest_batch() {
        for (batch_max, arenas, size) in
            [(64, 16, 1 << 20), ((1 << 20) + 72, 15, (1 << 20) + 2 * 4096), (64 << 20, 2, (64 << 20) + 4096)]
        {
            assert_eq!(Landing::new(16 << 20).want(batch_max), Some(Output::Land { arenas, size }));
        }
    }

    #[test]
    fn memory_is_asked_for_once_and_again_only_if_it_is_too_short() {
        let mut landing = landing(3);
        assert_eq!(landing.want(1000), None);
        assert!(landing.is_available());
        assert!(landing.want(ARENA_MIN).is_some());
        assert!(!landing.is_available(), "what there was is given up");
        assert_eq!(landing.want(1000), None);
        let memory = |size| LandingMemory {
            local: LocalId { index: 3, generation: 0 },
            arenas: 2,
            size,
            word: LocalId { index: 2, generation: 0 },
        };
        landing.provide(memory(ARENA_MIN));
        assert!(!landing.is_available(), "it is too short by now");
        landing.provide(memory(ARENA_MIN + ARENA_SLACK));
        assert!(landing.is_available());
    }

    #[test]
    fn a_landing_is_full_when_every_arena_is_retired() {
        let mut landing = landing(1);
        let local = landing.take(64).local;
        assert_eq!(landing.space(), ARENA_MIN - 64);
        assert_eq!(landing.retire(), Some(Output::Retired { local, slot: 0 }));
        assert!(!landing.is_available() && landing.open().is_none() && landing.space() == 0);
        landing.give_back(LocalId { index: 9, generation: 0 }, 0);
        assert!(!landing.is_available(), "an arena of older memory is not one of these");
        landing.give_back(local, 0);
        assert_eq!(landing.space(), ARENA_MIN);
    }

    #[test]
    fn what_was_not_handed_out_is_forgotten_by_a_rewind() {
        let mut landing = landing(2);
        landing.take(200);
        let arena = landing.current().unwrap();
        arena.landed = 128;
        arena.parsed = 64;
        assert_eq!(landing.ahead(), 136);
        assert_eq!(landing.unparsed(u64::MAX).unwrap().len, 64);
        landing.rewind();
        assert_eq!((landing.ahead(), landing.take(8).offset), (0, 64));
    }
}
