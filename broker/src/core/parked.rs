//! Windows that were allocated and are kept unused, since nearly all keys of their index are in quarantine.
//!
//! A device may give the index of a window that was freed to the next one that is allocated. Used, such a window would be unbound
//! over and over in search of a key that may be issued; freed, it would come back with the next allocation. Kept, it
//! makes the device give another index. It is freed when the quarantine of its index is over.

use std::collections::BTreeMap;

use keyway_fabric::{Time, WindowId};

/// The windows, by when they are to be freed.
#[derive(Clone, Debug, Default)]
pub(super) struct Parked {
    windows: BTreeMap<(Time, u64), WindowId>,
    /// Tells windows of the same time apart.
    count: u64,
}

impl Parked {
    /// Keeps a window until then.
    pub(super) fn insert(&mut self, window: WindowId, until: Time) {
        self.count += 1;
        self.windows.insert((until, self.count), window);
    }

    /// When the first one is to be freed.
    pub(super) fn first(&self) -> Option<Time> {
        self.windows.first_key_value().map(|((until, _), _)| *until)
    }

    /// Takes out the next one whose time has come.
    pub(super) fn pop(&mut self, now: Time) -> Option<WindowId> {
        if self.first()? > now {
            return None;
        }
        self.windows.pop_first().map(|(_, window)| window)
    }

    /// How many there are.
    pub(super) fn len(&self) -> u32 {
        self.windows.len() as u32
    }
}
