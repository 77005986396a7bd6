//! The judges: they watch what happens in the world and keep books of their own.
//!
//! Nothing here asks the machines what they believe, except where the question is whether that belief is true. What is known
//! comes from the wire, from the devices' windows, from the bytes of the pool and from the applications.

mod accounts;
mod keys;
mod log;
mod readers;
mod wakes;

use std::fmt;

use keyway_fabric::{Time, WindowId};

pub(crate) use accounts::{audit_broker, audit_client, cross_check};
pub(crate) use keys::KeyBook;
pub(crate) use log::LogBook;
pub(crate) use readers::ReaderBook;
pub(crate) use wakes::WakeBook;

/// What must never be broken. The first nine are those of the design, section 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Invariant {
    /// No READ succeeds outside a live grant.
    I1,
    /// At most D live windows a subscription.
    I2,
    /// No segment recycled under a live window.
    I3,
    /// No key value reissued in quarantine.
    I4,
    /// Each subscription sees every record once, in order, or is told the exact gap.
    I5,
    /// No key lives past epoch and grace.
    I6,
    /// A consumer that keeps the protocol never gets a remote access error.
    I7,
    /// Every committed receipt is readable until the policy drops it.
    I8,
    /// Windows, segments and credits are all accounted for when sessions end.
    I9,
    /// When nothing disturbs it any more, the bus comes to rest with everything delivered.
    Progress,
    /// The machines and the fabric agree on what is possible; no machine panics.
    Machine,
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub invariant: Invariant,
    /// How, with the values.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.text)
    }
}

/// What a check finds.
pub(crate) type Verdict = Result<(), Failure>;

/// A broken invariant, as an error.
pub(crate) fn broken<T>(invariant: Invariant, text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure { invariant, text: text.into() })
}

/// A window as the judges know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundWindow {
    pub(crate) window: WindowId,
    pub(crate) since: Time,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}
