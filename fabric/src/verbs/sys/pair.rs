//! Queue pairs: their states, what is posted to them, and what the device may touch meanwhile.

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as ib;

use super::check;
use super::memory::{Domain, Window, access_flags};
use super::queue::{CompletionQueue, work_id};
use super::request::{BindSpan, Buffer, Chain, Held, list_of};
use crate::Access;

type Attributes = ib::ibv_qp_attr_mask;

/// How long a device waits for an acknowledgement, and how often it repeats a request then, before it gives its peer up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct Patience {
    /// 4.096 us * 2^timeout.
    timeout: u8,
    /// At most 6: to Soft-RoCE, 7 means for ever.
    retries: u8,
}

impl Patience {
    /// Some 67 ms: a peer that has vanished is noticed after half a second, or two at most on a device that takes the fourfold
    /// time that the specification allows it (IBA C9-140).
    pub(in crate::verbs) const HARDWARE: Self = Self { timeout: 14, retries: 6 };

    /// Some 537 ms, and a vanished peer is noticed after 1.6 s. The driver's timer, once started, is not put off by
    /// acknowledgements, so on a connection that is always busy it goes off once in every such time, and repeats what happens
    /// to be on its way. That is not harmless: a memory window that is bound behind it is bound again, which fails, and
    /// ends the connection (seen with Linux 6.1).
    pub(in crate::verbs) const SOFT: Self = Self { timeout: 17, retries: 2 };
}

/// How long a peer waits that found no receive posted here: code 16, 2.56 ms (IBA table 45).
const RECEIVER_NOT_READY_TIMER: u8 = 16;

/// How often it tries again. Credits see to it that a receive is always there, so this is for peers that break them: finite,
/// since 7 would mean for ever.
const RECEIVER_NOT_READY_RETRIES: u8 = 6;

/// How many hops a packet may take: as many as the systems' own default.
const HOPS: u8 = 64;

/// What a queue pair is made for.
pub(in crate::verbs) struct PairConfig {
    /// What its completions name it by; below 2^31.
    pub(in crate::verbs) place: u32,
    pub(in crate::verbs) sends: u32,
    pub(in crate::verbs) receives: u32,
    pub(in crate::verbs) port: u8,
    pub(in crate::verbs) remote_read: bool,
}

/// The way to a peer's queue pair.
pub(in crate::verbs) struct Path {
    pub(in crate::verbs) port: u8,
    /// The lower of what both sides' ports do, as `enum ibv_mtu`.
    pub(in crate::verbs) mtu: u32,
    /// The peer's queue pair, and the number of the first packet from it.
    pub(in crate::verbs) pair: u32,
    pub(in crate::verbs) peer_packet: u32,
    /// The number of the first packet to it.
    pub(in crate::verbs) own_packet: u32,
    /// The peer's GID and this side's place for its own; `None` on a subnet of InfiniBand, where the LID says it all.
    pub(in crate::verbs) global: Option<([u8; 16], u8)>,
    pub(in crate::verbs) lid: u16,
    /// READs of this side that the peer has room for, and the other way round.
    pub(in crate::verbs) reads_out: u8,
    pub(in crate::verbs) reads_in: u8,
    pub(in crate::verbs) patience: Patience,
}

/// A reliable connected queue pair.
pub(in crate::verbs) struct QueuePair {
    raw: Option<NonNull<ib::ibv_qp>>,
    number: u32,
    sends: Held,
    receives: Held,
    place: u32,
    domain: Arc<Domain>,
    _queue: Arc<CompletionQueue>,
}

