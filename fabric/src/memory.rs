//! The two kinds of memory, and who may touch which bytes when.
//!
//! [`LocalMemory`] is cut into slots. Each byte of a slot belongs, at any time, to exactly one of: its owner (the thread that
//! drives the fabric), a piece of work in flight that writes it, or the views that were given out. The type keeps the
//! account and refuses what would break it, so that everything above is safe code:
//!
//! - views only cover bytes below the slot's *frozen* mark, and nothing writes below it until no view is left and the owner
//!   resets the slot;
//! - work in flight lays a claim to its span; the owner gets no reference to a span that a writing claim overlaps, and
//!   no mutable one to a span that any claim overlaps.
//!
//! Shared memory can be reached by peers (through a device, by DMA) and is therefore never behind a reference: it is copied
//! in and out through raw pointers.

mod local;
mod pages;
mod resident;
mod shared;

#[cfg(feature = "verbs")]
pub(crate) use local::LocalMapping;
pub use local::{Claim, LocalMemory, SlotRange, Use, View};
pub use pages::{HugePages, NoSuchPages};
pub(crate) use resident::{Local, Locals, Resident};
pub(crate) use shared::SharedMemory;
