//! When who wants to be called: at most one time each.

use std::collections::BTreeSet;

use keyway_fabric::Time;

use super::slab::Place;

/// Who has a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The core's own end.
    Stop,
    /// The windows that are kept unused.
    Parked,
    /// A session: the end of its linger, or its oldest offer's.
    Session(Place),
    /// A subscription of a session: its epoch, or its oldest key's deadline.
    Subscription(Place, u32),
}

/// The times, soonest first. Whoever sets one keeps it, to give it back when it changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    set: BTreeSet<(Time, Timer)>,
}

impl Timers {
    /// Moves a timer to the time that it wants now; `at` is the caller's account of where it stands.
    ///
    /// A time that moves back is left where it was: it goes off early once, finds nothing due and is set again. So the tree
    /// is touched once a period and not with every grant.
    pub(super) fn set(&mut self, timer: Timer, at: &mut Option<Time>, wanted: Option<Time>) {
        match (*at, wanted) {
            (Some(set), Some(wanted)) if set <= wanted => return,
            (Some(set), _) => {
                self.set.remove(&(set, timer));
            }
            (None, _) => {}
        }
        *at = wanted;
        if let Some(wanted) = wanted {
            self.set.insert((wanted, timer));
        }
    }

    /// The soonest time.
    pub(super) fn first(&self) -> Option<Time> {
        self.set.first().map(|(at, _)| *at)
    }

    /// Takes the next timer that is due; it is not set any more.
    pub(super) fn pop(&mut self, now: Time) -> Option<Timer> {
        if self.first()? > now {
            return None;
        }
        self.set.pop_first().map(|(_, timer)| timer)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.set.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_go_off_in_order_and_a_removed_one_never() {
        let (mut timers, mut stop, mut session) = (Timers::default(), None, None);
        let place = Place { index: 0, generation: 0 };
        timers.set(Timer::Stop, &mut stop, Some(Time(30)));
        timers.set(Timer::Session(place), &mut session, Some(Time(20)));
        assert_eq!(timers.first(), Some(Time(20)));
        assert_eq!(timers.pop(Time(19)), None);
        timers.set(Timer::Session(place), &mut session, None);
        assert_eq!((session, timers.pop(Time(29))), (None, None));
        assert_eq!(timers.pop(Time(30)), Some(Timer::Stop));
    }

    #[test]
    fn a_time_moves_forward_at_once_and_back_only_when_it_goes_off() {
        let (mut timers, mut at) = (Timers::default(), None);
        timers.set(Timer::Stop, &mut at, Some(Time(30)));
        timers.set(Timer::Stop, &mut at, Some(Time(40)));
        assert_eq!(timers.first(), Some(Time(30)));
        timers.set(Timer::Stop, &mut at, Some(Time(10)));
        assert_eq!((timers.first(), timers.len()), (Some(Time(10)), 1));
    }
}
