//! Publishing at a given rate.

#![allow(clippy::disallowed_methods, reason = "a tool that keeps a rate reads the clock")]

use std::time::{Duration, Instant};

use crate::interrupt::Interrupt;

/// The shortest wait: at higher rates records go in small bursts, since no system waits for less precisely.
const BURST: Duration = Duration::from_millis(1);

/// Spreads records over time.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: f64,
    start: Instant,
}

impl Pace {
    /// At most `rate` records a second from now on.
    pub(crate) fn new(rate: f64) -> Self {
        Self { rate, start: Instant::now() }
    }

    /// Waits until record `number`, counted from 0, is due, or until a signal comes.
    pub(crate) fn wait(&self, number: u64, interrupt: &Interrupt) {
        let ahead = due(self.rate, number).saturating_sub(self.start.elapsed());
        if ahead >= BURST {
            interrupt.wait(ahead);
        }
    }
}

/// When a record is due, from the start.
fn due(rate: f64, number: u64) -> Duration {
    // A rate so low that the next record lies beyond all time is one that never comes.
    Duration::try_from_secs_f64(number as f64 / rate).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_due_at_the_rate() {
        assert_eq!(due(1_000.0, 0), Duration::ZERO);
        assert_eq!(due(1_000.0, 2_500), Duration::from_millis(2_500));
        assert_eq!(due(1e-300, 1), Duration::MAX);
    }
}
