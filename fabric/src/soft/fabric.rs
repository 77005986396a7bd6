//! The software fabric's face: the objects, their making and freeing, and the contract.

use std::os::fd::RawFd;

use super::address::Token;
use super::completion::Completions;
use super::device::{Device, Domain};
use super::endpoint::{Endpoint, Fault, Phase};
use super::lingering::Lingering;
use super::outgoing::Plan;
use super::transport::Transport;
use crate::memory::{HugePages, Local, LocalMemory, Locals, Resident, SharedMemory};
use crate::poller::{Poller, Ready};
use crate::table::Table;
use crate::{
    Capabilities, DomainId, EndpointAddress, EndpointConfig, Event, Fabric, FabricError, Holdings, Key, LinkId,
    LocalId, LocalSpan, Op, SharedId, Stream, View, Waker, WindowId, Work,
};

/// The size of the receive buffer that all endpoints share: what a socket holds at most.
const BUFFER: usize = 256 * 1024;

/// What the poller calls the waker. No endpoint has this tag: a table never has 2^32 places in use.
pub(super) const WAKER_TAG: u64 = u64::MAX;

/// The limits of a software fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftConfig {
    /// The most windows at once. A window takes about a hundred bytes.
    pub windows_max: u32,
    /// The most endpoints at once.
    pub endpoints_max: u32,
    /// The most bytes that one READ may fetch.
    pub read_max: u32,
    /// The pages of shared memory.
    pub huge_pages: HugePages,
}

impl Default for SoftConfig {
    fn default() -> Self {
        Self { windows_max: 1 << 20, endpoints_max: 1 << 16, read_max: 1 << 30, huge_pages: HugePages::Off }
    }
}

/// The software fabric.
pub struct SoftFabric {
    pub(super) config: SoftConfig,
    pub(super) device: Device,
    pub(super) locals: Locals<()>,
    pub(super) endpoints: Table<LinkId, Endpoint>,
    pub(super) lingering: Vec<Lingering>,
    pub(super) completions: Completions,
    pub(super) poller: Poller,
    pub(super) waker: Waker,
    /// The sleeper may have been woken since it was last looked at.
    pub(super) armed: bool,
    /// The last poll moved something.
    pub(super) busy: bool,
    /// The endpoints that are connected through pipes.
    pub(super) pipes: Vec<LinkId>,
    /// The endpoints that are connected through sockets.
    pub(super) sockets: Vec<LinkId>,
    /// The endpoints that work was posted to since the last doorbell.
    pub(super) posted: Vec<LinkId>,
    /// The endpoints that have something to write, each once.
    pub(super) listed: Vec<LinkId>,
    pub(super) plan: Plan,
    pub(super) buffer: Box<[u8]>,
    /// Kept between polls for its buffer.
    pub(super) ready: Vec<Ready>,
}

impl SoftFabric {
    /// A fabric with nothing in it.
    ///
    /// # Errors
    ///
    /// The system's, when it has no more descriptors or no randomness.
    pub fn new(config: SoftConfig) -> Result<Self, FabricError> {
        let failed = |what| move |source| FabricError::System { what, source };
        let waker = Waker::new().map_err(failed("eventfd"))?;
        let poller = Poller::new().map_err(failed("epoll_create1"))?;
        poller.add(waker.fd(), WAKER_TAG, false).map_err(failed("epoll_ctl"))?;
        Ok(Self {
            config,
            device: Device::new()?,
            locals: Table::new(),
            endpoints: Table::new(),
            lingering: Vec::new(),
            completions: Completions::new(),
            poller,
            waker,
            armed: false,
            busy: false,
            pipes: Vec::new(),
            sockets: Vec::new(),
            posted: Vec::new(),
            listed: Vec::new(),
            plan: Plan::default(),
            buffer: vec![0; BUFFER].into_boxed_slice(),
            ready: Vec::new(),
        })
    }

    /// The endpoint that a data stream is for, whose preamble named `token`.
    pub fn find(&self, token: Token) -> Option<LinkId> {
        self.endpoints.iter().find(|(_, endpoint)| endpoint.token == token).map(|(link, _)| link)
    }

    pub(super) fn endpoint_mut(&mut self, link: LinkId) -> Result<&mut Endpoint, FabricError> {
        self.endpoints.get_mut(link).ok_or_else(|| FabricError::unknown(link))
    }
}

impl Resident for SoftFabric {
    fn local(&self, id: LocalId) -> &LocalMemory {
        self.locals.memory(id)
    }

    fn local_mut(&mut self, id: LocalId) -> &mut LocalMemory {
        self.locals.memory_mut(id)
    }

    fn shared_at(&self, id: SharedId) -> Option<(&SharedMemory, u64)> {
        self.device.regions.get(id).map(|region| (&region.memory, region.base))
    }

    fn posted_key(&self, id: WindowId) -> Option<Key> {
        self.device.windows.get(id).map(|window| window.posted)
    }
}

impl Fabric for SoftFabric {
    fn name(&self) -> &str {
        super::NAME
    }

    fn strategy(&self) -> &str {
        "memory windows in software"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { bounds_enforced: true, read_max: self.config.read_max, windows_max: self.config.windows_max }
    }

    fn domain(&mut self) -> Result<DomainId, FabricError> {
        Ok(self.device.domains.insert(Domain))
    }

    fn local(&mut self, domain: DomainId, slots: u32, size: u32) -> Result<LocalId, FabricError> {
        self.device.expect_domain(domain)?;
        let memory = LocalMemory::of_fabric(slots, size, self.waker.clone())?;
        Ok(self.locals.insert(Local { domain, memory, registration: () }))
    }

