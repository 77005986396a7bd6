//! What a machine may do with memory: look at it, fill it, copy it.

use super::fabric::{VerbsFabric, range};
use super::window::Window;
use crate::memory::{LocalMemory, SharedMemory};
use crate::{Key, LocalId, LocalSpan, Memory, SharedId, SharedSpan, WindowId};

impl VerbsFabric {
    fn expect_local(&self, local: LocalId) -> &LocalMemory {
        self.locals.get(local).map(|local| &local.memory).unwrap_or_else(|| panic!("{local} names nothing"))
    }

    pub(super) fn expect_local_mut(&mut self, local: LocalId) -> &mut LocalMemory {
        self.locals.get_mut(local).map(|local| &mut local.memory).unwrap_or_else(|| panic!("{local} names nothing"))
    }

    fn expect_shared(&self, shared: SharedId) -> &SharedMemory {
        self.shareds.get(shared).map(|shared| &shared.memory).unwrap_or_else(|| panic!("{shared} names nothing"))
    }
}

impl Memory for VerbsFabric {
    fn bytes(&self, span: LocalSpan) -> &[u8] {
        self.expect_local(span.local).bytes(range(span))
    }

    fn bytes_mut(&mut self, span: LocalSpan) -> &mut [u8] {
        self.expect_local_mut(span.local).bytes_mut(range(span))
    }

    fn copy(&mut self, from: LocalSpan, to: SharedSpan) {
        assert_eq!(u64::from(from.len), to.len, "{from:?} is not as long as {to:?}");
        let bytes = self.expect_local(from.local).bytes(range(from));
        self.expect_shared(to.shared).write(to.offset, bytes);
    }

    fn write(&mut self, to: SharedSpan, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= to.len, "{} bytes do not fit into {to:?}", bytes.len());
        self.expect_shared(to.shared).write(to.offset, bytes);
    }

    fn load(&self, from: SharedSpan, bytes: &mut [u8]) {
        assert_eq!(from.len, bytes.len() as u64, "{from:?} is not as long as its target");
        self.expect_shared(from.shared).read(from.offset, bytes);
    }

    fn store(&mut self, shared: SharedId, offset: u64, word: u64) {
        self.expect_shared(shared).store(offset, word);
    }

    fn zero(&mut self, span: SharedSpan) {
        self.expect_shared(span.shared).zero(span.offset, span.len);
    }

    fn crc32c(&self, span: SharedSpan) -> u32 {
        self.expect_shared(span.shared).crc32c(span.offset, span.len)
    }

    fn address(&self, span: SharedSpan) -> u64 {
        self.expect_shared(span.shared).address(span.offset, span.len) as u64
    }

    fn key(&self, window: WindowId) -> Key {
        self.windows.get(window).map(Window::key).unwrap_or_else(|| panic!("{window} names nothing"))
    }
}
