//! What the machine hands to its host, in order.
//!
//! The host takes outputs with [`poll_output`](super::ConsumerMachine::poll_output) after each turn. Their order is the order of
//! the log, and an arena's end comes after all that lies in it, so that a host which makes a view of every span before it
//! takes the next output never frees an arena too early.

use std::collections::VecDeque;

use keyway_fabric::{LocalId, LocalSpan};

/// Outputs that may wait before the machine stops reading: as many records of message scope as a host with a busy
/// application should have to hold. In the other scopes whole runs of batches are one output, and a few suffice.
pub const OUTPUTS_MAX: usize = 1024;

/// Something for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Landing memory is needed: local memory of `arenas` slots of `size` bytes, and one slot of 64 bytes for tail words.
    /// Answered with [`landed`](super::ConsumerMachine::landed). Memory given before may be freed.
    Land {
        /// How many arenas.
        arenas: u32,
        /// How long each is.
        size: u32,
    },
    /// Valid batches, one behind the other.
    Batches {
        /// Where they are.
        span: LocalSpan,
        /// The first record to deliver; those before it in the first batch are not.
        from: u64,
    },
    /// One valid record.
    Record {
        /// Its encoded bytes.
        span: LocalSpan,
        /// Its sequence.
        sequence: u64,
        /// When it was committed.
        time: u64,
    },
    /// Records were lost to the ring.
    Lagged {
        /// The first that is gone.
        from: u64,
        /// The first that is not.
        to: u64,
    },
    /// The subscription has moved to where a seek wanted it. What came before it is not to be delivered; what comes after it is
    /// from there on.
    Sought {
        /// The seek's number.
        ticket: u64,
        /// The first record from there on.
        sequence: u64,
    },
    /// The broker was started anew.
    Restarted {
        /// Its instance.
        instance: u64,
    },
    /// Nothing will be read into this arena until the host says that it is free: see
    /// [`arena_free`](super::ConsumerMachine::arena_free).
    Retired {
        /// The landing memory.
        local: LocalId,
        /// The arena.
        slot: u32,
    },
}

/// Outputs that wait for the host.
#[derive(Clone, Debug, Default)]
pub(super) struct Outputs {
    waiting: VecDeque<Output>,
}

impl Outputs {
    /// Whether more should be read at all.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < OUTPUTS_MAX
    }

    /// Adds one. What continues the one before it becomes a part of it: contiguous batches, contiguous gaps.
    pub(super) fn push(&mut self, output: Output) {
        match (self.waiting.back_mut(), &output) {
            (Some(Output::Batches { span: before, .. }), Output::Batches { span, .. })
                if before.local == span.local && before.slot == span.slot && before.end() == span.offset =>
            {
                before.len += span.len;
            }
            (Some(Output::Lagged { to: before, .. }), Output::Lagged { from, to }) if *before == *from => *before = *to,
            _ => self.waiting.push_back(output),
        }
    }

    /// Adds what there is.
    pub(super) fn extend(&mut self, outputs: impl IntoIterator<Item = Output>) {
        outputs.into_iter().for_each(|output| self.push(output));
    }

    /// Forgets what was read and not taken, for a seek. What concerns the memory stays, and that the log is a new one.
    pub(super) fn pass_over(&mut self) {
        self.waiting
            .retain(|output| matches!(output, Output::Land { .. } | Output::Retired { .. } | Output::Restarted { .. }));
    }

    pub(super) fn next(&self) -> Option<&Output> {
        self.waiting.front()
    }

    pub(super) fn pop(&mut self) -> Option<Output> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn batches(slot: u32, offset: u32, len: u32, from: u64) -> Output {
        let local = LocalId { index: 1, generation: 0 };
        Output::Batches { span: LocalSpan { local, slot, offset, len }, from }
    }

    #[test]
    fn a_seek_passes_over_what_was_read_and_keeps_what_concerns_the_memory() {
        let mut outputs = Outputs::default();
        let local = LocalId { index: 1, generation: 0 };
        let kept = [
            Output::Land { arenas: 2, size: 64 },
            Output::Restarted { instance: 4 },
            Output::Retired { local, slot: 0 },
        ];
        outputs.push(kept[0].clone());
        outputs.push(batches(0, 0, 64, 5));
        outputs.push(kept[1].clone());
        outputs.push(Output::Lagged { from: 20, to: 30 });
        outputs.push(kept[2].clone());
        outputs.push(Output::Sought { ticket: 1, sequence: 9 });
        outputs.pass_over();
        assert!(std::iter::from_fn(|| outputs.pop()).eq(kept));
    }

    #[test]
    fn contiguous_batches_and_gaps_are_joined_and_others_are_not() {
        let mut outputs = Outputs::default();
        outputs.push(batches(0, 0, 64, 5));
        outputs.push(batches(0, 64, 72, 9));
        outputs.push(batches(1, 136, 64, 12));
        outputs.push(Output::Lagged { from: 20, to: 30 });
        outputs.push(Output::Lagged { from: 30, to: 31 });
        outputs.push(Output::Lagged { from: 40, to: 41 });
        let all: Vec<Output> = std::iter::from_fn(|| outputs.pop()).collect();
        let expected = [
            batches(0, 0, 136, 5),
            batches(1, 136, 64, 12),
            Output::Lagged { from: 20, to: 31 },
            Output::Lagged { from: 40, to: 41 },
        ];
        assert_eq!(all, expected);
    }
}
