//! Devices, their limits, ports and GIDs, and the events that tell of no work.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as ib;

use super::{check, set_nonblocking};

/// The type of a GID that is for RoCE v2, as `ibv_gid_entry` tells it (`enum ibv_gid_type`).
pub(in crate::verbs) const GID_ROCE_V2: u32 = 2;

/// The link layer of a port that is Ethernet, as `ibv_port_attr` tells it.
const LINK_ETHERNET: u8 = 2;

/// What Soft-RoCE calls its vendor (`RXE_VENDOR_ID`), which is no vendor of hardware.
const SOFT_VENDOR: u32 = 0xff_ffff;

/// An entry of a device's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct GidEntry {
    pub(in crate::verbs) gid: [u8; 16],
    pub(in crate::verbs) index: u32,
    pub(in crate::verbs) port: u32,
    pub(in crate::verbs) kind: u32,
}

/// `struct ibv_gid_entry`; the binding generator leaves out what takes it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawGidEntry {
    gid: [u64; 2],
    gid_index: u32,
    port_num: u32,
    gid_type: u32,
    ndev_ifindex: u32,
}

const _: () = assert!(size_of::<RawGidEntry>() == 32 && size_of::<RawGidEntry>() == size_of::<ib::ibv_gid_entry>());

/// `struct ibv_async_event`, with the type of the event as a number: one that this program does not know must not become
/// an enum's impossible value.
#[repr(C)]
struct RawAsyncEvent {
    element: RawElement,
    event_type: libc::c_uint,
}

#[repr(C)]
union RawElement {
    qp: *mut ib::ibv_qp,
    port: libc::c_int,
}

const _: () =
    assert!(size_of::<RawAsyncEvent>() == 16 && size_of::<RawAsyncEvent>() == size_of::<ib::ibv_async_event>());

// The structures that `rdma-sys` writes by hand, against the sizes of <infiniband/verbs.h>.
const _: () = assert!(size_of::<ib::ibv_send_wr>() == 128 && size_of::<ib::ibv_wc>() == 48);
const _: () = assert!(size_of::<ib::ibv_mw_bind>() == 48 && size_of::<ib::ibv_ah_attr>() == 32);

unsafe extern "C" {
    /// Behind the inline `ibv_query_gid_table` of <infiniband/verbs.h>, which no binding reaches.
    fn _ibv_query_gid_table(
        context: *mut ib::ibv_context,
        entries: *mut RawGidEntry,
        max_entries: libc::size_t,
        flags: u32,
        entry_size: libc::size_t,
    ) -> libc::ssize_t;
}

/// The devices' own list; freed when dropped.
struct DeviceList {
    first: NonNull<*mut ib::ibv_device>,
    count: usize,
}

