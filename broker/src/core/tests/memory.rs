//! A core's memory in vectors, and its windows.

use std::collections::{BTreeMap, HashMap};

use keyway_fabric::{Key, LocalId, LocalSpan, Memory, SharedId, SharedSpan, WindowId};
use rkyv::util::AlignedVec;

/// Addresses of the pool begin here, so that a mix-up with offsets shows.
pub(super) const POOL_ADDRESS: u64 = 0x7000_0000_0000;

/// Memory in vectors.
#[derive(Default)]
pub(super) struct VecMemory {
    pub(super) locals: HashMap<LocalId, (u32, AlignedVec<64>)>,
    pub(super) pool: Vec<u8>,
    pub(super) windows: BTreeMap<WindowId, TestWindow>,
}

/// A window.
pub(super) struct TestWindow {
    /// Of the last bind or unbind posted.
    pub(super) key: Key,
    pub(super) binding: Option<(Key, SharedSpan)>,
    pub(super) is_busy: bool,
}

impl VecMemory {
    fn range(span: SharedSpan) -> std::ops::Range<usize> {
        span.offset as usize..span.end() as usize
    }

    fn local(&self, span: LocalSpan) -> std::ops::Range<usize> {
        let (size, _) = &self.locals[&span.local];
        assert!(span.end() <= *size, "{span:?} is within its slot");
        let start = (span.slot * size + span.offset) as usize;
        start..start + span.len as usize
    }
}

impl Memory for VecMemory {
    fn bytes(&self, span: LocalSpan) -> &[u8] {
        &self.locals[&span.local].1[self.local(span)]
    }
    fn bytes_mut(&mut self, span: LocalSpan) -> &mut [u8] {
        let range = self.local(span);
        &mut self.locals.get_mut(&span.local).expect("the memory exists").1[range]
    }
    fn copy(&mut self, from: LocalSpan, to: SharedSpan) {
        assert_eq!(u64::from(from.len), to.len);
        let bytes = self.bytes(from).to_vec();
        self.pool[Self::range(to)].copy_from_slice(&bytes);
    }
    fn write(&mut self, to: SharedSpan, bytes: &[u8]) {
        self.pool[Self::range(to)][..bytes.len()].copy_from_slice(bytes);
    }
    fn load(&self, from: SharedSpan, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.pool[Self::range(from)]);
    }
    fn store(&mut self, _shared: SharedId, offset: u64, word: u64) {
        assert!(offset.is_multiple_of(8));
        self.pool[offset as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }
    fn zero(&mut self, span: SharedSpan) {
        self.pool[Self::range(span)].fill(0);
    }
    fn crc32c(&self, span: SharedSpan) -> u32 {
        crc32c::crc32c(&self.pool[Self::range(span)])
    }
    fn address(&self, span: SharedSpan) -> u64 {
        POOL_ADDRESS + span.offset
    }
    fn key(&self, window: WindowId) -> Key {
        self.windows[&window].key
    }
}
