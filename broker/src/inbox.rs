//! The reactor's inbox: what other threads may ask of it.
//!
//! Two bounded channels. Requests are refused when there are too many of them, and whoever asked gives up. That a session
//! is lost must not get lost itself, so these come by a channel of their own, which holds one for every session that
//! there can be. Every post wakes the reactor.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TrySendError};
use keyway_fabric::soft::Token;
use keyway_fabric::{EndpointAddress, Stream, Waker};
use keyway_schema::bootstrap::Role;
use tokio::sync::oneshot;

use crate::core::{Counters, Refusal, SessionId};
use crate::listener::CONNECTIONS_MAX;

/// The most requests that wait: one for every connection whose bootstrap is not done on each of the three kinds of port
/// (TCP, Unix, in-process), and one for each call of the library that asks (they take turns).
const REQUESTS_MAX: usize = 3 * CONNECTIONS_MAX + 3;

/// What the reactor is asked.
pub(crate) enum Request {
    /// Open a session.
    Open { opening: Opening, reply: oneshot::Sender<Result<Opened, Refusal>> },
    /// Connect a session's endpoint to the client's.
    Confirm { session: SessionId, endpoint: EndpointAddress, reply: oneshot::Sender<Result<(), Refusal>> },
    /// Give a byte stream to the endpoint that it was dialled for; the answer says whether there is one.
    Data { token: Token, stream: Stream, reply: Box<dyn FnOnce(bool) + Send> },
    /// Tell the counters.
    Counters { reply: Sender<Counters> },
    /// Stop: drain within the deadline, then end.
    Stop { deadline: Duration },
    /// Panic, as a bug would.
    #[cfg(test)]
    Panic,
}

/// A client that wants a session.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    pub(crate) role: Role,
    pub(crate) name: String,
    pub(crate) receive_slots: u16,
    pub(crate) receive_size: u32,
}

/// A session that was opened. Dropping it ends the session.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) session: OpenSession,
    pub(crate) instance: u64,
    pub(crate) generation: u32,
    pub(crate) endpoint: EndpointAddress,
    pub(crate) receive_slots: u16,
    pub(crate) receive_size: u32,
    pub(crate) offers: u16,
    /// Resolves when the broker has closed the session, with its reason where that was not the client's wish.
    pub(crate) closed: oneshot::Receiver<Option<Refusal>>,
}

/// Stands for a session while its bootstrap stream lives: on drop the reactor is told that the session is lost.
pub(crate) struct OpenSession {
    id: SessionId,
    inbox: Inbox,
}

/// Why a request did not reach the reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unposted {
    /// Too many others wait.
    Full,
    /// The reactor has ended.
    Gone,
}

/// The side that posts.
#[derive(Clone)]
pub(crate) struct Inbox {
    requests: Sender<Request>,
    losses: Sender<SessionId>,
    waker: Waker,
}

/// The reactor's side.
pub(crate) struct Mail {
    requests: Receiver<Request>,
    losses: Receiver<SessionId>,
    waker: Waker,
}

/// Makes both sides, for at most `sessions_max` sessions at once.
pub(crate) fn inbox(sessions_max: u32, waker: Waker) -> (Inbox, Mail) {
    let (requests, requests_out) = crossbeam_channel::bounded(REQUESTS_MAX);
    // Twice: a loss may wait whose session the reactor closed by itself, and whose place another session has taken.
    let (losses, losses_out) = crossbeam_channel::bounded(2 * sessions_max as usize);
    let inbox = Inbox { requests, losses, waker: waker.clone() };
    (inbox, Mail { requests: requests_out, losses: losses_out, waker })
}

impl Inbox {
    /// Posts a request, unless too many wait already. Never blocks.
    pub(crate) fn post(&self, request: Request) -> Result<(), Unposted> {
        self.requests.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => Unposted::Full,
            TrySendError::Disconnected(_) => Unposted::Gone,
        })?;
        self.waker.wake();
        Ok(())
    }

    /// Posts a request, waiting for room if need be. Not for async tasks.
    pub(crate) fn post_within(&self, request: Request, timeout: Duration) -> Result<(), Unposted> {
        self.requests.send_timeout(request, timeout).map_err(|error| match error {
            SendTimeoutError::Timeout(_) => Unposted::Full,
            SendTimeoutError::Disconnected(_) => Unposted::Gone,
        })?;
        self.waker.wake();
        Ok(())
    }

    /// What stands for a session that was just opened.
    pub(crate) fn open_session(&self, id: SessionId) -> OpenSession {
        OpenSession { id, inbox: self.clone() }
    }

    fn lost(&self, session: SessionId) {
        match self.losses.try_send(session) {
            Ok(()) => self.waker.wake(),
            // The reactor has ended, and its sessions with it.
            Err(TrySendError::Disconnected(_)) => (),
            // The session's data stream ends with its client too, and the endpoint tells of that.
            Err(TrySendError::Full(_)) => {
                tracing::error!(session = session.0, "the reactor is held up: cannot tell it that a session is lost");
            }
        }
    }
}

impl Mail {
    /// To be called before looking, so that what is posted later wakes again.
    pub(crate) fn clear_wakes(&self) {
        self.waker.clear();
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.losses.is_empty()
    }

    /// The next session that was lost.
    pub(crate) fn next_loss(&self) -> Option<SessionId> {
        self.losses.try_recv().ok()
    }

    /// The next request.
    pub(crate) fn next_request(&self) -> Option<Request> {
        self.requests.try_recv().ok()
    }

    /// Readable when something was posted.
    pub(crate) fn fd(&self) -> std::os::fd::RawFd {
        self.waker.fd()
    }
}

impl OpenSession {
    pub(crate) const fn id(&self) -> SessionId {
        self.id
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.inbox.lost(self.id);
    }
}

impl fmt::Debug for OpenSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {}", self.id.0)
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inbox with {} requests", self.requests.len())
    }
}
