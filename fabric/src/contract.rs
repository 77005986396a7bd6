//! The contract between the bus and a backend.
//!
//! Small and verbs-shaped, so that either backend can be read in an hour. What a backend must do is written here and tested
//! by [`conformance`](crate::conformance); `docs/design.md`, section 3, gives the reasons.
//!
//! # Rules
//!
//! - Posting is asynchronous; nothing is executed inside [`post`](Fabric::post). An endpoint executes in order: a SEND posted
//!   after a bind on the same endpoint arrives after the binding is in force. Receives are a queue of their own.
//! - A failed piece of work puts its endpoint into the error state; everything behind it completes as flushed.
//! - A READ is checked at the remote side, when it executes: key, domain, access, bounds, liveness. A violation completes as
//!   `RemoteAccess` at the reader *and puts both endpoints into the error state*.
//! - A window's key is known when its bind is posted ([`Memory::key`]) but counts only after its completion. If the bind
//!   fails, the key before it is restored.
//! - An endpoint's last event is `Down`, with everything that was posted to it completed before. Its windows stay bound.
//! - In-flight work keeps its memory alive until its completion is polled, so posting needs no `unsafe` of the caller.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::RawFd;

use crate::{
    DomainId, Event, FabricError, Key, LinkId, LocalId, LocalSpan, Op, SharedId, SharedSpan, Stream, View, Waker,
    WindowId, Work,
};

/// What a machine may do with memory while it handles an event: look at it, fill it, copy it. Nothing here waits.
///
/// Misuse (a span outside its memory, a slot that work in flight may be writing) is a bug of the caller and panics.
pub trait Memory {
    /// The bytes of a local span.
    ///
    /// # Panics
    ///
    /// If work in flight may be writing to it.
    fn bytes(&self, span: LocalSpan) -> &[u8];

    /// The bytes of a local span, to fill.
    ///
    /// # Panics
    ///
    /// If work in flight uses it, or a view of it was given out since its slot was last reset.
    fn bytes_mut(&mut self, span: LocalSpan) -> &mut [u8];

    /// Copies a local span into shared memory of the same length.
    fn copy(&mut self, from: LocalSpan, to: SharedSpan);

    /// Writes bytes into shared memory, as far as they reach.
    fn write(&mut self, to: SharedSpan, bytes: &[u8]);

    /// Copies shared memory out into `bytes`, which is as long as the span.
    fn load(&self, from: SharedSpan, bytes: &mut [u8]);

    /// Stores an aligned word (in native byte order, which is little-endian on every supported machine) with release
    /// order: a peer that sees it sees everything written before it.
    fn store(&mut self, shared: SharedId, offset: u64, word: u64);

    /// Fills shared memory with zeros.
    fn zero(&mut self, span: SharedSpan);

    /// The CRC-32C of shared memory.
    fn crc32c(&self, span: SharedSpan) -> u32;

    /// The address under which peers name the first byte of a shared span.
    fn address(&self, span: SharedSpan) -> u64;

    /// The key of the last bind or unbind that was *posted* for a window, or its initial key.
    fn key(&self, window: WindowId) -> Key;
}

/// What an endpoint is made for. Depths are sums of what each user may have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// The domain of the memory that it uses and of the windows that its peer may use.
    pub domain: DomainId,
    /// The most SENDs, READs, binds and unbinds that are outstanding at once.
    pub send_depth: u32,
    /// The most receives that are outstanding at once.
    pub receive_depth: u32,
    /// Whether the peer may READ through this endpoint at all.
    pub remote_read: bool,
}

/// What a peer needs to connect to an endpoint: opaque bytes, carried by the bootstrap.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EndpointAddress(pub Vec<u8>);

impl EndpointAddress {
    /// The network address of the device that it is on, where endpoints of its fabric have one.
    pub fn device_address(&self) -> Option<IpAddr> {
        #[cfg(feature = "verbs")]
        return crate::verbs::device_address(self);
        #[cfg(not(feature = "verbs"))]
        None
    }
}

impl fmt::Debug for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "endpoint address of {} bytes", self.0.len())
    }
}

/// What a backend, on its device, does and does not do. Probed, never assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether a READ outside a window but inside its region is refused.
    pub bounds_enforced: bool,
    /// The most bytes that one READ may fetch.
    pub read_max: u32,
    /// The most windows that may exist at once.
    pub windows_max: u32,
}

/// What a fabric still holds, by kind: all zero once everything has been freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Protection domains.
    pub domains: usize,
    /// Local memories.
    pub locals: usize,
    /// Shared memories.
    pub shareds: usize,
    /// Windows, bound or not.
    pub windows: usize,
    /// Windows that are bound.
    pub bound: usize,
    /// Endpoints.
    pub endpoints: usize,
}

