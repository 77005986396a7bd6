//! What can be asked of a fabric, and what it reports.

use crate::{DomainId, FabricError, Key, LinkId, LocalId, LocalSpan, Op, RemoteSpan, SharedSpan, WindowId};

/// What a binding allows to the peers that hold its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Nothing: the key exists and opens nothing.
    None,
    /// READ.
    Read,
}

/// Where a READ puts what it fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A slot of local memory.
    Local(LocalSpan),
    /// Shared memory: how the broker pulls a large batch straight into the ring.
    Shared(SharedSpan),
}

/// A piece of work for an endpoint. An endpoint executes its SENDs, READs, binds and unbinds in the order in which they
/// were posted; receives are taken by incoming messages in their own order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Offers a slot to one incoming message.
    Recv {
        /// The slot, or a part of it.
        into: LocalSpan,
    },
    /// Sends one message into the peer's next receive slot. Done when it is there.
    Send {
        /// The message.
        from: LocalSpan,
    },
    /// Fetches a peer's memory.
    Read {
        /// What to fetch, and the key that opens it.
        from: RemoteSpan,
        /// Where to put it; as long as `from`.
        into: Target,
    },
    /// Binds a window to a range and gives it its next key; the key before it is dead from then on. Fenced: waits for this
    /// endpoint's own outstanding READs.
    Bind {
        /// The window; no bind or unbind of it may be outstanding.
        window: WindowId,
        /// The range that its key will open.
        span: SharedSpan,
        /// What the key will allow.
        access: Access,
    },
    /// Unbinds a window: its key is dead from then on. Uses up a key, like a bind. Fenced.
    Unbind {
        /// The window; no bind or unbind of it may be outstanding.
        window: WindowId,
    },
}

/// What a machine wants done. [`drive`](crate::drive) does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transmit {
    /// Post work to an endpoint.
    Post {
        /// The endpoint.
        link: LinkId,
        /// The tag of its completion.
        op: Op,
        /// The work.
        work: Work,
    },
    /// Close an endpoint: what is in flight is flushed, then [`Event::Down`] ends it.
    Close {
        /// The endpoint.
        link: LinkId,
    },
    /// Allocate a window; answered by [`Event::Allocated`]. Dear on real devices (some hundred binds' worth), so it is done
    /// ahead of need.
    Allocate {
        /// The tag of the answer.
        op: Op,
        /// The domain whose endpoints may use its keys.
        domain: DomainId,
    },
    /// Deallocate a window; its key, if it is bound, is dead from then on.
    FreeWindow {
        /// The window.
        window: WindowId,
    },
    /// Free local memory. What is in flight or viewed keeps its bytes alive until it ends.
    FreeLocal {
        /// The memory.
        local: LocalId,
    },
}

/// What a fabric reports.
///
/// For each endpoint: first [`Up`](Event::Up); exactly one [`Done`](Event::Done) or [`Message`](Event::Message) for every
/// piece of work that was posted; last [`Down`](Event::Down), after which its id names nothing.
#[derive(Debug)]
pub enum Event {
    /// The endpoint is connected to its peer.
    Up {
        /// The endpoint.
        link: LinkId,
    },
    /// A message has arrived in a receive slot.
    Message {
        /// The endpoint.
        link: LinkId,
        /// The tag of the receive that it took.
        op: Op,
        /// The message's bytes: the slot's start, as long as the message.
        span: LocalSpan,
    },
    /// A piece of work is over.
    Done {
        /// The endpoint.
        link: LinkId,
        /// Its tag.
        op: Op,
        /// How it went. Any error other than `Flushed` has put the endpoint into the error state.
        result: Result<Outcome, WorkError>,
    },
    /// The endpoint is gone. Its windows are still bound: unbind them through another endpoint of the domain, or free them.
    Down {
        /// The endpoint.
        link: LinkId,
        /// Why.
        cause: DownCause,
    },
    /// The answer to [`Transmit::Allocate`].
    Allocated {
        /// Its tag.
        op: Op,
        /// The window, or why there is none.
        result: Result<WindowId, FabricError>,
    },
}

/// How a successful piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The SEND arrived, or the READ's bytes are there.
    Finished,
    /// The window is bound under this key.
    Bound(Key),
    /// The window is unbound.
    Unbound,
}

/// How a failed piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// The peer refused a READ: a dead or foreign key, out of bounds, or no right. Both endpoints are in the error state.
    #[error("the peer refused the READ: its key is dead or foreign, or does not open that range (remote access error)")]
    RemoteAccess,
    /// The peer had no receive slot posted for a SEND, or too small a one.
    #[error("the peer had no receive slot for the message")]
    ReceiverNotReady,
    /// A message was longer than the receive slot that it met.
    #[error("the message was longer than the receive slot")]
    TooLong,
    /// A bind was not possible: window and memory of different domains, or a range outside the memory.
    #[error("the window could not be bound: another domain, or a range outside the memory")]
    Bind,
    /// Not executed, since the endpoint was already in the error state or closed.
    #[error("not executed: the endpoint was closed or in the error state")]
    Flushed,
    /// The peer or the way to it is gone.
    #[error("the peer is gone")]
    Disconnected,
    /// The device refused the work, or failed.
    #[error("the device refused the work or failed; the log has its reason")]
    Device,
}

/// Why an endpoint went down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum DownCause {
    /// It was closed on this side.
    #[error("closed on this side")]
    Closed,
    /// The peer closed it or died.
    #[error("the peer closed the connection or died")]
    PeerLost,
    /// This side's work failed.
    #[error("{0}")]
    Work(WorkError),
    /// The peer's READ was refused here: it used a dead or foreign key, or left its range.
    #[error("the peer's READ was refused: a dead or foreign key, or out of range")]
    PeerViolation,
    /// What arrived made no sense.
    #[error("the peer broke the fabric's protocol")]
    Protocol,
}
