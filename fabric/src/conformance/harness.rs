//! Two fabrics, connected, and the means to drive both from one thread.

use std::time::Duration;

use super::{Backend, Failure};
use crate::{
    Access, DomainId, DownCause, EndpointConfig, Event, Fabric, Key, LinkId, LocalId, LocalSpan, Op, Outcome,
    RemoteSpan, SharedId, SharedSpan, SystemClock, Target, WindowId, Work, WorkError,
};

/// How many slots each side has.
pub(crate) const SLOTS: u32 = 32;

/// The size of a slot: more than one fragment of any backend.
pub(crate) const SLOT: u32 = 128 * 1024;

/// The size of the owner's shared memory.
pub(crate) const POOL: u64 = 1024 * 1024;

/// How much work an endpoint takes.
pub(crate) const DEPTH: u32 = 64;

/// When an awaited event is given up. Only a watchdog: nothing waits for it when all is well.
const WATCHDOG: Duration = Duration::from_secs(20);

/// Fails the case with a message, unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::conformance::Failure(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

pub(crate) type Check = Result<(), Failure>;

/// The byte that belongs at a place of the pool.
pub(crate) fn pattern(offset: u64) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 16)) as u8
}

/// Two connected fabrics. The owner lends its pool; the reader reads it.
pub(crate) struct Pair<'a> {
    backend: &'a dyn Backend,
    pub(crate) owner: Side,
    pub(crate) reader: Side,
    pub(crate) pool: SharedId,
}

/// One fabric with a domain, slots and one endpoint.
pub(crate) struct Side {
    pub(crate) fabric: Box<dyn Fabric>,
    pub(crate) domain: DomainId,
    pub(crate) local: LocalId,
    pub(crate) link: LinkId,
    /// Everything that was reported, in order.
    pub(crate) events: Vec<Event>,
    next_op: u64,
}

impl Side {
    fn new(backend: &dyn Backend) -> Result<Self, Failure> {
        let mut fabric = backend.fabric()?;
        let domain = fabric.domain()?;
        let local = fabric.local(domain, SLOTS, SLOT)?;
        let link = LinkId { index: u32::MAX, generation: u32::MAX };
        Ok(Self { fabric, domain, local, link, events: Vec::new(), next_op: 0 })
    }

    pub(crate) fn config(&self) -> EndpointConfig {
        EndpointConfig { domain: self.domain, send_depth: DEPTH, receive_depth: DEPTH, remote_read: true }
    }

    /// The first `len` bytes of a slot.
    pub(crate) fn slot(&self, slot: u32, len: u32) -> LocalSpan {
        LocalSpan { local: self.local, slot, offset: 0, len }
    }

    pub(crate) fn post(&mut self, work: Work) -> Result<Op, Failure> {
        self.post_to(self.link, work)
    }

    pub(crate) fn post_to(&mut self, link: LinkId, work: Work) -> Result<Op, Failure> {
        let op = Op(self.next_op);
        self.fabric.post(link, op, work)?;
        self.next_op += 1;
        Ok(op)
    }

    pub(crate) fn post_read(&mut self, from: RemoteSpan, slot: u32) -> Result<Op, Failure> {
        self.post(Work::Read { from, into: Target::Local(self.slot(slot, from.len)) })
    }

    /// How a piece of work ended, if it has.
    pub(crate) fn result(&self, op: Op) -> Option<Result<Outcome, WorkError>> {
        self.events.iter().find_map(|event| match event {
            Event::Done { op: done, result, .. } if *done == op => Some(*result),
            _ => None,
        })
    }

    /// The message that took a receive, if one has.
    pub(crate) fn message(&self, op: Op) -> Option<LocalSpan> {
        self.events.iter().find_map(|event| match event {
            Event::Message { op: taken, span, .. } if *taken == op => Some(*span),
            _ => None,
        })
    }

    pub(crate) fn is_up(&self, link: LinkId) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Up { link: up } if *up == link))
    }

    pub(crate) fn down(&self, link: LinkId) -> Option<DownCause> {
        self.events.iter().find_map(|event| match event {
            Event::Down { link: down, cause } if *down == link => Some(*cause),
            _ => None,
        })
    }

    /// Every piece of work whose end was reported, in order.
    pub(crate) fn ended(&self, link: LinkId) -> Vec<Op> {
        let ended = self.events.iter().filter_map(|event| match event {
            Event::Done { link: at, op, .. } | Event::Message { link: at, op, .. } if *at == link => Some(*op),
            _ => None,
        });
        ended.collect()
    }

    /// This fabric's turn.
    pub(crate) fn turn(&mut self) {
        self.fabric.submit();
        self.fabric.poll(&mut self.events, 64);
    }
}

