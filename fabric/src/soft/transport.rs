//! What carries the frames: a nonblocking byte stream, be it a pipe, a Unix socket or a TCP connection.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::Pipe;
use super::sys::{self, Gather, Scatter};
use crate::{Stream, Waker};

/// The send buffer that is asked of a Unix socket, whose default holds no more than three READ fragments. A TCP connection's
/// grows by itself.
const SEND_BUFFER: libc::c_int = 1024 * 1024;

/// A nonblocking byte stream.
#[derive(Debug)]
pub(super) struct Transport(Stream);

/// What a read or write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing now.
    Blocked,
    /// Nothing any more.
    Ended,
}

impl Transport {
    pub(super) fn new(stream: Stream, waker: Waker) -> io::Result<Self> {
        match &stream {
            Stream::Memory(pipe) => pipe.set_waker(waker),
            Stream::Unix(socket) => {
                socket.set_nonblocking(true)?;
                sys::enlarge_send_buffer(socket.as_fd(), SEND_BUFFER);
            }
            Stream::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                // Frames are coalesced here already; waiting for more would only add latency.
                socket.set_nodelay(true)?;
            }
        }
        Ok(Self(stream))
    }

    /// The pipe, if it is one.
    pub(super) fn pipe(&self) -> Option<&Pipe> {
        match &self.0 {
            Stream::Memory(pipe) => Some(pipe),
            Stream::Unix(_) | Stream::Tcp(_) => None,
        }
    }

    /// The socket, if it is one.
    pub(super) fn socket(&self) -> Option<RawFd> {
        self.borrowed().map(|socket| socket.as_raw_fd())
    }

    fn borrowed(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Stream::Memory(_) => None,
            Stream::Unix(socket) => Some(socket.as_fd()),
            Stream::Tcp(socket) => Some(socket.as_fd()),
        }
    }

    pub(super) fn write(&mut self, gather: &Gather<'_>) -> Moved {
        moved(match &mut self.0 {
            Stream::Memory(pipe) => pipe.write(gather),
            Stream::Unix(socket) => sys::write(socket.as_fd(), gather),
            Stream::Tcp(socket) => sys::write(socket.as_fd(), gather),
        })
    }

    pub(super) fn read(&mut self, scatter: &mut Scatter<'_>) -> Moved {
        moved(match &mut self.0 {
            Stream::Memory(pipe) => pipe.read(scatter),
            Stream::Unix(socket) => sys::read(socket.as_fd(), scatter),
            Stream::Tcp(socket) => sys::read(socket.as_fd(), scatter),
        })
    }

    /// Writes no more. The peer reads what was written, then the end.
    pub(super) fn shut(&self) {
        // A socket that cannot be shut is not connected any more, which is what is wanted.
        match &self.0 {
            Stream::Memory(pipe) => pipe.shut(),
            Stream::Unix(socket) => drop(socket.shutdown(Shutdown::Write)),
            Stream::Tcp(socket) => drop(socket.shutdown(Shutdown::Write)),
        }
    }
}

fn moved(result: io::Result<usize>) -> Moved {
    match result {
        Ok(0) => Moved::Ended,
        Ok(count) => Moved::Bytes(count),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Moved::Blocked,
        // Whatever else it is (reset, timed out, unreachable), the stream carries no more.
        Err(_) => Moved::Ended,
    }
}
