//! What has happened and was not polled yet, and what is given back when it is.

use std::collections::VecDeque;

use crate::memory::Claim;
use crate::{Event, LocalId, WindowId};

/// An event, and what its being polled releases.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) event: Event,
    pub(super) release: Release,
}

/// What goes back to its owner when a completion is polled: until then the work counts as in flight.
#[derive(Debug)]
pub(super) enum Release {
    /// Nothing: the event ends no work.
    Nothing,
    /// A place in the receive queue, and the slot.
    Receive(LocalClaim),
    /// A place in the send queue, and a slot if the work used one.
    Send(Option<LocalClaim>),
    /// A place in the send queue, and the window.
    Window(WindowId),
}

/// A claim to a slot, and whose slot it is.
#[derive(Debug)]
pub(super) struct LocalClaim {
    pub(super) local: LocalId,
    pub(super) claim: Claim,
}

/// Completions in the order in which they happened. Bounded by the endpoints' depths, since each ends a posted piece of
/// work, or is one of an endpoint's two events of its own.
pub(super) type Completions = VecDeque<Completion>;
