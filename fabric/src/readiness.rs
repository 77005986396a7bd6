//! Waiting for descriptors, one or several at once: a client's driver sleeps on its fabric and on its bootstrap stream together.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// A descriptor, what is awaited of it, and whether that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The descriptor.
    pub fd: RawFd,
    /// Room to write is awaited (which is also how a connection attempt ends), rather than something to read.
    pub for_writing: bool,
    /// Set by [`wait_any`]: it is ready, or broken, which the next operation on it will tell.
    pub ready: bool,
}

impl Watch {
    /// Awaits something to read, or the end of it.
    pub const fn reading(fd: RawFd) -> Self {
        Self { fd, for_writing: false, ready: false }
    }

    /// Awaits room to write, or the end of a connection attempt.
    pub const fn writing(fd: RawFd) -> Self {
        Self { fd, for_writing: true, ready: false }
    }
}

/// The most descriptors of one wait: a fabric, a bootstrap stream, a data stream being dialled, and as many to spare.
pub const WATCHES_MAX: usize = 8;

/// Waits until one of the descriptors is ready, for `timeout` at most (forever without one). Returns how many are. A signal
/// ends the wait early.
///
/// # Errors
///
/// The system's; none is expected of open descriptors.
///
/// # Panics
///
/// If there are more than [`WATCHES_MAX`].
pub fn wait_any(watches: &mut [Watch], timeout: Option<Duration>) -> io::Result<usize> {
    assert!(watches.len() <= WATCHES_MAX, "{} descriptors to watch, the limit is {WATCHES_MAX}", watches.len());
    let mut fds = [libc::pollfd { fd: -1, events: 0, revents: 0 }; WATCHES_MAX];
    for (fd, watch) in fds.iter_mut().zip(watches.iter()) {
        let events = if watch.for_writing { libc::POLLOUT } else { libc::POLLIN };
        *fd = libc::pollfd { fd: watch.fd, events, revents: 0 };
    }
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout_at = timeout.as_ref().map_or(std::ptr::null(), |timeout| timeout as *const libc::timespec);
    // SAFETY: `fds` is an array of at least `watches.len()` initialized entries that outlives the call, `timeout_at` is null
    // or points to a `timespec` that does, and a null signal mask leaves the mask alone.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), watches.len() as libc::nfds_t, timeout_at, std::ptr::null()) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) };
    }
    for (watch, fd) in watches.iter_mut().zip(&fds) {
        watch.ready = fd.revents != 0;
    }
    Ok(ready as usize)
}

/// Waits until `fd` is readable, for `timeout` at most (forever without one). It may return early: look again.
///
/// # Errors
///
/// As of [`wait_any`].
pub fn wait(fd: RawFd, timeout: Option<Duration>) -> io::Result<()> {
    wait_any(&mut [Watch::reading(fd)], timeout).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Waker;

    #[test]
    fn the_descriptor_that_is_ready_is_named() {
        let (quiet, woken) = (Waker::new().unwrap(), Waker::new().unwrap());
        let mut watches = [Watch::reading(quiet.fd()), Watch::reading(woken.fd())];
        assert_eq!(wait_any(&mut watches, Some(Duration::ZERO)).unwrap(), 0);
        woken.wake();
        assert_eq!(wait_any(&mut watches, None).unwrap(), 1);
        assert_eq!(watches.map(|watch| watch.ready), [false, true]);
    }

    #[test]
    fn a_wait_without_cause_ends_with_its_timeout() {
        let quiet = Waker::new().unwrap();
        let mut watches = [Watch::reading(quiet.fd())];
        assert_eq!(wait_any(&mut watches, Some(Duration::from_millis(1))).unwrap(), 0);
        assert!(!watches[0].ready);
    }
}
