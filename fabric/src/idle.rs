//! What a driver does when a turn found nothing to do: spin, then yield, then sleep.
//!
//! The sooner it sleeps the less it costs, and the later the next event is seen. The strategy only counts; the time and the
//! descriptor belong to the driver, so that threads stay a matter of deployment.

use std::io;
use std::time::Duration;

use crate::{EVENTS_A_TURN, Event, Fabric, Time, wait};

/// How long a driver stays awake without work: about as long as hundreds of turns take where a core is its own.
const AWAKE_MAX: Duration = Duration::from_micros(100);

/// How long each stage lasts, in turns that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleLimits {
    /// Turns that go straight on to the next.
    pub spins_max: u32,
    /// Turns, after those, that let other threads run first.
    pub yields_max: u32,
    /// Whether to sleep after that; without it the last stage goes on for ever.
    pub sleeps: bool,
    /// How long these two stages last at most, whatever a turn takes: where it is dear, or where others want the processor
    /// that it is taken from, a few turns are as long as hundreds are elsewhere.
    pub awake_max: Duration,
}

impl IdleLimits {
    /// Never sleeps: for a core of its own. A fabric's poll takes a fraction of a microsecond, so an event is seen at once.
    pub const LATENCY: Self = Self { spins_max: u32::MAX, yields_max: 0, sleeps: false, awake_max: Duration::MAX };

    /// Spins for some tens of microseconds, about a round trip between two processes, and sleeps after some hundred: under
    /// load it never sleeps, and without load it costs nothing.
    pub const BALANCED: Self = Self { spins_max: 100, yields_max: 100, sleeps: true, awake_max: AWAKE_MAX };

    /// Sleeps as soon as there is nothing to do.
    pub const FRUGAL: Self = Self { spins_max: 0, yields_max: 1, sleeps: true, awake_max: AWAKE_MAX };

    /// The same for a machine with so many processors. With one, whatever a driver waits for needs the processor that the driver
    /// would spin on, so it sleeps as soon as it may.
    #[must_use]
    pub const fn on(self, processors: usize) -> Self {
        if processors > 1 { self } else { Self { awake_max: Duration::ZERO, ..self } }
    }
}

/// What to do before the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Go on.
    Spin,
    /// Let other threads run.
    Yield,
    /// Sleep until the fabric has something or a timer is due.
    Sleep,
}

/// Counts the turns that found nothing and says how to rest.
#[derive(Clone, Copy, Debug)]
pub struct IdleStrategy {
    limits: IdleLimits,
    /// Turns in a row that found nothing, up to the sum of the limits.
    idle: u64,
    /// When the first of them was.
    since: Time,
}

impl IdleStrategy {
    /// A strategy with these limits, on this machine.
    pub fn here(limits: IdleLimits) -> Self {
        Self::new(limits.on(std::thread::available_parallelism().map_or(usize::MAX, usize::from)))
    }

    /// A strategy with these limits.
    pub const fn new(limits: IdleLimits) -> Self {
        Self { limits, idle: 0, since: Time::ZERO }
    }

    /// For a core of its own: [`IdleLimits::LATENCY`].
    pub const fn latency() -> Self {
        Self::new(IdleLimits::LATENCY)
    }

    /// For most: [`IdleLimits::BALANCED`].
    pub const fn balanced() -> Self {
        Self::new(IdleLimits::BALANCED)
    }

    /// For many processes on few cores: [`IdleLimits::FRUGAL`].
    pub const fn frugal() -> Self {
        Self::new(IdleLimits::FRUGAL)
    }

    /// Decides after a turn that began at `now` and did so much work.
    pub fn after(&mut self, work: usize, now: Time) -> Rest {
        if work > 0 {
            self.idle = 0;
            return Rest::Spin;
        }
        let spins = u64::from(self.limits.spins_max);
        let awake = spins + u64::from(self.limits.yields_max);
        let idle = self.idle;
        if idle == 0 {
            self.since = now;
        }
        if self.limits.sleeps && now.since(self.since) >= self.limits.awake_max {
            return Rest::Sleep;
        }
        self.idle = (idle + 1).min(awake);
        if idle < spins {
            Rest::Spin
        } else if idle < awake {
            Rest::Yield
        } else if self.limits.sleeps {
            Rest::Sleep
        } else if self.limits.yields_max > 0 {
            Rest::Yield
        } else {
            Rest::Spin
        }
    }

    /// Rests as a turn that began at `now` and did so much work calls for. `timer` is how long it is until the driver must have its turn,
    /// whatever happens. Before sleeping, the fabric is armed and polled once more; what that brings is appended to `events`,
    /// which the next turn takes in.
    ///
    /// # Errors
    ///
    /// The system's, when the fabric's descriptor cannot be waited for.
    pub fn step(
        &mut self,
        work: usize,
        now: Time,
        fabric: &mut dyn Fabric,
        events: &mut Vec<Event>,
        timer: Option<Duration>,
    ) -> io::Result<()> {
        let work = work + usize::from(fabric.busy()) + events.len();
        match self.after(work, now) {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep => {
                fabric.arm();
                fabric.poll(events, EVENTS_A_TURN);
                if events.is_empty() && !fabric.busy() {
                    wait(fabric.fd(), timer)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: IdleLimits =
        IdleLimits { spins_max: 2, yields_max: 1, sleeps: true, awake_max: Duration::from_micros(50) };

    #[test]
    fn a_driver_spins_then_yields_then_sleeps_until_there_is_work() {
        let mut idle = IdleStrategy::new(LIMITS);
        for _ in 0..2 {
            let rests: Vec<_> = (0..5).map(|_| idle.after(0, Time::ZERO)).collect();
            assert_eq!(rests, [Rest::Spin, Rest::Spin, Rest::Yield, Rest::Sleep, Rest::Sleep]);
            assert_eq!(idle.after(1, Time::ZERO), Rest::Spin);
        }
    }

    #[test]
    fn a_driver_whose_turns_take_long_sleeps_sooner() {
        let mut idle = IdleStrategy::new(LIMITS);
        let mut now = Time::ZERO;
        for _ in 0..2 {
            let rests = [0, 30, 30, 30].map(|us| {
                now = now + Duration::from_micros(us);
                idle.after(0, now)
            });
            assert_eq!(rests, [Rest::Spin, Rest::Spin, Rest::Sleep, Rest::Sleep]);
            assert_eq!(idle.after(1, now), Rest::Spin);
        }
    }

    #[test]
    fn on_a_machine_with_one_processor_a_driver_without_work_sleeps_at_once_if_it_may() {
        let first = |limits: IdleLimits, processors| IdleStrategy::new(limits.on(processors)).after(0, Time::ZERO);
        assert_eq!(first(LIMITS, 1), Rest::Sleep);
        assert_eq!(first(LIMITS, 2), Rest::Spin);
        assert_eq!(first(IdleLimits::LATENCY, 1), Rest::Spin);
    }

    #[test]
    fn a_driver_that_must_not_sleep_goes_on_with_its_last_stage() {
        let limits = IdleLimits { spins_max: 1, sleeps: false, ..LIMITS };
        let mut idle = IdleStrategy::new(limits);
        let later = Time::ZERO + Duration::from_secs(1);
        let rests = [Time::ZERO, Time::ZERO, later, later].map(|now| idle.after(0, now));
        assert_eq!(rests, [Rest::Spin, Rest::Yield, Rest::Yield, Rest::Yield]);
        let mut idle = IdleStrategy::latency();
        assert!((0..1_000).all(|_| idle.after(0, later) == Rest::Spin));
    }
}
