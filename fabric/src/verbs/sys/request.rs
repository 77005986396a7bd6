//! Requests on their way to a device, and what they read or write on this side.

use std::collections::VecDeque;
use std::sync::Arc;

use rdma_sys as ib;

use super::memory::Region;
use crate::memory::Claim;
use crate::{Access, RemoteSpan};

/// What a piece of work reads or writes on this side. It keeps its memory mapped and registered.
#[derive(Default)]
pub(in crate::verbs) enum Buffer {
    /// Nothing.
    #[default]
    None,
    /// A claimed part of a slot.
    Local { claim: Claim, region: Arc<Region> },
    /// A part of shared memory.
    Shared { address: u64, len: u32, region: Arc<Region> },
}

impl Buffer {
    /// The range for the device.
    ///
    /// # Panics
    ///
    /// If it is not within its region.
    fn piece(&self) -> Option<ib::ibv_sge> {
        let (address, len, region) = match self {
            Self::None => return None,
            Self::Local { claim, region } => (claim.address() as u64, claim.range().len, region),
            Self::Shared { address, len, region } => (*address, *len, region),
        };
        assert!(region.covers(address, len.into()), "{len} bytes at {address:#x} are not within their region");
        // To some devices a piece of no bytes means 2 GiB.
        (len > 0).then(|| ib::ibv_sge { addr: address, length: len, lkey: region.lkey() })
    }
}

/// What a window is to be bound to.
pub(in crate::verbs) struct BindSpan<'a> {
    pub(in crate::verbs) region: &'a Region,
    pub(in crate::verbs) address: u64,
    /// Zero unbinds. The region is the real one all the same: without one, some providers crash.
    pub(in crate::verbs) len: u64,
    pub(in crate::verbs) access: Access,
}

/// Work on its way to a device, rung in with one doorbell. Kept between uses for its buffers.
#[derive(Default)]
pub(in crate::verbs) struct Chain {
    pub(super) sends: Vec<ib::ibv_send_wr>,
    pub(super) receives: Vec<ib::ibv_recv_wr>,
    pub(super) pieces: Vec<Option<ib::ibv_sge>>,
    buffers: Vec<Buffer>,
}

// SAFETY: the pointers in it are set when it is rung, and not followed after.
unsafe impl Send for Chain {}

impl Chain {
    pub(in crate::verbs) fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// Appends a SEND.
    pub(in crate::verbs) fn send(&mut self, from: Buffer) {
        self.push(ib::ibv_wr_opcode::IBV_WR_SEND, from);
    }

    /// Appends a READ.
    pub(in crate::verbs) fn read(&mut self, from: RemoteSpan, into: Buffer) {
        let request = self.push(ib::ibv_wr_opcode::IBV_WR_RDMA_READ, into);
        request.wr.rdma = ib::rdma_t { remote_addr: from.address, rkey: from.key.0 };
    }

    fn push(&mut self, opcode: u32, buffer: Buffer) -> &mut ib::ibv_send_wr {
        // SAFETY: an all-zero request is a valid value, of null pointers and numbers.
        let mut request: ib::ibv_send_wr = unsafe { std::mem::zeroed() };
        request.opcode = opcode;
        request.send_flags = ib::ibv_send_flags::IBV_SEND_SIGNALED.0;
        self.pieces.push(buffer.piece());
        self.buffers.push(buffer);
        self.sends.push(request);
        self.sends.last_mut().expect("a request was just pushed")
    }

    /// Appends a receive.
    pub(in crate::verbs) fn receive(&mut self, into: Buffer) {
        self.pieces.push(into.piece());
        self.buffers.push(into);
        self.receives.push(ib::ibv_recv_wr {
            wr_id: 0,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
        });
    }

    /// Takes back what the device did not take, in order.
    pub(in crate::verbs) fn take_back(&mut self) -> std::vec::Drain<'_, Buffer> {
        self.sends.clear();
        self.receives.clear();
        self.pieces.clear();
        self.buffers.drain(..)
    }

    /// Hands the first `count` buffers over, and forgets the requests.
    pub(super) fn hand_over(&mut self, count: usize, held: &mut Held) {
        held.buffers.extend(self.buffers.drain(..count));
        self.sends.clear();
        self.receives.clear();
        self.pieces.clear();
    }
}

/// A piece's address and count, for a request.
pub(super) fn list_of(piece: &mut Option<ib::ibv_sge>) -> (*mut ib::ibv_sge, libc::c_int) {
    match piece {
        Some(piece) => (piece, 1),
        None => (std::ptr::null_mut(), 0),
    }
}

/// What the device may read or write for one of the queues, oldest first.
pub(super) struct Held {
    pub(super) buffers: VecDeque<Buffer>,
    /// The number of the oldest.
    first: u32,
}

impl Held {
    pub(super) fn new(depth: u32) -> Self {
        Self { buffers: VecDeque::with_capacity(depth as usize), first: 0 }
    }

    /// The number of the next one.
    pub(super) fn next(&self) -> u32 {
        self.first.wrapping_add(self.buffers.len() as u32)
    }

    pub(super) fn done(&mut self, number: u32) -> Option<Buffer> {
        if number != self.first {
            return None;
        }
        let buffer = self.buffers.pop_front()?;
        self.first = self.first.wrapping_add(1);
        Some(buffer)
    }
}
