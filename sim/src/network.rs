//! The network between the nodes' devices: executes what was posted, in order, late, and sometimes not at all.
//!
//! It does what `keyway_fabric`'s contract says and uses all the freedom that it leaves: a SEND's acknowledgement may come
//! long after the SEND, a READ takes its bytes at several instants and in any order, two READs may pass each other, each
//! fragment is checked against the key when it is taken, and whoever is cut off learns of it late.

use std::collections::BTreeMap;
use std::time::Duration;

use keyway_fabric::*;

use crate::NodeId;
use crate::device::{Ready, Release, SimFabric};
use crate::endpoint::{Place, Stage, State};
use crate::schedule::{Happening, Schedule};
use crate::trace::{Note, Trace};

/// What a seed decides about the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkTraits {
    /// The usual time one way.
    pub(crate) latency: Duration,
    /// The longest time one way.
    pub(crate) latency_max: Duration,
    /// Of 1,000 ways, how many take up to the longest time.
    pub(crate) slow: u32,
    /// The most fragments in which a READ's bytes are taken.
    pub(crate) fragments: u32,
    /// The longest time from the first of them to the last.
    pub(crate) spread: Duration,
    /// How long an endpoint tries before it gives up on a peer that does not answer.
    pub(crate) patience: Duration,
}

/// A fragment of a READ that succeeded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadDone {
    /// Whose memory.
    pub(crate) owner: NodeId,
    /// Under which key.
    pub(crate) key: Key,
    /// What.
    pub(crate) span: SharedSpan,
}

/// A READ that was refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadRefused {
    /// Who read.
    pub(crate) reader: Place,
    /// Under which key.
    pub(crate) key: Key,
}

/// A message that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    /// Who sent it.
    pub(crate) from: Place,
    /// Who got it.
    pub(crate) to: Place,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
}

/// All devices and what is between them.
pub(crate) struct Network {
    fabrics: Vec<Option<SimFabric>>,
    pub(crate) schedule: Schedule,
    pub(crate) trace: Trace,
    pub(crate) rng: fastrand::Rng,
    pub(crate) traits: NetworkTraits,
    /// Until when two nodes cannot reach each other; the smaller node first.
    cuts: BTreeMap<(NodeId, NodeId), Time>,
    pub(crate) reads: Vec<ReadDone>,
    pub(crate) refused: Vec<ReadRefused>,
    pub(crate) delivered: Vec<Delivered>,
}

