//! READs in flight, in the order in which they were posted, which is the order in which they are taken in.

use std::collections::VecDeque;

use keyway_fabric::{LocalSpan, Op, RemoteSpan};

/// The high byte of the tags of a consumer's READs; the channel's tags have others.
const READ: u64 = 0xd0 << 56;
/// Where a tag keeps its number.
const NUMBER: u64 = (1 << 56) - 1;

/// What a READ fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    /// The tail word of the cursor's segment.
    Word,
    /// Bytes of the log, appended to the arena.
    Data,
    /// The same, the last of them on the chance that they have been committed.
    Probe,
    /// A whole grant.
    Piece,
}

/// A READ to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) epoch: u64,
    pub(super) fetch: Fetch,
    pub(super) from: RemoteSpan,
    pub(super) into: LocalSpan,
}

/// A READ that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flight {
    number: u64,
    done: bool,
    pub(super) epoch: u64,
    pub(super) fetch: Fetch,
    pub(super) into: LocalSpan,
}

/// All READs of a session that were not taken in yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Flights {
    queue: VecDeque<Flight>,
    posted: u64,
}

impl Flights {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Notes a READ that is about to be posted, and gives its tag.
    pub(super) fn post(&mut self, plan: &Plan) -> Op {
        let number = self.posted & NUMBER;
        self.posted += 1;
        self.queue.push_back(Flight { number, done: false, epoch: plan.epoch, fetch: plan.fetch, into: plan.into });
        Op(READ | number)
    }

    /// Notes a completion. Returns the READ's epoch, or `None` for a tag that is of no READ.
    pub(super) fn done(&mut self, op: Op) -> Option<u64> {
        if op.0 & !NUMBER != READ {
            return None;
        }
        let number = op.0 & NUMBER;
        let flight = self.queue.iter_mut().find(|flight| flight.number == number)?;
        flight.done = true;
        Some(flight.epoch)
    }

    /// The next READ to take in, once it and all before it are over.
    pub(super) fn next_done(&mut self) -> Option<Flight> {
        if self.queue.front()?.done { self.queue.pop_front() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use keyway_fabric::{Key, LocalId};

    use super::*;

    #[test]
    fn reads_are_taken_in_as_they_were_posted_even_if_they_end_in_another_order() {
        let local = LocalId { index: 0, generation: 0 };
        let mut flights = Flights::default();
        let tags = [1, 2].map(|epoch| {
            let from = RemoteSpan { address: 0, len: 8, key: Key(1) };
            let into = LocalSpan { local, slot: 0, offset: 0, len: 8 };
            flights.post(&Plan { epoch, fetch: Fetch::Data, from, into })
        });
        assert_eq!(flights.done(tags[1]), Some(2));
        assert_eq!(flights.next_done(), None);
        assert_eq!(flights.done(tags[0]), Some(1));
        assert_eq!(flights.next_done().map(|flight| flight.epoch), Some(1));
        assert_eq!(flights.next_done().map(|flight| flight.epoch), Some(2));
        assert!(flights.is_empty());
        assert_eq!(flights.done(Op(0xc1 << 56)), None);
    }
}
