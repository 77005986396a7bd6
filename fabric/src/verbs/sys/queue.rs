//! Completion queues and the channel on which they wake a sleeper.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as ib;

use super::device::Context;
use super::{check, set_nonblocking};

/// How many completions are taken in one call: enough that the call's price is spread, few enough to stay in the cache.
const BATCH: usize = 64;

/// Wakes whoever waits for the completion queues that were made on it.
pub(in crate::verbs) struct Channel {
    raw: NonNull<ib::ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread, and the channel is destroyed by its one owner's drop.
unsafe impl Send for Channel {}
// SAFETY: as above; shared use is locked inside libibverbs.
unsafe impl Sync for Channel {}

impl Channel {
    pub(in crate::verbs) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = unsafe { ib::ibv_create_comp_channel(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = Self { raw, context: Arc::clone(context) };
        set_nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    /// Readable when a queue that was asked to notify has a new completion.
    pub(in crate::verbs) fn fd(&self) -> RawFd {
        // SAFETY: the channel is there, and its descriptor never changes.
        unsafe { self.raw.as_ref().fd }
    }

    /// Takes notifications, up to `limit`, and tells whether there was one.
    pub(in crate::verbs) fn take_notifications(&self, limit: usize) -> bool {
        let mut any = false;
        for _ in 0..limit {
            let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: the channel is there, its descriptor nonblocking, and both targets are writable.
            if unsafe { ib::ibv_get_cq_event(self.raw.as_ptr(), &mut queue, &mut context) } != 0 {
                return any;
            }
            any = true;
            // SAFETY: the queue of a notification that is not acknowledged is not destroyed: `ibv_destroy_cq` waits for it.
            unsafe { ib::ibv_ack_cq_events(queue, 1) };
        }
        any
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by `new`; the queues on it hold this value by `Arc` and are gone.
        if let Err(error) = check(unsafe { ib::ibv_destroy_comp_channel(self.raw.as_ptr()) }) {
            tracing::error!(device = self.context.name(), %error, "ibv_destroy_comp_channel failed");
        }
    }
}

/// How a piece of work ended, in the device's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct WorkCompletion {
    /// The place that its queue pair was made for.
    pub(in crate::verbs) place: u32,
    /// Whether it is of the receive queue.
    pub(in crate::verbs) receive: bool,
    /// Its number on that queue.
    pub(in crate::verbs) number: u32,
    /// `enum ibv_wc_status`.
    pub(in crate::verbs) status: u32,
    /// How many bytes have arrived; of a receive that succeeded only.
    pub(in crate::verbs) len: u32,
    /// The number of its queue pair.
    pub(in crate::verbs) pair: u32,
    /// The vendor's own code for the error.
    pub(in crate::verbs) vendor: u32,
}

/// What a piece of work is posted as: what [`WorkCompletion`] tells again.
pub(super) const fn work_id(place: u32, receive: bool, number: u32) -> u64 {
    (place as u64) << 33 | (receive as u64) << 32 | number as u64
}

/// Room for a batch of completions, kept between polls.
pub(in crate::verbs) struct Polled {
    raw: Box<[MaybeUninit<ib::ibv_wc>; BATCH]>,
    count: usize,
}

impl Polled {
    pub(in crate::verbs) fn new() -> Self {
        Self { raw: Box::new([const { MaybeUninit::uninit() }; BATCH]), count: 0 }
    }

    pub(in crate::verbs) fn len(&self) -> usize {
        self.count
    }

    pub(in crate::verbs) fn at(&self, place: usize) -> WorkCompletion {
        assert!(place < self.count, "completion {place} of {}", self.count);
        // SAFETY: `poll` has initialized the first `count`; of one that failed, only the fields that are valid then are
        // looked at: `ibv_poll_cq` always writes these five.
        let raw = unsafe { self.raw[place].assume_init_ref() };
        WorkCompletion {
            place: (raw.wr_id >> 33) as u32,
            receive: raw.wr_id >> 32 & 1 == 1,
            number: raw.wr_id as u32,
            status: raw.status,
            len: raw.byte_len,
            pair: raw.qp_num,
            vendor: raw.vendor_err,
        }
    }
}

/// A completion queue.
pub(in crate::verbs) struct CompletionQueue {
    raw: NonNull<ib::ibv_cq>,
    entries: u32,
    channel: Arc<Channel>,
}

// SAFETY: libibverbs may be called from any thread, and the queue is destroyed by its one owner's drop.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; polling is locked inside the provider.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(in crate::verbs) fn new(channel: &Arc<Channel>, entries: u32) -> io::Result<Arc<Self>> {
        let entries = libc::c_int::try_from(entries).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let context = channel.context.raw();
        // SAFETY: context and channel are there, and of the same device; no context of ours is passed.
        let raw = unsafe { ib::ibv_create_cq(context, entries, std::ptr::null_mut(), channel.raw.as_ptr(), 0) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the queue has just been made.
        let has_operations = unsafe { (*context).ops.poll_cq.is_some() && (*context).ops.req_notify_cq.is_some() };
        // SAFETY: as above.
        let entries = unsafe { raw.as_ref().cqe };
        let queue = Self { raw, entries: u32::try_from(entries).unwrap_or(0), channel: Arc::clone(channel) };
        if !has_operations {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        Ok(Arc::new(queue))
    }

    pub(super) fn raw(&self) -> *mut ib::ibv_cq {
        self.raw.as_ptr()
    }

    /// How many completions it holds: at least as many as were asked for.
    pub(in crate::verbs) fn entries(&self) -> u32 {
        self.entries
    }

    /// Asks that the channel be notified of the next completion.
    pub(in crate::verbs) fn notify(&self) -> io::Result<()> {
        // SAFETY: the queue is there, and `new` has checked that the operation is.
        check(unsafe { ib::ibv_req_notify_cq(self.raw(), 0) })
    }

    /// Takes up to `limit` completions, or a batch of them.
    pub(in crate::verbs) fn poll(&self, polled: &mut Polled, limit: usize) -> io::Result<()> {
        polled.count = 0;
        let room = limit.min(BATCH) as i32;
        // SAFETY: the queue is there, `new` has checked that the operation is, and there is room for a batch.
        let count = unsafe { ib::ibv_poll_cq(self.raw(), room, polled.raw.as_mut_ptr().cast()) };
        polled.count = usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(libc::EIO))?;
        Ok(())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: made by `new`; queue pairs hold this value by `Arc` and are gone, and notifications are acknowledged as
        // soon as they are taken.
        if let Err(error) = check(unsafe { ib::ibv_destroy_cq(self.raw()) }) {
            tracing::error!(device = self.channel.context.name(), %error, "ibv_destroy_cq failed");
        }
    }
}
