//! A driver's turn: commands, connection, machine, exchange with the application, rest.
//!
//! Everything here runs on the driver's thread and belongs to it: fabric, connection, role. It is dropped when the turning
//! ends, in an order that gives everything back.

use std::io;
use std::time::Duration;

use flume::{Receiver, Sender, TryRecvError};
use keyway_fabric::{Event, FabricError, IdleStrategy, Now, Rest, SystemClock, Time, Waker, Watch, drive, wait_any};

use crate::bootstrap::Target;
use crate::connection::{Attended, Change, Connection, LinkReport};
use crate::driver::{DriverConfig, END_TIMEOUT, connect_timeout};
use crate::fabrics::Fabrics;
use crate::notifier::Notifier;
use crate::{Error, Progress, Role, Server};

/// How often a connection that does not come about is warned of.
const WARN_INTERVAL: Duration = Duration::from_secs(1);

/// The most commands of one turn.
const COMMANDS_A_TURN: usize = 16;

/// What the thread works with.
pub(crate) struct Turning<R: Role> {
    role: R,
    server: Server,
    fabrics: Fabrics,
    clock: SystemClock,
    connection: Connection,
    report: LinkReport,
    events: Vec<Event>,
    inbox: Receiver<R::Command>,
    /// What the notifier wakes. It is not the fabric's, which may be replaced by another.
    waker: Waker,
    pub(crate) notifier: Notifier,
    /// Who waits for the role to be ready, until when, and what went wrong meanwhile.
    ready: Option<Sender<Result<(), Error>>>,
    ready_by: Time,
    connect_timeout: Duration,
    last: Option<Error>,
    abandoned: bool,
    /// When the next warning may be logged.
    warn_at: Time,
    idle: IdleStrategy,
    /// Whether the fabric was armed, and this turn is the last look before sleeping.
    armed: bool,
    watches: Vec<Watch>,
}

