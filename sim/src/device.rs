//! The device of one simulated node: its memory, windows, keys and endpoints, behind the contract that the machines know.
//!
//! It holds and checks; it has no time. Work that is posted waits in its endpoint until the `network`
//! executes it, and what has happened waits here until the node polls. Where the contract lets a device choose, this one
//! is nasty: indices of freed windows are soon used again, with any low byte.

use std::collections::VecDeque;

use keyway_fabric::memory::{Claim, LocalMemory, Use};
use keyway_fabric::*;

use crate::NodeId;
use crate::endpoint::Endpoint;
use crate::shared::SharedMemory;
use crate::table::Table;

/// What a seed decides about a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceTraits {
    /// Whether a READ outside its window but inside the region is refused. Some devices let it pass.
    pub(crate) bounds_enforced: bool,
    /// The most windows at once.
    pub(crate) windows_max: u32,
    /// Of 100 new windows, how many get the index of a freed one.
    pub(crate) index_reuse: u32,
}

/// Something that happened to memory or windows, for whoever judges the machines.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    /// A bind is in force.
    Bound { window: WindowId, key: Key, span: SharedSpan },
    /// A binding ended.
    Ended { key: Key },
    /// Shared memory was written.
    Wrote { span: SharedSpan, bytes: Vec<u8> },
    /// A word was stored.
    Stored { offset: u64, word: u64 },
    /// A message was posted.
    Sent { link: LinkId, bytes: Vec<u8> },
}

/// An event that waits to be polled, and what its being polled frees.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) event: Event,
    pub(crate) release: Release,
}

#[derive(Debug, Default)]
pub(crate) struct Release {
    pub(crate) claim: Option<(LocalId, Claim)>,
    pub(crate) window: Option<WindowId>,
    pub(crate) send: Option<LinkId>,
    pub(crate) receive: Option<LinkId>,
}

pub(crate) struct Local {
    pub(crate) domain: DomainId,
    pub(crate) memory: LocalMemory,
}

#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) domain: DomainId,
    pub(crate) memory: SharedMemory,
    pub(crate) base: u64,
    pub(crate) key: Key,
}

/// A window as the device has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) domain: DomainId,
    /// The key in force.
    pub(crate) current: Key,
    pub(crate) posted: Key,
    pub(crate) busy: bool,
    pub(crate) binding: Option<(SharedSpan, Access)>,
}

/// A node's device.
pub(crate) struct SimFabric {
    pub(crate) node: NodeId,
    pub(crate) traits: DeviceTraits,
    pub(crate) rng: fastrand::Rng,
    pub(crate) waker: Waker,
    pub(crate) domains: Table<()>,
    pub(crate) locals: Table<Local>,
    pub(crate) shareds: Table<Shared>,
    pub(crate) windows: Table<Window>,
    pub(crate) endpoints: Table<Endpoint>,
    pub(crate) ready: VecDeque<Ready>,
    /// Endpoints that were given work, or closed, since the network last looked.
    pub(crate) rung: Vec<LinkId>,
    pub(crate) closed: Vec<LinkId>,
    pub(crate) index_next: u32,
    pub(crate) indices_freed: Vec<u32>,
    pub(crate) base_next: u64,
    /// What happened since the judges last looked.
    pub(crate) deeds: Vec<Deed>,
    /// The memory whose bytes the judges watch.
    pub(crate) observed: Option<SharedId>,
}

macro_rules! ids {
    ($($id:ident => $index:ident, $make:ident;)*) => { $(
        pub(crate) const fn $index(id: $id) -> (u32, u32) {
            (id.index, id.generation)
        }
        #[allow(dead_code, reason = "not every kind is made by the same path")]
        pub(crate) const fn $make((index, generation): (u32, u32)) -> $id {
            $id { index, generation }
        }
    )* };
}

ids! {
    DomainId => domain_at, domain_id;
    LocalId => local_at, local_id;
    SharedId => shared_at, shared_id;
    WindowId => window_at, window_id;
    LinkId => link_at, link_id;
}

