//! Two fabrics of the device, driven from one thread.

use std::time::Duration;

use keyway_fabric::conformance::Backend;
use keyway_fabric::verbs::VerbsTarget;
use keyway_fabric::{
    Access, DomainId, DownCause, EndpointConfig, Event, Fabric, Key, LinkId, LocalId, LocalSpan, Memory, Op, Outcome,
    RemoteSpan, SharedId, SharedSpan, SystemClock, Target, WindowId, Work, WorkError, one_line,
};

/// When an awaited event is given up.
const WATCHDOG: Duration = Duration::from_secs(20);

/// How much work an endpoint takes, each way.
pub(crate) const DEPTH: u32 = 64;

/// The slots of each side, and their size.
pub(crate) const SLOTS: u32 = 256;
pub(crate) const SLOT: u32 = 4096;

/// The size of each side's shared memory.
pub(crate) const POOL: u64 = 1 << 20;

/// How a test goes.
pub(crate) type Check = Result<(), String>;

/// A fabric with a domain, local and shared memory.
pub(crate) struct Side {
    pub(crate) fabric: Box<dyn Fabric>,
    pub(crate) domain: DomainId,
    pub(crate) local: LocalId,
    pub(crate) pool: SharedId,
    pub(crate) events: Vec<Event>,
    next_op: u64,
}

/// Two of them.
pub(crate) struct Stand {
    pub(crate) left: Side,
    pub(crate) right: Side,
}

/// A fabric's error as a test's.
pub(crate) fn told(error: impl std::error::Error) -> String {
    one_line(&error)
}

impl Side {
    pub(crate) fn new(target: &VerbsTarget) -> Result<Self, String> {
        let mut fabric = target.fabric().map_err(told)?;
        let domain = fabric.domain().map_err(told)?;
        let local = fabric.local(domain, SLOTS, SLOT).map_err(told)?;
        let pool = fabric.shared(domain, POOL).map_err(told)?;
        Ok(Self { fabric, domain, local, pool, events: Vec::new(), next_op: 0 })
    }

    pub(crate) fn config(&self) -> EndpointConfig {
        EndpointConfig { domain: self.domain, send_depth: DEPTH, receive_depth: DEPTH, remote_read: true }
    }

    pub(crate) fn slot(&self, slot: u32) -> LocalSpan {
        LocalSpan { local: self.local, slot, offset: 0, len: SLOT }
    }

    pub(crate) fn span(&self, offset: u64, len: u64) -> SharedSpan {
        SharedSpan { shared: self.pool, offset, len }
    }

    pub(crate) fn window(&mut self) -> Result<WindowId, String> {
        self.fabric.window(self.domain).map_err(told)
    }

    pub(crate) fn post(&mut self, link: LinkId, work: Work) -> Result<Op, String> {
        let op = Op(self.next_op);
        self.next_op += 1;
        self.fabric.post(link, op, work).map_err(told)?;
        Ok(op)
    }

    pub(crate) fn result(&self, op: Op) -> Option<Result<Outcome, WorkError>> {
        self.events.iter().find_map(|event| match event {
            Event::Done { op: done, result, .. } if *done == op => Some(*result),
            _ => None,
        })
    }

    pub(crate) fn down(&self, link: LinkId) -> Option<DownCause> {
        self.events.iter().find_map(|event| match event {
            Event::Down { link: down, cause } if *down == link => Some(*cause),
            _ => None,
        })
    }

    pub(crate) fn turn(&mut self) {
        self.fabric.submit();
        self.fabric.poll(&mut self.events, 64);
    }

    /// Takes turns until there is something.
    pub(crate) fn until<T>(&mut self, what: &str, mut found: impl FnMut(&Self) -> Option<T>) -> Result<T, String> {
        let clock = SystemClock::start();
        loop {
            if let Some(found) = found(self) {
                return Ok(found);
            }
            if clock.time().0 > WATCHDOG.as_nanos() as u64 {
                let last = &self.events[self.events.len().saturating_sub(4)..];
                return Err(format!("waited in vain for {what}; the last events were {last:?}"));
            }
            self.turn();
        }
    }

    /// Does a piece of work, and waits for its end.
    pub(crate) fn finish(&mut self, link: LinkId, work: Work) -> Result<Result<Outcome, WorkError>, String> {
        let op = self.post(link, work)?;
        self.until("work to end", |side| side.result(op))
    }

    pub(crate) fn bind(&mut self, link: LinkId, window: WindowId, span: SharedSpan) -> Result<Key, String> {
        match self.finish(link, Work::Bind { window, span, access: Access::Read })? {
            Ok(Outcome::Bound(key)) => Ok(key),
            other => Err(format!("a bind ended with {other:?}")),
        }
    }

    /// READs the first bytes of a peer's span into a slot.
    pub(crate) fn read(&mut self, link: LinkId, address: u64, key: Key) -> Result<Result<Outcome, WorkError>, String> {
        let into = LocalSpan { len: 64, ..self.slot(0) };
        self.finish(link, Work::Read { from: RemoteSpan { address, len: 64, key }, into: Target::Local(into) })
    }

    pub(crate) fn address(&self, span: SharedSpan) -> u64 {
        Memory::address(&*self.fabric, span)
    }
}

impl Stand {
    pub(crate) fn new(target: &VerbsTarget) -> Result<Self, String> {
        Ok(Self { left: Side::new(target)?, right: Side::new(target)? })
    }

    /// Connects a new endpoint of each side.
    pub(crate) fn connect(&mut self) -> Result<(LinkId, LinkId), String> {
        let (left, left_address) = self.left.fabric.endpoint(self.left.config()).map_err(told)?;
        let (right, right_address) = self.right.fabric.endpoint(self.right.config()).map_err(told)?;
        self.left.fabric.connect(left, &right_address).map_err(told)?;
        self.right.fabric.connect(right, &left_address).map_err(told)?;
        Ok((left, right))
    }
}
