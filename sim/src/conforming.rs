//! The simulated devices and network keep the fabric's contract: they are held to the same list as every backend.
//!
//! The suite drives each fabric by itself, and the network needs both at once; so each is reached through a handle, and what
//! a handle shows of local memory is a copy that is never freed. That is fit for a test and for nothing else.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use keyway_fabric::conformance::{Backend, Case, Deviation, Failure, Verdict};
use keyway_fabric::*;

use crate::NodeId;
use crate::device::{DeviceTraits, SimFabric};
use crate::network::{Network, NetworkTraits};
use crate::trace::Trace;

/// Happenings that one poll lets happen: enough to get on, few enough that the suite sees work in flight.
const STEPS_A_POLL: usize = 3;

struct Simulated {
    net: Rc<RefCell<Network>>,
}

impl Simulated {
    fn new(seed: u64) -> Self {
        let traits = NetworkTraits {
            latency: Duration::from_micros(10),
            latency_max: Duration::from_micros(300),
            slow: 50,
            fragments: 5,
            spread: Duration::from_micros(50),
            patience: Duration::from_millis(10),
        };
        Self { net: Rc::new(RefCell::new(Network::new(traits, fastrand::Rng::with_seed(seed), Trace::new(1)))) }
    }
}

impl Backend for Simulated {
    fn name(&self) -> String {
        "sim".into()
    }

    fn fabric(&self) -> Result<Box<dyn Fabric>, Failure> {
        let traits = DeviceTraits { bounds_enforced: true, windows_max: 10_000, index_reuse: 0 };
        let node = self.net.borrow_mut().add(|node, rng| SimFabric::new(node, traits, rng));
        Ok(Box::new(Handle { net: Rc::clone(&self.net), node, scratch: None }))
    }

    fn streams(&self) -> Result<(Stream, Stream), Failure> {
        Err(Failure("the simulated network needs no streams".into()))
    }

    fn deviations(&self) -> Vec<Deviation> {
        let reason = "nobody sleeps in a simulated world: the schedule wakes a node".into();
        vec![Deviation { case: "a_sleeper_is_woken_by_what_arrives", reason }]
    }
}

/// One node's fabric, while the network keeps it.
struct Handle {
    net: Rc<RefCell<Network>>,
    node: NodeId,
    /// What was given out to be filled, and where it belongs.
    scratch: Option<(LocalSpan, Vec<u8>)>,
}

impl Handle {
    /// Works on the fabric, after writing back what its user has filled.
    fn with<T>(&mut self, work: impl FnOnce(&mut SimFabric) -> T) -> T {
        let mut net = self.net.borrow_mut();
        let fabric = net.fabric(self.node);
        if let Some((span, bytes)) = self.scratch.take() {
            fabric.bytes_mut(span).copy_from_slice(&bytes);
        }
        work(fabric)
    }

    fn look<T>(&self, work: impl FnOnce(&SimFabric) -> T) -> T {
        let net = self.net.borrow();
        work(net.alive(self.node).expect("a handle's node is alive"))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.net.borrow_mut().kill(self.node);
    }
}

impl Memory for Handle {
    fn bytes(&self, span: LocalSpan) -> &[u8] {
        assert!(self.scratch.is_none(), "the suite looks at nothing that it is filling");
        Box::leak(self.look(|fabric| fabric.bytes(span).to_vec()).into_boxed_slice())
    }

    fn bytes_mut(&mut self, span: LocalSpan) -> &mut [u8] {
        let bytes = self.with(|fabric| fabric.bytes_mut(span).to_vec());
        &mut self.scratch.insert((span, bytes)).1
    }

    fn copy(&mut self, from: LocalSpan, to: SharedSpan) {
        self.with(|fabric| fabric.copy(from, to));
    }

    fn write(&mut self, to: SharedSpan, bytes: &[u8]) {
        self.with(|fabric| fabric.write(to, bytes));
    }

    fn load(&self, from: SharedSpan, bytes: &mut [u8]) {
        self.look(|fabric| fabric.load(from, bytes));
    }

    fn store(&mut self, shared: SharedId, offset: u64, word: u64) {
        self.with(|fabric| fabric.store(shared, offset, word));
    }

    fn zero(&mut self, span: SharedSpan) {
        self.with(|fabric| fabric.zero(span));
    }

