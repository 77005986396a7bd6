//! Byte streams that carry a software endpoint.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use crate::soft::Pipe;

/// A connected byte stream.
#[derive(Debug)]
pub enum Stream {
    /// Within one process.
    Memory(Pipe),
    /// Within one host.
    Unix(UnixStream),
    /// Between hosts.
    Tcp(TcpStream),
}
