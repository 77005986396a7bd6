//! SIGINT and SIGTERM: the first asks for a clean end, with the summary; the second ends the process at once.

#![allow(
    clippy::disallowed_methods,
    reason = "the time between two signals is told by the clock, and the second ends the process"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// The status of a process that a signal ended before it was done: what a shell reports for SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Signals that come this close together are one: `timeout` signals a process, and then its whole group.
const SAME_SIGNAL: Duration = Duration::from_millis(50);

/// Whether a signal has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    raised: AtomicBool,
    /// When the first came. Held while `raised` changes, so that no waiter misses it.
    first: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Interrupt {
    /// Starts to catch the signals.
    pub(crate) fn catch() -> Result<Self, Failure> {
        let interrupt = Self::default();
        let raised = interrupt.clone();
        ctrlc::set_handler(move || raised.raise()).map_err(|source| Failure::Signals { source })?;
        Ok(interrupt)
    }

    /// Whether one has come. Cheap enough to ask for every record.
    pub(crate) fn is_raised(&self) -> bool {
        self.shared.raised.load(Ordering::Relaxed)
    }

    /// Waits, unless or until one comes.
    pub(crate) fn wait(&self, at_most: Duration) {
        let first = self.shared.first.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.shared.changed.wait_timeout_while(first, at_most, |first| first.is_none()));
    }

    fn raise(&self) {
        let mut first = self.shared.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.get_or_insert_with(Instant::now).elapsed() > SAME_SIGNAL {
            std::process::exit(INTERRUPTED.into());
        }
        self.shared.raised.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
    }
}
