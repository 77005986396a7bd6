//! A session's windows: spares, unbinds that wait, replacements on their way.
//!
//! A window belongs to one session from its allocation to its end, since whoever held one key of it can tell the next ones.

use std::collections::VecDeque;

use keyway_fabric::{Memory, Time, Transmit, WindowId};

use super::config::BINDS_MAX;
use super::hub::Hub;
use super::notice::SessionId;
use super::slab::Place;
use super::window::{Event, State};

/// Windows that a subscription may count on: enough for two segments and their replacements at a tick.
pub(super) const RESERVE: u16 = 4;

/// A session's windows.
#[derive(Clone, Debug, Default)]
pub(super) struct Stock {
    all: Vec<Place>,
    idle: VecDeque<Place>,
    /// Released windows whose unbind waits to be posted.
    unbinds: VecDeque<Place>,
    /// Allocations on their way.
    allocating: u32,
    /// The last one failed: none is asked for until a window of its own has come back.
    is_refused: bool,
    /// Windows that the subscriptions may bind at once, and that they may count on.
    depth: u32,
    reserved: u32,
    /// Windows that are near the end of their keys.
    old: u32,
    /// Binds and unbinds outstanding.
    outstanding: u32,
    /// What the hub counts for this session.
    claimed: u32,
}

/// What a subscription that needs a window gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spare {
    /// This one.
    Window(Place),
    /// This one must be unbound first, to move its key on.
    MoveOn(Place),
    /// One must be allocated.
    Allocate,
    /// None now; one will be unbound or allocated.
    None,
}

impl Stock {
    /// Whether windows can be set aside for one more subscription of this depth; if so, they are.
    pub(super) fn reserve(&mut self, depth: u16, hub: &mut Hub) -> bool {
        let reserved = self.reserved + u32::from(depth.min(RESERVE));
        let more = reserved.saturating_sub(self.claimed);
        if more > hub.windows_left() {
            return false;
        }
        self.reserved = reserved;
        self.depth += u32::from(depth);
        self.claim(hub);
        true
    }

    /// Gives up what was set aside, and the spares that nobody needs any more.
    pub(super) fn unreserve(&mut self, depth: u16, hub: &mut Hub, now: Time) {
        self.reserved -= u32::from(depth.min(RESERVE));
        self.depth -= u32::from(depth);
        while self.all.len() > self.depth as usize
            && let Some(place) = self.idle.pop_back()
        {
            self.free(place, hub, now);
        }
        self.claim(hub);
    }

    /// Keeps the hub's account: the windows that there are or will be, and no fewer than were promised.
    fn claim(&mut self, hub: &mut Hub) {
        let claimed = self.reserved.max(self.count());
        hub.windows_claimed = hub.windows_claimed + claimed - self.claimed;
        self.claimed = claimed;
    }

    fn count(&self) -> u32 {
        self.all.len() as u32 + self.allocating
    }

    /// Whether so many more binds and unbinds may be posted.
    pub(super) const fn has_queue_room(&self, binds: u32) -> bool {
        self.outstanding + binds <= BINDS_MAX
    }

    /// A bind or unbind is posted.
    pub(super) const fn posted(&mut self) {
        self.outstanding += 1;
    }

    /// A bind or unbind is over.
    pub(super) const fn ended(&mut self) {
        self.outstanding -= 1;
    }

    /// A window for a subscription.
    pub(super) fn spare(&mut self, hub: &mut Hub, now: Time, memory: &dyn Memory) -> Spare {
        while let Some(place) = self.idle.pop_front() {
            let window = hub.windows.get(place);
            if hub.faults.skip_quarantine {
                return Spare::Window(place);
            }
            if !window.has_uses() {
                self.free(place, hub, now);
                continue;
            }
            let next = memory.key(window.id).next();
            if hub.quarantine.contains(next, now) {
                if hub.quarantine.spent_until(next.index(), now).is_some() {
                    self.free(place, hub, now);
                    continue;
                }
                return Spare::MoveOn(place);
            }
            return Spare::Window(place);
        }
        if self.may_allocate(hub) { Spare::Allocate } else { Spare::None }
    }

