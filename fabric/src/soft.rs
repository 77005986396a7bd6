//! The software fabric: a device in software, for machines that have none.
//!
//! It keeps the contract of [`Fabric`] to the letter, bounds of windows included, over byte streams: a [`Pipe`] within a
//! process, a Unix socket within a host, TCP between hosts. It has no thread: everything happens inside
//! [`submit`](Fabric::submit) and [`poll`](Fabric::poll), on the thread that calls them, and so a peer's READ is served when
//! the owner of the memory polls.
//!
//! # What it promises
//!
//! - Keys, domains, access, bounds and liveness are checked for every READ, and for every fragment of a long one when that
//!   fragment leaves. Nothing is read from memory after the completion of the unbind that took it away.
//! - A window's key comes round after 256 binds and unbinds, as on a device: whoever hands out keys must see to that.
//! - A peer that sends garbage, stops reading or dies costs its own endpoint and nothing else. What is kept for it is bounded.
//!
//! # What it lacks
//!
//! Nothing is encrypted, neither tokens nor keys. A peer that is silent but connected is not noticed here, nor is the end of a
//! stream that was attached to an endpoint not yet connected: liveness is the business of whoever holds the bootstrap stream.
//!
//! A device acknowledges a SEND by itself; here the peer's process does, when it polls. One that has stopped acknowledges
//! nothing. Binds and unbinds posted behind such a SEND are executed all the same, but completions are in order, so they are
//! reported only with it, or when the endpoint is closed.

mod address;
mod completion;
mod device;
mod endpoint;
mod fabric;
mod frame;
mod incoming;
mod keys;
mod lingering;
mod outgoing;
mod pipe;
mod post;
mod progress;
mod send_queue;
mod sys;
mod transport;

pub use address::{PREAMBLE_LEN, PREAMBLE_MAGIC, TOKEN_LEN, Token, parse_preamble, preamble};
pub use fabric::{SoftConfig, SoftFabric};
pub use pipe::{PIPE_BYTES, Pipe};

#[cfg(doc)]
use crate::Fabric;
use crate::FabricError;

/// What this fabric is called.
const NAME: &str = "soft";

/// Fills bytes with the system's randomness.
fn random(bytes: &mut [u8]) -> Result<(), FabricError> {
    getrandom::fill(bytes)
        .map_err(|error| FabricError::System { what: "getrandom", source: std::io::Error::other(error) })
}