impl SimFabric {
    pub(crate) fn new(node: NodeId, traits: DeviceTraits, mut rng: fastrand::Rng) -> Self {
        let index_next = rng.u32(1..1 << 20);
        Self {
            node,
            traits,
            rng,
            waker: Waker::new().expect("the system has a descriptor left"),
            domains: Table::new(),
            locals: Table::new(),
            shareds: Table::new(),
            windows: Table::new(),
            endpoints: Table::new(),
            ready: VecDeque::new(),
            rung: Vec::new(),
            closed: Vec::new(),
            index_next,
            indices_freed: Vec::new(),
            base_next: (u64::from(node.0) + 1) << 40,
            deeds: Vec::new(),
            observed: None,
        }
    }

    pub(crate) fn endpoint_of(&mut self, link: LinkId) -> Option<&mut Endpoint> {
        self.endpoints.get_mut(link_at(link))
    }

    /// An endpoint and the queue of events, both to change.
    pub(crate) fn endpoint_and_ready(&mut self, link: LinkId) -> Option<(&mut Endpoint, &mut VecDeque<Ready>)> {
        Some((self.endpoints.get_mut(link_at(link))?, &mut self.ready))
    }

    pub(crate) fn links(&self) -> Vec<LinkId> {
        self.endpoints.iter().map(|(at, _)| link_id(at)).collect()
    }

    pub(crate) fn shared_of(&self, shared: SharedId) -> Option<&Shared> {
        self.shareds.get(shared_at(shared))
    }

    pub(crate) fn window_of(&self, window: WindowId) -> Option<&Window> {
        self.windows.get(window_at(window))
    }

    /// Every window that is bound: its id, key and range.
    pub(crate) fn bound(&self) -> impl Iterator<Item = (WindowId, Key, SharedSpan)> {
        self.windows
            .iter()
            .filter_map(|(at, window)| window.binding.map(|(span, _)| (window_id(at), window.current, span)))
    }

    /// Whether a bind or unbind of a window is posted and its completion not polled.
    pub(crate) fn is_busy(&self, window: WindowId) -> bool {
        self.window_of(window).is_some_and(|window| window.busy)
    }

    /// Executes a bind or unbind that was posted.
    pub(crate) fn execute(&mut self, work: Work) -> Result<Outcome, WorkError> {
        let (id, binding) = match work {
            Work::Bind { window, span, access } => (window, Some((span, access))),
            Work::Unbind { window } => (window, None),
            _ => unreachable!("only binds and unbinds are executed by the device alone"),
        };
        if let Some((span, _)) = binding {
            let domain = self.window_of(id).map(|window| window.domain);
            let same = self.shared_of(span.shared).map(|shared| shared.domain) == domain;
            if !same || self.check_shared(span).is_err() {
                return Err(WorkError::Bind);
            }
        }
        let window = self.windows.get_mut(window_at(id)).ok_or(WorkError::Bind)?;
        let before = window.current;
        window.current = window.posted;
        let key = window.current;
        if std::mem::replace(&mut window.binding, binding).is_some() {
            self.deeds.push(Deed::Ended { key: before });
        }
        let Some((span, _)) = binding else { return Ok(Outcome::Unbound) };
        self.deeds.push(Deed::Bound { window: id, key, span });
        Ok(Outcome::Bound(key))
    }

    /// What a peer's READ through an endpoint of `domain` may fetch now. A device that does not enforce bounds lets it have
    /// the whole region.
    pub(crate) fn open(&self, domain: DomainId, key: Key, address: u64, len: u32) -> Option<SharedSpan> {
        let (_, window) = self.windows.iter().find(|(_, window)| window.current == key)?;
        let (span, access) = window.binding?;
        if access != Access::Read || window.domain != domain {
            return None;
        }
        let shared = self.shared_of(span.shared)?;
        let offset = address.checked_sub(shared.base)?;
        let end = offset.checked_add(u64::from(len))?;
        let (from, to) = if self.traits.bounds_enforced { (span.offset, span.end()) } else { (0, shared.memory.len()) };
        (offset >= from && end <= to).then_some(SharedSpan { shared: span.shared, offset, len: u64::from(len) })
    }

