//! Landing memory: arenas that are filled from front to back, so that batches lie one behind the other across READs.
//!
//! Batches are handed out of one arena, the *current* one, which is at least as long as the topic's longest batch. When it is full,
//! fetching goes on in the *next* one without waiting for what is on its way: behind some room, into which the beginning of a batch
//! is carried over that does not end in the current one. If a beginning is longer than that room, or no arena is free, what is on its
//! way is awaited, and the batch is READ again from its start.
//!
//! An arena that was handed out is *retired*, and comes back once the application has dropped every record in it. With none left
//! the landing is full, and the consumer reads nothing: memory never grows.

use keyway_fabric::{LocalId, LocalSpan};

use super::output::Output;

/// The smallest arena: large enough that changing arenas is rare, small enough that a few records which an application keeps
/// do not hold much memory.
const ARENA_MIN: u32 = 1 << 20;

/// As long as an arena is made where the memory suffices for several: for all that is under way at once.
const ARENA_WANTED: u32 = 2 << 20;

/// So many.
const ARENAS_WANTED: u64 = 4;

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

/// An arena that is in use: `parsed, start <= landed <= filled`, all multiples of eight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arena {
    slot: u32,
    /// Where filling it began.
    start: u32,
    /// What is before this has been handed out. Of the next arena: where its first batch is expected to begin, once the beginning of it
    /// has been carried over.
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
    /// What is handed out of.
    current: Option<Arena>,
    /// What is filled behind the current one, which is full.
    next: Option<Arena>,
}

impl Landing {
    pub(super) fn new(budget: u64) -> Self {
        Self { budget, requested: 0, memory: None, free: Vec::new(), current: None, next: None }
    }

    /// What to ask the host for, if there is no memory yet or its arenas are too short for such batches. Then what there
    /// is is given up.
    pub(super) fn want(&mut self, batch_max: u32) -> Option<Output> {
        let wanted = (self.budget / ARENAS_WANTED).min(ARENA_WANTED.into()) as u32;
        let size = arena_size(batch_max).max(wanted.next_multiple_of(ARENA_SLACK));
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
        (self.current, self.next) = (None, None);
    }

    /// Whether something can be landed.
    pub(super) fn is_available(&self) -> bool {
        self.current.is_some() || !self.free.is_empty()
    }

    /// Whether an arena that comes back is of use soon: to go on in, or to have one in reserve.
    pub(super) fn wants_arenas(&self) -> bool {
        self.free.len() < ARENAS_MIN as usize
    }

    /// The current arena; a free one is begun if there is none. `None`: the landing is full.
    pub(super) fn open(&mut self) -> Option<&mut Arena> {
        if self.current.is_none() {
            self.current = self.free.pop().map(|slot| Arena { slot, ..Arena::default() });
        }
        self.current.as_mut()
    }

    /// The arena in this slot, if it is in use.
    pub(super) fn arena(&mut self, slot: u32) -> Option<&mut Arena> {
        self.current.iter_mut().chain(&mut self.next).find(|arena| arena.slot == slot)
    }

    /// The arena being filled.
    fn filling(&self) -> Option<&Arena> {
        self.next.as_ref().or(self.current.as_ref())
    }

    /// How much has been asked for behind what was handed out.
    pub(super) fn ahead(&self) -> u32 {
        let current = self.current.map_or(0, |arena| arena.filled - arena.parsed);
        current + self.next.map_or(0, |arena| arena.filled - arena.start)
    }

    /// How much of it has not arrived.
    pub(super) fn on_its_way(&self) -> u32 {
        self.current.iter().chain(&self.next).map(|arena| arena.filled - arena.landed).sum()
    }

    /// How much still fits the arena that is being filled; of a full landing, nothing.
    pub(super) fn space(&self) -> u32 {
        match (self.memory, self.filling()) {
            (Some(memory), Some(arena)) => memory.size - arena.filled,
            (Some(memory), None) if !self.free.is_empty() => memory.size,
            _ => 0,
        }
    }

    /// The same, up to the end of the last whole batch if all are `len` bytes long. Zero for lengths that are not known.
    pub(super) fn space_for_batches(&self, len: u32) -> u32 {
        let (Some(memory), Some(arena)) = (self.memory, self.filling()) else { return self.space() };
        let begins = arena.parsed;
        let whole = (memory.size - begins).checked_div(len).map(|count| begins + count * len);
        match whole {
            // Where not one fits from its start on, the arena ends, unless it was only just begun.
            Some(end) if end > begins || arena.filled > arena.start => end.max(arena.filled) - arena.filled,
            _ => self.space(),
        }
    }