    fn shared(&mut self, domain: DomainId, len: u64) -> Result<SharedId, FabricError> {
        self.device.expect_domain(domain)?;
        let memory = SharedMemory::in_pages(len, self.config.huge_pages).map_err(|source| FabricError::Memory {
            what: "shared",
            len,
            source,
        })?;
        self.device.register(domain, memory)
    }

    fn share(&mut self, domain: DomainId, shared: SharedId) -> Result<SharedId, FabricError> {
        let memory = self.device.region(shared)?.memory.clone();
        self.device.register(domain, memory)
    }

    fn region_key(&self, shared: SharedId) -> Result<Key, FabricError> {
        Ok(self.device.region(shared)?.key)
    }

    fn window(&mut self, domain: DomainId) -> Result<WindowId, FabricError> {
        let limit = self.config.windows_max;
        if self.device.windows.len() >= limit as usize {
            return Err(FabricError::Exhausted { what: "windows", limit: limit.into() });
        }
        self.device.allocate(domain)
    }

    fn endpoint(&mut self, config: EndpointConfig) -> Result<(LinkId, EndpointAddress), FabricError> {
        self.device.expect_domain(config.domain)?;
        let limit = self.config.endpoints_max;
        if self.endpoints.len() >= limit as usize {
            return Err(FabricError::Exhausted { what: "endpoints", limit: limit.into() });
        }
        let token = Token::random()?;
        let link = self.endpoints.insert_with(|link| Endpoint::new(link, config, token));
        Ok((link, token.address()))
    }

    fn connect(&mut self, link: LinkId, peer: &EndpointAddress) -> Result<(), FabricError> {
        let token = Token::of(peer)?;
        let endpoint = self.endpoint_mut(link)?;
        if endpoint.peer.is_some() {
            return Err(FabricError::Unsupported { fabric: super::NAME, what: "connect an endpoint twice" });
        }
        endpoint.peer = Some(token);
        self.greet(link)
    }

    fn needs_stream(&self) -> bool {
        true
    }

    fn attach(&mut self, link: LinkId, stream: Stream) -> Result<(), FabricError> {
        let waker = self.waker.clone();
        let endpoint = self.endpoint_mut(link)?;
        if endpoint.phase == Phase::Failed {
            // It was closed meanwhile: dropping the stream tells the peer.
            return Ok(());
        }
        if endpoint.transport.is_some() {
            return Err(FabricError::Unsupported { fabric: super::NAME, what: "attach a second stream" });
        }
        let transport = Transport::new(stream, waker)
            .map_err(|source| FabricError::System { what: "setting up a stream", source })?;
        endpoint.transport = Some(transport);
        self.greet(link)
    }

    fn post(&mut self, link: LinkId, op: Op, work: Work) -> Result<(), FabricError> {
        self.post_work(link, op, work)
    }

    fn submit(&mut self) {
        self.ring();
    }

    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) {
        let armed = self.armed;
        self.make_progress(limit);
        self.hand_out(events, limit);
        if armed {
            // Once more: a peer that changed something meanwhile has used up the wake-up that `arm` asked for.
            self.watch_pipes();
        }
    }

    fn busy(&self) -> bool {
        self.busy
    }

    fn arm(&mut self) {
        self.armed = true;
        self.watch_pipes();
    }

    fn fd(&self) -> RawFd {
        self.poller.fd()
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn close(&mut self, link: LinkId) {
        self.fail(link, Fault::Closed);
    }

    fn view(&mut self, span: LocalSpan) -> View {
        self.locals.memory_mut(span.local).view(span.range())
    }

    fn reset(&mut self, local: LocalId, slot: u32) -> bool {
        self.locals.memory_mut(local).reset(slot)
    }

    fn free_window(&mut self, window: WindowId) -> Result<(), FabricError> {
        self.device.deallocate(window)
    }

    fn free_local(&mut self, local: LocalId) -> Result<(), FabricError> {
        // Claims and views hold the bytes themselves.
        self.locals.remove(local).map(drop).ok_or_else(|| FabricError::unknown(local))
    }

    fn free_shared(&mut self, shared: SharedId) -> Result<(), FabricError> {
        self.device.deregister(shared)
    }

    fn free_domain(&mut self, domain: DomainId) -> Result<(), FabricError> {
        self.device.expect_domain(domain)?;
        let users = [
            ("local memories", self.locals.iter().filter(|(_, local)| local.domain == domain).count()),
            ("shared memories", self.device.regions.iter().filter(|(_, region)| region.domain == domain).count()),
            ("windows", self.device.windows.iter().filter(|(_, window)| window.domain == domain).count()),
            ("endpoints", self.endpoints.iter().filter(|(_, endpoint)| endpoint.config.domain == domain).count()),
        ];
        FabricError::unless_unused(domain, &users)?;
        self.device.domains.remove(domain);
        Ok(())
    }

    fn holdings(&self) -> Holdings {
        Holdings {
            domains: self.device.domains.len(),
            locals: self.locals.len(),
            shareds: self.device.regions.len(),
            windows: self.device.windows.len(),
            bound: self.device.bound(),
            endpoints: self.endpoints.len(),
        }
    }
}

impl Drop for SoftFabric {
    fn drop(&mut self) {
        let held = self.holdings();
        if held != Holdings::default() {
            tracing::warn!(?held, "a software fabric is dropped with objects that nobody freed");
        }
    }
}
