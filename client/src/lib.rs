//! What Keyway's producer and consumer share: where a broker is, how a session with it comes about and is kept up, and the
//! thread that drives a role.
//!
//! - [`Server`] is an address; [`Error`] is what can go wrong, for producers and consumers alike.
//! - [`Role`] is a producer's or consumer's state machine with what joins it to the application.
//! - [`Driver`] is the one thread of a client object: it connects, reconnects with jittered pauses, drives the role, and
//!   sleeps when there is nothing to do.
//!
//! It knows nothing of topics, batches or grants. Applications use `keyway-producer` and `keyway-consumer`.

#![forbid(unsafe_code)]

mod backoff;
mod blocking;
mod bootstrap;
mod connection;
mod data_stream;
mod driver;
mod error;
mod fabrics;
mod notifier;
mod role;
mod server;
mod socket;
mod turning;

pub use backoff::{Backoff, PAUSE_MAX, PAUSE_MIN};
pub use blocking::wait_for;
pub use driver::{Driver, DriverConfig, Opening, WAIT_MAX};
pub use error::{Error, ErrorKind};
pub use fabrics::OpenFabric;
pub use keyway_fabric::{Dial, FabricChoice};
pub use notifier::Notifier;
pub use role::{ATTEMPT_TIMEOUT, CONNECT_TIMEOUT, Connected, Progress, Role, SessionPlan};
pub use server::{AddressError, AddressProblem, DEFAULT_PORT, Server};
