//! The protection tables: domains, regions, windows and their bindings, and what a key opens.
//!
//! This is the part of a device that decides; it moves no byte. A window's key is its current one only from the execution of
//! its bind on, and any other key of that window, like the region's own, opens nothing. All checks are strict: a READ must
//! lie within the window's range, whatever the region around it is.

use super::keys::{Holder, Keys};
use crate::memory::SharedMemory;
use crate::table::Table;
use crate::{Access, DomainId, FabricError, Key, Outcome, SharedId, SharedSpan, WindowId, WorkError};

/// Regions begin at a multiple of this in the numbering that peers use.
const PAGE: u64 = 4096;

/// Regions begin at an address in this many low bits, like those of user space.
const ADDRESS_BITS: u32 = 46;

/// The protection tables.
pub(super) struct Device {
    pub(super) domains: Table<DomainId, Domain>,
    pub(super) regions: Table<SharedId, Region>,
    pub(super) windows: Table<WindowId, Window>,
    keys: Keys,
}

/// A protection domain. What is in it names it.
#[derive(Debug)]
pub(super) struct Domain;

/// Memory, registered in a domain.
pub(super) struct Region {
    pub(super) domain: DomainId,
    pub(super) memory: SharedMemory,
    /// The address of its first byte, as peers name it: made up, so that a forgotten base shows.
    pub(super) base: u64,
    pub(super) key: Key,
    /// How many windows are bound to it.
    pub(super) lent: u32,
}

/// A type-1 memory window.
pub(super) struct Window {
    pub(super) domain: DomainId,
    /// The key of the last executed bind or unbind.
    current: Key,
    /// The key of the last posted one: `current`, or the one after it.
    pub(super) posted: Key,
    /// A bind or unbind was posted and its completion not yet polled.
    pub(super) busy: bool,
    binding: Option<Binding>,
}

#[derive(Clone, Copy)]
struct Binding {
    span: SharedSpan,
    access: Access,
}

impl Device {
    pub(super) fn new() -> Result<Self, FabricError> {
        Ok(Self { domains: Table::new(), regions: Table::new(), windows: Table::new(), keys: Keys::new()? })
    }

    /// Registers memory.
    pub(super) fn register(&mut self, domain: DomainId, memory: SharedMemory) -> Result<SharedId, FabricError> {
        self.expect_domain(domain)?;
        let key = self.keys.fresh()?;
        let mut bits = [0; 8];
        super::random(&mut bits)?;
        // Page-aligned, never zero, and far enough below 2^64 for any memory that fits in this process.
        let base = (u64::from_le_bytes(bits) % (1 << ADDRESS_BITS) / PAGE + 1) * PAGE;
        let region = self.regions.insert(Region { domain, memory, base, key, lent: 0 });
        self.keys.hold(key, Holder::Region(region));
        Ok(region)
    }

    /// Takes a region out, unless windows are bound to it.
    pub(super) fn deregister(&mut self, shared: SharedId) -> Result<(), FabricError> {
        let region = self.region(shared)?;
        if region.lent > 0 {
            let bound = |window: &Window| window.binding.is_some_and(|binding| binding.span.shared == shared);
            let windows = self.windows.iter().filter(|(_, window)| bound(window)).map(|(id, _)| id).collect();
            return Err(FabricError::Lent { what: shared.to_string(), windows });
        }
        self.keys.release(region.key);
        self.regions.remove(shared);
        Ok(())
    }

    /// Allocates a window.
    pub(super) fn allocate(&mut self, domain: DomainId) -> Result<WindowId, FabricError> {
        self.expect_domain(domain)?;
        let key = self.keys.fresh()?;
        let window = Window { domain, current: key, posted: key, busy: false, binding: None };
        let window = self.windows.insert(window);
        self.keys.hold(key, Holder::Window(window));
        Ok(window)
    }

    /// Deallocates a window, bound or not.
    pub(super) fn deallocate(&mut self, id: WindowId) -> Result<(), FabricError> {
        let window = self.window(id)?;
        if window.busy {
            return Err(FabricError::WindowBusy { window: id });
        }
        let key = window.current;
        self.set_binding(id, None);
        self.windows.remove(id);
        self.keys.release(key);
        Ok(())
    }

    pub(super) fn expect_domain(&self, domain: DomainId) -> Result<(), FabricError> {
        self.domains.get(domain).map(|_| ()).ok_or_else(|| FabricError::unknown(domain))
    }

    pub(super) fn region(&self, shared: SharedId) -> Result<&Region, FabricError> {
        self.regions.get(shared).ok_or_else(|| FabricError::unknown(shared))
    }

    pub(super) fn window(&self, window: WindowId) -> Result<&Window, FabricError> {
        self.windows.get(window).ok_or_else(|| FabricError::unknown(window))
    }

    /// How many windows are bound.
    pub(super) fn bound(&self) -> usize {
        self.windows.iter().filter(|(_, window)| window.binding.is_some()).count()
    }

    /// Moves a window's posted key on and returns it; the window is busy until [`settle`](Self::settle).
    pub(super) fn announce(&mut self, id: WindowId) -> Result<Key, FabricError> {
        let window = self.windows.get_mut(id).ok_or_else(|| FabricError::unknown(id))?;
        if window.busy {
            return Err(FabricError::WindowBusy { window: id });
        }
        window.busy = true;
        window.posted = window.current.next();
        Ok(window.posted)
    }

    /// Ends what [`announce`](Self::announce) began: whatever was not executed is taken back.
    pub(super) fn settle(&mut self, id: WindowId) {
        if let Some(window) = self.windows.get_mut(id) {
            window.busy = false;
            window.posted = window.current;
        }
    }

