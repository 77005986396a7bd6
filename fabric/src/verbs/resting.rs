//! Freed windows that are kept from the device for a while.
//!
//! Whoever grants keys does not grant one again for some minutes after it has died. A device that gives the index of a freed
//! window to the next one that is allocated would have it find dead keys only. So freed windows rest, and their indices
//! come back in the order in which they were freed, a few thousand windows later.

use std::collections::VecDeque;

use super::window::Window;
use crate::DomainId;

/// The windows, oldest first. All are unbound: a bound one is deallocated when it is freed, which kills its key.
pub(super) struct Resting {
    windows: VecDeque<Window>,
    max: usize,
    is_chosen: bool,
}

impl Resting {
    /// Room for as many as were chosen; without a choice for none, until it is known what the device does.
    pub(super) fn new(chosen: Option<u32>) -> Self {
        Self { windows: VecDeque::new(), max: chosen.unwrap_or(0) as usize, is_chosen: chosen.is_some() }
    }

    /// Makes room for as many as the device needs, unless that was chosen.
    pub(super) fn suggest(&mut self, max: u32) {
        if !self.is_chosen {
            self.max = max as usize;
        }
    }

    /// Whether any window rests.
    pub(super) fn takes(&self) -> bool {
        self.max > 0
    }

    /// Lays a window to rest. The oldest goes if there are too many.
    pub(super) fn rest(&mut self, window: Window) {
        if self.windows.len() >= self.max {
            self.windows.pop_front();
        }
        self.windows.push_back(window);
    }

    /// Lets all of them go, for want of windows; `false` if there were none.
    pub(super) fn let_go(&mut self) -> bool {
        let any = !self.windows.is_empty();
        self.windows.clear();
        any
    }

    /// Lets those of a domain go, which is to be freed.
    pub(super) fn leave(&mut self, domain: DomainId) {
        self.windows.retain(|window| window.domain != domain);
    }
}
