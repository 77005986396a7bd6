//! The fabric's face: the objects, their making and freeing, and the contract.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::address::PairAddress;
use super::endpoint::{Endpoint, Phase, places};
use super::failure::failed;
use super::open::words;
use super::port::Port;
use super::queues::Queues;
use super::resting::Resting;
use super::sys::{self, Chain, Context, Limits, PairConfig, Path, Patience, Polled, QueuePair, Region};
use super::window::Window;
use crate::memory::{HugePages, Local, LocalMemory, Locals, Resident, SharedMemory};
use crate::poller::{Poller, Ready};
use crate::probe::{Strategy, StrategyReport};
use crate::table::Table;
use crate::{
    Capabilities, DomainId, EndpointAddress, EndpointConfig, Event, Fabric, FabricError, Holdings, Key, LinkId,
    LocalId, LocalSpan, Op, SharedId, Stream, SystemClock, Time, View, Waker, WindowId, Work,
};

/// What the poller calls the descriptors that it watches.
pub(super) const WAKER_TAG: u64 = 0;
pub(super) const CHANNEL_TAG: u64 = 1;
pub(super) const ASYNC_TAG: u64 = 2;

/// The most bytes of one READ, whatever the port could do: what the software fabric does too.
const READ_MAX: u32 = 1 << 30;

/// READs that one endpoint has under way, and answers, at once, if the device can: as many as keep a fast link busy at 64 KiB
/// each. More are queued behind them.
const READS_AT_ONCE: u32 = 16;

/// The size of the region that a domain unbinds windows over which were never bound.
const ANCHOR: u64 = 4096;

/// The most objects that the report of what was not freed names.
const NAMED_MAX: usize = 32;

/// A protection domain.
pub(super) struct Domain {
    pub(super) object: Arc<sys::Domain>,
    /// A region to unbind windows over that were never bound.
    pub(super) anchor: Option<Arc<Region>>,
}

/// Shared memory, registered.
pub(super) struct Shared {
    pub(super) domain: DomainId,
    pub(super) region: Arc<Region>,
    pub(super) memory: SharedMemory,
}

/// A fabric on an RDMA device.
pub struct VerbsFabric {
    pub(super) name: String,
    // Endpoints go before what their work uses; the rest is held by who needs it, and goes in whatever order.
    pub(super) endpoints: Table<LinkId, Endpoint>,
    pub(super) windows: Table<WindowId, Window>,
    pub(super) shareds: Table<SharedId, Shared>,
    pub(super) locals: Locals<Arc<Region>>,
    pub(super) domains: Table<DomainId, Domain>,
    pub(super) queues: Queues,
    pub(super) context: Arc<Context>,
    pub(super) limits: Limits,
    pub(super) port: Port,
    pub(super) huge_pages: HugePages,
    pub(super) strategy: StrategyReport,
    pub(super) bounds_enforced: bool,
    pub(super) resting: Resting,
    pub(super) poller: Poller,
    pub(super) waker: Waker,
    /// The sleeper may have been woken since it was last looked at.
    pub(super) armed: bool,
    pub(super) clock: SystemClock,
    /// When it was last told that a peer does not answer.
    pub(super) told_unanswered: Option<Time>,
    /// Polls in a row that found nothing.
    pub(super) quiet_polls: u32,
    /// Sleeps in a row that were ended by a completion, and after which nothing else was looked at.
    pub(super) quick_looks: u32,
    /// Endpoints with something to ring in.
    pub(super) listed: Vec<LinkId>,
    /// One of them waited for its own work.
    pub(super) has_stalled: bool,
    /// Endpoints that are up, and nobody was told.
    pub(super) ups: VecDeque<LinkId>,
    /// Endpoints with work that was executed here, and not reported.
    pub(super) finished: VecDeque<LinkId>,
    /// Endpoints in the error state that are not drained.
    pub(super) failing: Vec<LinkId>,
    // Kept between calls for their buffers.
    pub(super) chain: Chain,
    pub(super) polled: Polled,
    pub(super) ready: Vec<Ready>,
}

impl VerbsFabric {
    fn by_registration(&self) -> bool {
        self.strategy.strategy == Strategy::Registrations
    }

    /// Every endpoint.
    pub(super) fn links(&self) -> Vec<LinkId> {
        self.endpoints.iter().map(|(link, _)| link).collect()
    }