impl<'a> Pair<'a> {
    /// Two fabrics whose endpoints are up, and the owner's pool, filled with the [`pattern`].
    pub(crate) fn new(backend: &'a dyn Backend) -> Result<Self, Failure> {
        let mut pair = Self::apart(backend)?;
        pair.connect()?;
        Ok(pair)
    }

    /// As [`new`](Self::new), without endpoints.
    pub(crate) fn apart(backend: &'a dyn Backend) -> Result<Self, Failure> {
        let mut owner = Side::new(backend)?;
        let reader = Side::new(backend)?;
        let pool = owner.fabric.shared(owner.domain, POOL)?;
        let bytes: Vec<u8> = (0..POOL).map(pattern).collect();
        owner.fabric.write(SharedSpan { shared: pool, offset: 0, len: POOL }, &bytes);
        Ok(Self { backend, owner, reader, pool })
    }

    /// Connects a new endpoint on each side, with the sides' own configurations.
    pub(crate) fn connect(&mut self) -> Check {
        let (owner, reader) = (self.owner.config(), self.reader.config());
        (self.owner.link, self.reader.link) = self.connect_with(owner, reader)?;
        Ok(())
    }

    /// Connects a new endpoint on each side and waits until both are up.
    pub(crate) fn connect_with(
        &mut self,
        owner: EndpointConfig,
        reader: EndpointConfig,
    ) -> Result<(LinkId, LinkId), Failure> {
        let (owner_link, owner_address) = self.owner.fabric.endpoint(owner)?;
        let (reader_link, reader_address) = self.reader.fabric.endpoint(reader)?;
        self.owner.fabric.connect(owner_link, &reader_address)?;
        self.reader.fabric.connect(reader_link, &owner_address)?;
        if self.owner.fabric.needs_stream() {
            let (left, right) = self.backend.streams()?;
            self.owner.fabric.attach(owner_link, left)?;
            self.reader.fabric.attach(reader_link, right)?;
        }
        self.until("both endpoints to come up", |pair| pair.owner.is_up(owner_link) && pair.reader.is_up(reader_link))?;
        Ok((owner_link, reader_link))
    }

    /// Connects two endpoints of the owner's with each other, and waits until both are up.
    pub(crate) fn connect_to_itself(&mut self) -> Result<(LinkId, LinkId), Failure> {
        let config = self.owner.config();
        let fabric = &mut self.owner.fabric;
        let (left, left_address) = fabric.endpoint(config)?;
        let (right, right_address) = fabric.endpoint(config)?;
        fabric.connect(left, &right_address)?;
        fabric.connect(right, &left_address)?;
        if fabric.needs_stream() {
            let streams = self.backend.streams()?;
            fabric.attach(left, streams.0)?;
            fabric.attach(right, streams.1)?;
        }
        self.until("both ends to come up", |pair| pair.owner.is_up(left) && pair.owner.is_up(right))?;
        Ok((left, right))
    }

    /// Both fabrics' turn.
    pub(crate) fn turn(&mut self) {
        self.owner.turn();
        self.reader.turn();
    }

