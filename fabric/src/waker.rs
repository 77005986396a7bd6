//! Waking the thread that drives a fabric.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Makes a descriptor readable from any thread. Clones wake the same sleeper.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A waker of its own.
    ///
    /// # Errors
    ///
    /// The system's, when it has no more descriptors.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just made this descriptor, and nothing else owns it.
        Ok(Self(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Wakes the sleeper, or lets its next sleep end at once.
    pub fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: `one` is 8 readable bytes, and the descriptor is open for as long as `self` is. A full counter (EAGAIN)
        // means that the sleeper has been woken already.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes back every wake so far.
    pub fn clear(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: `count` is 8 writable bytes. With no wake pending the call fails with EAGAIN, which is what is wanted.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    /// The descriptor, readable once woken.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
