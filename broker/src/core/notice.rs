//! What the core tells whoever runs it: for logs, and for the listener.

use std::collections::VecDeque;

use keyway_fabric::DownCause;
use keyway_schema::Code;
use keyway_schema::bootstrap::Role;

/// Notices that wait to be polled at most; when there are more, those that only serve the log are dropped and counted.
const NOTICES_MAX: usize = 1024;

/// A session's number, given by whoever opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "session {}", self.0)
    }
}

/// Why something was refused to somebody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// The code.
    pub code: Code,
    /// What happened, with the values.
    pub text: String,
}

impl Refusal {
    pub(super) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// Something that whoever runs the core may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A session is over and everything of it is freed: its bootstrap stream can be closed. Never dropped.
    SessionClosed {
        /// Which.
        id: SessionId,
        /// What it was.
        role: Role,
        /// Its client's name.
        name: String,
        /// Why the broker ended it, if the broker did.
        refusal: Option<Refusal>,
        /// Why its endpoint went down.
        cause: DownCause,
    },
    /// A topic was created.
    TopicCreated {
        /// Its number.
        topic: u32,
        /// Its name.
        name: String,
    },
    /// The ring has overtaken a subscription.
    Lapped {
        /// Whose.
        id: SessionId,
        /// Which subscription.
        subscription: u32,
        /// The topic.
        topic: u32,
        /// The oldest record that is left to it.
        sequence: u64,
    },
    /// A key was not released in time; its window is freed and its session ends.
    ForcedRevocation {
        /// Whose.
        id: SessionId,
        /// Which subscription.
        subscription: u32,
        /// The epoch of the key.
        epoch: u64,
    },
    /// A peer READ with a dead or foreign key, or left its range.
    KeyViolation {
        /// Whose.
        id: SessionId,
    },
    /// An offered batch was not READ in time, or was no valid batch: a filler stands in its place.
    OfferFailed {
        /// Whose.
        id: SessionId,
        /// The topic.
        topic: u32,
        /// The batch's number.
        number: u64,
        /// Why.
        code: Code,
    },
}

/// Notices, waiting to be polled.
#[derive(Clone, Debug, Default)]
pub(super) struct Notices {
    queue: VecDeque<Notice>,
    dropped: u64,
}

impl Notices {
    pub(super) fn push(&mut self, notice: Notice) {
        if self.queue.len() >= NOTICES_MAX && !matches!(notice, Notice::SessionClosed { .. }) {
            self.dropped += 1;
            return;
        }
        self.queue.push_back(notice);
    }

    pub(super) fn pop(&mut self) -> Option<Notice> {
        self.queue.pop_front()
    }

    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_drops_log_lines_and_no_closed_session() {
        let mut notices = Notices::default();
        for id in 0..NOTICES_MAX as u64 + 5 {
            notices.push(Notice::KeyViolation { id: SessionId(id) });
        }
        assert_eq!(notices.dropped(), 5);
        let closed = Notice::SessionClosed {
            id: SessionId(9),
            role: Role::Consumer,
            name: String::new(),
            refusal: None,
            cause: DownCause::Closed,
        };
        notices.push(closed.clone());
        assert_eq!(std::iter::from_fn(|| notices.pop()).last(), Some(closed));
    }
}
