//! Waking a driver, only if it sleeps: a busy one finds what is new by itself, and a system call for each record would cost
//! more than the record.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use keyway_fabric::Waker;

/// Wakes a driver that sleeps. Clones wake the same one.
#[derive(Clone, Debug)]
pub struct Notifier {
    asleep: Arc<AtomicBool>,
    waker: Waker,
}

impl Notifier {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { asleep: Arc::new(AtomicBool::new(false)), waker }
    }

    /// Makes the driver take another turn, if it would otherwise sleep. To be called after what it should find is there.
    pub fn notify(&self) {
        // SeqCst, paired with `sleep_soon`: either this sees that the driver is about to sleep, or the driver, which looks
        // once more after saying so, sees what was put there before.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.waker.wake();
        }
    }

    /// Says that it is about to sleep. It must look for work once more before it does.
    pub(crate) fn sleep_soon(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Says that it does not sleep.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