    /// Begins the next arena behind the current one. What is left of that is to be carried over: the rest, if all batches are `len` bytes
    /// long; if their length is not known, `room` bytes at most. No more than half of an arena is left free for it. Returns
    /// whether there was an arena.
    pub(super) fn go_on(&mut self, len: u32, room: u32) -> bool {
        let (Some(memory), Some(current), None) = (self.memory, self.current, self.next) else { return false };
        let rest = (current.filled - current.parsed).checked_rem(len);
        let start = rest.unwrap_or(room).min(memory.size / 2).next_multiple_of(8);
        let parsed = start - rest.unwrap_or(0).min(start);
        self.next = self.free.pop().map(|slot| Arena { slot, start, parsed, landed: start, filled: start });
        self.next.is_some()
    }

    /// Whether another arena is begun, or could be.
    pub(super) fn can_go_on(&self) -> bool {
        self.next.is_some() || !self.free.is_empty()
    }

    /// Whether the next arena is begun.
    pub(super) fn has_next(&self) -> bool {
        self.next.is_some()
    }

    /// Whether all of the current arena has arrived, and filling has gone on in the next.
    pub(super) fn is_spent(&self) -> bool {
        self.next.is_some() && self.current.is_some_and(|arena| arena.landed == arena.filled)
    }

    /// Makes the next arena the current one, which is spent. Returns what is left to be carried over from the end of one to the front of
    /// the other, and the output that retires the former; `None` if there is no room for it.
    pub(super) fn switch(&mut self) -> Option<(LocalSpan, LocalSpan, Output)> {
        let (memory, former, mut next) = (self.memory?, self.current?, self.next?);
        let len = former.filled - former.parsed;
        next.parsed = next.start.checked_sub(len)?;
        let span = |arena: &Arena| LocalSpan { local: memory.local, slot: arena.slot, offset: arena.parsed, len };
        let (from, to) = (span(&former), span(&next));
        (self.current, self.next) = (Some(next), None);
        Some((from, to, Output::Retired { local: memory.local, slot: former.slot }))
    }

    /// Forgets what was asked for behind `len` bytes from what was handed out on. Nothing of it is in flight.
    pub(super) fn cut(&mut self, len: u64) {
        let mut rest = len;
        let current = self.current.iter_mut().map(|arena| (arena.parsed, arena));
        for (begins, arena) in current.chain(self.next.iter_mut().map(|arena| (arena.start, arena))) {
            let end = (u64::from(begins) + rest).min(arena.filled.into()) as u32;
            rest -= u64::from(end - begins);
            arena.filled = end;
            arena.landed = arena.landed.min(end);
        }
    }

    /// How much fits between what was handed out and the end of the arena.
    pub(super) fn room(&self) -> u32 {
        let (Some(memory), Some(arena)) = (self.memory, self.current) else { return self.space() };
        memory.size - arena.parsed
    }

    /// The next `len` bytes of the arena being filled.
    pub(super) fn take(&mut self, len: u32) -> LocalSpan {
        let memory = self.memory.expect("there is landing memory before anything is read");
        if self.next.is_none() {
            self.open();
        }
        let arena = self.next.as_mut().or(self.current.as_mut());
        let arena = arena.expect("whoever takes has seen that there is an arena");
        let offset = arena.filled;
        let end = offset.checked_add(len).filter(|end| *end <= memory.size);
        arena.filled = end.expect("whoever takes has seen that there is space");
        LocalSpan { local: memory.local, slot: arena.slot, offset, len }
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

    /// Nothing of the next arena was handed out, and nothing is in flight into it: it is free again.
    fn free_next(&mut self) {
        self.free.extend(self.next.take().map(|arena| arena.slot));
    }

    /// Forgets what was asked for and not handed out. Nothing may be in flight.
    pub(super) fn rewind(&mut self) {
        self.free_next();
        if let Some(arena) = &mut self.current {
            arena.landed = arena.parsed;
            arena.filled = arena.parsed;
        }
    }

    /// Ends the current arena. Nothing may be in flight into it.
    pub(super) fn retire(&mut self) -> Option<Output> {
        let memory = self.memory?;
        self.free_next();
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
        for (budget, batch_max, arenas, size) in [
            (16, 64, 8, 2 << 20),
            (16, (2 << 20) + 72, 7, (2 << 20) + 2 * 4096),
            (16, 64 << 20, 2, (64 << 20) + 4096),
            (3, 64, 3, 1 << 20),
            (0, 64, 2, 1 << 20),
        ] {
            assert_eq!(Landing::new(budget << 20).want(batch_max), Some(Output::Land { arenas, size }));
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
        let arena = landing.current.as_mut().unwrap();
        arena.landed = 128;
        arena.parsed = 64;
        assert_eq!(landing.ahead(), 136);
        assert_eq!(landing.unparsed(u64::MAX).unwrap().len, 64);
        landing.rewind();
        assert_eq!((landing.ahead(), landing.take(8).offset), (0, 64));
    }
}
