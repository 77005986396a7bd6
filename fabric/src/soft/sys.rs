//! The system calls of the software fabric: vectored, nonblocking reads and writes of raw ranges.
//!
//! Shared memory may not be put behind a reference, so what is to be moved is named by [`Gather`] and [`Scatter`]: lists of
//! raw ranges that are built from borrowed owners, so that safe code cannot name a range that is gone.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::memory::SharedMemory;

/// The most ranges of one call: enough for a turn's small frames in one and some dozens of payloads.
pub(super) const SEGMENTS_MAX: usize = 64;

const NO_SEGMENT: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Ranges to be written out, in order.
pub(super) struct Gather<'a> {
    segments: [libc::iovec; SEGMENTS_MAX],
    count: usize,
    len: usize,
    sources: PhantomData<&'a ()>,
}

impl<'a> Gather<'a> {
    pub(super) fn new() -> Self {
        Self { segments: [NO_SEGMENT; SEGMENTS_MAX], count: 0, len: 0, sources: PhantomData }
    }

    /// How many bytes there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn segments(&self) -> &[libc::iovec] {
        &self.segments[..self.count]
    }

    pub(super) fn bytes(&mut self, bytes: &'a [u8]) {
        self.push(bytes.as_ptr().cast_mut(), bytes.len());
    }

    pub(super) fn shared(&mut self, memory: &'a SharedMemory, offset: u64, len: usize) {
        self.push(memory.address(offset, len as u64), len);
    }

    fn push(&mut self, start: *mut u8, len: usize) {
        if len > 0 {
            self.segments[self.count] = libc::iovec { iov_base: start.cast(), iov_len: len };
            self.count += 1;
            self.len += len;
        }
    }
}

/// Ranges to be filled, in order: the rest of a payload, and the receive buffer behind it.
pub(super) struct Scatter<'a> {
    segments: [libc::iovec; 2],
    count: usize,
    targets: PhantomData<&'a mut ()>,
}

impl<'a> Scatter<'a> {
    pub(super) fn new() -> Self {
        Self { segments: [NO_SEGMENT; 2], count: 0, targets: PhantomData }
    }

    pub(super) fn segments(&self) -> &[libc::iovec] {
        &self.segments[..self.count]
    }

    pub(super) fn bytes(&mut self, bytes: &'a mut [u8]) {
        self.push(bytes.as_mut_ptr(), bytes.len());
    }

    pub(super) fn shared(&mut self, memory: &'a SharedMemory, offset: u64, len: usize) {
        self.push(memory.address(offset, len as u64), len);
    }

    fn push(&mut self, start: *mut u8, len: usize) {
        if len > 0 {
            self.segments[self.count] = libc::iovec { iov_base: start.cast(), iov_len: len };
            self.count += 1;
        }
    }
}

/// Writes to a nonblocking socket, without SIGPIPE.
pub(super) fn write(socket: BorrowedFd<'_>, gather: &Gather<'_>) -> io::Result<usize> {
    // SAFETY: an all-zero `msghdr` is a valid one that names nothing.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = gather.segments().as_ptr().cast_mut();
    message.msg_iovlen = gather.count as _;
    // SAFETY: the message names `count` initialized segments, each of which is readable: it was made from a slice or a
    // checked range of shared memory whose owner is borrowed for as long as `gather` lives. The call only reads them.
    let written = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Reads from a nonblocking socket; 0 is its end.
pub(super) fn read(socket: BorrowedFd<'_>, scatter: &mut Scatter<'_>) -> io::Result<usize> {
    let segments = scatter.segments();
    // SAFETY: each segment is writable and nobody else looks at it meanwhile: it was made from a mutable slice that is
    // borrowed for as long as `scatter` lives, or is a checked range of shared memory, which no reference ever covers
    // and whose owner is borrowed.
    let read = unsafe { libc::readv(socket.as_raw_fd(), segments.as_ptr(), segments.len() as libc::c_int) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Asks for a larger send buffer; the system caps it. A refusal costs speed, nothing else.
pub(super) fn enlarge_send_buffer(socket: BorrowedFd<'_>, bytes: libc::c_int) {
    // SAFETY: the option's value is one readable `c_int`, as its length says.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            (&raw const bytes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}
