//! Local memory of plain bytes, for tests of channels: no fabric, no claims.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;

use keyway_channel::ChannelConfig;
use keyway_fabric::{Key, LinkId, LocalId, LocalSpan, Memory, SharedId, SharedSpan, WindowId};

/// Slots begin at multiples of a cache line, as the fabric's do.
const ALIGN: usize = 64;

pub(crate) const RECEIVE: LocalId = LocalId { index: 1, generation: 0 };
pub(crate) const SEND: LocalId = LocalId { index: 2, generation: 0 };

/// A channel's slots: `receive_slots` and `send_slots` of `size` bytes, and a peer with `peer_slots`.
pub(crate) fn config(receive_slots: u16, send_slots: u16, peer_slots: u16, size: u32) -> ChannelConfig {
    ChannelConfig {
        link: LinkId { index: 7, generation: 0 },
        generation: 40,
        receive: RECEIVE,
        receive_slots,
        receive_size: size,
        send: SEND,
        send_slots,
        send_size: size,
        peer_slots,
        peer_size: size,
    }
}

struct Slots {
    bytes: Vec<u8>,
    start: usize,
    stride: usize,
}

impl Slots {
    fn new(slots: u16, size: u32) -> Self {
        let stride = (size as usize).next_multiple_of(ALIGN);
        let bytes = vec![0xa5; stride * slots as usize + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, start, stride }
    }

    fn range(&self, span: LocalSpan) -> std::ops::Range<usize> {
        assert!(span.end() as usize <= self.stride, "{span:?} is outside its slot");
        let start = self.start + span.slot as usize * self.stride + span.offset as usize;
        start..start + span.len as usize
    }
}

/// The memory of one side.
pub(crate) struct Bytes(BTreeMap<LocalId, Slots>);

impl Bytes {
    pub(crate) fn of(config: &ChannelConfig) -> Self {
        let receive = Slots::new(config.receive_slots, config.receive_size);
        let send = Slots::new(config.send_slots, config.send_size);
        Self(BTreeMap::from([(config.receive, receive), (config.send, send)]))
    }
}

impl Memory for Bytes {
    fn bytes(&self, span: LocalSpan) -> &[u8] {
        let slots = &self.0[&span.local];
        &slots.bytes[slots.range(span)]
    }

    fn bytes_mut(&mut self, span: LocalSpan) -> &mut [u8] {
        let slots = self.0.get_mut(&span.local).expect("the span is of this side");
        let range = slots.range(span);
        &mut slots.bytes[range]
    }

    fn copy(&mut self, _: LocalSpan, _: SharedSpan) {
        unreachable!("a channel has nothing to do with shared memory");
    }

    fn write(&mut self, _: SharedSpan, _: &[u8]) {
        unreachable!("a channel has nothing to do with shared memory");
    }

    fn load(&self, _: SharedSpan, _: &mut [u8]) {
        unreachable!("a channel has nothing to do with shared memory");
    }

    fn store(&mut self, _: SharedId, _: u64, _: u64) {
        unreachable!("a channel has nothing to do with shared memory");
    }

    fn zero(&mut self, _: SharedSpan) {
        unreachable!("a channel has nothing to do with shared memory");
    }

    fn crc32c(&self, _: SharedSpan) -> u32 {
        unreachable!("a channel has nothing to do with shared memory");
    }

    fn address(&self, _: SharedSpan) -> u64 {
        unreachable!("a channel has nothing to do with shared memory");
    }

    fn key(&self, _: WindowId) -> Key {
        unreachable!("a channel has nothing to do with windows");
    }
}
