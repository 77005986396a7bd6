//! Memory from the operating system, in whole pages.

use std::io;
use std::ptr::NonNull;

/// Anonymous pages.
pub(super) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: `Pages` is only an address range, unmapped on drop; what is done with the bytes is guarded by the types around it.
unsafe impl Send for Pages {}
// SAFETY: as above; `&Pages` gives out nothing but the address.
unsafe impl Sync for Pages {}

impl Pages {
    pub(super) fn new(len: usize) -> io::Result<Self> {
        let len = len.max(1);
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("mmap without MAP_FIXED gives no null mapping");
        Ok(Self { start, len })
    }

    /// The first byte.
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// How many bytes there are, at least one.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` with this length, and whoever reads or writes it holds this value by `Arc`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