    /// Drives both fabrics until a condition holds.
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) -> Check {
        let clock = SystemClock::start();
        while !holds(self) {
            ensure!(
                clock.now().time.0 < WATCHDOG.as_nanos() as u64,
                "waited in vain for {what}; the owner saw {:?}, the reader {:?}",
                tail(&self.owner.events),
                tail(&self.reader.events)
            );
            self.turn();
        }
        Ok(())
    }

    /// A new window of the owner's.
    pub(crate) fn window(&mut self) -> Result<WindowId, Failure> {
        Ok(self.owner.fabric.window(self.owner.domain)?)
    }

    pub(crate) fn span(&self, offset: u64, len: u64) -> SharedSpan {
        SharedSpan { shared: self.pool, offset, len }
    }

    /// Binds a window for reading, and waits until that is done.
    pub(crate) fn bind(&mut self, window: WindowId, offset: u64, len: u64) -> Result<Key, Failure> {
        let span = self.span(offset, len);
        self.bind_as(window, span, Access::Read)
    }

    pub(crate) fn bind_as(&mut self, window: WindowId, span: SharedSpan, access: Access) -> Result<Key, Failure> {
        let op = self.owner.post(Work::Bind { window, span, access })?;
        match self.owner_result(op)? {
            Ok(Outcome::Bound(key)) => Ok(key),
            other => Err(Failure(format!("binding {window} to {span:?} ended with {other:?}"))),
        }
    }

    /// Unbinds a window, and waits until that is done.
    pub(crate) fn unbind(&mut self, window: WindowId) -> Check {
        let op = self.owner.post(Work::Unbind { window })?;
        let result = self.owner_result(op)?;
        ensure!(result == Ok(Outcome::Unbound), "unbinding {window} ended with {result:?}");
        Ok(())
    }

    /// What a reader must name to fetch a part of the pool.
    pub(crate) fn remote(&self, key: Key, offset: u64, len: u32) -> RemoteSpan {
        // Through the pool's start, so that a place outside it can be named too.
        let base = self.owner.fabric.address(self.span(0, 0));
        RemoteSpan { address: base.wrapping_add(offset), len, key }
    }

    pub(crate) fn owner_result(&mut self, op: Op) -> Result<Result<Outcome, WorkError>, Failure> {
        self.until("the owner's work to end", |pair| pair.owner.result(op).is_some())?;
        self.owner.result(op).ok_or_else(|| Failure("the result is gone".into()))
    }

    pub(crate) fn reader_result(&mut self, op: Op) -> Result<Result<Outcome, WorkError>, Failure> {
        self.until("the reader's work to end", |pair| pair.reader.result(op).is_some())?;
        self.reader.result(op).ok_or_else(|| Failure("the result is gone".into()))
    }

    /// The reader reads a part of the pool, which must succeed and bring the right bytes.
    pub(crate) fn expect_read(&mut self, key: Key, offset: u64, len: u32) -> Check {
        let from = self.remote(key, offset, len);
        let op = self.reader.post_read(from, 0)?;
        let result = self.reader_result(op)?;
        ensure!(result == Ok(Outcome::Finished), "reading {offset}+{len} under {key} ended with {result:?}");
        let slot = self.reader.slot(0, len);
        let wrong = self.reader.fabric.bytes(slot).iter().zip(offset..).position(|(byte, at)| *byte != pattern(at));
        ensure!(wrong.is_none(), "reading {offset}+{len} brought a wrong byte at {wrong:?}");
        Ok(())
    }

    /// The reader reads, which must be refused and end both endpoints; then a new pair of endpoints is connected.
    pub(crate) fn expect_refusal(&mut self, from: RemoteSpan) -> Check {
        let slot = self.reader.slot(0, from.len);
        self.reader.fabric.bytes_mut(slot).fill(0xee);
        let op = self.reader.post_read(from, 0)?;
        let result = self.reader_result(op)?;
        ensure!(
            result == Err(WorkError::RemoteAccess),
            "reading {from:?} ended with {result:?}, and had to be refused"
        );
        let untouched = self.reader.fabric.bytes(slot).iter().all(|byte| *byte == 0xee);
        ensure!(untouched, "a READ that was refused brought bytes all the same");
        self.expect_down(DownCause::Work(WorkError::RemoteAccess), DownCause::PeerViolation)?;
        self.connect()
    }

    /// Both endpoints go down, for these causes.
    pub(crate) fn expect_down(&mut self, reader: DownCause, owner: DownCause) -> Check {
        let links = (self.owner.link, self.reader.link);
        let mut expected = (Some(reader), Some(owner));
        if reader == DownCause::PeerLost && self.hang_up_on_reader()? {
            expected.0 = Some(DownCause::Closed);
        }
        self.until("both endpoints to go down", |pair| {
            pair.owner.down(links.0).is_some() && pair.reader.down(links.1).is_some()
        })?;
        let seen = (self.reader.down(links.1), self.owner.down(links.0));
        ensure!(seen == expected, "the reader and the owner went down for {seen:?}, not for {expected:?}");
        Ok(())
    }

    /// Closes the reader's endpoint once the owner's is down, where the device does not tell the reader; `true` if it did so.
    pub(crate) fn hang_up_on_reader(&mut self) -> Result<bool, Failure> {
        if self.backend.notices_hang_up() {
            return Ok(false);
        }
        let links = (self.owner.link, self.reader.link);
        self.until("the owner's endpoint to go down", |pair| pair.owner.down(links.0).is_some())?;
        self.reader.fabric.close(links.1);
        Ok(true)
    }
}

/// The last events, for a report.
fn tail(events: &[Event]) -> &[Event] {
    &events[events.len().saturating_sub(4)..]
}
