//! What a device does, tried on it before anything depends on it: a bind, READs inside and outside what it opened, and keys
//! that were taken away, between two endpoints of one fabric.

use std::time::Duration;

use super::fabric::VerbsFabric;
use crate::probe::RawDeregistration;
use crate::{
    Access, DomainId, EndpointConfig, Event, Fabric, FabricError, Key, LinkId, LocalId, LocalSpan, Memory, Op, Outcome,
    RemoteSpan, SharedId, SharedSpan, SystemClock, Target, Work, WorkError,
};

/// The size of the region, and what of it is lent.
const REGION: u64 = 16 * 1024;
const LENT: (u64, u64) = (4096, 1024);

/// How many bytes each READ fetches.
const READ: u32 = 64;

/// When the device is given up that does not complete what it was asked: some hundred times what it takes.
const WATCHDOG: Duration = Duration::from_secs(5);

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Findings {
    /// Whether a READ outside the range that was lent, but inside the region, is refused.
    pub(super) bounds_enforced: bool,
    /// Whether the index of a freed window is given to the next one that is allocated.
    pub(super) reuses_indices: bool,
}

/// Why the device cannot lend memory in this way.
#[derive(Debug)]
pub(super) enum Refusal {
    /// An object could not be had.
    Object(FabricError),
    /// Something did not go as it has to.
    Behaviour(String),
}

impl From<FabricError> for Refusal {
    fn from(error: FabricError) -> Self {
        Self::Object(error)
    }
}

impl Refusal {
    /// In one line.
    pub(super) fn in_words(&self) -> String {
        match self {
            Self::Object(error) => match std::error::Error::source(error) {
                Some(source) => format!("{error} ({source})"),
                None => error.to_string(),
            },
            Self::Behaviour(what) => what.clone(),
        }
    }
}

/// Tries a device out, and leaves nothing behind, whatever comes of it.
pub(super) fn run(fabric: &mut VerbsFabric) -> Result<Findings, Refusal> {
    let domain = fabric.domain()?;
    let mut trial = Trial { fabric, domain, events: Vec::new(), next_op: 0 };
    let result = trial.in_domain();
    trial.clear()?;
    result
}

/// Asks the device to deregister a region that a live window covers. The fabric never does that by itself.
pub(super) fn deregister_under_window(fabric: &mut VerbsFabric) -> Result<RawDeregistration, Refusal> {
    let domain = fabric.domain()?;
    let mut trial = Trial { fabric, domain, events: Vec::new(), next_op: 0 };
    let result = trial.deregister();
    trial.clear()?;
    result
}

struct Trial<'a> {
    fabric: &'a mut VerbsFabric,
    domain: DomainId,
    events: Vec<Event>,
    next_op: u64,
}

