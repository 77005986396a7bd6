//! Streams of endpoints that are gone, kept until the peer has what was said last.
//!
//! Closing a socket with unread bytes in it resets the connection and may take an unsent refusal with it; the peer would
//! then see a dead connection instead of a remote access error. So a failed endpoint's stream is written out, shut, and read
//! to its end. Both its bytes and the number of such streams are bounded.

use super::outgoing::Backlog;
use super::sys::{Gather, Scatter};
use super::transport::{Moved, Transport};
use crate::LinkId;

/// How many streams may linger at once; the oldest gives way. A peer that reads needs microseconds.
pub(super) const LINGERING_MAX: usize = 256;

/// How much is read from a lingering stream before it is cut: far more than a peer that keeps to the protocol can have
/// under way.
const DISCARD_MAX: usize = 64 * 1024 * 1024;

/// How much is read from a lingering stream in one turn.
const DISCARD_A_TURN: usize = 1024 * 1024;

/// The stream of an endpoint that is gone.
pub(super) struct Lingering {
    pub(super) link: LinkId,
    pub(super) transport: Transport,
    backlog: Backlog,
    shut: bool,
    discarded: usize,
}

impl Lingering {
    pub(super) fn new(link: LinkId, transport: Transport, backlog: Backlog) -> Self {
        Self { link, transport, backlog, shut: false, discarded: 0 }
    }

    /// Whether it waits for room to write.
    pub(super) fn blocked(&self) -> bool {
        !self.shut
    }

    /// Makes progress; `true` once the stream may be dropped.
    pub(super) fn advance(&mut self, buffer: &mut [u8]) -> bool {
        while !self.shut {
            if self.backlog.is_empty() {
                self.transport.shut();
                self.shut = true;
                break;
            }
            let mut gather = Gather::new();
            gather.bytes(self.backlog.bytes());
            match self.transport.write(&gather) {
                Moved::Bytes(count) => self.backlog.advance(count),
                Moved::Blocked => break,
                Moved::Ended => return true,
            }
        }
        let mut turn = 0;
        while turn < DISCARD_A_TURN {
            let mut scatter = Scatter::new();
            scatter.bytes(&mut *buffer);
            match self.transport.read(&mut scatter) {
                Moved::Bytes(count) => turn += count,
                Moved::Blocked => break,
                // A peer that says no more has failed itself, and needs no refusal.
                Moved::Ended => return true,
            }
        }
        self.discarded += turn;
        self.discarded > DISCARD_MAX
    }
}
