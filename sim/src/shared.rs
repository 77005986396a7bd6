//! Shared memory of a simulated device: bytes that peers reach through windows. Clones name the same bytes.

use std::cell::RefCell;
use std::rc::Rc;

/// Memory that may be lent.
#[derive(Clone, Debug)]
pub(crate) struct SharedMemory {
    bytes: Rc<RefCell<Vec<u8>>>,
}

impl SharedMemory {
    pub(crate) fn new(len: u64) -> Self {
        Self { bytes: Rc::new(RefCell::new(vec![0; len as usize])) }
    }

    pub(crate) fn len(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        self.bytes.borrow_mut()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.bytes.borrow()[offset as usize..][..bytes.len()]);
    }

    pub(crate) fn zero(&self, offset: u64, len: u64) {
        self.bytes.borrow_mut()[offset as usize..][..len as usize].fill(0);
    }

    pub(crate) fn store(&self, offset: u64, word: u64) {
        assert!(offset.is_multiple_of(8), "a word at {offset} is not aligned");
        self.write(offset, &word.to_ne_bytes());
    }

    pub(crate) fn crc32c(&self, offset: u64, len: u64) -> u32 {
        crc32c::crc32c(&self.bytes.borrow()[offset as usize..][..len as usize])
    }
}
