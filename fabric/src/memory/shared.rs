//! Memory that peers may reach: copied in and out, never behind a reference.
//!
//! It stays within this crate: two threads that copied into the same bytes at once would race, and nothing here keeps them
//! from it. Its users do: a fabric is driven by one thread, and the ring of a pipe says which side may touch which bytes.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::pages::{HugePages, Pages};

/// Memory that may be lent to peers. Clones name the same bytes.
#[derive(Clone)]
pub(crate) struct SharedMemory {
    pages: Arc<Pages>,
    len: u64,
}

impl SharedMemory {
    /// `len` zeroed bytes, aligned to a page.
    ///
    /// # Errors
    ///
    /// The system's, when it has no more memory.
    pub(crate) fn new(len: u64) -> io::Result<Self> {
        Self::in_pages(len, HugePages::Off)
    }

    /// Like [`new`](Self::new), in huge pages as far as they are asked for and to be had.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub(crate) fn in_pages(len: u64, huge: HugePages) -> io::Result<Self> {
        let size = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Self { pages: Arc::new(Pages::huge(size, huge)?), len })
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The address of a range, for a device or a system call.
    ///
    /// # Panics
    ///
    /// If the range is outside the memory.
    pub(crate) fn address(&self, offset: u64, len: u64) -> *mut u8 {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits, "{offset}+{len} is outside a shared memory of {} bytes", self.len);
        // SAFETY: the range was just checked to be within the mapping.
        unsafe { self.pages.start().add(offset as usize) }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    ///
    /// If they do not fit.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let to = self.address(offset, bytes.len() as u64);
        // SAFETY: the target is within the mapping, which `self` keeps; no reference to it exists anywhere, and `bytes`,
        // being a reference, cannot lie in it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes out.
    ///
    /// # Panics
    ///
    /// If the range is outside the memory.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        let from = self.address(offset, bytes.len() as u64);
        // SAFETY: as in `write`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Fills a range with zeros.
    ///
    /// # Panics
    ///
    /// If the range is outside the memory.
    pub(crate) fn zero(&self, offset: u64, len: u64) {
        let to = self.address(offset, len);
        // SAFETY: within the mapping, to which no reference exists.
        unsafe { std::ptr::write_bytes(to, 0, len as usize) };
    }

    /// Stores an aligned word with release order, for peers that read it to see all that was written before.
    ///
    /// # Panics
    ///
    /// If the word is unaligned or outside the memory.
    pub(crate) fn store(&self, offset: u64, word: u64) {
        assert!(offset.is_multiple_of(8), "a word at {offset} is not aligned");
        let at = self.address(offset, 8).cast::<u64>();
        // Release by fence, paired with the order in which a peer's READ of the word precedes its use of the bytes.
        fence(Ordering::Release);
        // SAFETY: aligned (the mapping begins at a page) and within the mapping; all other accesses to the word are
        // copies by value, so an atomic store races with no reference.
        unsafe { AtomicU64::from_ptr(at) }.store(word, Ordering::Relaxed);
    }

    /// The CRC-32C of a range. Works on copies of a few KiB, since no reference may cover the memory.
    ///
    /// # Panics
    ///
    /// If the range is outside the memory.
    pub(crate) fn crc32c(&self, offset: u64, len: u64) -> u32 {
        let mut buffer = [0; 4096];
        let mut crc = 0;
        let mut done = 0;
        while done < len {
            let step = (len - done).min(buffer.len() as u64);
            let part = &mut buffer[..step as usize];
            self.read(offset + done, part);
            crc = crc32c::crc32c_append(crc, part);
            done += step;
        }
        crc
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} shared bytes", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_copied_in_and_out() {
        let memory = SharedMemory::new(10_000).unwrap();
        let bytes: Vec<u8> = (0..9_000_u32).map(|i| i as u8).collect();
        memory.write(500, &bytes);
        let mut back = vec![0; 9_000];
        memory.read(500, &mut back);
        assert_eq!(back, bytes);
        assert_eq!(memory.crc32c(500, 9_000), crc32c::crc32c(&bytes));
        memory.store(8, 0x0102_0304_0506_0708);
        let mut word = [0; 8];
        memory.read(8, &mut word);
        assert_eq!(u64::from_ne_bytes(word), 0x0102_0304_0506_0708);
    }
}
