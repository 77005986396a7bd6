//! Slots: claimed by work in flight, looked at by their owner, viewed by other threads.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use super::pages::Pages;
use crate::Waker;

/// Slots begin at multiples of a cache line, and an rkyv archive behind the 16-byte envelope is aligned.
const SLOT_ALIGN: usize = 64;

/// What the owner, the claims and the views of a local memory share.
struct Slots {
    pages: Pages,
    count: u32,
    size: u32,
    stride: usize,
    views: Box<[AtomicUsize]>,
    /// The owner could not reset a slot, and is to be woken when the last view of one is gone.
    wanted: AtomicBool,
    returned: Waker,
}

impl Slots {
    /// The address of a byte; the caller has checked that the slot and offset exist.
    fn at(&self, slot: u32, offset: u32) -> *mut u8 {
        debug_assert!(slot < self.count && offset <= self.size);
        // SAFETY: `slot < count` and `offset <= size <= stride`, so the result is within or one past the mapping.
        unsafe { self.pages.start().add(slot as usize * self.stride + offset as usize) }
    }
}

/// A range of one slot: slot, first byte, length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRange {
    /// The slot.
    pub slot: u32,
    /// The first byte.
    pub offset: u32,
    /// How many bytes.
    pub len: u32,
}

impl SlotRange {
    fn overlaps(self, offset: u32, len: u32) -> bool {
        self.offset < offset + len && offset < self.offset + self.len
    }
}

/// What work in flight does to the bytes that it claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reads them (a SEND).
    Read,
    /// Writes them (a receive, a READ).
    Write,
}

/// A claim of work in flight to a range of a slot. It keeps the memory alive. Give it back with [`LocalMemory::end`].
pub struct Claim {
    slots: Arc<Slots>,
    range: SlotRange,
    usage: Use,
}

impl Claim {
    /// The first byte, for a device.
    pub fn address(&self) -> *mut u8 {
        self.slots.at(self.range.slot, self.range.offset)
    }

    /// The range.
    pub fn range(&self) -> SlotRange {
        self.range
    }

    /// The claimed bytes, to be filled by a software device. Only for claims that write.
    ///
    /// # Panics
    ///
    /// If the claim was made for reading.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert_eq!(self.usage, Use::Write, "only a writing claim may be written through");
        // SAFETY: `begin` refused overlapping claims and frozen bytes, `bytes` and `bytes_mut` of the owner panic on a
        // span that a writing claim overlaps, and `&mut self` excludes a second reference through this claim. The `Arc`
        // keeps the mapping alive.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.range.len as usize) }
    }

    /// The claimed bytes, to be sent by a software device.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: for a reading claim, `begin` and the owner's `bytes_mut` refuse every writer of an overlapping span; for
        // a writing claim, the claim itself is the only writer and is borrowed here.
        unsafe { std::slice::from_raw_parts(self.address(), self.range.len as usize) }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.usage, self.range)
    }
}