    fn crc32c(&self, span: SharedSpan) -> u32 {
        self.look(|fabric| fabric.crc32c(span))
    }

    fn address(&self, span: SharedSpan) -> u64 {
        self.look(|fabric| fabric.address(span))
    }

    fn key(&self, window: WindowId) -> Key {
        self.look(|fabric| fabric.key(window))
    }
}

impl Fabric for Handle {
    fn name(&self) -> &str {
        "sim"
    }

    fn capabilities(&self) -> Capabilities {
        self.look(SimFabric::capabilities)
    }

    fn domain(&mut self) -> Result<DomainId, FabricError> {
        self.with(SimFabric::domain)
    }

    fn local(&mut self, domain: DomainId, slots: u32, size: u32) -> Result<LocalId, FabricError> {
        self.with(|fabric| fabric.local(domain, slots, size))
    }

    fn shared(&mut self, domain: DomainId, len: u64) -> Result<SharedId, FabricError> {
        self.with(|fabric| fabric.shared(domain, len))
    }

    fn share(&mut self, domain: DomainId, shared: SharedId) -> Result<SharedId, FabricError> {
        self.with(|fabric| fabric.share(domain, shared))
    }

    fn region_key(&self, shared: SharedId) -> Result<Key, FabricError> {
        self.look(|fabric| fabric.region_key(shared))
    }

    fn window(&mut self, domain: DomainId) -> Result<WindowId, FabricError> {
        self.with(|fabric| fabric.window(domain))
    }

    fn endpoint(&mut self, config: EndpointConfig) -> Result<(LinkId, EndpointAddress), FabricError> {
        self.with(|fabric| fabric.endpoint(config))
    }

    fn connect(&mut self, link: LinkId, peer: &EndpointAddress) -> Result<(), FabricError> {
        self.with(|fabric| fabric.connect(link, peer))
    }

    fn needs_stream(&self) -> bool {
        false
    }

    fn attach(&mut self, link: LinkId, stream: Stream) -> Result<(), FabricError> {
        self.with(|fabric| fabric.attach(link, stream))
    }

    fn post(&mut self, link: LinkId, op: Op, work: Work) -> Result<(), FabricError> {
        self.with(|fabric| fabric.post(link, op, work))
    }

    fn submit(&mut self) {
        self.with(SimFabric::submit);
    }

    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) {
        self.with(|_| ());
        let mut net = self.net.borrow_mut();
        net.collect(self.node);
        for _ in 0..STEPS_A_POLL {
            let Some(happening) = net.schedule.next() else { break };
            net.happen(happening);
        }
        net.fabric(self.node).poll(events, limit);
    }

    fn arm(&mut self) {}

    fn fd(&self) -> RawFd {
        self.look(SimFabric::fd)
    }

    fn waker(&self) -> Waker {
        self.look(SimFabric::waker)
    }

    fn close(&mut self, link: LinkId) {
        self.with(|fabric| fabric.close(link));
    }

    fn view(&mut self, span: LocalSpan) -> View {
        self.with(|fabric| fabric.view(span))
    }

    fn reset(&mut self, local: LocalId, slot: u32) -> bool {
        self.with(|fabric| fabric.reset(local, slot))
    }

    fn free_window(&mut self, window: WindowId) -> Result<(), FabricError> {
        self.with(|fabric| fabric.free_window(window))
    }

    fn free_local(&mut self, local: LocalId) -> Result<(), FabricError> {
        self.with(|fabric| fabric.free_local(local))
    }

    fn free_shared(&mut self, shared: SharedId) -> Result<(), FabricError> {
        self.with(|fabric| fabric.free_shared(shared))
    }

    fn free_domain(&mut self, domain: DomainId) -> Result<(), FabricError> {
        self.with(|fabric| fabric.free_domain(domain))
    }

    fn holdings(&self) -> Holdings {
        self.look(SimFabric::holdings)
    }
}

macro_rules! tests {
    ({} $($module:ident :: $name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let case = Case::named(stringify!($name)).expect("the list of tests is the list of cases");
                for seed in 0..2 {
                    match case.run(&Simulated::new(seed)) {
                        Verdict::Failed(failure) => panic!("with seed {seed}: {failure}"),
                        Verdict::Skipped { reason } => println!("skipped: {reason}"),
                        Verdict::Passed => (),
                    }
                }
            }
        )*
    };
}

keyway_fabric::conformance_cases!(tests);