    /// Executes a bind that was announced. A failed one changes nothing.
    pub(super) fn bind(&mut self, id: WindowId, span: SharedSpan, access: Access) -> Result<Outcome, WorkError> {
        let window = self.windows.get(id).ok_or(WorkError::Bind)?;
        let region = self.regions.get(span.shared).ok_or(WorkError::Bind)?;
        let fits = span.offset.checked_add(span.len).is_some_and(|end| end <= region.memory.len());
        if window.domain != region.domain || !fits {
            return Err(WorkError::Bind);
        }
        let key = window.posted;
        self.set_binding(id, Some(Binding { span, access }));
        self.advance(id, key);
        Ok(Outcome::Bound(key))
    }

    /// Executes an unbind that was announced.
    pub(super) fn unbind(&mut self, id: WindowId) -> Result<Outcome, WorkError> {
        let key = self.windows.get(id).ok_or(WorkError::Bind)?.posted;
        self.set_binding(id, None);
        self.advance(id, key);
        Ok(Outcome::Unbound)
    }

    fn advance(&mut self, id: WindowId, key: Key) {
        if let Some(window) = self.windows.get_mut(id) {
            window.current = key;
        }
    }

    /// Replaces a binding, keeping the regions' counts.
    fn set_binding(&mut self, id: WindowId, binding: Option<Binding>) {
        let Some(window) = self.windows.get_mut(id) else { return };
        let before = std::mem::replace(&mut window.binding, binding);
        if let Some(region) = binding.and_then(|binding| self.regions.get_mut(binding.span.shared)) {
            region.lent += 1;
        }
        if let Some(region) = before.and_then(|before| self.regions.get_mut(before.span.shared)) {
            region.lent -= 1;
        }
    }

    /// What a peer's READ through an endpoint of `domain` may fetch: the region and the offset in it, or `None` if the key
    /// does not open that range now.
    pub(super) fn open(&self, domain: DomainId, key: Key, address: u64, len: u32) -> Option<(SharedId, u64)> {
        let Some(Holder::Window(id)) = self.keys.holder(key) else { return None };
        let window = self.windows.get(id)?;
        let Binding { span, access } = window.binding?;
        if window.current != key || window.domain != domain || access != Access::Read {
            return None;
        }
        let region = self.regions.get(span.shared)?;
        let offset = address.checked_sub(region.base)?;
        let end = offset.checked_add(u64::from(len))?;
        (offset >= span.offset && end <= span.end()).then_some((span.shared, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Setup {
        device: Device,
        domain: DomainId,
        shared: SharedId,
        window: WindowId,
        base: u64,
    }

    fn setup() -> Setup {
        let mut device = Device::new().unwrap();
        let domain = device.domains.insert(Domain);
        let shared = device.register(domain, SharedMemory::new(10_000).unwrap()).unwrap();
        let window = device.allocate(domain).unwrap();
        let base = device.region(shared).unwrap().base;
        Setup { device, domain, shared, window, base }
    }

    impl Setup {
        fn bind(&mut self, offset: u64, len: u64, access: Access) -> Result<Outcome, WorkError> {
            self.device.announce(self.window).unwrap();
            let result = self.device.bind(self.window, SharedSpan { shared: self.shared, offset, len }, access);
            self.device.settle(self.window);
            result
        }

        fn opens(&self, key: Key, offset: u64, len: u32) -> bool {
            self.device.open(self.domain, key, self.base.wrapping_add(offset), len).is_some()
        }
    }

    #[test]
    fn a_key_opens_its_windows_range_and_nothing_around_it() {
        let mut setup = setup();
        let Ok(Outcome::Bound(key)) = setup.bind(1_000, 500, Access::Read) else { panic!("the range exists") };
        assert!(setup.opens(key, 1_000, 500));
        assert!(setup.opens(key, 1_499, 1));
        for (offset, len) in [(999, 1), (999, 2), (1_500, 1), (1_499, 2), (0, 10_000), (1_000, u32::MAX)] {
            assert!(!setup.opens(key, offset, len), "{offset}+{len}");
        }
        assert!(!setup.opens(key, u64::MAX - setup.base, 2), "an address that wraps");
        assert!(!setup.opens(setup.device.region(setup.shared).unwrap().key, 1_000, 1));
        let other = setup.device.domains.insert(Domain);
        assert_eq!(setup.device.open(other, key, setup.base + 1_000, 1), None);
    }

    #[test]
    fn a_failed_bind_changes_nothing() {
        let mut setup = setup();
        let Ok(Outcome::Bound(key)) = setup.bind(0, 10_000, Access::Read) else { panic!("the range exists") };
        assert_eq!(setup.bind(1, 10_000, Access::Read), Err(WorkError::Bind));
        assert_eq!(setup.bind(u64::MAX, 2, Access::Read), Err(WorkError::Bind));
        assert_eq!(setup.device.window(setup.window).unwrap().posted, key);
        assert!(setup.opens(key, 0, 10_000));
    }

    #[test]
    fn a_lent_region_is_not_deregistered_and_says_to_whom_it_is_lent() {
        let mut setup = setup();
        setup.bind(0, 1, Access::None).unwrap();
        setup.bind(0, 2, Access::Read).unwrap();
        match setup.device.deregister(setup.shared) {
            Err(FabricError::Lent { windows, .. }) => assert_eq!(windows, [setup.window]),
            other => panic!("{other:?}"),
        }
        setup.device.deallocate(setup.window).unwrap();
        setup.device.deregister(setup.shared).unwrap();
    }
}