// SAFETY: libibverbs may be called from any thread, and the pair is destroyed by its one owner.
unsafe impl Send for QueuePair {}
// SAFETY: `&QueuePair` only asks; everything that changes the pair takes `&mut`.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Makes a pair that takes receives already, and connects to nobody yet.
    pub(in crate::verbs) fn new(
        domain: &Arc<Domain>,
        queue: &Arc<CompletionQueue>,
        config: &PairConfig,
    ) -> Result<Self, (&'static str, io::Error)> {
        let mut wanted = ib::ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            srq: std::ptr::null_mut(),
            cap: ib::ibv_qp_cap {
                max_send_wr: config.sends.max(1),
                max_recv_wr: config.receives.max(1),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ib::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue are there, and `wanted` is readable and writable.
        let raw = unsafe { ib::ibv_create_qp(domain.raw(), &mut wanted) };
        let raw = NonNull::new(raw).ok_or_else(|| ("ibv_create_qp", io::Error::last_os_error()))?;
        // SAFETY: the pair has just been made.
        let (number, operations) = unsafe { (raw.as_ref().qp_num, &(*raw.as_ref().context).ops) };
        let has_operations = operations.post_send.is_some() && operations.post_recv.is_some();
        let mut pair = Self {
            raw: Some(raw),
            number,
            sends: Held::new(config.sends),
            receives: Held::new(config.receives),
            place: config.place,
            domain: Arc::clone(domain),
            _queue: Arc::clone(queue),
        };
        if !has_operations {
            return Err(("ibv_post_send", io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        }
        pair.initialize(config).map_err(|error| ("ibv_modify_qp (to INIT)", error))?;
        Ok(pair)
    }

    /// The number by which peers and completions name it.
    pub(in crate::verbs) fn number(&self) -> u32 {
        self.number
    }

    fn raw(&self) -> io::Result<*mut ib::ibv_qp> {
        self.raw.map(NonNull::as_ptr).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTCONN))
    }

    fn modify(&mut self, attributes: &mut ib::ibv_qp_attr, mask: Attributes) -> io::Result<()> {
        let raw = self.raw()?;
        // SAFETY: the pair is there, and `attributes` is readable.
        check(unsafe { ib::ibv_modify_qp(raw, attributes, mask.0 as libc::c_int) })
    }

    fn initialize(&mut self, config: &PairConfig) -> io::Result<()> {
        let mut attributes = no_attributes();
        attributes.qp_state = ib::ibv_qp_state::IBV_QPS_INIT;
        attributes.pkey_index = 0;
        attributes.port_num = config.port;
        attributes.qp_access_flags = access_flags(if config.remote_read { Access::Read } else { Access::None });
        let mask = Attributes::IBV_QP_STATE
            | Attributes::IBV_QP_PKEY_INDEX
            | Attributes::IBV_QP_PORT
            | Attributes::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, mask)
    }

    /// Connects it: from then on it answers its peer, and takes work.
    pub(in crate::verbs) fn connect(&mut self, path: &Path) -> Result<(), (&'static str, io::Error)> {
        let mut attributes = no_attributes();
        attributes.qp_state = ib::ibv_qp_state::IBV_QPS_RTR;
        attributes.path_mtu = path.mtu;
        attributes.dest_qp_num = path.pair;
        attributes.rq_psn = path.peer_packet;
        attributes.max_dest_rd_atomic = path.reads_in;
        attributes.min_rnr_timer = RECEIVER_NOT_READY_TIMER;
        attributes.ah_attr.port_num = path.port;
        attributes.ah_attr.dlid = path.lid;
        if let Some((gid, place)) = path.global {
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.grh.dgid = ib::ibv_gid { raw: gid };
            attributes.ah_attr.grh.sgid_index = place;
            attributes.ah_attr.grh.hop_limit = HOPS;
        }
        let mask = Attributes::IBV_QP_STATE
            | Attributes::IBV_QP_AV
            | Attributes::IBV_QP_PATH_MTU
            | Attributes::IBV_QP_DEST_QPN
            | Attributes::IBV_QP_RQ_PSN
            | Attributes::IBV_QP_MAX_DEST_RD_ATOMIC
            | Attributes::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attributes, mask).map_err(|error| ("ibv_modify_qp (to RTR)", error))?;

        let mut attributes = no_attributes();
        attributes.qp_state = ib::ibv_qp_state::IBV_QPS_RTS;
        attributes.sq_psn = path.own_packet;
        attributes.timeout = path.patience.timeout;
        attributes.retry_cnt = path.patience.retries;
        attributes.rnr_retry = RECEIVER_NOT_READY_RETRIES;
        attributes.max_rd_atomic = path.reads_out;
        let mask = Attributes::IBV_QP_STATE
            | Attributes::IBV_QP_SQ_PSN
            | Attributes::IBV_QP_TIMEOUT
            | Attributes::IBV_QP_RETRY_CNT
            | Attributes::IBV_QP_RNR_RETRY
            | Attributes::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attributes, mask).map_err(|error| ("ibv_modify_qp (to RTS)", error))
    }

    /// Puts it into the error state: what is outstanding completes as flushed.
    pub(in crate::verbs) fn fail(&mut self) -> io::Result<()> {
        let mut attributes = no_attributes();
        attributes.qp_state = ib::ibv_qp_state::IBV_QPS_ERR;
        self.modify(&mut attributes, Attributes::IBV_QP_STATE)
    }

    /// Asks whether it is in the error state.
    pub(in crate::verbs) fn has_failed(&self) -> io::Result<bool> {
        let raw = self.raw()?;
        let mut attributes = no_attributes();
        // SAFETY: an all-zero `ibv_qp_init_attr` is a valid value of it.
        let mut made_as: ib::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let mask = Attributes::IBV_QP_STATE.0 as libc::c_int;
        // SAFETY: the pair is there, and both targets are writable.
        check(unsafe { ib::ibv_query_qp(raw, &mut attributes, mask, &mut made_as) })?;
        Ok(attributes.qp_state == ib::ibv_qp_state::IBV_QPS_ERR)
    }

    /// Rings in the chain's SENDs and READs. If that fails, what the device did not take is still in the chain.
    pub(in crate::verbs) fn post_sends(&mut self, chain: &mut Chain) -> io::Result<()> {
        let raw = self.raw()?;
        let count = chain.sends.len();
        let first = chain.sends.as_mut_ptr();
        let number = self.sends.next();
        for (place, request) in chain.sends.iter_mut().enumerate() {
            request.wr_id = work_id(self.place, false, number.wrapping_add(place as u32));
            (request.sg_list, request.num_sge) = list_of(&mut chain.pieces[place]);
            // SAFETY: within the vector, since it is not past the last but one.
            request.next = if place + 1 < count { unsafe { first.add(place + 1) } } else { std::ptr::null_mut() };
        }
        let mut refused = std::ptr::null_mut();
        // SAFETY: the pair is there and `new` has checked that the operation is; the requests and their pieces live in
        // the chain's vectors until the call is over. What the pieces name is within a live registration, and the
        // buffers, which keep mapping, claim and registration, are held by this pair until the work has completed.
        let result = check(unsafe { ib::ibv_post_send(raw, first, &mut refused) });
        let taken = match &result {
            Ok(()) => count,
            // A provider that rings in vain after it has taken everything names nothing: then all of it may be under way.
            Err(_) => chain.sends.iter().position(|request| std::ptr::eq(request, refused)).unwrap_or(count),
        };
        chain.hand_over(taken, &mut self.sends);
        result
    }

    /// Rings in the chain's receives. If that fails, what the device did not take is still in the chain.
    pub(in crate::verbs) fn post_receives(&mut self, chain: &mut Chain) -> io::Result<()> {
        let raw = self.raw()?;
        let count = chain.receives.len();
        let first = chain.receives.as_mut_ptr();
        let number = self.receives.next();
        for (place, request) in chain.receives.iter_mut().enumerate() {
            request.wr_id = work_id(self.place, true, number.wrapping_add(place as u32));
            (request.sg_list, request.num_sge) = list_of(&mut chain.pieces[place]);
            // SAFETY: within the vector, since it is not past the last but one.
            request.next = if place + 1 < count { unsafe { first.add(place + 1) } } else { std::ptr::null_mut() };
        }
        let mut refused = std::ptr::null_mut();
        // SAFETY: as in `post_sends`.
        let result = check(unsafe { ib::ibv_post_recv(raw, first, &mut refused) });
        let taken = match &result {
            Ok(()) => count,
            Err(_) => chain.receives.iter().position(|request| std::ptr::eq(request, refused)).unwrap_or(count),
        };
        chain.hand_over(taken, &mut self.receives);
        result
    }

    /// Rings in a bind, or an unbind, signalled and fenced. The provider moves the window's key on; if the call fails it is
    /// as before.
    pub(in crate::verbs) fn bind(&mut self, window: &mut Window, span: &BindSpan<'_>) -> io::Result<()> {
        let raw = self.raw()?;
        let same_domain = Arc::ptr_eq(window.domain(), &self.domain) && Arc::ptr_eq(span.region.domain(), &self.domain);
        if !same_domain || window.raw().is_null() || !span.region.covers(span.address, span.len) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the pair is there.
        if unsafe { (*(*raw).context).ops.bind_mw.is_none() } {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let before = window.key();
        let mut request = ib::ibv_mw_bind {
            wr_id: work_id(self.place, false, self.sends.next()),
            send_flags: (ib::ibv_send_flags::IBV_SEND_SIGNALED | ib::ibv_send_flags::IBV_SEND_FENCE).0,
            bind_info: ib::ibv_mw_bind_info {
                mr: span.region.raw(),
                addr: span.address,
                length: span.len,
                mw_access_flags: access_flags(span.access),
            },
        };
        // SAFETY: pair, window and region are there and of one domain, and the operation is there. The device keeps none
        // of the pointers.
        let result = check(unsafe { ib::ibv_bind_mw(raw, window.raw(), &mut request) });
        match result {
            Ok(()) => self.sends.buffers.push_back(Buffer::None),
            Err(_) => window.restore_key(before),
        }
        result
    }

    /// An entry of the send queue has completed; gives its buffer back. `None` if it is not the oldest, which no device that
    /// works reports.
    pub(in crate::verbs) fn send_done(&mut self, number: u32) -> Option<Buffer> {
        self.sends.done(number)
    }

    /// A receive has completed; gives its buffer back. `None` as above.
    pub(in crate::verbs) fn receive_done(&mut self, number: u32) -> Option<Buffer> {
        self.receives.done(number)
    }

    /// Gives back the buffers of a pair that was destroyed: of the send queue, and of the receives.
    pub(in crate::verbs) fn take_buffers(&mut self) -> (VecDeque<Buffer>, VecDeque<Buffer>) {
        assert!(self.raw.is_none(), "the device may use the buffers until the queue pair is destroyed");
        (std::mem::take(&mut self.sends.buffers), std::mem::take(&mut self.receives.buffers))
    }

    /// How many entries of the send and the receive queue have not completed.
    pub(in crate::verbs) fn outstanding(&self) -> (usize, usize) {
        (self.sends.buffers.len(), self.receives.buffers.len())
    }

    /// Destroys it at once: nothing completes any more, and the device touches no buffer any more.
    pub(in crate::verbs) fn destroy(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        // SAFETY: made by `new` and not yet destroyed; asynchronous events are acknowledged as soon as they are taken.
        if let Err(error) = check(unsafe { ib::ibv_destroy_qp(raw.as_ptr()) }) {
            let held = self.sends.buffers.len() + self.receives.buffers.len();
            tracing::error!(device = self.domain.context().name(), pair = self.number, held, %error, "ibv_destroy_qp failed");
            // The device may still use the buffers, so they are never given back.
            self.sends.buffers.drain(..).chain(self.receives.buffers.drain(..)).for_each(std::mem::forget);
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}

fn no_attributes() -> ib::ibv_qp_attr {
    // SAFETY: an all-zero `ibv_qp_attr` is a valid value of it; which fields count is what the mask says.
    unsafe { std::mem::zeroed() }
}
