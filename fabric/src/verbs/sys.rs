//! Every call into libibverbs, and every pointer that it deals in.
//!
//! The objects are owners: each holds its parents by `Arc` (context <- domain <- region <- window; domain <- queue pair ->
//! completion queue -> channel), so that whatever the order in which they are dropped, children go first. What a device may
//! read or write for work in flight is held by the queue pair until that work has completed, or the pair is destroyed; so
//! everything above this module is safe code.
//!
//! It adds what `rdma-sys` leaves out: null checks on tables of operations and on results, the check that window, region and
//! queue pair are of one domain, wrapping arithmetic on keys (see [`Key::next`](crate::Key::next)), keys restored after a
//! failed bind, and layouts checked when this is compiled.

mod device;
mod memory;
mod pair;
mod queue;
mod request;

use std::io;

pub(super) use device::{AsyncEvent, Context, GID_ROCE_V2, GidEntry, Limits, device_names};
pub(super) use memory::{Domain, Region, Window};
pub(super) use pair::{PairConfig, Path, Patience, QueuePair};
pub(super) use queue::{Channel, CompletionQueue, Polled, WorkCompletion};
pub(super) use request::{BindSpan, Buffer, Chain};

/// The error of a verb that returns an error number, or -1 with the number in `errno`.
fn check(returned: libc::c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.abs())),
    }
}

/// Makes a descriptor nonblocking.
fn set_nonblocking(fd: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no memory is passed.
    let result = unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The most bytes that this process may lock into memory; `None` if nothing limits it, or it cannot be told.
pub(super) fn memlock() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a writable `rlimit`.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY && !may_lock_everything()).then_some(limit.rlim_cur)
}

/// Whether this process is above the limit: it has CAP_IPC_LOCK, as root has outside of containers.
fn may_lock_everything() -> bool {
    const IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    capabilities.is_some_and(|capabilities| capabilities >> IPC_LOCK & 1 == 1)
}