    /// Frees all that is left once no endpoint is: windows before regions, regions before domains.
    pub(super) fn free_everything(&mut self) -> Result<(), FabricError> {
        let windows: Vec<_> = self.windows.iter().map(|(window, _)| window).collect();
        windows.into_iter().try_for_each(|window| self.free_window(window))?;
        let shareds: Vec<_> = self.shareds.iter().map(|(shared, _)| shared).collect();
        shareds.into_iter().try_for_each(|shared| self.free_shared(shared))?;
        let locals: Vec<_> = self.locals.iter().map(|(local, _)| local).collect();
        locals.into_iter().try_for_each(|local| self.free_local(local))?;
        let domains: Vec<_> = self.domains.iter().map(|(domain, _)| domain).collect();
        domains.into_iter().try_for_each(|domain| self.free_domain(domain))
    }

    /// How many READs an endpoint answers at once.
    fn reads_in(&self) -> u8 {
        self.limits.reads_in.min(READS_AT_ONCE) as u8
    }

    pub(super) fn read_max(&self) -> u32 {
        self.port.message_max.min(READ_MAX)
    }

    pub(super) fn expect_endpoint(&mut self, link: LinkId) -> &mut Endpoint {
        self.endpoints.get_mut(link).unwrap_or_else(|| panic!("{link} is in use and not in its table"))
    }

    fn find_domain(&self, domain: DomainId) -> Result<&Domain, FabricError> {
        self.domains.get(domain).ok_or_else(|| FabricError::unknown(domain))
    }

    fn failed(&self, verb: &'static str) -> impl FnOnce(std::io::Error) -> FabricError {
        let device = self.context.name().to_owned();
        move |error| failed(verb, &device, error)
    }

    /// Makes a domain the region to unbind windows over that were never bound.
    pub(super) fn make_anchor(&mut self, domain: DomainId) -> Result<(), FabricError> {
        let found = self.domains.get_mut(domain).ok_or_else(|| FabricError::unknown(domain))?;
        if found.anchor.is_none() {
            let memory = SharedMemory::new(ANCHOR).map_err(|source| FabricError::Memory {
                what: "shared",
                len: ANCHOR,
                source,
            })?;
            let region = Region::lendable(&found.object, &memory);
            found.anchor = Some(Arc::new(region.map_err(|error| failed("ibv_reg_mr", self.context.name(), error))?));
        }
        Ok(())
    }

    fn register(&mut self, domain: DomainId, memory: SharedMemory) -> Result<SharedId, FabricError> {
        let region = Region::lendable(&self.find_domain(domain)?.object, &memory).map_err(self.failed("ibv_reg_mr"))?;
        Ok(self.shareds.insert(Shared { domain, region: Arc::new(region), memory }))
    }

    /// Asks the device to deregister shared memory, whatever is bound to it.
    pub(super) fn deregister_regardless(&mut self, shared: SharedId) -> std::io::Result<()> {
        for (_, window) in self.windows.iter_mut() {
            window.forget(shared);
        }
        let region = self.shareds.get_mut(shared).and_then(|shared| Arc::get_mut(&mut shared.region));
        region.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::ResourceBusy))?.close()
    }

    /// The number of a connection's first packet.
    fn random_packet() -> Result<u32, FabricError> {
        let mut bytes = [0; 4];
        getrandom::fill(&mut bytes)
            .map_err(|error| FabricError::System { what: "getrandom", source: std::io::Error::other(error) })?;
        Ok(u32::from_le_bytes(bytes) >> 8)
    }

    /// The way to a peer, from what both sides can do.
    fn path(&self, own_packet: u32, peer: &PairAddress) -> Result<Path, FabricError> {
        if peer.ethernet != self.port.ethernet {
            return Err(FabricError::Unsupported {
                fabric: super::NAME,
                what: "connect a port on Ethernet with one on InfiniBand",
            });
        }
        Ok(Path {
            port: self.port.number,
            mtu: self.port.mtu.min(peer.mtu).into(),
            pair: peer.pair,
            peer_packet: peer.packet,
            own_packet,
            global: self.port.ethernet.then_some((peer.gid, self.port.gid_place)),
            lid: peer.lid,
            reads_out: (self.limits.reads_out.min(READS_AT_ONCE) as u8).min(peer.reads_in),
            reads_in: self.reads_in(),
            patience: if self.limits.soft { Patience::SOFT } else { Patience::HARDWARE },
        })
    }
}

impl Resident for VerbsFabric {
    fn local(&self, id: LocalId) -> &LocalMemory {
        self.locals.memory(id)
    }

    fn local_mut(&mut self, id: LocalId) -> &mut LocalMemory {
        self.locals.memory_mut(id)
    }

    fn shared_at(&self, id: SharedId) -> Option<(&SharedMemory, u64)> {
        self.shareds.get(id).map(|shared| (&shared.memory, shared.region.start()))
    }

    fn posted_key(&self, id: WindowId) -> Option<Key> {
        self.windows.get(id).map(Window::key)
    }
}