    /// Whether a window should be allocated, or a replacement ahead of its need.
    pub(super) fn may_allocate(&self, hub: &Hub) -> bool {
        let count = self.count();
        !self.is_refused && count < self.depth + self.old && (count < self.reserved || hub.windows_left() > 0)
    }

    /// Whether replacements are due and not on their way.
    pub(super) fn wants_replacement(&self, hub: &Hub) -> bool {
        self.old > 0 && self.allocating == 0 && self.idle.len() < self.old as usize + 1 && self.may_allocate(hub)
    }

    /// An allocation is asked for.
    pub(super) fn allocate(&mut self, hub: &mut Hub) {
        self.allocating += 1;
        self.claim(hub);
    }

    /// It was answered. A window whose index has no keys left to speak of is parked, and another one is asked for.
    pub(super) fn allocated(
        &mut self,
        window: Option<WindowId>,
        id: SessionId,
        hub: &mut Hub,
        now: Time,
        memory: &dyn Memory,
    ) {
        self.allocating -= 1;
        self.is_refused = window.is_none();
        let spent = window.and_then(|window| hub.quarantine.spent_until(memory.key(window).index(), now));
        if let (Some(window), Some(until)) = (window, spent.filter(|_| !hub.faults.skip_quarantine)) {
            hub.park(window, until);
        } else if let Some(window) = window {
            let place = hub.windows.insert(window, id);
            self.all.push(place);
            self.idle.push_back(place);
            hub.counters.windows_allocated += 1;
        }
        self.claim(hub);
    }

    /// How many windows there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns a spare that was not bound.
    pub(super) fn put_back(&mut self, place: Place) {
        self.idle.push_front(place);
    }

    /// A window is unbound: it is a spare again, or at its end.
    pub(super) fn unbound(&mut self, place: Place, hub: &mut Hub, now: Time) {
        self.is_refused = false;
        let window = hub.windows.get(place);
        if !window.has_uses() && !hub.faults.skip_quarantine {
            self.free(place, hub, now);
            return;
        }
        self.idle.push_back(place);
    }

    /// A bind or unbind of a window is posted: its key moves on.
    pub(super) fn use_key(&mut self, place: Place, hub: &mut Hub) {
        let window = hub.windows.get_mut(place);
        let was_old = window.is_old();
        window.use_key();
        self.old += u32::from(window.is_old() && !was_old);
    }

    /// A window is released and can be unbound.
    pub(super) fn unbind_later(&mut self, place: Place) {
        self.unbinds.push_back(place);
    }

    /// The next window to unbind, whose unbind is to be posted now.
    pub(super) fn next_unbind(&mut self, hub: &mut Hub) -> Option<Place> {
        if !self.has_queue_room(1) {
            return None;
        }
        loop {
            let place = self.unbinds.pop_front()?;
            // It may have been freed meanwhile, at its deadline.
            if hub.windows.find_mut(place).is_some_and(|window| window.take(Event::Unbind)) {
                return Some(place);
            }
        }
    }

    /// Frees a window at once: whatever its key opened is closed.
    pub(super) fn free(&mut self, place: Place, hub: &mut Hub, now: Time) {
        let Some(window) = hub.windows.remove(place) else { return };
        self.is_refused = false;
        self.old -= u32::from(window.is_old());
        self.all.retain(|other| *other != place);
        if window.state == State::Idle {
            self.idle.retain(|other| *other != place);
        }
        if let Some(grant) = window.grant {
            // Its key opens the segment until the window is freed, which is done after this event.
            hub.uncover_later(grant.segment);
            if grant.is_issued && !hub.faults.skip_quarantine {
                hub.quarantine.insert(grant.key, now);
            }
        }
        if !(hub.faults.leak_windows && window.grant.is_some()) {
            hub.chores.push_back(Transmit::FreeWindow { window: window.id });
        }
        hub.counters.windows_freed += 1;
        self.claim(hub);
    }

    /// Frees every window: the session is over, nothing of it is in flight.
    pub(super) fn free_all(&mut self, hub: &mut Hub, now: Time) {
        self.reserved = 0;
        self.depth = 0;
        for place in std::mem::take(&mut self.all) {
            self.free(place, hub, now);
        }
        self.idle.clear();
        self.unbinds.clear();
        self.claim(hub);
    }
}