impl Network {
    pub(crate) fn new(traits: NetworkTraits, rng: fastrand::Rng, trace: Trace) -> Self {
        Self {
            fabrics: Vec::new(),
            schedule: Schedule::new(),
            trace,
            rng,
            traits,
            cuts: BTreeMap::new(),
            reads: Vec::new(),
            refused: Vec::new(),
            delivered: Vec::new(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.schedule.now
    }

    /// Adds a node. Each incarnation of a process is a node of its own, so that nothing of the one before can be mistaken
    /// for it.
    pub(crate) fn add(&mut self, make: impl FnOnce(NodeId, fastrand::Rng) -> SimFabric) -> NodeId {
        let node = NodeId(self.fabrics.len() as u32);
        let rng = fastrand::Rng::with_seed(self.rng.u64(..));
        self.fabrics.push(Some(make(node, rng)));
        node
    }

    pub(crate) fn fabric(&mut self, node: NodeId) -> &mut SimFabric {
        self.fabrics[node.0 as usize].as_mut().expect("the node is alive")
    }

    pub(crate) fn alive(&self, node: NodeId) -> Option<&SimFabric> {
        self.fabrics[node.0 as usize].as_ref()
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &SimFabric> {
        self.fabrics.iter().flatten()
    }

    /// Takes a node away, as if its process had been killed: its peers learn of it after a while.
    pub(crate) fn kill(&mut self, node: NodeId) {
        let Some(mut fabric) = self.fabrics[node.0 as usize].take() else { return };
        for link in fabric.links() {
            let peer = fabric.endpoint_of(link).and_then(|endpoint| endpoint.peer);
            if let Some(peer) = peer {
                self.tell_lost(node, peer);
            }
        }
    }

    /// Cuts two nodes off from each other for a while.
    pub(crate) fn cut(&mut self, a: NodeId, b: NodeId, until: Time) {
        self.cuts.insert((a.min(b), a.max(b)), until);
    }

    /// When something that leaves now arrives, or `Err` with the time at which the sender gives up.
    pub(crate) fn reach(&mut self, from: NodeId, to: NodeId) -> Result<Time, Time> {
        let now = self.now();
        let way = self.way();
        let until = self.cuts.get(&(from.min(to), from.max(to))).copied().unwrap_or_default();
        if until <= now {
            return Ok(now + way);
        }
        let gives_up = now + self.traits.patience;
        if until >= gives_up { Err(gives_up) } else { Ok(until + way) }
    }

    pub(crate) fn way(&mut self) -> Duration {
        let usual = self.traits.latency.as_nanos() as u64;
        let longest = self.traits.latency_max.as_nanos() as u64;
        let slow = self.rng.u32(0..1_000) < self.traits.slow;
        Duration::from_nanos(if slow {
            self.rng.u64(usual..=longest.max(usual))
        } else {
            self.rng.u64(usual / 2..=usual)
        })
    }

    fn peer_of(&mut self, place: Place) -> Option<Place> {
        self.fabrics[place.node.0 as usize].as_mut()?.endpoint_of(place.link)?.peer
    }

    fn is_up(&mut self, place: Place) -> bool {
        let fabric = self.fabrics[place.node.0 as usize].as_mut();
        fabric.and_then(|fabric| fabric.endpoint_of(place.link)).is_some_and(|endpoint| endpoint.state == State::Up)
    }

    /// Takes up what a node's machine has posted and closed.
    pub(crate) fn collect(&mut self, node: NodeId) {
        let Some(fabric) = self.fabrics[node.0 as usize].as_mut() else { return };
        let rung = std::mem::take(&mut fabric.rung);
        let closed = std::mem::take(&mut fabric.closed);
        for link in rung {
            let place = Place { node, link };
            let Some(endpoint) = self.fabric(node).endpoint_of(link) else { continue };
            match (endpoint.state, endpoint.peer) {
                (State::ExpectPeer, Some(peer)) => {
                    if let Ok(at) = self.reach(node, peer.node) {
                        self.schedule.at(at, Happening::Greet { place });
                    }
                }
                (State::Up, _) => self.issue(place),
                _ => (),
            }
        }
        for link in closed {
            self.fail(Place { node, link }, DownCause::Closed, WorkError::Flushed);
        }
    }

    /// Does one of the happenings that are the network's own.
    pub(crate) fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Greet { place } => self.greet(place),
            Happening::Arrive { place, number } => self.arrive(place, number),
            Happening::Fragment { place, number, at, len } => self.fragment(place, number, at, len),
            Happening::Answer { place, number, result } => self.answer(place, number, result),
            Happening::Break { place, cause } => self.fail(place, cause, WorkError::Disconnected),
            Happening::DownDue { place } => self.down_due(place),
            other => unreachable!("{other:?} is not the network's"),
        }
    }

    fn greet(&mut self, place: Place) {
        let Some(peer) = self.peer_of(place) else { return };
        if self.peer_of(peer) != Some(place) {
            return;
        }
        for place in [place, peer] {
            let Some((endpoint, ready)) = self.fabric(place.node).endpoint_and_ready(place.link) else { continue };
            if endpoint.state != State::ExpectPeer {
                continue;
            }
            endpoint.state = State::Up;
            ready.push_back(Ready { event: Event::Up { link: place.link }, release: Release::default() });
        }
        for place in [place, peer] {
            if self.is_up(place) {
                self.issue(place);
            }
        }
    }

    /// Starts the next piece of work, if the one before it lets it.
    fn issue(&mut self, place: Place) {
        loop {
            let Some(endpoint) = self.fabric(place.node).endpoint_of(place.link) else { return };
            if endpoint.issuing || endpoint.state != State::Up {
                return;
            }
            let Some(peer) = endpoint.peer else { return };
            let next = endpoint.sends.iter().find(|entry| entry.stage == Stage::Queued);
            let Some((number, work)) = next.map(|entry| (entry.number, entry.work)) else { return };
            let local = matches!(work, Work::Bind { .. } | Work::Unbind { .. });
            if local && endpoint.reads_before(number) {
                return;
            }
            endpoint.issuing = true;
            endpoint.entry(number).expect("it was just found").stage = Stage::Issued;
            let at = if local { Ok(self.now() + self.way() / 4) } else { self.reach(place.node, peer.node) };
            match at {
                Ok(at) => self.schedule.at(at, Happening::Arrive { place, number }),
                Err(at) => self.schedule.at(at, Happening::Break { place, cause: DownCause::PeerLost }),
            }
        }
    }

    fn arrive(&mut self, place: Place, number: u64) {
        let now = self.now();
        let Some(fabric) = self.fabrics[place.node.0 as usize].as_mut() else { return };
        let Some(endpoint) = fabric.endpoint_of(place.link).filter(|endpoint| endpoint.state == State::Up) else {
            return;
        };
        let peer = endpoint.peer.expect("an endpoint that is up has a peer");
        if endpoint.refused_before(number) {
            return;
        }
        endpoint.issuing = false;
        let entry = endpoint.entry(number).expect("an entry is in its queue until it is over");
        let (op, work) = (entry.op, entry.work);
        self.trace.note(now, Note::Executed { node: place.node, link: place.link, op });
        match work {
            Work::Bind { .. } | Work::Unbind { .. } => {
                let result = fabric.execute(work);
                let entry = fabric.endpoint_of(place.link).and_then(|endpoint| endpoint.entry(number));
                let entry = entry.expect("the device leaves the queues alone");
                if let Ok(outcome) = result {
                    entry.stage = Stage::Executed(outcome);
                }
                self.answer(place, number, result);
            }
            Work::Send { .. } => self.send_arrives(place, peer, number),
            Work::Read { from, .. } => self.read_arrives(place, peer, number, from),
            Work::Recv { .. } => unreachable!("receives are in a queue of their own"),
        }
        if self.is_up(place) {
            self.issue(place);
        }
    }

    fn send_arrives(&mut self, place: Place, peer: Place, number: u64) {
        if !self.is_up(peer) {
            return self.tell_lost(peer.node, place);
        }
        let entry = self.fabric(place.node).endpoint_of(place.link).and_then(|endpoint| endpoint.entry(number));
        let (_, claim) = entry.and_then(|entry| entry.claim.as_ref()).expect("a SEND has claimed its message");
        let bytes = claim.bytes().to_vec();
        let (endpoint, ready) = self.fabric(peer.node).endpoint_and_ready(peer.link).expect("it is up");
        let refused = match endpoint.receives.front() {
            None => Some(WorkError::ReceiverNotReady),
            Some(receive) if (receive.into.len as usize) < bytes.len() => Some(WorkError::TooLong),
            Some(_) => None,
        };
        if let Some(error) = refused {
            self.later(place, number, Err(error));
            self.break_quietly(peer, DownCause::Protocol, WorkError::Flushed);
            return;
        }
        let mut receive = endpoint.receives.pop_front().expect("it was just looked at");
        receive.claim.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        let span = LocalSpan { len: bytes.len() as u32, ..receive.into };
        let event = Event::Message { link: peer.link, op: receive.op, span };
        let claim = Some((receive.into.local, receive.claim));
        ready.push_back(Ready { event, release: Release { claim, receive: Some(peer.link), ..Release::default() } });
        self.delivered.push(Delivered { from: place, to: peer, bytes });
        self.executed(place, number);
        self.later(place, number, Ok(Outcome::Finished));
    }

    fn read_arrives(&mut self, place: Place, peer: Place, number: u64, from: RemoteSpan) {
        if !self.is_up(peer) {
            return self.tell_lost(peer.node, place);
        }
        if self.open(peer, from).is_none() {
            let again = Happening::Fragment { place, number, at: 0, len: from.len };
            let entry = self.fabric(place.node).endpoint_of(place.link).and_then(|endpoint| endpoint.entry(number));
            entry.expect("an entry is in its queue until it is over").fragments = 1;
            return self.violate(place, peer, number, from, again);
        }
        let most = self.traits.fragments.min(from.len.max(1));
        let count = self.rng.u32(1..=most.max(1));
        // An aligned word is taken whole, as every device does.
        let skew = (from.address % 8) as u32;
        let whole = |at: u32| (at + skew).next_multiple_of(8) - skew;
        let mut cuts: Vec<u32> = (1..count).map(|_| whole(self.rng.u32(0..from.len.max(1))).min(from.len)).collect();
        cuts.extend([0, from.len]);
        cuts.sort_unstable();
        cuts.dedup();
        if from.len == 0 {
            cuts = vec![0, 0];
        }
        let entry = self.fabric(place.node).endpoint_of(place.link).and_then(|endpoint| endpoint.entry(number));
        entry.expect("an entry is in its queue until it is over").fragments = cuts.len() as u32 - 1;
        let spread = self.traits.spread.as_nanos() as u64;
        for pair in cuts.windows(2) {
            let at = self.now() + Duration::from_nanos(self.rng.u64(0..=spread));
            self.schedule.at(at, Happening::Fragment { place, number, at: pair[0], len: pair[1] - pair[0] });
        }
    }

    /// What of the owner's memory a READ may fetch now.
    fn open(&mut self, owner: Place, from: RemoteSpan) -> Option<SharedSpan> {
        let fabric = self.fabric(owner.node);
        let config = fabric.endpoint_of(owner.link)?.config;
        if config.remote_read { fabric.open(config.domain, from.key, from.address, from.len) } else { None }
    }

    fn fragment(&mut self, place: Place, number: u64, at: u32, len: u32) {
        let Some(fabric) = self.fabrics[place.node.0 as usize].as_mut() else { return };
        let Some(endpoint) = fabric.endpoint_of(place.link).filter(|endpoint| endpoint.state == State::Up) else {
            return;
        };
        let peer = endpoint.peer.expect("an endpoint that is up has a peer");
        let Some(entry) = endpoint.entry(number) else { return };
        let Work::Read { from, .. } = entry.work else { unreachable!("only READs have fragments") };
        if !matches!(entry.stage, Stage::Issued) || endpoint.refused_before(number) {
            return;
        }
        if !self.is_up(peer) {
            return self.tell_lost(peer.node, place);
        }
        let part = RemoteSpan { address: from.address + u64::from(at), len, ..from };
        let Some(span) = self.open(peer, part) else {
            let again = Happening::Fragment { place, number, at, len };
            return self.violate(place, peer, number, from, again);
        };
        let memory = self.fabric(peer.node).shared_of(span.shared).expect("it was just opened").memory.clone();
        let mut bytes = vec![0; len as usize];
        memory.read(span.offset, &mut bytes);
        let now = self.now();
        self.trace.note(now, Note::Fragment { reader: place.node, key: from.key, address: part.address, len });
        self.reads.push(ReadDone { owner: peer.node, key: from.key, span });
        self.fabric(place.node).land(place.link, number, at, &bytes);
        let endpoint = self.fabric(place.node).endpoint_of(place.link).expect("it is up");
        let entry = endpoint.entry(number).expect("it was just found");
        entry.fragments -= 1;
        if entry.fragments == 0 {
            entry.stage = Stage::Executed(Outcome::Finished);
            self.later(place, number, Ok(Outcome::Finished));
        }
    }

    /// A READ is refused, once the READs before it are done.
    fn violate(&mut self, place: Place, owner: Place, number: u64, from: RemoteSpan, again: Happening) {
        let now = self.now();
        if let Some(endpoint) = self.fabric(place.node).endpoint_of(place.link) {
            endpoint.entry(number).expect("an entry is in its queue until it is over").refused = true;
            if endpoint.reads_unexecuted_before(number) {
                return self.schedule.at(now + Duration::from_micros(1), again);
            }
        }
        let RemoteSpan { key, address, len } = from;
        self.trace.note(now, Note::Violation { reader: place.node, link: place.link, key, address, len });
        self.refused.push(ReadRefused { reader: place, key });
        self.later(place, number, Err(WorkError::RemoteAccess));
        self.break_quietly(owner, DownCause::PeerViolation, WorkError::Flushed);
    }

    fn executed(&mut self, place: Place, number: u64) {
        let entry = self.fabric(place.node).endpoint_of(place.link).and_then(|endpoint| endpoint.entry(number));
        if let Some(entry) = entry {
            entry.stage = Stage::Executed(Outcome::Finished);
        }
    }

    /// Sends the answer to a piece of work on its way back.
    fn later(&mut self, place: Place, number: u64, result: Result<Outcome, WorkError>) {
        let peer = self.peer_of(place).expect("what was executed at a peer has one");
        match self.reach(peer.node, place.node) {
            Ok(at) => {
                // Answers do not overtake each other: what was executed before an error ends before it.
                let Some(endpoint) = self.fabric(place.node).endpoint_of(place.link) else { return };
                let at = at.max(endpoint.answered_at + Duration::from_nanos(1));
                endpoint.answered_at = at;
                self.schedule.at(at, Happening::Answer { place, number, result });
            }
            Err(at) => self.schedule.at(at, Happening::Break { place, cause: DownCause::PeerLost }),
        }
    }

    fn answer(&mut self, place: Place, number: u64, result: Result<Outcome, WorkError>) {
        let now = self.now();
        let Some(fabric) = self.fabrics[place.node.0 as usize].as_mut() else { return };
        let Some((endpoint, ready)) = fabric.endpoint_and_ready(place.link) else { return };
        if endpoint.state != State::Up {
            return;
        }
        let Some(entry) = endpoint.entry(number) else { return };
        entry.stage = Stage::Over(result);
        let note = Note::Completed { node: place.node, link: place.link, op: entry.op, error: result.err() };
        endpoint.complete(ready);
        self.trace.note(now, note);
        match result {
            Err(error) => self.fail(place, DownCause::Work(error), WorkError::Flushed),
            Ok(_) => self.issue(place),
        }
    }

    fn fail(&mut self, place: Place, cause: DownCause, first: WorkError) {
        if let Some(peer) = self.break_quietly(place, cause, first) {
            self.tell_lost(place.node, peer);
        }
    }

    /// Puts an endpoint into the error state. Returns its peer, which does not know yet.
    fn break_quietly(&mut self, place: Place, cause: DownCause, first: WorkError) -> Option<Place> {
        let fabric = self.fabrics[place.node.0 as usize].as_mut()?;
        let (endpoint, ready) = fabric.endpoint_and_ready(place.link)?;
        if matches!(endpoint.state, State::Failed(_)) {
            return None;
        }
        endpoint.fail(cause, first, ready);
        let peer = endpoint.peer;
        let now = self.now();
        self.trace.note(now, Note::Down { node: place.node, link: place.link, cause });
        let at = now + self.way() / 2;
        self.schedule.at(at, Happening::DownDue { place });
        peer
    }

    /// Lets an endpoint learn, after a while, that its peer on `lost` is gone.
    fn tell_lost(&mut self, lost: NodeId, place: Place) {
        let at = match self.reach(lost, place.node) {
            Ok(at) | Err(at) => at,
        };
        // Nor does this overtake an answer that is on its way.
        let endpoint = self.fabrics[place.node.0 as usize].as_mut().and_then(|fabric| fabric.endpoint_of(place.link));
        let at = endpoint.map_or(at, |endpoint| at.max(endpoint.answered_at + Duration::from_nanos(1)));
        self.schedule.at(at, Happening::Break { place, cause: DownCause::PeerLost });
    }

    fn down_due(&mut self, place: Place) {
        let Some(fabric) = self.fabrics[place.node.0 as usize].as_mut() else { return };
        if let Some(endpoint) = fabric.endpoint_of(place.link) {
            endpoint.down_due = true;
        }
    }
}
