//! A byte stream within one process.
//!
//! Two bounded rings, one each way, each with one writer and one reader. No lock and, while both sides are awake, no system
//! call: an end that goes to sleep says so, and only then does the other end pay for waking it.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use super::sys::{Gather, Scatter};
use crate::Waker;
use crate::memory::SharedMemory;

/// How many bytes fit in one direction: a ring is gone through from end to end again and again, and one that stays in a core's
/// second-level cache moves half as much again as a larger one. Its pages are only taken from the system once they are used.
pub const PIPE_BYTES: u64 = 512 * 1024;

/// One end of an in-process byte stream.
pub struct Pipe {
    shared: Arc<Shared>,
    side: usize,
}

struct Shared {
    /// `rings[side]` is written by that side.
    rings: [Ring; 2],
    ends: [End; 2],
}

struct Ring {
    bytes: SharedMemory,
    /// How many bytes have ever been taken; written by the reader alone.
    taken: AtomicU64,
    /// How many bytes have ever been put; written by the writer alone.
    put: AtomicU64,
}

#[derive(Default)]
struct End {
    /// Says whom to wake, once attached to a fabric.
    waker: OnceLock<Waker>,
    /// Wants to be woken at the next change.
    asleep: AtomicBool,
    /// Will write no more.
    shut: AtomicBool,
    /// Will read no more.
    gone: AtomicBool,
}

impl Pipe {
    /// Two ends of a new stream.
    ///
    /// # Errors
    ///
    /// The system's, when it has no more memory.
    pub fn pair() -> io::Result<(Self, Self)> {
        let ring =
            || Ok::<_, io::Error>(Ring { bytes: SharedMemory::new(PIPE_BYTES)?, taken: 0.into(), put: 0.into() });
        let shared = Arc::new(Shared { rings: [ring()?, ring()?], ends: Default::default() });
        Ok((Self { shared: Arc::clone(&shared), side: 0 }, Self { shared, side: 1 }))
    }

    /// Says whom to wake when something changes while this end sleeps.
    pub(super) fn set_waker(&self, waker: Waker) {
        // A second fabric cannot have it: attaching takes the pipe by value.
        let _ = self.own().waker.set(waker);
    }

    /// From now on, wake this end once at the next change. Look again after calling this, before sleeping.
    pub(super) fn sleep(&self) {
        self.own().asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence of `wake_peer`: either the peer sees that this end sleeps, or this end, looking again, sees
        // what the peer has changed.
        fence(Ordering::SeqCst);
    }

    /// Whether a read would give something, be it the end.
    pub(super) fn readable(&self) -> bool {
        let ring = &self.shared.rings[1 - self.side];
        let peer = self.peer();
        ring.put.load(Ordering::Acquire) != ring.taken.load(Ordering::Relaxed) || peer.shut.load(Ordering::Acquire)
    }

    /// Whether a write would take something, or fail.
    pub(super) fn writable(&self) -> bool {
        let ring = &self.shared.rings[self.side];
        let used = ring.put.load(Ordering::Relaxed) - ring.taken.load(Ordering::Acquire);
        used < PIPE_BYTES || self.peer().gone.load(Ordering::Acquire)
    }

    pub(super) fn write(&mut self, gather: &Gather<'_>) -> io::Result<usize> {
        if self.peer().gone.load(Ordering::Acquire) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let ring = &self.shared.rings[self.side];
        let start = ring.put.load(Ordering::Relaxed);
        // Acquire, paired with the release of `read`: the reader is done with the bytes that are now written over.
        let room = PIPE_BYTES - (start - ring.taken.load(Ordering::Acquire));
        let mut put = 0;
        for segment in gather.segments() {
            let len = (segment.iov_len as u64).min(room - put);
            ring.each_run(start + put, len, |at, done, len| {
                // SAFETY: the segment is readable for as long as `gather` lives, and `done + len` is within it. `at` is a
                // part of this ring's mapping, which no reference covers and which the reader leaves alone until `put`
                // says that it is filled; a gather is made of slices and of other memories, never of a ring.
                unsafe { std::ptr::copy_nonoverlapping(segment.iov_base.cast::<u8>().add(done), at, len) };
            });
            put += len;
        }
        if put == 0 && gather.len() > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // Release, paired with the acquire of `read`: the bytes come before the count.
        ring.put.store(start + put, Ordering::Release);
        self.wake_peer();
        Ok(put as usize)
    }