impl Fabric for VerbsFabric {
    fn name(&self) -> &str {
        &self.name
    }

    fn strategy(&self) -> &str {
        words(self.strategy.strategy)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            bounds_enforced: self.bounds_enforced,
            read_max: self.read_max(),
            windows_max: if self.by_registration() { self.limits.regions } else { self.limits.windows },
        }
    }

    fn domain(&mut self) -> Result<DomainId, FabricError> {
        let object = sys::Domain::new(&self.context).map_err(self.failed("ibv_alloc_pd"))?;
        Ok(self.domains.insert(Domain { object, anchor: None }))
    }

    fn local(&mut self, domain: DomainId, slots: u32, size: u32) -> Result<LocalId, FabricError> {
        let object = &self.find_domain(domain)?.object;
        let memory = LocalMemory::of_fabric(slots, size, self.waker.clone())?;
        let region = Region::local(object, &memory).map_err(self.failed("ibv_reg_mr"))?;
        Ok(self.locals.insert(Local { domain, memory, registration: Arc::new(region) }))
    }

    fn shared(&mut self, domain: DomainId, len: u64) -> Result<SharedId, FabricError> {
        self.find_domain(domain)?;
        let memory = SharedMemory::in_pages(len, self.huge_pages).map_err(|source| FabricError::Memory {
            what: "shared",
            len,
            source,
        })?;
        self.register(domain, memory)
    }

    fn share(&mut self, domain: DomainId, shared: SharedId) -> Result<SharedId, FabricError> {
        let memory = self.shareds.get(shared).ok_or_else(|| FabricError::unknown(shared))?.memory.clone();
        self.register(domain, memory)
    }

    fn region_key(&self, shared: SharedId) -> Result<Key, FabricError> {
        Ok(self.shareds.get(shared).ok_or_else(|| FabricError::unknown(shared))?.region.key())
    }

    fn window(&mut self, domain: DomainId) -> Result<WindowId, FabricError> {
        let by_registration = self.by_registration();
        let object = Arc::clone(&self.find_domain(domain)?.object);
        let mut made = Window::new(domain, &object, by_registration);
        if made.is_err() && self.resting.let_go() {
            made = Window::new(domain, &object, by_registration);
        }
        Ok(self.windows.insert(made.map_err(self.failed("ibv_alloc_mw"))?))
    }

    fn endpoint(&mut self, config: EndpointConfig) -> Result<(LinkId, EndpointAddress), FabricError> {
        let domain = Arc::clone(&self.find_domain(config.domain)?.object);
        let packet = Self::random_packet()?;
        let device = self.context.name().to_owned();
        let queue = self.queues.reserve(places(&config), &device)?;
        let (queues, port) = (&mut self.queues, &self.port);
        let made = self.endpoints.try_insert_with(|link| {
            let wanted = PairConfig {
                place: link.index,
                sends: config.send_depth,
                receives: config.receive_depth,
                port: port.number,
                remote_read: config.remote_read,
            };
            match QueuePair::new(&domain, &queue, &wanted) {
                Ok(pair) => Ok(Endpoint::new(pair, Arc::clone(&queue), link, config, packet)),
                Err((verb, error)) => {
                    queues.release(&queue, places(&config));
                    Err(failed(verb, &device, error))
                }
            }
        });
        let link = made?;
        let number = self.expect_endpoint(link).pair.number();
        Ok((link, PairAddress::new(&self.port, number, packet, self.reads_in()).encode()))
    }

    fn connect(&mut self, link: LinkId, peer: &EndpointAddress) -> Result<(), FabricError> {
        let peer = PairAddress::decode(peer)?;
        let endpoint = self.endpoints.get(link).ok_or_else(|| FabricError::unknown(link))?;
        match endpoint.phase {
            Phase::ExpectPeer => {}
            Phase::Up => {
                return Err(FabricError::Unsupported { fabric: super::NAME, what: "connect an endpoint twice" });
            }
            // It was closed meanwhile, and its end is on its way.
            Phase::Failed => return Ok(()),
        }
        let path = self.path(endpoint.packet, &peer)?;
        tracing::debug!(%link, device = self.context.name(), ?peer, mtu = 128_u32 << path.mtu, "connecting");
        let endpoint = self.expect_endpoint(link);
        let connected = endpoint.pair.connect(&path);
        connected.map_err(|(verb, error)| failed(verb, self.context.name(), error))?;
        let endpoint = self.expect_endpoint(link);
        endpoint.phase = Phase::Up;
        endpoint.peer = Some(peer);
        self.ups.push_back(link);
        self.list(link);
        Ok(())
    }

    fn needs_stream(&self) -> bool {
        false
    }

    fn attach(&mut self, _: LinkId, _: Stream) -> Result<(), FabricError> {
        Err(FabricError::Unsupported { fabric: super::NAME, what: "run an endpoint over a byte stream" })
    }

    fn post(&mut self, link: LinkId, op: Op, work: Work) -> Result<(), FabricError> {
        self.post_work(link, op, work)
    }

    fn submit(&mut self) {
        self.ring();
    }

    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) {
        self.make_progress(events, limit);
    }

    fn arm(&mut self) {
        self.armed = true;
        self.queues.notify();
        if self.has_more() {
            self.waker.wake();
        }
    }

    fn fd(&self) -> RawFd {
        self.poller.fd()
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn close(&mut self, link: LinkId) {
        let Some(endpoint) = self.endpoints.get_mut(link) else { return };
        if endpoint.phase != Phase::Failed {
            // A peer whose request was refused may be gone before anybody asked about its endpoint. Then that is the cause.
            let has_failed = endpoint.phase == Phase::Up && endpoint.pair.has_failed().unwrap_or(false);
            endpoint.faults.closed = !has_failed;
            self.fail(link);
        }
    }

    fn view(&mut self, span: LocalSpan) -> View {
        self.locals.memory_mut(span.local).view(span.range())
    }

    fn reset(&mut self, local: LocalId, slot: u32) -> bool {
        self.locals.memory_mut(local).reset(slot)
    }

    fn free_window(&mut self, window: WindowId) -> Result<(), FabricError> {
        let found = self.windows.get_mut(window).ok_or_else(|| FabricError::unknown(window))?;
        if found.is_busy() {
            return Err(FabricError::WindowBusy { window });
        }
        if !(found.is_dead() && self.resting.takes()) {
            found.close().map_err(|(verb, error)| failed(verb, self.context.name(), error))?;
            self.windows.remove(window);
        } else if let Some(window) = self.windows.remove(window) {
            self.resting.rest(window);
        }
        Ok(())
    }

    fn free_local(&mut self, local: LocalId) -> Result<(), FabricError> {
        // Work in flight holds memory and registration itself, and views the memory.
        self.locals.remove(local).map(drop).ok_or_else(|| FabricError::unknown(local))
    }

    fn free_shared(&mut self, shared: SharedId) -> Result<(), FabricError> {
        self.shareds.get(shared).ok_or_else(|| FabricError::unknown(shared))?;
        let lends = |window: &Window| window.spans().any(|span| span.shared == shared);
        let windows: Vec<_> = self.windows.iter().filter(|(_, window)| lends(window)).map(|(id, _)| id).collect();
        if !windows.is_empty() {
            return Err(FabricError::Lent { what: shared.to_string(), windows });
        }
        let Some(found) = self.shareds.get_mut(shared) else { return Err(FabricError::unknown(shared)) };
        // If READs into it are under way, it is deregistered with the last of them.
        if let Some(region) = Arc::get_mut(&mut found.region) {
            region.close().map_err(|error| failed("ibv_dereg_mr", self.context.name(), error))?;
        }
        self.shareds.remove(shared);
        Ok(())
    }

    fn free_domain(&mut self, domain: DomainId) -> Result<(), FabricError> {
        self.find_domain(domain)?;
        let users = [
            ("local memories", self.locals.iter().filter(|(_, local)| local.domain == domain).count()),
            ("shared memories", self.shareds.iter().filter(|(_, shared)| shared.domain == domain).count()),
            ("windows", self.windows.iter().filter(|(_, window)| window.domain == domain).count()),
            ("endpoints", self.endpoints.iter().filter(|(_, endpoint)| endpoint.config.domain == domain).count()),
        ];
        FabricError::unless_unused(domain, &users)?;
        self.resting.leave(domain);
        self.domains.remove(domain);
        Ok(())
    }

    fn holdings(&self) -> Holdings {
        Holdings {
            domains: self.domains.len(),
            locals: self.locals.len(),
            shareds: self.shareds.len(),
            windows: self.windows.len(),
            bound: self.windows.iter().filter(|(_, window)| window.is_bound()).count(),
            endpoints: self.endpoints.len(),
        }
    }
}

impl Drop for VerbsFabric {
    fn drop(&mut self) {
        let left = self.leftovers();
        if !left.is_empty() {
            let more = left.len().saturating_sub(NAMED_MAX);
            let named = left[..left.len() - more].join(", ");
            tracing::warn!(
                device = self.context.name(),
                "a fabric is dropped with objects that nobody freed: {named}{}",
                if more > 0 { format!(", and {more} more") } else { String::new() }
            );
        }
        // Endpoints go first, then windows, then regions, since the fields are dropped in their order.
    }
}
