//! What both backends do alike with memories of their own process: name them, claim them, show them to machines.

use super::{Claim, LocalMemory, SharedMemory, Use};
use crate::table::Table;
use crate::{DomainId, FabricError, Key, LocalId, LocalSpan, Memory, SharedId, SharedSpan, Waker, WindowId};

/// Local memory in a domain, and what the backend keeps with it.
pub(crate) struct Local<R> {
    pub(crate) domain: DomainId,
    pub(crate) memory: LocalMemory,
    /// The device's registration of it, where there is a device.
    pub(crate) registration: R,
}

/// A backend's local memories.
pub(crate) type Locals<R> = Table<LocalId, Local<R>>;

impl LocalMemory {
    /// Like [`new`](Self::new), for a fabric.
    pub(crate) fn of_fabric(slots: u32, size: u32, returned: Waker) -> Result<Self, FabricError> {
        let len = u64::from(slots) * u64::from(size);
        Self::new(slots, size, returned).map_err(|source| FabricError::Memory { what: "local", len, source })
    }
}

impl<R> Locals<R> {
    /// The memory of that id.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub(crate) fn memory(&self, id: LocalId) -> &LocalMemory {
        self.get(id).map(|local| &local.memory).unwrap_or_else(|| panic!("{id} names nothing"))
    }

    /// The memory of that id, to change.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub(crate) fn memory_mut(&mut self, id: LocalId) -> &mut LocalMemory {
        self.get_mut(id).map(|local| &mut local.memory).unwrap_or_else(|| panic!("{id} names nothing"))
    }

    /// Lays claim to a span for work of an endpoint in `domain`.
    pub(crate) fn claim(&mut self, span: LocalSpan, domain: DomainId, usage: Use) -> Result<(Claim, &R), FabricError> {
        let local = self.get_mut(span.local).ok_or_else(|| FabricError::unknown(span.local))?;
        if local.domain != domain {
            return Err(FabricError::DomainMismatch { what: span.local.to_string() });
        }
        if !local.memory.contains(span.range()) {
            return Err(FabricError::OutOfBounds { span: format!("{span:?}") });
        }
        let claim = local.memory.begin(span.range(), usage);
        let claim = claim.ok_or_else(|| FabricError::SlotBusy { span: format!("{span:?}") })?;
        Ok((claim, &local.registration))
    }

    /// Ends a claim. Memory that was freed meanwhile ends with its last one.
    pub(crate) fn end(&mut self, id: LocalId, claim: Claim) {
        if let Some(local) = self.get_mut(id) {
            local.memory.end(claim);
        }
    }
}

/// A backend whose memories are all in this process, and are found by their ids. That makes it [`Memory`].
pub(crate) trait Resident {
    /// Local memory.
    ///
    /// # Panics
    ///
    /// If there is none of that id.
    fn local(&self, id: LocalId) -> &LocalMemory;

    /// Local memory, to change.
    ///
    /// # Panics
    ///
    /// If there is none of that id.
    fn local_mut(&mut self, id: LocalId) -> &mut LocalMemory;

    /// Shared memory, and the address under which peers name its first byte; `None` if there is none of that id.
    fn shared_at(&self, id: SharedId) -> Option<(&SharedMemory, u64)>;

    /// The key of the last bind or unbind that was posted for a window; `None` if there is none of that id.
    fn posted_key(&self, id: WindowId) -> Option<Key>;
}

fn shared<B: Resident>(backend: &B, id: SharedId) -> &SharedMemory {
    backend.shared_at(id).unwrap_or_else(|| panic!("{id} names nothing")).0
}

impl<B: Resident> Memory for B {
    fn bytes(&self, span: LocalSpan) -> &[u8] {
        self.local(span.local).bytes(span.range())
    }

    fn bytes_mut(&mut self, span: LocalSpan) -> &mut [u8] {
        self.local_mut(span.local).bytes_mut(span.range())
    }

    fn copy(&mut self, from: LocalSpan, to: SharedSpan) {
        assert_eq!(u64::from(from.len), to.len, "{from:?} is not as long as {to:?}");
        let bytes = self.local(from.local).bytes(from.range());
        shared(self, to.shared).write(to.offset, bytes);
    }

    fn write(&mut self, to: SharedSpan, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= to.len, "{} bytes do not fit into {to:?}", bytes.len());
        shared(self, to.shared).write(to.offset, bytes);
    }

    fn load(&self, from: SharedSpan, bytes: &mut [u8]) {
        assert_eq!(from.len, bytes.len() as u64, "{from:?} is not as long as its target");
        shared(self, from.shared).read(from.offset, bytes);
    }

    fn store(&mut self, shared_id: SharedId, offset: u64, word: u64) {
        shared(self, shared_id).store(offset, word);
    }

    fn zero(&mut self, span: SharedSpan) {
        shared(self, span.shared).zero(span.offset, span.len);
    }

    fn crc32c(&self, span: SharedSpan) -> u32 {
        shared(self, span.shared).crc32c(span.offset, span.len)
    }

    fn address(&self, span: SharedSpan) -> u64 {
        let Some((memory, base)) = self.shared_at(span.shared) else { panic!("{} names nothing", span.shared) };
        let fits = span.offset.checked_add(span.len).is_some_and(|end| end <= memory.len());
        assert!(fits, "{span:?} is outside a memory of {} bytes", memory.len());
        base + span.offset
    }

    fn key(&self, window: WindowId) -> Key {
        self.posted_key(window).unwrap_or_else(|| panic!("{window} names nothing"))
    }
}
