//! Protection domains, registered memory and memory windows.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as ib;

use super::check;
use super::device::Context;
use crate::memory::{LocalMapping, LocalMemory, SharedMemory};
use crate::{Access, Key};

const LOCAL_WRITE: u32 = ib::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
const REMOTE_READ: u32 = ib::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
const MW_BIND: u32 = ib::ibv_access_flags::IBV_ACCESS_MW_BIND.0;

/// What a binding allows, in the device's words.
pub(super) const fn access_flags(access: Access) -> u32 {
    match access {
        Access::None => 0,
        Access::Read => REMOTE_READ,
    }
}

/// A protection domain.
pub(in crate::verbs) struct Domain {
    raw: NonNull<ib::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread, and the domain is freed by its one owner's drop.
unsafe impl Send for Domain {}
// SAFETY: as above; shared use is locked inside libibverbs.
unsafe impl Sync for Domain {}

impl Domain {
    pub(in crate::verbs) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = unsafe { ib::ibv_alloc_pd(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    pub(super) fn raw(&self) -> *mut ib::ibv_pd {
        self.raw.as_ptr()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; regions, windows and queue pairs hold this value by `Arc` and are gone.
        if let Err(error) = check(unsafe { ib::ibv_dealloc_pd(self.raw()) }) {
            tracing::error!(device = self.context.name(), %error, "ibv_dealloc_pd failed");
        }
    }
}

/// What a region keeps mapped.
enum Backing {
    Local { _mapping: LocalMapping },
    Shared(SharedMemory),
}

/// Memory that is registered with a device, and stays mapped for as long.
pub(in crate::verbs) struct Region {
    raw: Option<NonNull<ib::ibv_mr>>,
    start: u64,
    len: u64,
    lkey: u32,
    rkey: u32,
    domain: Arc<Domain>,
    // Behind the registration in every order of dropping: `drop` deregisters before the fields go.
    backing: Backing,
}

// SAFETY: the registration is undone by its one owner; nothing is read or written through it here.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives out numbers only.
unsafe impl Sync for Region {}

impl Region {
    /// Slots: this side's work may use them, and no peer.
    pub(in crate::verbs) fn local(domain: &Arc<Domain>, memory: &LocalMemory) -> io::Result<Self> {
        let (start, len) = memory.region();
        Self::register(domain, start, len, LOCAL_WRITE, Backing::Local { _mapping: memory.mapping() })
    }

    /// Memory that may be lent through windows. Its own key opens nothing: it has no remote right.
    pub(in crate::verbs) fn lendable(domain: &Arc<Domain>, memory: &SharedMemory) -> io::Result<Self> {
        let start = memory.address(0, memory.len());
        let len = (memory.len() as usize).max(1);
        Self::register(domain, start, len, LOCAL_WRITE | MW_BIND, Backing::Shared(memory.clone()))
    }

    /// A part of shared memory, lent by a registration of its own. The range is within the memory.
    pub(in crate::verbs) fn lent(
        domain: &Arc<Domain>,
        memory: &SharedMemory,
        (offset, len): (u64, u64),
        access: Access,
    ) -> io::Result<Self> {
        let start = memory.address(offset, len);
        Self::register(domain, start, len as usize, access_flags(access), Backing::Shared(memory.clone()))
    }

    fn register(domain: &Arc<Domain>, start: *mut u8, len: usize, access: u32, backing: Backing) -> io::Result<Self> {
        // SAFETY: the domain is allocated. The range is mapped, and `backing` keeps it so until it is deregistered.
        let raw = unsafe { ib::ibv_reg_mr(domain.raw(), start.cast(), len, access as libc::c_int) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the call has just made this registration.
        let (lkey, rkey) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        let domain = Arc::clone(domain);
        Ok(Self { raw: Some(raw), start: start as u64, len: len as u64, lkey, rkey, domain, backing })
    }

    pub(super) fn raw(&self) -> *mut ib::ibv_mr {
        self.raw.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    /// The address of its first byte: what peers call it.
    pub(in crate::verbs) fn start(&self) -> u64 {
        self.start
    }

    /// The shared memory that it registers.
    pub(in crate::verbs) fn shared(&self) -> Option<&SharedMemory> {
        match &self.backing {
            Backing::Shared(memory) => Some(memory),
            Backing::Local { .. } => None,
        }
    }

    /// Whether a range of addresses is within it.
    pub(in crate::verbs) fn covers(&self, address: u64, len: u64) -> bool {
        let end = address.checked_add(len);
        self.raw.is_some() && address >= self.start && end.is_some_and(|end| end <= self.start + self.len)
    }

    pub(super) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(in crate::verbs) fn key(&self) -> Key {
        Key(self.rkey)
    }

    pub(in crate::verbs) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Deregisters it, so that a failure can be told; dropping it does the same.
    pub(in crate::verbs) fn close(&mut self) -> io::Result<()> {
        let Some(raw) = self.raw else { return Ok(()) };
        // SAFETY: registered by `register` and not yet deregistered; work in flight holds this value by `Arc`.
        check(unsafe { ib::ibv_dereg_mr(raw.as_ptr()) })?;
        self.raw = None;
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            let device = self.domain.context().name();
            tracing::error!(device, %error, start = self.start, len = self.len, "ibv_dereg_mr failed");
        }
    }
}

/// A type-1 memory window.
pub(in crate::verbs) struct Window {
    raw: Option<NonNull<ib::ibv_mw>>,
    domain: Arc<Domain>,
}

// SAFETY: the window is deallocated by its one owner, and its key is read and written only through it.
unsafe impl Send for Window {}
// SAFETY: `&Window` only reads the key, which only `&mut Window` changes.
unsafe impl Sync for Window {}

impl Window {
    pub(in crate::verbs) fn new(domain: &Arc<Domain>) -> io::Result<Self> {
        // SAFETY: the domain is allocated. `None` is a provider without windows; a null window is a failed allocation.
        let raw = unsafe { ib::ibv_alloc_mw(domain.raw(), ib::ibv_mw_type::IBV_MW_TYPE_1) };
        let raw = raw.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { raw: Some(raw), domain: Arc::clone(domain) })
    }

    pub(super) fn raw(&self) -> *mut ib::ibv_mw {
        self.raw.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    pub(in crate::verbs) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The key that the provider counts on from.
    pub(in crate::verbs) fn key(&self) -> Key {
        // SAFETY: a window that is there is allocated, and nobody writes its key but through `&mut self`.
        self.raw.map_or(Key(0), |raw| Key(unsafe { raw.as_ref().rkey }))
    }

    /// Takes the provider's count back to where it was before a bind that failed.
    pub(in crate::verbs) fn restore_key(&mut self, key: Key) {
        if let Some(mut raw) = self.raw {
            // SAFETY: the window is allocated, and `&mut self` excludes every other use of its key.
            unsafe { raw.as_mut().rkey = key.0 };
        }
    }

    /// Deallocates it, which kills its key, so that a failure can be told; dropping it does the same.
    pub(in crate::verbs) fn close(&mut self) -> io::Result<()> {
        let Some(raw) = self.raw else { return Ok(()) };
        // SAFETY: a context whose table has no such operation could not have made the window.
        let has_operation = unsafe { (*raw.as_ref().context).ops.dealloc_mw.is_some() };
        if !has_operation {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        // SAFETY: allocated by `new`, not yet deallocated, and the operation is there.
        check(unsafe { ib::ibv_dealloc_mw(raw.as_ptr()) })?;
        self.raw = None;
        Ok(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            let device = self.domain.context().name();
            tracing::error!(device, %error, key = %self.key(), "ibv_dealloc_mw failed");
        }
    }
}
