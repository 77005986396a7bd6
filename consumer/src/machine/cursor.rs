//! Where a consumer is in its topic: across sessions, and across broker instances.

use keyway_schema::batch::BatchHeader;
use keyway_schema::message::Start;

/// What the next session asks for, and what is expected of the next batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    place: Place,
    /// The broker instance whose sequences these are.
    instance: Option<u64>,
    /// A broker has said where a subscription begins, in that instance's log.
    is_known: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing is known but what was asked for.
    Asked(Start),
    /// The next record to deliver.
    At {
        next: u64,
        /// The next batch begins with that record, rather than somewhere before it.
        exact: bool,
    },
}

/// A gap in the sequences, to be told to the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Cursor {
    pub(super) const fn new(start: Start) -> Self {
        Self { place: Place::Asked(start), instance: None, is_known: false }
    }

    /// A session with this broker instance begins. Returns whether the log that was read before is gone: then the new one is
    /// read from its start, or from where a seek wants to be, unless that is a sequence of the old one. Its start is record 0
    /// rather than the oldest that is left, so that what the ring has dropped already is told as a gap.
    pub(super) fn meet(&mut self, instance: u64) -> bool {
        let restarted = self.is_known && self.instance != Some(instance);
        if restarted {
            if let Place::At { .. } | Place::Asked(Start::Sequence(_)) = self.place {
                self.place = Place::Asked(Start::Sequence(0));
            }
            self.is_known = false;
        }
        self.instance = Some(instance);
        restarted
    }

    /// The application wants to go on elsewhere.
    pub(super) const fn seek(&mut self, start: Start) {
        self.place = Place::Asked(start);
    }

    /// What to subscribe for.
    pub(super) const fn start(&self) -> Start {
        match self.place {
            Place::Asked(start) => start,
            Place::At { next, .. } => Start::Sequence(next),
        }
    }

    /// The broker starts at this record, which is in the batch that comes next. Returns what is missing of what was asked for.
    pub(super) const fn place(&mut self, sequence: u64) -> Option<Gap> {
        let start = self.start();
        self.place = Place::At { next: sequence, exact: false };
        self.is_known = true;
        match start {
            Start::Sequence(from) if from < sequence => Some(Gap { from, to: sequence }),
            _ => None,
        }
    }

    /// The next record to deliver; 0 as long as that is not known.
    pub(super) const fn next(&self) -> u64 {
        match self.place {
            Place::At { next, .. } => next,
            Place::Asked(_) => 0,
        }
    }

    /// Whether this batch may stand at the cursor: it begins with the next record; or, when a subscription has just been
    /// placed, contains it. A batch of an older lap is neither.
    pub(super) const fn accepts(&self, header: &BatchHeader) -> bool {
        match self.place {
            Place::At { next, exact: false } if header.base_sequence < next => next < header.end_sequence(),
            Place::At { next, .. } => header.base_sequence == next,
            Place::Asked(_) => false,
        }
    }

    /// The records before this one are delivered.
    pub(super) const fn advance(&mut self, next: u64) {
        self.place = Place::At { next, exact: true };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn header(base_sequence: u64, records: u32) -> BatchHeader {
        BatchHeader {
            len: 64 + records * 8,
            crc: 0,
            records,
            base_sequence,
            time: 0,
            producer: 0,
            number: 0,
            topic: 0,
            filler: records == 0,
        }
    }

    #[test]
    fn a_start_that_is_gone_is_an_exact_gap_and_any_other_start_is_none() {
        for (start, gap) in [
            (Start::Sequence(3), Some(Gap { from: 3, to: 10 })),
            (Start::Sequence(10), None),
            (Start::Sequence(11), None),
            (Start::Earliest, None),
            (Start::Latest, None),
            (Start::Time(1), None),
        ] {
            let mut cursor = Cursor::new(start);
            assert_eq!(cursor.place(10), gap, "{start:?}");
            assert_eq!((cursor.next(), cursor.start()), (10, Start::Sequence(10)));
        }
    }

    #[test]
    fn a_subscription_that_was_just_placed_may_begin_within_a_batch_and_a_running_one_may_not() {
        let mut cursor = Cursor::new(Start::Earliest);
        assert!(!cursor.accepts(&header(0, 1)));
        cursor.place(10);
        assert!(cursor.accepts(&header(8, 3)) && cursor.accepts(&header(10, 1)) && cursor.accepts(&header(10, 0)));
        assert!(!cursor.accepts(&header(8, 2)) && !cursor.accepts(&header(8, 0)) && !cursor.accepts(&header(11, 1)));
        cursor.advance(11);
        assert!(cursor.accepts(&header(11, 5)) && !cursor.accepts(&header(8, 5)) && !cursor.accepts(&header(12, 5)));
    }

    #[test]
    fn a_new_instance_is_read_from_its_start_and_told_once() {
        let mut cursor = Cursor::new(Start::Latest);
        assert!(!cursor.meet(1) && !cursor.meet(2), "nothing was read of instance 1");
        assert_eq!(cursor.start(), Start::Latest);
        cursor.place(50);
        assert!(!cursor.meet(2));
        assert_eq!(cursor.start(), Start::Sequence(50));
        assert!(cursor.meet(3) && !cursor.meet(3));
        assert_eq!(cursor.start(), Start::Sequence(0));
        assert_eq!(cursor.place(0), None);
    }

    #[test]
    fn what_a_new_instance_has_dropped_before_it_was_met_is_a_gap() {
        let mut cursor = Cursor::new(Start::Latest);
        cursor.meet(1);
        cursor.place(50);
        assert!(cursor.meet(2));
        assert_eq!(cursor.place(51), Some(Gap { from: 0, to: 51 }));
    }
}
