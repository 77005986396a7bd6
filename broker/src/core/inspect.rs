//! How things stand, read-only: for the simulator's checkers, tests and status.

use keyway_fabric::{Key, SharedSpan, Time, WindowId};

use super::notice::SessionId;
use super::window::State;

/// A window, as the core sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowView {
    /// The window.
    pub window: WindowId,
    /// Whose it is.
    pub session: SessionId,
    /// Where it is in its life.
    pub state: State,
    /// What it was bound for last, if it is bound or about to be.
    pub grant: Option<GrantView>,
}

/// A grant whose key may open something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantView {
    /// Whose subscription.
    pub subscription: u32,
    /// Its epoch.
    pub epoch: u64,
    /// Its key.
    pub key: Key,
    /// What the key opens.
    pub span: SharedSpan,
    /// When the bind was posted.
    pub granted_at: Time,
    /// When the key dies at the latest.
    pub deadline: Time,
}

/// What a segment of the pool is to the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// In nobody's ring, and covered by no window.
    Free,
    /// In a topic's ring.
    Live {
        /// The topic's number.
        topic: u32,
        /// The segment's number in the topic.
        number: u64,
    },
    /// Dropped from a topic's ring, and still covered by windows.
    Limbo {
        /// The topic's number.
        topic: u32,
        /// The segment's number in the topic.
        number: u64,
    },
}

/// A segment of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// Its place in the pool.
    pub index: u32,
    /// What it is.
    pub state: SegmentState,
    /// How many windows cover it.
    pub windows: u32,
}

/// A topic's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicView {
    /// Its number.
    pub topic: u32,
    /// Its name.
    pub name: String,
    /// The oldest record that is left.
    pub oldest_sequence: u64,
    /// The sequence that the next record will get.
    pub next_sequence: u64,
    /// The offset up to which batches are committed.
    pub tail: u64,
    /// Segments in its ring.
    pub segments: u32,
    /// Batches that have a place in the log and are not committed.
    pub reserved: u32,
    /// Batches that wait for a segment.
    pub waiting: u32,
}

/// A subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionView {
    /// Whose.
    pub session: SessionId,
    /// Its number in the session.
    pub subscription: u32,
    /// The name that its client gave it, or nothing.
    pub name: String,
    /// The topic's number.
    pub topic: u32,
    /// The most live windows it may have.
    pub depth: u16,
    /// The next record that it wants, as last told.
    pub sequence: u64,
    /// Its last epoch.
    pub epoch: u64,
    /// Windows that may be open under its grants.
    pub windows: u32,
    /// Whether it waits to be woken.
    pub armed: bool,
    /// Whether it takes no grants.
    pub paused: bool,
}
