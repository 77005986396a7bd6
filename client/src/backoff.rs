//! How long to wait before the next attempt to connect.
//!
//! The pauses grow exponentially, and each is drawn from the whole range below its bound ("full jitter"): a thousand
//! clients that a restarted broker dropped at one moment come back spread out over the pause, not in one wave.

use std::time::Duration;

/// The shortest pause: long enough that a broker which refuses is not asked in a busy loop.
pub const PAUSE_MIN: Duration = Duration::from_millis(20);

/// The longest pause: short enough that clients are back within seconds of their broker.
pub const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The bound after which pauses do not grow: 20 ms doubled seven times is above two seconds.
const DOUBLINGS_MAX: u32 = 7;

/// Counts failed attempts, and says how long to pause. Pure: the randomness is an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after one more failed attempt. `random` is uniform over all of u32; every pause is between [`PAUSE_MIN`]
    /// and the present bound, which doubles from twice that to [`PAUSE_MAX`].
    pub fn failed(&mut self, random: u32) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let bound = PAUSE_MAX.min(PAUSE_MIN * (1 << self.failures.min(DOUBLINGS_MAX)));
        PAUSE_MIN + (bound - PAUSE_MIN).mul_f64(f64::from(random) / f64::from(u32::MAX))
    }

    /// An attempt succeeded: the next failure is a first one.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// How many attempts in a row have failed.
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_doubles_up_to_the_longest_pause() {
        let mut backoff = Backoff::default();
        let bounds: Vec<u128> = (0..9).map(|_| backoff.failed(u32::MAX).as_millis()).collect();
        assert_eq!(bounds, [40, 80, 160, 320, 640, 1280, 2000, 2000, 2000]);
        backoff.succeeded();
        assert_eq!(backoff.failed(u32::MAX).as_millis(), 40);
    }

    #[test]
    fn every_pause_is_within_its_range() {
        let mut backoff = Backoff::default();
        for random in [0, 1, 1 << 16, 1 << 31, u32::MAX] {
            let before = backoff;
            let pause = backoff.failed(random);
            let mut longest = before;
            assert!(pause >= PAUSE_MIN && pause <= longest.failed(u32::MAX), "{pause:?} after {before:?}");
        }
    }

    #[test]
    fn a_thousand_clients_come_back_spread_out() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut tenths = [0_u32; 10];
        for _ in 0..1000 {
            let mut backoff = Backoff::default();
            let pause = (0..7).fold(Duration::ZERO, |_, _| backoff.failed(random.u32(..)));
            tenths[(pause.as_millis() as usize * 10 / 2001).min(9)] += 1;
        }
        assert!(tenths.iter().all(|tenth| (50..200).contains(tenth)), "{tenths:?}");
    }

    #[test]
    fn failures_beyond_counting_do_not_overflow() {
        let mut backoff = Backoff { failures: u32::MAX };
        assert_eq!(backoff.failed(u32::MAX), PAUSE_MAX);
    }
}