impl Trial<'_> {
    fn in_domain(&mut self) -> Result<Findings, Refusal> {
        let shared = self.fabric.shared(self.domain, REGION)?;
        let local = self.fabric.local(self.domain, 1, READ)?;
        let window = self.fabric.window(self.domain)?;
        let ends = self.connect()?;
        let span = SharedSpan { shared, offset: LENT.0, len: LENT.1 };
        let key = self.expect_bound(ends.0, Work::Bind { window, span, access: Access::Read })?;

        let inside = self.read(ends.1, shared, local, key, LENT.0)?;
        if inside != Ok(Outcome::Finished) {
            return Err(Refusal::Behaviour(format!("a READ of what was lent ended with {inside:?}")));
        }
        let outside = self.read(ends.1, shared, local, key, LENT.0 + LENT.1)?;
        let bounds_enforced = match outside {
            Ok(_) => false,
            Err(WorkError::RemoteAccess) => true,
            Err(error) => return Err(Refusal::Behaviour(format!("a READ beyond what was lent ended with {error:?}"))),
        };
        let ends = self.connect()?;
        let next = self.expect_bound(ends.0, Work::Bind { window, span, access: Access::Read })?;
        let stale = self.read(ends.1, shared, local, key, LENT.0)?;
        if next == key || stale != Err(WorkError::RemoteAccess) {
            return Err(Refusal::Behaviour(format!("a READ under the key before {next}, {key}, ended with {stale:?}")));
        }
        // An unbind has to be known by its key too: where it keeps the key, what was told of the next one would be wrong.
        let ends = self.connect()?;
        let unbound = self.finish(ends.0, Work::Unbind { window })?;
        if unbound != Ok(Outcome::Unbound) {
            return Err(Refusal::Behaviour(format!("an unbind ended with {unbound:?}")));
        }
        let unbound = self.read(ends.1, shared, local, next, LENT.0)?;
        if unbound != Err(WorkError::RemoteAccess) {
            return Err(Refusal::Behaviour(format!("a READ under {next}, which was unbound, ended with {unbound:?}")));
        }
        Ok(Findings { bounds_enforced, reuses_indices: self.reuses_indices()? })
    }

    fn reuses_indices(&mut self) -> Result<bool, Refusal> {
        let mut indices = Vec::new();
        for _ in 0..2 {
            let window = self.fabric.window(self.domain)?;
            indices.push(self.fabric.key(window).index());
            self.fabric.free_window(window)?;
        }
        // Registrations have no index before they are bound, and then a new one each time.
        Ok(indices[0] == indices[1] && indices[0] != 0)
    }

    fn deregister(&mut self) -> Result<RawDeregistration, Refusal> {
        let shared = self.fabric.shared(self.domain, REGION)?;
        let window = self.fabric.window(self.domain)?;
        let ends = self.connect()?;
        let span = SharedSpan { shared, offset: LENT.0, len: LENT.1 };
        self.expect_bound(ends.0, Work::Bind { window, span, access: Access::Read })?;
        match self.fabric.deregister_regardless(shared) {
            Ok(()) => Ok(RawDeregistration::Done),
            Err(error) => Ok(RawDeregistration::Refused { errno: error.raw_os_error().unwrap_or(0) }),
        }
    }

    /// Two endpoints, connected with each other.
    fn connect(&mut self) -> Result<(LinkId, LinkId), Refusal> {
        let config = EndpointConfig { domain: self.domain, send_depth: 4, receive_depth: 1, remote_read: true };
        let (left, left_address) = self.fabric.endpoint(config)?;
        let (right, right_address) = self.fabric.endpoint(config)?;
        self.fabric.connect(left, &right_address)?;
        self.fabric.connect(right, &left_address)?;
        Ok((left, right))
    }

    fn expect_bound(&mut self, link: LinkId, work: Work) -> Result<Key, Refusal> {
        match self.finish(link, work)? {
            Ok(Outcome::Bound(key)) => Ok(key),
            other => Err(Refusal::Behaviour(format!("a bind ended with {other:?}"))),
        }
    }

    fn read(
        &mut self,
        link: LinkId,
        shared: SharedId,
        local: LocalId,
        key: Key,
        offset: u64,
    ) -> Result<Result<Outcome, WorkError>, Refusal> {
        let address = self.fabric.address(SharedSpan { shared, offset, len: READ.into() });
        let into = Target::Local(LocalSpan { local, slot: 0, offset: 0, len: READ });
        self.finish(link, Work::Read { from: RemoteSpan { address, len: READ, key }, into })
    }

    /// Does a piece of work, and waits for its end.
    fn finish(&mut self, link: LinkId, work: Work) -> Result<Result<Outcome, WorkError>, Refusal> {
        let op = Op(self.next_op);
        self.next_op += 1;
        self.fabric.post(link, op, work)?;
        self.fabric.submit();
        self.until(|events| {
            events.iter().find_map(|event| match event {
                Event::Done { op: done, result, .. } if *done == op => Some(*result),
                _ => None,
            })
        })
    }

    fn until<T>(&mut self, mut found: impl FnMut(&[Event]) -> Option<T>) -> Result<T, Refusal> {
        let clock = SystemClock::start();
        loop {
            if let Some(found) = found(&self.events) {
                return Ok(found);
            }
            if clock.time().0 > WATCHDOG.as_nanos() as u64 {
                return Err(Refusal::Behaviour(format!("nothing came of what was asked, in {WATCHDOG:?}")));
            }
            self.fabric.poll(&mut self.events, 16);
        }
    }

    /// Frees everything again.
    fn clear(&mut self) -> Result<(), Refusal> {
        for link in self.fabric.links() {
            self.fabric.close(link);
            self.until(|events| {
                events
                    .iter()
                    .any(|event| matches!(event, Event::Down { link: down, .. } if *down == link))
                    .then_some(())
            })?;
        }
        Ok(self.fabric.free_everything()?)
    }
}