/// A backend on a device: one per reactor or client driver, used by one thread.
pub trait Fabric: Memory {
    /// `soft`, or `verbs:DEVICE`.
    fn name(&self) -> &str;

    /// How it makes windows, in words for an operator.
    fn strategy(&self) -> &str {
        "type-1 memory windows"
    }

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Makes a protection domain.
    fn domain(&mut self) -> Result<DomainId, FabricError>;

    /// Makes local memory of `slots` slots of `size` bytes each, every slot aligned to 64 bytes. A slot is the unit that
    /// work in flight and views lay claim to.
    fn local(&mut self, domain: DomainId, slots: u32, size: u32) -> Result<LocalId, FabricError>;

    /// Makes shared memory of `len` zeroed bytes, aligned to a page, registered for window binding and with no remote
    /// right at all: its own key opens nothing.
    fn shared(&mut self, domain: DomainId, len: u64) -> Result<SharedId, FabricError>;

    /// Registers the memory behind `shared` once more, in another domain.
    fn share(&mut self, domain: DomainId, shared: SharedId) -> Result<SharedId, FabricError>;

    /// The region's own key, which opens nothing.
    fn region_key(&self, shared: SharedId) -> Result<Key, FabricError>;

    /// Allocates a window, unbound: its initial key opens nothing.
    fn window(&mut self, domain: DomainId) -> Result<WindowId, FabricError>;

    /// Makes an endpoint, not connected, and the address for its peer. Receives may be posted at once.
    fn endpoint(&mut self, config: EndpointConfig) -> Result<(LinkId, EndpointAddress), FabricError>;

    /// Connects an endpoint to its peer's. `Up` tells when it is done; where [`needs_stream`](Self::needs_stream), that is
    /// after [`attach`](Self::attach) too.
    fn connect(&mut self, link: LinkId, peer: &EndpointAddress) -> Result<(), FabricError>;

    /// Whether endpoints run over a byte stream that whoever dials must provide.
    fn needs_stream(&self) -> bool;

    /// Gives an endpoint its byte stream.
    fn attach(&mut self, link: LinkId, stream: Stream) -> Result<(), FabricError>;

    /// Queues work. The fabric may execute it only after [`submit`](Self::submit). Posting to an endpoint in the error
    /// state succeeds, and completes as flushed; posting to one whose `Down` was polled is `Unknown`.
    fn post(&mut self, link: LinkId, op: Op, work: Work) -> Result<(), FabricError>;

    /// Rings the doorbell: once a turn, after all posting.
    fn submit(&mut self);

    /// Makes progress and appends what has happened, about `limit` events at most. Never blocks.
    fn poll(&mut self, events: &mut Vec<Event>, limit: usize);

    /// Whether the last poll did work for peers that no event tells of, as a software device does when it serves READs.
    /// Whoever would rest had better poll again.
    fn busy(&self) -> bool {
        false
    }

    /// Asks that [`fd`](Self::fd) become readable at the next event. To sleep: arm, poll once more, then wait for `fd`.
    fn arm(&mut self);

    /// Readable, once armed, when there is something to poll. It may be readable without cause.
    fn fd(&self) -> RawFd;

    /// Makes `fd` readable from any thread.
    fn waker(&self) -> Waker;

    /// Closes an endpoint: its work is flushed, then `Down` ends it. Closing what is gone does nothing.
    fn close(&mut self, link: LinkId);

    /// A counted, immutable view of landed bytes, for other threads to keep. From then on no work may write to that part
    /// of the slot or before it, until [`reset`](Self::reset).
    ///
    /// # Panics
    ///
    /// If work in flight may be writing to the span.
    fn view(&mut self, span: LocalSpan) -> View;

    /// Makes a slot writable again from its start; `false` while views of it are alive, and then the fabric wakes when the last view of
    /// one is gone.
    fn reset(&mut self, local: LocalId, slot: u32) -> bool;

    /// Deallocates a window; if it is bound, its key is dead from then on. While a bind or unbind of it is outstanding, it is
    /// busy and stays.
    fn free_window(&mut self, window: WindowId) -> Result<(), FabricError>;

    /// Frees local memory. What is in flight or viewed keeps its bytes alive until it ends.
    fn free_local(&mut self, local: LocalId) -> Result<(), FabricError>;

    /// Deregisters shared memory, unless windows are bound to it.
    fn free_shared(&mut self, shared: SharedId) -> Result<(), FabricError>;

    /// Frees a domain, unless something is left in it.
    fn free_domain(&mut self, domain: DomainId) -> Result<(), FabricError>;

    /// What it still holds.
    fn holdings(&self) -> Holdings;
}
