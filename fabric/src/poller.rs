//! Watching descriptors: what makes a fabric's own descriptor readable.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What happened to a watched descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// What it was registered as.
    pub(crate) tag: u64,
    /// There is something to read, or the end of it.
    pub(crate) readable: bool,
    /// There is room to write.
    pub(crate) writable: bool,
}

/// The most descriptors that one look reports; the system takes turns among them.
const READY_MAX: usize = 64;

/// Watches descriptors, level-triggered.
pub(crate) struct Poller {
    epoll: OwnedFd,
    ready: Vec<libc::epoll_event>,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just made this descriptor, and nothing else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { epoll, ready: vec![libc::epoll_event { events: 0, u64: 0 }; READY_MAX] })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Watches for something to read, and for room to write if `writable`.
    pub(crate) fn add(&self, fd: RawFd, tag: u64, writable: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, tag, writable)
    }

    /// Changes what is watched for.
    pub(crate) fn change(&self, fd: RawFd, tag: u64, writable: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, tag, writable)
    }

    /// Stops watching. What is not watched is left alone.
    pub(crate) fn remove(&self, fd: RawFd) {
        // The only failures are that it is not watched or not open, and then there is nothing to stop.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, false);
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, tag: u64, writable: bool) -> io::Result<()> {
        let events = libc::EPOLLIN | if writable { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event { events: events as u32, u64: tag };
        // SAFETY: `event` is a readable `epoll_event` for the length of the call.
        let result = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &mut event) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Appends what is ready now. Never waits.
    pub(crate) fn look(&mut self, found: &mut Vec<Ready>) {
        // SAFETY: `ready` is `READY_MAX` writable events.
        let count =
            unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), self.ready.as_mut_ptr(), READY_MAX as libc::c_int, 0) };
        // A signal may interrupt the call; then there is nothing to report this time.
        let count = usize::try_from(count).unwrap_or(0);
        found.extend(self.ready[..count].iter().map(|event| {
            let events = event.events as libc::c_int;
            Ready {
                tag: event.u64,
                readable: events & (libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR) != 0,
                writable: events & libc::EPOLLOUT != 0,
            }
        }));
    }
}
