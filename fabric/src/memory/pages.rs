//! Memory from the operating system, in whole pages, huge ones where they are asked for and to be had.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::str::FromStr;

/// The huge pages that are asked for: every x86-64 and most arm64 machines have this size.
const HUGE: usize = 2 << 20;

/// Which pages shared memory is made of. Huge ones spare a device and the processor most of their address translations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HugePages {
    /// The system's ordinary pages.
    #[default]
    Off,
    /// Huge pages of 2 MiB, if as many are free as it takes; else ordinary pages, which the system is asked to merge into
    /// huge ones. Memory of less than 2 MiB stays as it is.
    Try,
}

/// A word that is no choice of pages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no choice of huge pages: it is off or try")]
pub struct NoSuchPages(pub String);

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Try => "try",
        })
    }
}

impl FromStr for HugePages {
    type Err = NoSuchPages;

    fn from_str(text: &str) -> Result<Self, NoSuchPages> {
        match text {
            "off" => Ok(Self::Off),
            "try" => Ok(Self::Try),
            _ => Err(NoSuchPages(text.to_owned())),
        }
    }
}

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
    /// Ordinary pages.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        Self::map(len.max(1), 0)
    }

    /// Huge pages as far as `huge` says and the system has them. What was got instead is logged.
    pub(super) fn huge(len: usize, huge: HugePages) -> io::Result<Self> {
        if huge == HugePages::Off || len < HUGE {
            return Self::new(len);
        }
        // Unmapping takes whole pages, so the length that is kept is one of whole pages.
        let whole = len.checked_next_multiple_of(HUGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let count = whole / HUGE;
        // Without MAP_NORESERVE the system sets all of them aside now, so that none is missed at the first touch.
        let refused = match Self::map(whole, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB) {
            Ok(pages) => {
                tracing::info!(pages = count, "shared memory is in huge pages of 2 MiB");
                return Ok(pages);
            }
            Err(refused) => refused,
        };
        let pages = Self::map(whole, 0)?;
        let merged = match pages.merge() {
            Ok(()) => "which the system may merge".to_owned(),
            Err(error) => format!("which the system does not merge ({error})"),
        };
        tracing::warn!(
            "no {count} huge pages of 2 MiB for shared memory ({refused}); it is in ordinary pages, {merged}; to have huge \
             ones, set them aside with `sysctl vm.nr_hugepages={count}`"
        );
        Ok(pages)
    }

    fn map(len: usize, flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
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

    /// Asks the system to merge the pages into huge ones.
    fn merge(&self) -> io::Result<()> {
        // SAFETY: the range is this value's own mapping, and the advice changes nothing of what it holds.
        match unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
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
        // SAFETY: the range was mapped by `map` with this length, and whoever reads or writes it holds this value by `Arc`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_of_pages_is_read_as_it_is_written() {
        for text in ["off", "try"] {
            assert_eq!(text.parse::<HugePages>().map(|huge| huge.to_string()).as_deref(), Ok(text));
        }
        assert_eq!("on".parse::<HugePages>(), Err(NoSuchPages("on".into())));
    }

    #[test]
    fn whether_or_not_the_system_has_huge_pages_memory_is_had_in_whole_ones() {
        let pages = Pages::huge(2 * HUGE + 1, HugePages::Try).unwrap();
        assert_eq!(pages.len(), 3 * HUGE);
        let small = Pages::huge(HUGE - 1, HugePages::Try).unwrap();
        assert_eq!(small.len(), HUGE - 1, "less than a huge page stays in ordinary ones");
        assert_eq!(Pages::huge(3 * HUGE + 1, HugePages::Off).unwrap().len(), 3 * HUGE + 1);
    }
}
