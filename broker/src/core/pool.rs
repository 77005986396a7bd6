//! The pool's segments: whose each is, and how many windows cover it.
//!
//! A segment that a topic has dropped is in limbo while a window covers it, and free when the last of them is gone.

use std::collections::VecDeque;

use keyway_fabric::{Memory, SharedId, SharedSpan};

use super::inspect::{SegmentState, SegmentView};

/// The segments.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    shared: SharedId,
    segment_size: u32,
    segments: Vec<Segment>,
    free: Vec<u32>,
    /// Topics whose producers wait for a segment, in the order in which they came.
    waiting: VecDeque<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    state: SegmentState,
    windows: u32,
    /// Whose bytes are in it.
    bytes_of: Option<u32>,
}

impl Pool {
    pub(super) fn new(shared: SharedId, segment_size: u32, segments: u32) -> Self {
        let fresh = Segment { state: SegmentState::Free, windows: 0, bytes_of: None };
        Self {
            shared,
            segment_size,
            segments: vec![fresh; segments as usize],
            free: (0..segments).rev().collect(),
            waiting: VecDeque::new(),
        }
    }

    /// Where a segment is.
    pub(super) fn span(&self, index: u32) -> SharedSpan {
        let len = u64::from(self.segment_size);
        SharedSpan { shared: self.shared, offset: u64::from(index) * len, len }
    }

    /// Takes a free segment for a topic. It is zeroed if another topic's bytes are in it: a grant shows all of them.
    pub(super) fn take(&mut self, topic: u32, number: u64, memory: &mut dyn Memory) -> Option<u32> {
        let index = self.free.pop()?;
        let span = self.span(index);
        let segment = &mut self.segments[index as usize];
        if segment.bytes_of.is_some_and(|before| before != topic) {
            memory.zero(span);
        }
        segment.bytes_of = Some(topic);
        segment.state = SegmentState::Live { topic, number };
        Some(index)
    }

    /// A topic has dropped its segment. Returns whether it is free at once.
    pub(super) fn drop_segment(&mut self, index: u32, even_if_covered: bool) -> bool {
        let segment = &mut self.segments[index as usize];
        let SegmentState::Live { topic, number } = segment.state else {
            panic!("segment {index} was dropped by a ring that it is not in");
        };
        if segment.windows > 0 && !even_if_covered {
            segment.state = SegmentState::Limbo { topic, number };
            return false;
        }
        segment.state = SegmentState::Free;
        self.free.push(index);
        true
    }

    /// A window is bound to it.
    pub(super) fn cover(&mut self, index: u32) {
        self.segments[index as usize].windows += 1;
    }

    /// A window that covered it is unbound or freed. Returns the topic that had dropped it, if it is free now.
    pub(super) fn uncover(&mut self, index: u32) -> Option<u32> {
        let segment = &mut self.segments[index as usize];
        segment.windows = segment.windows.checked_sub(1).expect("a window is counted while it covers a segment");
        let SegmentState::Limbo { topic, .. } = segment.state else { return None };
        if segment.windows > 0 {
            return None;
        }
        segment.state = SegmentState::Free;
        self.free.push(index);
        Some(topic)
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Queues a topic for the next free segment.
    pub(super) fn wait(&mut self, topic: u32) {
        self.waiting.push_back(topic);
    }

    /// The topic that has waited longest.
    pub(super) fn next_waiting(&mut self) -> Option<u32> {
        self.waiting.pop_front()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SegmentView> + '_ {
        self.segments.iter().enumerate().map(|(index, segment)| SegmentView {
            index: index as u32,
            state: segment.state,
            windows: segment.windows,
        })
    }
}