impl DeviceList {
    fn new() -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: `count` is a writable int.
        let list = unsafe { ib::ibv_get_device_list(&mut count) };
        let first = NonNull::new(list).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = (*mut ib::ibv_device, String)> + '_ {
        (0..self.count).filter_map(|place| {
            // SAFETY: the list has `count` entries and lives as long as `self`.
            let device = unsafe { *self.first.as_ptr().add(place) };
            if device.is_null() {
                return None;
            }
            // SAFETY: the device is one of the list's, and its name is a string that lives as long as it.
            let name = unsafe { CStr::from_ptr(ib::ibv_get_device_name(device)) };
            Some((device, name.to_string_lossy().into_owned()))
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from `ibv_get_device_list` and is freed once. Devices that were opened stay.
        unsafe { ib::ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// The names of all devices.
pub(in crate::verbs) fn device_names() -> io::Result<Vec<String>> {
    Ok(DeviceList::new()?.devices().map(|(_, name)| name).collect())
}

/// What a device can hold, as far as it says so itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::verbs) struct Limits {
    pub(in crate::verbs) firmware: String,
    /// It is Soft-RoCE, which shares the processors with everything else.
    pub(in crate::verbs) soft: bool,
    pub(in crate::verbs) queue_pairs: u32,
    pub(in crate::verbs) queue_entries: u32,
    pub(in crate::verbs) completion_queues: u32,
    pub(in crate::verbs) completion_entries: u32,
    pub(in crate::verbs) regions: u32,
    pub(in crate::verbs) region_bytes: u64,
    pub(in crate::verbs) domains: u32,
    pub(in crate::verbs) windows: u32,
    pub(in crate::verbs) pieces: u32,
    pub(in crate::verbs) reads_out: u32,
    pub(in crate::verbs) reads_in: u32,
    pub(in crate::verbs) type_1_windows: bool,
    pub(in crate::verbs) type_2_windows: bool,
    pub(in crate::verbs) ports: u8,
}

/// What a port is and can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct PortState {
    pub(in crate::verbs) active: bool,
    pub(in crate::verbs) ethernet: bool,
    pub(in crate::verbs) lid: u16,
    pub(in crate::verbs) mtu: u32,
    pub(in crate::verbs) message_max: u32,
}

/// Something that happened and ends no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum AsyncEvent {
    /// A peer's request to this queue pair was refused.
    Refused { pair: u32 },
    /// This queue pair has failed.
    PairFatal { pair: u32 },
    /// A completion queue has overflowed, or failed.
    QueueFatal,
    /// The whole device has failed.
    DeviceFatal,
    /// A port came up.
    PortUp { port: u8 },
    /// A port went down.
    PortDown { port: u8 },
    /// Something that needs no answer.
    Other { kind: u32 },
}

/// An open device.
pub(in crate::verbs) struct Context {
    raw: NonNull<ib::ibv_context>,
    name: String,
}

// SAFETY: libibverbs may be called from any thread, and the context is closed by its one owner's drop.
unsafe impl Send for Context {}
// SAFETY: as above; shared use is locked inside libibverbs.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of that name; `None` if there is none.
    pub(in crate::verbs) fn open(name: &str) -> io::Result<Option<Arc<Self>>> {
        let list = DeviceList::new()?;
        let Some((device, name)) = list.devices().find(|(_, other)| other == name) else { return Ok(None) };
        // SAFETY: the device is one of a list that is still there.
        let context = unsafe { ib::ibv_open_device(device) };
        let raw = NonNull::new(context).ok_or_else(io::Error::last_os_error)?;
        let context = Self { raw, name };
        set_nonblocking(context.async_fd())?;
        Ok(Some(Arc::new(context)))
    }

    pub(in crate::verbs) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is an iWARP device, whose queue pairs are connected by other means.
    pub(in crate::verbs) fn is_iwarp(&self) -> bool {
        // SAFETY: the context is open, and its device stays for as long.
        unsafe { (*self.raw.as_ref().device).transport_type == ib::ibv_transport_type::IBV_TRANSPORT_IWARP }
    }

    pub(super) fn raw(&self) -> *mut ib::ibv_context {
        self.raw.as_ptr()
    }

    pub(in crate::verbs) fn limits(&self) -> io::Result<Limits> {
        // SAFETY: an all-zero `ibv_device_attr` is a valid value of it.
        let mut limits: ib::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and `limits` is writable.
        check(unsafe { ib::ibv_query_device(self.raw(), &mut limits) })?;
        let count = |count: libc::c_int| u32::try_from(count).unwrap_or(0);
        let has = |flag: ib::ibv_device_cap_flags| limits.device_cap_flags & flag.0 != 0;
        let firmware: Vec<u8> = limits.fw_ver.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
        Ok(Limits {
            firmware: String::from_utf8_lossy(&firmware).into_owned(),
            soft: limits.vendor_id == SOFT_VENDOR,
            queue_pairs: count(limits.max_qp),
            queue_entries: count(limits.max_qp_wr),
            completion_queues: count(limits.max_cq),
            completion_entries: count(limits.max_cqe),
            regions: count(limits.max_mr),
            region_bytes: limits.max_mr_size,
            domains: count(limits.max_pd),
            windows: count(limits.max_mw),
            pieces: count(limits.max_sge),
            reads_out: count(limits.max_qp_init_rd_atom),
            reads_in: count(limits.max_qp_rd_atom),
            type_1_windows: has(ib::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW),
            type_2_windows: has(ib::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A)
                || has(ib::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B),
            ports: limits.phys_port_cnt,
        })
    }

    pub(in crate::verbs) fn port(&self, port: u8) -> io::Result<PortState> {
        // SAFETY: an all-zero `ibv_port_attr` is a valid value of it.
        let mut state: ib::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and `state` is writable. The call looks for the extended operation by itself.
        check(unsafe { ib::___ibv_query_port(self.raw(), port, &mut state) })?;
        Ok(PortState {
            active: state.state == ib::ibv_port_state::IBV_PORT_ACTIVE,
            ethernet: state.link_layer == LINK_ETHERNET,
            lid: state.lid,
            mtu: state.active_mtu,
            message_max: state.max_msg_sz,
        })
    }

