//! Keys that died and may not be issued again yet.
//!
//! A bitmap of low bytes an index, and one time: an index leaves quarantine as a whole, when the last of its keys to die has
//! been in it long enough. Windows that serve a busy subscription use up their low bytes within a fraction of the
//! quarantine, so that this costs a few bits a key and keeps none much longer than asked.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use keyway_fabric::{Key, Time};

/// Indices that each death takes out when they are due: one more than it can put in, so that the rest shrinks.
const EXPIRED_A_DEATH: usize = 2;

/// With fewer keys left than so many of 256, an index is not worth searching for them.
const LEFT_MIN: u32 = 64;

/// The keys.
#[derive(Clone, Debug)]
pub(super) struct Quarantine {
    duration: Duration,
    indices: HashMap<u32, Dead>,
    /// Each index once, roughly in the order of when it is due.
    queue: VecDeque<(Time, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Dead {
    low: [u64; 4],
    until: Time,
}

impl Quarantine {
    pub(super) fn new(duration: Duration) -> Self {
        Self { duration, indices: HashMap::new(), queue: VecDeque::new() }
    }

    /// A key that was issued has died.
    pub(super) fn insert(&mut self, key: Key, now: Time) {
        self.expire(now);
        let until = now + self.duration;
        let dead = self.indices.entry(key.index()).or_insert_with(|| {
            self.queue.push_back((until, key.index()));
            Dead { low: [0; 4], until }
        });
        if dead.until <= now {
            dead.low = [0; 4];
        }
        dead.low[usize::from(key.low() >> 6)] |= 1 << (key.low() & 63);
        dead.until = until;
    }

    /// Whether the key must not be issued.
    pub(super) fn contains(&self, key: Key, now: Time) -> bool {
        let bit = |dead: &Dead| dead.low[usize::from(key.low() >> 6)] >> (key.low() & 63) & 1 == 1;
        self.indices.get(&key.index()).is_some_and(|dead| dead.until > now && bit(dead))
    }

    /// Until when an index is of no use, if nearly all of its keys are in quarantine.
    pub(super) fn spent_until(&self, index: u32, now: Time) -> Option<Time> {
        let dead = self.indices.get(&index).filter(|dead| dead.until > now)?;
        let left: u32 = dead.low.iter().map(|word| word.count_zeros()).sum();
        (left < LEFT_MIN).then_some(dead.until)
    }

    /// How many indices have keys in it.
    pub(super) fn len(&self) -> usize {
        self.indices.len()
    }

    /// Takes out what is due, a little at a time.
    pub(super) fn expire(&mut self, now: Time) {
        for _ in 0..EXPIRED_A_DEATH {
            let Some((due, index)) = self.queue.front().copied() else { return };
            if due > now {
                return;
            }
            self.queue.pop_front();
            let until = self.indices.get(&index).map(|dead| dead.until).expect("an index is queued while it has keys");
            if until > now {
                self.queue.push_back((until, index));
            } else {
                self.indices.remove(&index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_dead_key_stays_until_its_time_and_its_neighbours_are_free() {
        let mut quarantine = Quarantine::new(Duration::from_secs(300));
        quarantine.insert(Key(0x0000_01ff), at(10));
        assert!(quarantine.contains(Key(0x0000_01ff), at(309)));
        assert!(!quarantine.contains(Key(0x0000_01ff), at(310)));
        assert!(!quarantine.contains(Key(0x0000_0100), at(10)));
        assert!(!quarantine.contains(Key(0x0000_02ff), at(10)));
    }

    #[test]
    fn a_later_death_keeps_the_whole_index_and_an_old_one_does_not_come_back() {
        let mut quarantine = Quarantine::new(Duration::from_secs(300));
        quarantine.insert(Key(0x0101), at(0));
        quarantine.insert(Key(0x0102), at(200));
        assert!(quarantine.contains(Key(0x0101), at(499)));
        quarantine.insert(Key(0x0103), at(900));
        assert!(!quarantine.contains(Key(0x0101), at(900)));
    }

    #[test]
    fn an_index_is_spent_until_the_last_of_its_keys_has_been_dead_for_long_enough() {
        let mut quarantine = Quarantine::new(Duration::from_secs(300));
        for low in 0..192 {
            quarantine.insert(Key(0x0700 | low), at(u64::from(low)));
            assert_eq!(quarantine.spent_until(7, at(191)), None, "{low}");
        }
        quarantine.insert(Key(0x07ff), at(200));
        assert_eq!(quarantine.spent_until(7, at(200)), Some(at(500)));
        assert_eq!(quarantine.spent_until(8, at(200)), None);
        assert_eq!(quarantine.spent_until(7, at(500)), None);
    }

    #[test]
    fn it_does_not_grow_for_ever() {
        let mut quarantine = Quarantine::new(Duration::from_secs(10));
        for index in 0..10_000 {
            quarantine.insert(Key(index << 8), at(u64::from(index)));
        }
        assert!(quarantine.len() <= 12, "{} indices for 10 s of one death a second", quarantine.len());
    }
}