    /// Writes what a READ fetched, or a message, where it belongs.
    pub(crate) fn land(&mut self, link: LinkId, number: u64, at: u32, bytes: &[u8]) {
        let Some(entry) = self.endpoints.get_mut(link_at(link)).and_then(|endpoint| endpoint.entry(number)) else {
            return;
        };
        match entry.work {
            Work::Read { into: Target::Shared(span), .. } => {
                self.write(span.part(u64::from(at), bytes.len() as u64), bytes)
            }
            _ => {
                let (_, claim) = entry.claim.as_mut().expect("a READ into local memory has a claim");
                claim.bytes_mut()[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    pub(crate) fn claim(
        &mut self,
        domain: DomainId,
        span: LocalSpan,
        usage: Use,
    ) -> Result<(LocalId, Claim), FabricError> {
        let local = self.locals.get_mut(local_at(span.local)).ok_or_else(|| FabricError::unknown(span.local))?;
        if local.domain != domain {
            return Err(FabricError::DomainMismatch { what: span.local.to_string() });
        }
        if !local.memory.contains(span.range()) {
            return Err(FabricError::OutOfBounds { span: format!("{span:?}") });
        }
        let busy = || FabricError::SlotBusy { span: format!("{span:?}") };
        Ok((span.local, local.memory.begin(span.range(), usage).ok_or_else(busy)?))
    }

    pub(crate) fn check_shared(&self, span: SharedSpan) -> Result<(), FabricError> {
        let shared = self.shared_of(span.shared).ok_or_else(|| FabricError::unknown(span.shared))?;
        let fits = span.offset.checked_add(span.len).is_some_and(|end| end <= shared.memory.len());
        if fits { Ok(()) } else { Err(FabricError::OutOfBounds { span: format!("{span:?}") }) }
    }

    /// Checks what a bind or unbind names and moves its window's posted key on.
    pub(crate) fn announce(
        &mut self,
        link_domain: DomainId,
        id: WindowId,
        span: Option<SharedSpan>,
    ) -> Result<(), FabricError> {
        if let Some(span) = span {
            let shared = self.shared_of(span.shared).ok_or_else(|| FabricError::unknown(span.shared))?;
            if shared.domain != link_domain {
                return Err(FabricError::DomainMismatch { what: span.shared.to_string() });
            }
        }
        let window = self.windows.get_mut(window_at(id)).ok_or_else(|| FabricError::unknown(id))?;
        if window.busy {
            return Err(FabricError::WindowBusy { window: id });
        }
        if window.domain != link_domain {
            return Err(FabricError::DomainMismatch { what: id.to_string() });
        }
        window.busy = true;
        window.posted = window.current.next();
        Ok(())
    }

    pub(crate) fn release(&mut self, release: Release) {
        if let Some((local, claim)) = release.claim
            && let Some(local) = self.locals.get_mut(local_at(local))
        {
            local.memory.end(claim);
        }
        if let Some(window) = release.window.and_then(|window| self.windows.get_mut(window_at(window))) {
            window.busy = false;
            window.posted = window.current;
        }
        if let Some(endpoint) = release.send.and_then(|link| self.endpoints.get_mut(link_at(link))) {
            endpoint.sends_open -= 1;
        }
        if let Some(endpoint) = release.receive.and_then(|link| self.endpoints.get_mut(link_at(link))) {
            endpoint.receives_open -= 1;
        }
    }

    pub(crate) fn index(&mut self) -> u32 {
        if !self.indices_freed.is_empty() && self.rng.u32(0..100) < self.traits.index_reuse {
            let at = self.rng.usize(..self.indices_freed.len());
            return self.indices_freed.swap_remove(at);
        }
        self.index_next += 1;
        self.index_next
    }

    pub(crate) fn register(&mut self, domain: DomainId, memory: SharedMemory) -> SharedId {
        let key = Key(self.index() << 8 | self.rng.u32(0..256));
        let base = self.base_next;
        // A page's distance at least, so that a READ past one region's end is in none.
        self.base_next += memory.len().next_multiple_of(4096) + 4096;
        shared_id(self.shareds.insert(Shared { domain, memory, base, key }))
    }

    pub(crate) fn memory_of(&self, shared: SharedId) -> &SharedMemory {
        &self.shared_of(shared).unwrap_or_else(|| panic!("{shared} names no memory")).memory
    }

    pub(crate) fn local_of(&self, local: LocalId) -> &LocalMemory {
        &self.locals.get(local_at(local)).unwrap_or_else(|| panic!("{local} names no memory")).memory
    }

    /// Whether a poll would report something.
    pub(crate) fn has_events(&self) -> bool {
        !self.ready.is_empty() || self.endpoints.iter().any(|(_, endpoint)| endpoint.down_due)
    }
}
