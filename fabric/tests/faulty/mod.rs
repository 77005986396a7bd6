//! A fabric with a fault: the software fabric behind something that changes what is asked of it.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::os::fd::RawFd;
use std::rc::Rc;

use keyway_fabric::{
    Capabilities, DomainId, EndpointAddress, EndpointConfig, Event, Fabric, FabricError, Holdings, Key, LinkId,
    LocalId, LocalSpan, Memory, Op, RemoteSpan, SharedId, SharedSpan, Stream, View, Waker, WindowId, Work,
};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A region's own key opens what a window opens.
    RegionKeyOpens,
    /// Every key that a window ever had opens what its current one opens.
    StaleKeysOpen,
    /// A window opens its whole region.
    BoundsIgnored,
    /// No key opens anything.
    KeysNeverOpen,
    /// A window that was freed is still held.
    WindowsLeak,
    /// There are no endpoints to be had.
    Unconnected,
}

/// What the owner's and the reader's fabric know of each other.
#[derive(Default)]
pub(crate) struct Known {
    regions: HashSet<Key>,
    lengths: HashMap<SharedId, u64>,
    /// The key of each window's last bind or unbind, by index.
    current: HashMap<u32, Key>,
    given: HashSet<Key>,
}

pub(crate) type Shared = Rc<RefCell<Known>>;

pub(crate) struct Faulty {
    inner: Box<dyn Fabric>,
    fault: Fault,
    known: Shared,
}

impl Faulty {
    pub(crate) fn new(inner: Box<dyn Fabric>, fault: Fault, known: Shared) -> Self {
        Self { inner, fault, known }
    }

    /// The key that the device takes a READ's key for.
    fn taken_for(&self, key: Key) -> Key {
        let known = self.known.borrow();
        match self.fault {
            Fault::RegionKeyOpens if known.regions.contains(&key) => {
                known.current.values().next().copied().unwrap_or(key)
            }
            Fault::StaleKeysOpen if known.given.contains(&key) => {
                known.current.get(&key.index()).copied().unwrap_or(key)
            }
            Fault::KeysNeverOpen => Key(0),
            _ => key,
        }
    }

    fn changed(&self, work: Work) -> Work {
        match work {
            Work::Read { from, into } => {
                Work::Read { from: RemoteSpan { key: self.taken_for(from.key), ..from }, into }
            }
            Work::Bind { window, span, access } if self.fault == Fault::BoundsIgnored => {
                let len = self.known.borrow().lengths[&span.shared];
                Work::Bind { window, span: SharedSpan { offset: 0, len, ..span }, access }
            }
            other => other,
        }
    }
}

macro_rules! forward {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self $(, $argument: $type)*) $(-> $result)? { self.inner.$name($($argument),*) })*
    };
    (mut $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $name(&mut self $(, $argument: $type)*) $(-> $result)? { self.inner.$name($($argument),*) })*
    };
}

impl Memory for Faulty {
    forward! {
        fn bytes(&self, span: LocalSpan) -> &[u8];
        fn load(&self, from: SharedSpan, bytes: &mut [u8]);
        fn crc32c(&self, span: SharedSpan) -> u32;
        fn address(&self, span: SharedSpan) -> u64;
        fn key(&self, window: WindowId) -> Key;
    }
    forward! { mut
        fn bytes_mut(span: LocalSpan) -> &mut [u8];
        fn copy(from: LocalSpan, to: SharedSpan);
        fn write(to: SharedSpan, bytes: &[u8]);
        fn store(shared: SharedId, offset: u64, word: u64);
        fn zero(span: SharedSpan);
    }
}

impl Fabric for Faulty {
    forward! {
        fn name(&self) -> &str;
        fn strategy(&self) -> &str;
        fn capabilities(&self) -> Capabilities;
        fn needs_stream(&self) -> bool;
        fn busy(&self) -> bool;
        fn fd(&self) -> RawFd;
        fn waker(&self) -> Waker;
    }
    forward! { mut
        fn domain() -> Result<DomainId, FabricError>;
        fn local(domain: DomainId, slots: u32, size: u32) -> Result<LocalId, FabricError>;
        fn share(domain: DomainId, shared: SharedId) -> Result<SharedId, FabricError>;
        fn window(domain: DomainId) -> Result<WindowId, FabricError>;
        fn connect(link: LinkId, peer: &EndpointAddress) -> Result<(), FabricError>;
        fn attach(link: LinkId, stream: Stream) -> Result<(), FabricError>;
        fn submit();
        fn poll(events: &mut Vec<Event>, limit: usize);
        fn arm();
        fn close(link: LinkId);
        fn view(span: LocalSpan) -> View;
        fn reset(local: LocalId, slot: u32) -> bool;
        fn free_local(local: LocalId) -> Result<(), FabricError>;
        fn free_shared(shared: SharedId) -> Result<(), FabricError>;
        fn free_domain(domain: DomainId) -> Result<(), FabricError>;
    }

    fn shared(&mut self, domain: DomainId, len: u64) -> Result<SharedId, FabricError> {
        let shared = self.inner.shared(domain, len)?;
        self.known.borrow_mut().lengths.insert(shared, len);
        Ok(shared)
    }

    fn region_key(&self, shared: SharedId) -> Result<Key, FabricError> {
        let key = self.inner.region_key(shared)?;
        self.known.borrow_mut().regions.insert(key);
        Ok(key)
    }

    fn endpoint(&mut self, config: EndpointConfig) -> Result<(LinkId, EndpointAddress), FabricError> {
        if self.fault == Fault::Unconnected {
            return Err(FabricError::Exhausted { what: "endpoints", limit: 0 });
        }
        self.inner.endpoint(config)
    }

    fn post(&mut self, link: LinkId, op: Op, work: Work) -> Result<(), FabricError> {
        let work = self.changed(work);
        self.inner.post(link, op, work)?;
        if let Work::Bind { window, .. } | Work::Unbind { window } = work {
            let key = self.inner.key(window);
            let mut known = self.known.borrow_mut();
            known.current.insert(key.index(), key);
            known.given.insert(key);
        }
        Ok(())
    }

    fn free_window(&mut self, window: WindowId) -> Result<(), FabricError> {
        let key = self.inner.key(window);
        self.inner.free_window(window)?;
        self.known.borrow_mut().current.remove(&key.index());
        Ok(())
    }

    fn holdings(&self) -> Holdings {
        let held = self.inner.holdings();
        Holdings { windows: held.windows + usize::from(self.fault == Fault::WindowsLeak), ..held }
    }
}
