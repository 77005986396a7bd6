//! Reaching a broker that runs in the same process.
//!
//! Whoever embeds a broker hands its connector to clients as an `Arc<dyn Dial>`. It lives here so that broker and clients
//! need not know each other. Over a network the same two streams are dialled at the broker's address.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;

use crate::Stream;

/// Opens streams to a broker in the same process. Both calls return at once; neither waits for the broker to answer.
pub trait Dial: Send + Sync + fmt::Debug {
    /// A new bootstrap stream, on which the client then says the same bytes as over a network, preamble first. A socket
    /// pair rather than a [`Stream`], since both sides wait for its descriptor.
    ///
    /// # Errors
    ///
    /// The broker is gone (`ConnectionRefused`), or the system has no more descriptors.
    fn bootstrap(&self) -> io::Result<UnixStream>;

    /// A new data stream to the endpoint that `preamble` names, for [`Fabric::attach`](crate::Fabric::attach). The
    /// preamble has been taken in when this returns: it is not written to the stream.
    ///
    /// # Errors
    ///
    /// The broker is gone (`ConnectionRefused`), or knows no such endpoint.
    fn data(&self, preamble: &[u8]) -> io::Result<Stream>;
}