/// Keeps the bytes of a local memory where they are, for a device that they are registered with.
#[derive(Clone)]
#[cfg(feature = "verbs")]
pub(crate) struct LocalMapping(#[allow(dead_code, reason = "held, not looked at")] Arc<Slots>);

/// Memory in equal slots, for staging and landing.
pub struct LocalMemory {
    slots: Arc<Slots>,
    accounts: Vec<Account>,
}

/// What is going on in a slot.
#[derive(Clone, Debug, Default)]
struct Account {
    /// Bytes below this mark may be viewed and are not written.
    frozen: u32,
    /// The work in flight. A handful at most, so a list is searched faster than anything else.
    claims: Vec<(SlotRange, Use)>,
}

impl LocalMemory {
    /// `slots` slots of `size` zeroed bytes. Once a slot could not be [`reset`](Self::reset), `returned` is woken when the last view
    /// of one is dropped.
    ///
    /// # Errors
    ///
    /// The system's, when it has no more memory.
    pub fn new(slots: u32, size: u32, returned: Waker) -> io::Result<Self> {
        let stride = (size as usize).next_multiple_of(SLOT_ALIGN);
        let len = stride.checked_mul(slots as usize).ok_or(io::ErrorKind::OutOfMemory)?;
        let views = (0..slots).map(|_| AtomicUsize::new(0)).collect();
        let slots_ = Slots {
            pages: Pages::new(len)?,
            count: slots,
            size,
            stride,
            views,
            wanted: AtomicBool::new(false),
            returned,
        };
        Ok(Self { slots: Arc::new(slots_), accounts: vec![Account::default(); slots as usize] })
    }

    /// The whole memory, for registration with a device: its first byte and its length.
    pub fn region(&self) -> (*mut u8, usize) {
        (self.slots.pages.start(), self.slots.pages.len())
    }

    /// What keeps [`region`](Self::region) mapped.
    #[cfg(feature = "verbs")]
    pub(crate) fn mapping(&self) -> LocalMapping {
        LocalMapping(Arc::clone(&self.slots))
    }

    /// Whether a range is within its slot.
    pub fn contains(&self, range: SlotRange) -> bool {
        range.slot < self.slots.count && range.offset.checked_add(range.len).is_some_and(|end| end <= self.slots.size)
    }

    fn check(&self, range: SlotRange) -> &Account {
        assert!(self.contains(range), "{range:?} is outside {} slots of {} bytes", self.slots.count, self.slots.size);
        &self.accounts[range.slot as usize]
    }

    /// The bytes of a range.
    ///
    /// # Panics
    ///
    /// If the range is outside its slot, or work in flight may be writing to it.
    pub fn bytes(&self, range: SlotRange) -> &[u8] {
        let account = self.check(range);
        let written =
            account.claims.iter().any(|(claim, usage)| *usage == Use::Write && claim.overlaps(range.offset, range.len));
        assert!(!written, "{range:?} may be written by work in flight");
        // SAFETY: the range is within the mapping, which the `Arc` keeps; no claim writes to it, and the owner writes only
        // through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.slots.at(range.slot, range.offset), range.len as usize) }
    }

    /// The bytes of a range, to fill.
    ///
    /// # Panics
    ///
    /// If the range is outside its slot, claimed by work in flight, or frozen by a view.
    pub fn bytes_mut(&mut self, range: SlotRange) -> &mut [u8] {
        let account = self.check(range);
        assert!(range.offset >= account.frozen || range.len == 0, "{range:?} is frozen up to {}", account.frozen);
        let claimed = account.claims.iter().any(|(claim, _)| claim.overlaps(range.offset, range.len));
        assert!(!claimed, "{range:?} is claimed by work in flight");
        // SAFETY: within the mapping, which the `Arc` keeps; no claim overlaps it, no view covers bytes at or above the
        // frozen mark, and `&mut self` excludes the owner's other references.
        unsafe { std::slice::from_raw_parts_mut(self.slots.at(range.slot, range.offset), range.len as usize) }
    }

    /// Lays claim to a range for work in flight, or `None` if that is not possible now: for writing, the range must not be
    /// frozen nor overlap any claim; for reading, it must not overlap a writing claim.
    ///
    /// # Panics
    ///
    /// If the range is outside its slot.
    pub fn begin(&mut self, range: SlotRange, usage: Use) -> Option<Claim> {
        let account = self.check(range);
        let clashes = |other: Use| usage == Use::Write || other == Use::Write;
        if account.claims.iter().any(|(claim, other)| clashes(*other) && claim.overlaps(range.offset, range.len)) {
            return None;
        }
        if usage == Use::Write && range.offset < account.frozen && range.len > 0 {
            return None;
        }
        self.accounts[range.slot as usize].claims.push((range, usage));
        Some(Claim { slots: Arc::clone(&self.slots), range, usage })
    }

    /// Ends a claim.
    ///
    /// # Panics
    ///
    /// If the claim is of another memory.
    pub fn end(&mut self, claim: Claim) {
        assert!(Arc::ptr_eq(&claim.slots, &self.slots), "{claim:?} belongs to another memory");
        let claims = &mut self.accounts[claim.range.slot as usize].claims;
        let place = claims.iter().position(|entry| *entry == (claim.range, claim.usage));
        claims.swap_remove(place.expect("every claim that was begun is in its slot's account until it ends"));
    }

    /// Gives out a view, and freezes the slot up to its end.
    ///
    /// # Panics
    ///
    /// If the range is outside its slot, or work in flight may be writing to it or before it.
    pub fn view(&mut self, range: SlotRange) -> View {
        let account = self.check(range);
        let end = range.offset + range.len;
        let written = account.claims.iter().any(|(claim, usage)| *usage == Use::Write && claim.overlaps(0, end));
        assert!(!written, "{range:?} or what is before it may be written by work in flight");
        let account = &mut self.accounts[range.slot as usize];
        account.frozen = account.frozen.max(end);
        // Relaxed: the count was zero or is kept above zero by this thread's own earlier views until `reset` reads it.
        self.slots.views[range.slot as usize].fetch_add(1, Ordering::Relaxed);
        View { slots: Arc::clone(&self.slots), range }
    }

    /// Makes a slot writable again from its start, unless a view of it is alive.
    pub fn reset(&mut self, slot: u32) -> bool {
        // Acquire, paired with the release of `View::drop`: every read through the views comes before what is written next.
        let views = || self.slots.views[slot as usize].load(Ordering::Acquire);
        if views() > 0 {
            self.slots.wanted.store(true, Ordering::Relaxed);
            // SeqCst, paired with `View::drop`: either that sees that the slot is wanted, or this sees that the view is gone.
            fence(Ordering::SeqCst);
            if views() > 0 {
                return false;
            }
        }
        self.accounts[slot as usize].frozen = 0;
        true
    }
}

impl fmt::Debug for LocalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots of {} bytes", self.slots.count, self.slots.size)
    }
}

/// Landed bytes that other threads may keep: immutable for as long as any view of their slot is alive. The memory outlives
/// the fabric if a view does.
pub struct View {
    slots: Arc<Slots>,
    range: SlotRange,
}

