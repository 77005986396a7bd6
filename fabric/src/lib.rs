//! Remote memory with the semantics of verbs: links, regions, windows, keys and completions.
//!
//! The [`Fabric`] trait is the contract; [`soft`] is the backend that needs no device. Whatever works on one works on the
//! other, and [`conformance`] is the list of what that means. This crate knows no message of the bus.

mod choice;
pub mod conformance;
mod contract;
mod dial;
mod error;
mod id;
mod idle;
mod machine;
pub mod memory;
mod poller;
pub mod probe;
mod readiness;
pub mod soft;
mod span;
mod stream;
mod table;
mod time;
#[cfg(feature = "verbs")]
pub mod verbs;
mod waker;
mod work;

pub use choice::{FabricChoice, FabricOptions, NoSuchFabric, Opened};
pub use contract::{Capabilities, EndpointAddress, EndpointConfig, Fabric, Holdings, Memory};
pub use dial::Dial;
pub use error::{FabricError, one_line};
pub use id::{DomainId, Key, LinkId, LocalId, Op, SharedId, WindowId};
pub use idle::{IdleLimits, IdleStrategy, Rest};
pub use machine::{EVENTS_A_TURN, Machine, drive};
pub use memory::{HugePages, NoSuchPages, View};
pub use readiness::{WATCHES_MAX, Watch, wait, wait_any};
pub use span::{LocalSpan, RemoteSpan, SharedSpan};
pub use stream::Stream;
pub use time::{Now, SystemClock, Time, WallTime};
pub use waker::Waker;
pub use work::{Access, DownCause, Event, Outcome, Target, Transmit, Work, WorkError};