impl<R: Role> Turning<R> {
    pub(crate) fn prepare(
        config: DriverConfig,
        role: R,
        inbox: Receiver<R::Command>,
        ready: Sender<Result<(), Error>>,
    ) -> Result<Self, Error> {
        let fabrics = Fabrics::new(config.fabric, config.open_fabric)?;
        let waker = Waker::new().map_err(|source| {
            let source = FabricError::System { what: "eventfd", source };
            Error::fabric("making the driver's waker")(source)
        })?;
        let notifier = Notifier::new(waker.clone());
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|error| Error::Internal { what: format!("no randomness: {error}") })?;
        let random = fastrand::Rng::with_seed(u64::from_le_bytes(seed));
        let target = Target { server: config.server.clone() };
        let clock = SystemClock::start();
        Ok(Self {
            role,
            server: config.server,
            fabrics,
            clock,
            connection: Connection::new(target, config.attempt_timeout, random),
            report: LinkReport::default(),
            events: Vec::new(),
            inbox,
            waker,
            notifier,
            ready: Some(ready),
            ready_by: Time::ZERO + config.connect_timeout,
            connect_timeout: config.connect_timeout,
            last: None,
            abandoned: false,
            warn_at: Time::ZERO,
            idle: IdleStrategy::here(config.idle),
            armed: false,
            watches: Vec::new(),
        })
    }

    pub(crate) fn run(mut self) {
        let mut now = Now::default();
        let over = loop {
            // A client stamps nothing, so the wall clock is left alone: on some machines reading a clock is a system call. The last
            // look before sleeping comes right behind the turn that found nothing.
            if !self.armed {
                now.time = self.clock.time();
            }
            match self.turn(now) {
                Ok(Some(over)) => break over,
                Ok(None) => {}
                Err(cause) => {
                    self.role.fail(now, cause.clone());
                    break Some(cause);
                }
            }
        };
        if let Some(ready) = self.ready.take() {
            let error = over.unwrap_or(Error::Closed { what: "connection", cause: None });
            // Nobody may be waiting any more.
            drop(ready.send(Err(error)));
        }
        self.end();
    }

    /// One turn and the rest after it. Returns the role's end, or the error that ends everything.
    fn turn(&mut self, now: Now) -> Result<Option<Option<Error>>, Error> {
        let mut work = self.take_commands(now);
        work += self.connect(now)?;
        let mut attended = Attended { role: &mut self.role, report: &mut self.report };
        match drive(&mut attended, self.fabrics.fabric(), now, &mut self.events) {
            Ok(done) => work += done,
            Err(error) => {
                // Machine and fabric no longer agree on the session: a new one starts from scratch.
                tracing::error!(server = %self.server, %error, "the fabric refused the session's work");
                let cause = Error::fabric("serving the session")(error);
                let change = self.connection.end_session(now, cause, &mut self.report, &mut self.fabrics);
                self.take_change(now, change)?;
                work += 1;
            }
        }
        work += self.role.turn(now, self.fabrics.fabric())?;
        match self.role.progress() {
            Progress::Over(cause) => return Ok(Some(cause)),
            Progress::Ready { now } => {
                if now {
                    self.connection.proved();
                }
                if let Some(ready) = self.ready.take() {
                    drop(ready.send(Ok(())));
                }
            }
            Progress::Opening if self.ready_by <= now.time => {
                return Err(connect_timeout(&self.server, self.connect_timeout, self.last.take()));
            }
            Progress::Opening => {}
        }
        self.rest(now, work);
        Ok(None)
    }

    fn take_commands(&mut self, now: Now) -> usize {
        for taken in 0..COMMANDS_A_TURN {
            match self.inbox.try_recv() {
                Ok(command) => self.role.command(now, command),
                Err(TryRecvError::Empty) => return taken,
                Err(TryRecvError::Disconnected) if self.abandoned => return taken,
                Err(TryRecvError::Disconnected) => {
                    self.abandoned = true;
                    self.role.abandon(now);
                    return taken + 1;
                }
            }
        }
        COMMANDS_A_TURN
    }

    fn connect(&mut self, now: Now) -> Result<usize, Error> {
        let role = &self.role;
        let change = self.connection.turn(now, || role.plan(), &mut self.report, &mut self.fabrics);
        self.take_change(now, change)
    }

    fn take_change(&mut self, now: Now, change: Option<Change>) -> Result<usize, Error> {
        let Some(change) = change else { return Ok(0) };
        let (cause, fatal) = match change {
            Change::Connected(connected) => {
                tracing::debug!(server = %self.server, session = connected.session, "connected");
                self.role.connected(now, &connected, self.fabrics.fabric());
                return Ok(1);
            }
            Change::Disconnected(cause) => {
                let cause = self.role.disconnected(now, cause);
                self.warn(now, "the session is over", &cause);
                // Whatever ended a session that existed: only the role decides that it is the last one.
                (cause, false)
            }
            Change::Moving(fabric) => {
                let Err(cause) = self.move_to(&fabric) else { return Ok(1) };
                let failed = self.connection.give_up(now, cause, &mut self.report, &mut self.fabrics);
                return self.take_change(now, Some(failed));
            }
            Change::Unreachable(cause) => {
                self.warn(now, "cannot connect; trying again", &cause);
                self.role.unreachable(now, &cause);
                let fatal = self.is_fatal(&cause);
                (cause, fatal)
            }
        };
        if fatal {
            return Err(cause);
        }
        self.last = Some(cause);
        Ok(1)
    }

    /// Moves to the fabric that the broker speaks. There is no session.
    fn move_to(&mut self, name: &str) -> Result<(), Error> {
        // Flushes of attempts that were given up, on the fabric that is left.
        self.events.clear();
        if let Some(mut former) = self.fabrics.move_to(name) {
            self.role.leave(&mut *former.fabric);
        }
        let domain = self.fabrics.domain();
        let prepared = self.role.prepare(domain, self.fabrics.fabric());
        match &prepared {
            Ok(()) => tracing::debug!(server = %self.server, fabric = self.fabrics.fabric().name(), "on its fabric"),
            Err(_) => self.fabrics.unprepared(),
        }
        prepared
    }

    /// Warns, but not more often than an operator can read.
    fn warn(&mut self, now: Now, what: &'static str, cause: &Error) {
        if self.warn_at <= now.time {
            self.warn_at = now.time + WARN_INTERVAL;
            tracing::warn!(server = %self.server, %cause, "{what}");
        } else {
            tracing::debug!(server = %self.server, %cause, "{what}");
        }
    }

    /// Whether no later attempt can succeed. A client that has been ready once takes an answer that makes no sense, or a lack
    /// of memory or descriptors, for a passing fault: something else may hold the broker's port while it is away.
    fn is_fatal(&self, cause: &Error) -> bool {
        match cause {
            Error::Handshake { .. } | Error::OpenFabric { .. } | Error::Fabric { .. } => self.ready.is_some(),
            cause => !cause.is_retryable(),
        }
    }

    fn rest(&mut self, now: Now, work: usize) {
        let work = work + self.events.len() + usize::from(self.fabrics.fabric().busy());
        if work > 0 {
            self.wake_up();
        }
        match self.idle.after(work, now.time) {
            Rest::Spin if work > 0 => {}
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep if !self.armed => {
                self.armed = true;
                self.notifier.sleep_soon();
                self.fabrics.fabric().arm();
            }
            Rest::Sleep => {
                if let Err(error) = self.sleep(now) {
                    // Not expected of open descriptors. The loop goes on, and only costs more.
                    tracing::error!(%error, "cannot sleep");
                }
                self.wake_up();
            }
        }
    }

    fn wake_up(&mut self) {
        if self.armed {
            self.armed = false;
            self.notifier.awake();
        }
    }

    fn sleep(&mut self, now: Now) -> io::Result<()> {
        self.watches.clear();
        self.watches.push(Watch::reading(self.waker.fd()));
        self.watches.push(Watch::reading(self.fabrics.fabric().fd()));
        self.connection.watches(&mut self.watches);
        let opening = self.ready.as_ref().map(|_| self.ready_by);
        let due = [self.role.timeout(), self.connection.timeout(), opening].into_iter().flatten().min();
        wait_any(&mut self.watches, due.map(|due| due.since(now.time)))?;
        if self.watches[0].ready {
            // A wake that came when this thread had not gone to sleep yet ends the next sleep: that is cheaper than to look for
            // one before each.
            self.waker.clear();
        }
        if self.watches[2..].iter().any(|watch| watch.ready) {
            self.connection.woken();
        }
        Ok(())
    }

    /// Ends the session in order, and gives everything back.
    fn end(mut self) {
        let start = self.clock.now();
        let mut pending = self.connection.end(start, &mut self.report, &mut self.fabrics);
        let mut now = start;
        while pending && now.time.since(start.time) < END_TIMEOUT {
            self.fabrics.fabric().arm();
            let mut attended = Attended { role: &mut self.role, report: &mut self.report };
            let driven = drive(&mut attended, self.fabrics.fabric(), now, &mut self.events);
            if driven.is_err() || self.connection.turn_end(now, &mut self.report, &mut self.fabrics) {
                pending = false;
            } else if matches!(driven, Ok(0)) {
                let rest = (start.time + END_TIMEOUT).since(now.time);
                drop(wait_any(&mut [Watch::reading(self.fabrics.fabric().fd())], Some(rest)));
            }
            now = self.clock.now();
        }
        let mut used = self.fabrics.into_used();
        self.role.leave(&mut *used.fabric);
    }
}
