//! Who has published to a topic, and how far: so that a batch sent again is answered and not appended again.

use std::collections::{HashMap, VecDeque};

use keyway_schema::limits::RECEIPTS_MAX;
use keyway_schema::message::Commit;

/// The most producers that a topic remembers; the least recently seen is forgotten for another.
const PRODUCERS_MAX: usize = 1024;

/// The producers of a topic.
#[derive(Clone, Debug, Default)]
pub(super) struct Producers {
    known: HashMap<u64, Producer>,
    /// Counts batches, to tell who was seen last.
    clock: u64,
}

#[derive(Clone, Debug, Default)]
struct Producer {
    /// The last batch that has a place in the log or waits for one.
    taken: u64,
    /// The last batch that was committed.
    committed: u64,
    receipts: VecDeque<Commit>,
    seen: u64,
}

/// What a batch's number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// The next one.
    Next,
    /// Committed before, with this receipt.
    Committed(Commit),
    /// Taken before, and not committed yet.
    Taken,
    /// Committed so long ago that its receipt is forgotten.
    Forgotten,
    /// Behind one that was never sent.
    Gap {
        /// The number that would be next.
        expected: u64,
    },
}

impl Producers {
    /// The last batch of a producer that was committed or is about to be; zero if none.
    pub(super) fn last(&self, producer: u64) -> u64 {
        self.known.get(&producer).map_or(0, |known| known.taken)
    }

    /// What a batch's number says.
    pub(super) fn look(&self, producer: u64, number: u64) -> Number {
        let Some(known) = self.known.get(&producer) else {
            return if number == 1 { Number::Next } else { Number::Gap { expected: 1 } };
        };
        if number == known.taken + 1 {
            return Number::Next;
        }
        if number > known.taken {
            return Number::Gap { expected: known.taken + 1 };
        }
        if number > known.committed {
            return Number::Taken;
        }
        let back = (known.committed - number) as usize;
        match known.receipts.len().checked_sub(back + 1).and_then(|at| known.receipts.get(at)) {
            Some(receipt) => Number::Committed(*receipt),
            None => Number::Forgotten,
        }
    }

    /// A batch has a place in the log, or waits for one.
    pub(super) fn take(&mut self, producer: u64, number: u64) {
        if !self.known.contains_key(&producer) {
            self.make_room();
        }
        self.clock += 1;
        let known = self.known.entry(producer).or_default();
        known.taken = number;
        known.seen = self.clock;
    }

    /// A batch was committed.
    pub(super) fn commit(&mut self, producer: u64, receipt: Commit) {
        let Some(known) = self.known.get_mut(&producer) else { return };
        known.committed = receipt.number;
        if known.receipts.len() == RECEIPTS_MAX {
            known.receipts.pop_front();
        }
        known.receipts.push_back(receipt);
    }

    /// The batches from `number` on will not be committed: they are to be sent again.
    pub(super) fn take_back(&mut self, producer: u64, number: u64) {
        if let Some(known) = self.known.get_mut(&producer) {
            known.taken = known.taken.min(number - 1);
        }
    }

    fn make_room(&mut self) {
        if self.known.len() < PRODUCERS_MAX {
            return;
        }
        // Once for every new producer of a topic that has had a thousand: a scan is cheaper than keeping an order at every
        // batch. Whoever has batches that are not committed is kept.
        let settled = self.known.iter().filter(|(_, known)| known.taken == known.committed);
        if let Some(oldest) = settled.min_by_key(|(_, known)| known.seen).map(|(producer, _)| *producer) {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(number: u64) -> Commit {
        Commit { number, base_sequence: number * 10, time: number }
    }

    #[test]
    fn a_number_is_next_taken_committed_or_a_gap() {
        let mut producers = Producers::default();
        assert_eq!(producers.look(7, 1), Number::Next);
        assert_eq!(producers.look(7, 2), Number::Gap { expected: 1 });
        producers.take(7, 1);
        producers.take(7, 2);
        producers.commit(7, receipt(1));
        assert_eq!(producers.look(7, 1), Number::Committed(receipt(1)));
        assert_eq!(producers.look(7, 2), Number::Taken);
        assert_eq!(producers.look(7, 3), Number::Next);
        assert_eq!(producers.look(7, 4), Number::Gap { expected: 3 });
        assert_eq!(producers.last(7), 2);
        producers.take_back(7, 2);
        assert_eq!(producers.look(7, 2), Number::Next);
    }

    #[test]
    fn an_old_receipt_is_forgotten_and_its_batch_still_not_taken_twice() {
        let mut producers = Producers::default();
        for number in 1..=RECEIPTS_MAX as u64 + 1 {
            producers.take(1, number);
            producers.commit(1, receipt(number));
        }
        assert_eq!(producers.look(1, 1), Number::Forgotten);
        assert_eq!(producers.look(1, 2), Number::Committed(receipt(2)));
    }

    #[test]
    fn the_least_recently_seen_settled_producer_is_forgotten() {
        let mut producers = Producers::default();
        producers.take(0, 1);
        for producer in 1..=PRODUCERS_MAX as u64 {
            producers.take(producer, 1);
            producers.commit(producer, receipt(1));
        }
        assert_eq!(producers.last(0), 1, "it has a batch that is not committed");
        assert_eq!(producers.last(1), 0);
        assert_eq!(producers.last(2), 1);
    }
}
