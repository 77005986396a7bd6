//! An endpoint: a queue pair, what was posted to it, and how it ends.

use std::collections::VecDeque;
use std::sync::Arc;

use super::address::PairAddress;
use super::sys::{Buffer, CompletionQueue, QueuePair};
use super::window::Binding;
use crate::{DownCause, EndpointConfig, LinkId, LocalId, LocalSpan, Op, Outcome, RemoteSpan, WindowId, WorkError};

/// What an endpoint waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its peer's address.
    ExpectPeer,
    /// Work.
    Up,
    /// The completions of what the device has; nothing is handed to it any more.
    Failed,
}

/// A posted entry of the send queue.
pub(super) struct Entry {
    pub(super) op: Op,
    pub(super) job: Job,
    /// Set for what was executed, or failed, without the device.
    pub(super) result: Option<Result<Outcome, WorkError>>,
}

/// What is to be done. Its buffer is the queue pair's while the device has it.
pub(super) enum Job {
    Send { local: LocalId, buffer: Buffer },
    Read { from: RemoteSpan, local: Option<LocalId>, buffer: Buffer },
    Bind { window: WindowId, to: Option<Binding> },
}

impl Job {
    /// Takes the buffer back from the queue pair. A bind has none.
    pub(super) fn take_back(&mut self, buffer: Buffer) {
        match self {
            Self::Send { buffer: own, .. } | Self::Read { buffer: own, .. } => *own = buffer,
            Self::Bind { .. } => {}
        }
    }

    pub(super) const fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. })
    }
}

/// A posted receive.
pub(super) struct Receive {
    pub(super) op: Op,
    pub(super) into: LocalSpan,
    pub(super) buffer: Buffer,
}

/// Why an endpoint fails, as far as it is known. Which completion tells of a failure first is up to the device, so that the
/// cause is only named when all have come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// It was closed before anything else.
    pub(super) closed: bool,
    /// The first error of its own work.
    pub(super) work: Option<WorkError>,
    /// A message did not fit into its receive.
    pub(super) receive: bool,
    /// The device said that the queue pair itself has failed.
    pub(super) fatal: bool,
    /// The port is down.
    pub(super) port_down: bool,
}

impl Faults {
    pub(super) fn cause(self) -> DownCause {
        match self {
            Self { closed: true, .. } => DownCause::Closed,
            Self { work: Some(WorkError::Disconnected), .. } => DownCause::PeerLost,
            Self { work: Some(error), .. } => DownCause::Work(error),
            Self { receive: true, .. } => DownCause::Protocol,
            Self { fatal: true, .. } => DownCause::Work(WorkError::Device),
            // On a port that is down a device may fail whatever it likes; that is no fault of the peer's.
            Self { port_down: true, .. } => DownCause::PeerLost,
            // Flushed, and nothing on this side was wrong: what the peer asked for was.
            _ => DownCause::PeerViolation,
        }
    }
}

/// An endpoint.
pub(super) struct Endpoint {
    // First, so that it is destroyed before what the device may be using is let go.
    pub(super) pair: QueuePair,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) link: LinkId,
    pub(super) config: EndpointConfig,
    /// The number of the first packet from here.
    pub(super) packet: u32,
    /// Its peer, once it is known, and whether anything was ever heard of it.
    pub(super) peer: Option<PairAddress>,
    pub(super) heard: bool,
    pub(super) phase: Phase,
    pub(super) faults: Faults,
    /// Posted and not reported, oldest first.
    pub(super) sends: VecDeque<Entry>,
    /// How many of them, from the front on, the device has or has executed.
    pub(super) rung: usize,
    /// READs that the device has.
    pub(super) reads: usize,
    pub(super) receives: VecDeque<Receive>,
    pub(super) receives_rung: usize,
    /// It is in the fabric's list of endpoints with something to ring in.
    pub(super) listed: bool,
    /// It waits for the end of what is under way before it goes on.
    pub(super) stalled: bool,
}

/// How many places on a completion queue an endpoint needs: one for each piece of work that may be outstanding.
pub(super) const fn places(config: &EndpointConfig) -> u32 {
    config.send_depth.saturating_add(config.receive_depth)
}

impl Endpoint {
    pub(super) fn new(
        pair: QueuePair,
        queue: Arc<CompletionQueue>,
        link: LinkId,
        config: EndpointConfig,
        packet: u32,
    ) -> Self {
        Self {
            pair,
            queue,
            link,
            config,
            packet,
            peer: None,
            heard: false,
            phase: Phase::ExpectPeer,
            faults: Faults::default(),
            sends: VecDeque::with_capacity(config.send_depth as usize),
            rung: 0,
            reads: 0,
            receives: VecDeque::with_capacity(config.receive_depth as usize),
            receives_rung: 0,
            listed: false,
            stalled: false,
        }
    }

    /// Whether the device has nothing of it any more.
    pub(super) fn is_drained(&self) -> bool {
        self.pair.outstanding() == (0, 0)
    }
}