impl View {
    /// A view of a part of this one.
    ///
    /// # Panics
    ///
    /// If the part is not within the view.
    pub fn part(&self, offset: u32, len: u32) -> Self {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.range.len);
        assert!(fits, "the part {offset}+{len} is not within a view of {} bytes", self.range.len);
        // Relaxed: this view keeps the count above zero meanwhile.
        self.slots.views[self.range.slot as usize].fetch_add(1, Ordering::Relaxed);
        let range = SlotRange { offset: self.range.offset + offset, len, ..self.range };
        Self { slots: Arc::clone(&self.slots), range }
    }
}

impl Clone for View {
    fn clone(&self) -> Self {
        self.part(0, self.range.len)
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is below its slot's frozen mark, so nothing writes to it while the slot's view count, to which
        // this view adds one, is above zero; the `Arc` keeps the mapping.
        unsafe {
            std::slice::from_raw_parts(self.slots.at(self.range.slot, self.range.offset), self.range.len as usize)
        }
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "view of {} bytes", self.range.len)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // Release, paired with the acquire of `reset`: reads through this view come before the slot is written again.
        if self.slots.views[self.range.slot as usize].fetch_sub(1, Ordering::Release) == 1 {
            // SeqCst, paired with `LocalMemory::reset`.
            fence(Ordering::SeqCst);
            if self.slots.wanted.load(Ordering::Relaxed) && self.slots.wanted.swap(false, Ordering::Relaxed) {
                self.slots.returned.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Watch, wait_any};

    fn memory() -> LocalMemory {
        LocalMemory::new(2, 100, Waker::new().unwrap()).unwrap()
    }

    const fn range(offset: u32, len: u32) -> SlotRange {
        SlotRange { slot: 1, offset, len }
    }

    #[test]
    fn a_viewed_slot_is_not_written_until_the_last_view_is_gone() {
        let mut memory = memory();
        memory.bytes_mut(range(0, 4)).copy_from_slice(b"abcd");
        let view = memory.view(range(0, 4));
        let part = view.part(1, 2);
        assert!(memory.begin(range(3, 5), Use::Write).is_none());
        let claim = memory.begin(range(4, 5), Use::Write).expect("what is behind the view is free");
        memory.end(claim);
        drop(view);
        assert!(!memory.reset(1));
        assert_eq!(&*part, b"bc");
        drop(part);
        assert!(memory.reset(1));
        assert!(memory.begin(range(0, 4), Use::Write).is_some());
    }

    #[test]
    fn the_owner_is_woken_by_the_last_view_of_a_slot_that_it_could_not_reset_and_by_no_other() {
        let waker = Waker::new().unwrap();
        let mut memory = LocalMemory::new(2, 100, waker.clone()).unwrap();
        let is_woken = || {
            let mut watch = [Watch::reading(waker.fd())];
            wait_any(&mut watch, Some(Duration::ZERO)).unwrap() > 0
        };
        drop(memory.view(range(0, 4)));
        assert!(!is_woken(), "nobody wants the slot");
        let view = memory.view(range(0, 4));
        let part = view.part(0, 2);
        assert!(!memory.reset(1));
        drop(view);
        assert!(!is_woken(), "a part is left");
        drop(part);
        assert!(is_woken());
        waker.clear();
        assert!(memory.reset(1));
        drop(memory.view(range(0, 4)));
        assert!(!is_woken(), "it was told once");
    }

    /// Whatever the order in which a view is dropped and its slot is wanted, the owner gets the slot at once or is woken.
    #[test]
    fn a_view_that_is_dropped_while_its_slot_is_reset_wakes_or_is_seen_to_be_gone() {
        let waker = Waker::new().unwrap();
        let mut memory = LocalMemory::new(1, 100, waker.clone()).unwrap();
        for _ in 0..2_000 {
            let view = memory.view(SlotRange { slot: 0, offset: 0, len: 4 });
            std::thread::scope(|scope| {
                scope.spawn(move || drop(view));
                if !memory.reset(0) {
                    wait_any(&mut [Watch::reading(waker.fd())], None).unwrap();
                    assert!(memory.reset(0), "woken for nothing");
                }
            });
            waker.clear();
        }
    }

    #[test]
    fn writing_claims_exclude_each_other_and_reading_ones_do_not() {
        let mut memory = memory();
        let first = memory.begin(range(0, 10), Use::Read).unwrap();
        let second = memory.begin(range(5, 10), Use::Read).unwrap();
        assert!(memory.begin(range(9, 1), Use::Write).is_none());
        memory.end(first);
        memory.end(second);
        let write = memory.begin(range(9, 1), Use::Write).unwrap();
        assert!(memory.begin(range(0, 10), Use::Read).is_none());
        memory.end(write);
    }

    #[test]
    #[should_panic(expected = "may be written by work in flight")]
    fn bytes_that_work_in_flight_may_write_are_not_shown() {
        let mut memory = memory();
        let _claim = memory.begin(range(10, 10), Use::Write);
        memory.bytes(range(19, 1));
    }

    #[test]
    fn a_view_outlives_its_memory() {
        let mut memory = memory();
        memory.bytes_mut(range(0, 3)).copy_from_slice(b"xyz");
        let view = memory.view(range(0, 3));
        drop(memory);
        assert_eq!(&*view, b"xyz");
    }
}
