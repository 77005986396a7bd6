//! Log lines that repeat: at most one a second of each kind.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use keyway_fabric::Time;

/// How long a line of one kind keeps the next one back.
const INTERVAL: Duration = Duration::from_secs(1);

/// Says which lines may be written. Its memory is bounded by the number of kinds, so a kind must not hold what a peer chose.
#[derive(Debug)]
pub(crate) struct Throttle<K> {
    lines: HashMap<K, Line>,
}

#[derive(Debug)]
struct Line {
    next: Time,
    kept_back: u64,
}

/// Permission to write a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    /// How many lines of the kind were kept back since the last one.
    pub(crate) kept_back: u64,
}

impl<K: Eq + Hash> Throttle<K> {
    pub(crate) fn new() -> Self {
        Self { lines: HashMap::new() }
    }

    /// Asks to write a line; what is refused is counted and told with the next one.
    pub(crate) fn pass(&mut self, kind: K, now: Time) -> Option<Pass> {
        let line = self.lines.entry(kind).or_insert(Line { next: Time::ZERO, kept_back: 0 });
        if now < line.next {
            line.kept_back += 1;
            return None;
        }
        line.next = now + INTERVAL;
        Some(Pass { kept_back: std::mem::take(&mut line.kept_back) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_and_the_rest_is_counted() {
        let start = Time(5_000_000_000);
        let mut throttle = Throttle::new();
        assert_eq!(throttle.pass("lagged", start), Some(Pass { kept_back: 0 }));
        assert_eq!(throttle.pass("lagged", start + Duration::from_millis(1)), None);
        assert_eq!(throttle.pass("lagged", start + Duration::from_millis(999)), None);
        assert_eq!(throttle.pass("refused", start), Some(Pass { kept_back: 0 }), "another kind has its own second");
        assert_eq!(throttle.pass("lagged", start + INTERVAL), Some(Pass { kept_back: 2 }));
        assert_eq!(throttle.pass("lagged", start + INTERVAL), None);
    }
}
