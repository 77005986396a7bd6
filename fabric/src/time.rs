//! Time, as an input.
//!
//! The machines never ask for the time: whoever drives them reads the clocks once a turn and passes [`Now`] in.
//! [`SystemClock`] is the only place of the project that reads a clock for them.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point in monotonic time, in nanoseconds since the clock's start. Deadlines, epochs and grace are counted in it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// The clock's start.
    pub const ZERO: Self = Self(0);
    /// Later than every real time.
    pub const NEVER: Self = Self(u64::MAX);

    /// How long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

/// A wall-clock time in nanoseconds since 1970. It stamps commits and is never used for a deadline: it may jump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WallTime(pub u64);

/// Both clocks, read at the start of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock.
    pub time: Time,
    /// The wall clock.
    pub wall: WallTime,
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    #[allow(clippy::disallowed_methods, reason = "the one place where the clock is read")]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Reads the monotonic clock alone: half the price where something short is timed.
    #[allow(clippy::disallowed_methods, reason = "the one place where the clock is read")]
    pub fn time(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// Reads both clocks.
    #[allow(clippy::disallowed_methods, reason = "the one place where the clock is read")]
    pub fn now(&self) -> Now {
        let time = self.time();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { time, wall: WallTime(u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)) }
    }
}