    /// Reads; 0 is the end of the stream.
    pub(super) fn read(&mut self, scatter: &mut Scatter<'_>) -> io::Result<usize> {
        let ring = &self.shared.rings[1 - self.side];
        // Before the count: what was written before the peer shut its side is still read.
        let ended = self.peer().shut.load(Ordering::Acquire);
        let start = ring.taken.load(Ordering::Relaxed);
        // Acquire, paired with the release of `write`: the bytes up to the count are there.
        let there = ring.put.load(Ordering::Acquire) - start;
        if there == 0 {
            return if ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let mut taken = 0;
        for segment in scatter.segments() {
            let len = (segment.iov_len as u64).min(there - taken);
            ring.each_run(start + taken, len, |at, done, len| {
                // SAFETY: the segment is writable and unshared for as long as `scatter` lives, and `done + len` is within
                // it. `at` is a part of this ring's mapping that the writer leaves alone until `taken` says that it is
                // free.
                unsafe { std::ptr::copy_nonoverlapping(at, segment.iov_base.cast::<u8>().add(done), len) };
            });
            taken += len;
        }
        // Release, paired with the acquire of `write`: the bytes have been copied out before they are written over.
        ring.taken.store(start + taken, Ordering::Release);
        self.wake_peer();
        Ok(taken as usize)
    }

    /// Writes no more: the peer reads what is there, then the end.
    pub(super) fn shut(&self) {
        self.own().shut.store(true, Ordering::Release);
        self.wake_peer();
    }

    fn own(&self) -> &End {
        &self.shared.ends[self.side]
    }

    fn peer(&self) -> &End {
        &self.shared.ends[1 - self.side]
    }

    fn wake_peer(&self) {
        // Pairs with the fence of `sleep`.
        fence(Ordering::SeqCst);
        let peer = self.peer();
        if peer.asleep.load(Ordering::Relaxed)
            && peer.asleep.swap(false, Ordering::Relaxed)
            && let Some(waker) = peer.waker.get()
        {
            waker.wake();
        }
    }
}

impl Ring {
    /// Calls `run(address, offset in the range, length)` for each part of a range of stream positions that lies in one piece.
    fn each_run(&self, position: u64, len: u64, mut run: impl FnMut(*mut u8, usize, usize)) {
        let mut done = 0;
        while done < len {
            let at = (position + done) % PIPE_BYTES;
            let part = (len - done).min(PIPE_BYTES - at);
            run(self.bytes.address(at, part), done as usize, part as usize);
            done += part;
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.own().gone.store(true, Ordering::Release);
        self.shut();
    }
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "end {} of a pipe", self.side)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(pipe: &mut Pipe, bytes: &[u8]) -> io::Result<usize> {
        let mut gather = Gather::new();
        gather.bytes(bytes);
        pipe.write(&gather)
    }

    fn read(pipe: &mut Pipe, bytes: &mut [u8]) -> io::Result<usize> {
        let mut scatter = Scatter::new();
        scatter.bytes(bytes);
        pipe.read(&mut scatter)
    }

    #[test]
    fn bytes_come_out_as_they_went_in_across_the_rings_end() {
        let (mut left, mut right) = Pipe::pair().unwrap();
        let bytes: Vec<u8> = (0..PIPE_BYTES * 2 / 3 + 1).map(|i| (i % 251) as u8).collect();
        for _ in 0..5 {
            assert_eq!(write(&mut left, &bytes).unwrap(), bytes.len());
            let mut back = vec![0; bytes.len()];
            assert_eq!(read(&mut right, &mut back).unwrap(), bytes.len());
            assert_eq!(back, bytes);
        }
    }

    #[test]
    fn a_full_pipe_takes_no_more_until_it_is_read() {
        let (mut left, mut right) = Pipe::pair().unwrap();
        let bytes = vec![1; PIPE_BYTES as usize + 5];
        assert_eq!(write(&mut left, &bytes).unwrap(), PIPE_BYTES as usize);
        assert_eq!(write(&mut left, &bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(!left.writable());
        assert_eq!(read(&mut right, &mut [0; 7]).unwrap(), 7);
        assert!(left.writable());
        assert_eq!(write(&mut left, &bytes).unwrap(), 7);
    }

    #[test]
    fn what_was_written_before_an_end_is_dropped_is_still_read() {
        let (mut left, mut right) = Pipe::pair().unwrap();
        assert_eq!(read(&mut right, &mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        write(&mut left, b"last").unwrap();
        drop(left);
        let mut bytes = [0; 8];
        assert_eq!(read(&mut right, &mut bytes).unwrap(), 4);
        assert_eq!(read(&mut right, &mut bytes).unwrap(), 0);
        assert_eq!(write(&mut right, b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn bytes_cross_between_threads_in_order() {
        let (mut left, mut right) = Pipe::pair().unwrap();
        let writer = std::thread::Builder::new().name("pipe-writer".into()).spawn(move || {
            let mut next = 0_u32;
            while next < 300_000 {
                let bytes = next.to_le_bytes();
                let mut done = 0;
                while done < bytes.len() {
                    match write(&mut left, &bytes[done..]) {
                        Ok(count) => done += count,
                        Err(_) => std::thread::yield_now(),
                    }
                }
                next += 1;
            }
        });
        let mut all = Vec::new();
        let mut buffer = vec![0; 10_000];
        loop {
            match read(&mut right, &mut buffer) {
                Ok(0) => break,
                Ok(count) => all.extend_from_slice(&buffer[..count]),
                Err(_) => std::thread::yield_now(),
            }
        }
        writer.unwrap().join().unwrap();
        let numbers = all.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
        assert!(numbers.eq(0..300_000));
    }
}