    /// Every GID of every port.
    pub(in crate::verbs) fn gids(&self) -> io::Result<Vec<GidEntry>> {
        /// More than any table holds in use: one for each address of the network interface.
        const ENTRIES: usize = 1024;
        let mut entries = vec![RawGidEntry::default(); ENTRIES];
        // SAFETY: the context is open, and `entries` has room for as many entries of the given size.
        let count =
            unsafe { _ibv_query_gid_table(self.raw(), entries.as_mut_ptr(), ENTRIES, 0, size_of::<RawGidEntry>()) };
        let count = usize::try_from(count)
            .map_err(|_| io::Error::from_raw_os_error(i32::try_from(count.unsigned_abs()).unwrap_or(libc::EIO)))?;
        let entry = |raw: &RawGidEntry| {
            let mut gid = [0; 16];
            gid[..8].copy_from_slice(&raw.gid[0].to_ne_bytes());
            gid[8..].copy_from_slice(&raw.gid[1].to_ne_bytes());
            GidEntry { gid, index: raw.gid_index, port: raw.port_num, kind: raw.gid_type }
        };
        Ok(entries[..count.min(ENTRIES)].iter().map(entry).collect())
    }

    /// Readable when there is an [`AsyncEvent`].
    pub(in crate::verbs) fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open; libibverbs sets the descriptor when it opens it and never changes it.
        unsafe { self.raw.as_ref().async_fd }
    }

    /// The next event, if there is one.
    pub(in crate::verbs) fn next_async(&self) -> Option<AsyncEvent> {
        let mut event = RawAsyncEvent { element: RawElement { port: 0 }, event_type: 0 };
        let at = (&raw mut event).cast::<ib::ibv_async_event>();
        // SAFETY: the context is open, the descriptor nonblocking, and `event` has the layout of `ibv_async_event`.
        if unsafe { ib::ibv_get_async_event(self.raw(), at) } != 0 {
            return None;
        }
        const REFUSED: [u32; 2] =
            [ib::ibv_event_type::IBV_EVENT_QP_REQ_ERR as u32, ib::ibv_event_type::IBV_EVENT_QP_ACCESS_ERR as u32];
        const PAIR_FATAL: u32 = ib::ibv_event_type::IBV_EVENT_QP_FATAL as u32;
        const QUEUE_FATAL: u32 = ib::ibv_event_type::IBV_EVENT_CQ_ERR as u32;
        const DEVICE_FATAL: u32 = ib::ibv_event_type::IBV_EVENT_DEVICE_FATAL as u32;
        const PORT_ACTIVE: u32 = ib::ibv_event_type::IBV_EVENT_PORT_ACTIVE as u32;
        const PORT_ERROR: u32 = ib::ibv_event_type::IBV_EVENT_PORT_ERR as u32;
        let pair = || {
            // SAFETY: for these types the element is a queue pair, and one that has events to be acknowledged is not
            // destroyed: `ibv_destroy_qp` waits for the acknowledgement below.
            unsafe { (*event.element.qp).qp_num }
        };
        let seen = match event.event_type {
            kind if REFUSED.contains(&kind) => AsyncEvent::Refused { pair: pair() },
            PAIR_FATAL => AsyncEvent::PairFatal { pair: pair() },
            QUEUE_FATAL => AsyncEvent::QueueFatal,
            DEVICE_FATAL => AsyncEvent::DeviceFatal,
            kind @ (PORT_ACTIVE | PORT_ERROR) => {
                // SAFETY: for these types the element is a port number.
                let port = u8::try_from(unsafe { event.element.port }).unwrap_or(0);
                if kind == PORT_ACTIVE { AsyncEvent::PortUp { port } } else { AsyncEvent::PortDown { port } }
            }
            kind => AsyncEvent::Other { kind },
        };
        // SAFETY: the event came from `ibv_get_async_event` and is acknowledged once.
        unsafe { ib::ibv_ack_async_event(at) };
        Some(seen)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was opened by `open`, and everything made from it holds this value by `Arc` and is gone.
        let closed = check(unsafe { ib::ibv_close_device(self.raw()) });
        if let Err(error) = closed {
            tracing::error!(device = self.name, %error, "ibv_close_device failed");
        }
    }
}
