//! A driver's turn: commands, connection, machine, exchange with the application, rest.
//!
//! Everything here runs on the driver's thread and belongs to it: fabric, connection, role. It is dropped when the turning
//! ends, in an order that gives everything back.

use std::io;
use std::time::Duration;

use flume::{Receiver, Sender, TryRecvError};
use keyway_fabric::{DomainId, Event, Fabric, IdleStrategy, Now, Rest, SystemClock, Time, Watch, drive, wait_any};

use crate::bootstrap::Target;
use crate::connection::{Attended, Change, Connection, LinkReport};
use crate::driver::{DriverConfig, END_TIMEOUT, connect_timeout};
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
    fabric: Box<dyn Fabric>,
    domain: DomainId,
    clock: SystemClock,
    connection: Connection,
    report: LinkReport,
    events: Vec<Event>,
    inbox: Receiver<R::Command>,
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
        mut role: R,
        inbox: Receiver<R::Command>,
        ready: Sender<Result<(), Error>>,
    ) -> Result<Self, Error> {
        let mut fabric = (config.open_fabric)().map_err(Error::fabric("opening the fabric"))?;
        let domain = fabric.domain().map_err(Error::fabric("making a domain"))?;
        role.prepare(domain, &mut *fabric)?;
        let notifier = Notifier::new(fabric.waker());
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|error| Error::Internal { what: format!("no randomness: {error}") })?;
        let random = fastrand::Rng::with_seed(u64::from_le_bytes(seed));
        let target = Target { server: config.server.clone(), domain, preamble: config.preamble };
        let clock = SystemClock::start();
        Ok(Self {
            role,
            server: config.server,
            fabric,
            domain,
            clock,
            connection: Connection::new(target, config.attempt_timeout, random),
            report: LinkReport::default(),
            events: Vec::new(),
            inbox,
            notifier,
            ready: Some(ready),
            ready_by: Time::ZERO + config.connect_timeout,
            connect_timeout: config.connect_timeout,
            last: None,
            abandoned: false,
            warn_at: Time::ZERO,
            idle: IdleStrategy::new(config.idle),
            armed: false,
            watches: Vec::new(),
        })
    }

    pub(crate) fn run(mut self) {
        let over = loop {
            let now = self.clock.now();
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
        match drive(&mut attended, &mut *self.fabric, now, &mut self.events) {
            Ok(done) => work += done,
            Err(error) => {
                // Machine and fabric no longer agree on the session: a new one starts from scratch.
                tracing::error!(server = %self.server, %error, "the fabric refused the session's work");
                let cause = Error::fabric("serving the session")(error);
                let change = self.connection.end_session(now, cause, &mut self.report, &mut *self.fabric);
                self.take_change(now, change)?;
                work += 1;
            }
        }
        work += self.role.turn(now, &mut *self.fabric)?;
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
        let change = self.connection.turn(now, || role.plan(), &mut self.report, &mut *self.fabric);
        self.take_change(now, change)
    }

    fn take_change(&mut self, now: Now, change: Option<Change>) -> Result<usize, Error> {
        let Some(change) = change else { return Ok(0) };
        let (cause, fatal) = match change {
            Change::Connected(connected) => {
                tracing::debug!(server = %self.server, session = connected.session, "connected");
                self.role.connected(now, &connected, &mut *self.fabric);
                return Ok(1);
            }
            Change::Disconnected(cause) => {
                let cause = self.role.disconnected(now, cause);
                self.warn(now, "the session is over", &cause);
                // Whatever ended a session that existed: only the role decides that it is the last one.
                (cause, false)
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
            Error::Handshake { .. } | Error::Fabric { .. } => self.ready.is_some(),
            cause => !cause.is_retryable(),
        }
    }

    fn rest(&mut self, now: Now, work: usize) {
        let work = work + self.events.len() + usize::from(self.fabric.busy());
        if work > 0 {
            self.wake_up();
        }
        match self.idle.after(work) {
            Rest::Spin if work > 0 => {}
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep if !self.armed => {
                self.armed = true;
                self.notifier.sleep_soon();
                self.fabric.arm();
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
        self.watches.push(Watch::reading(self.fabric.fd()));
        self.connection.watches(&mut self.watches);
        let opening = self.ready.as_ref().map(|_| self.ready_by);
        let due = [self.role.timeout(), self.connection.timeout(), opening].into_iter().flatten().min();
        wait_any(&mut self.watches, due.map(|due| due.since(now.time)))?;
        if self.watches[1..].iter().any(|watch| watch.ready) {
            self.connection.woken();
        }
        Ok(())
    }

    /// Ends the session in order, and gives everything back.
    fn end(mut self) {
        let start = self.clock.now();
        let mut pending = self.connection.end(start, &mut self.report, &mut *self.fabric);
        let mut now = start;
        while pending && now.time.since(start.time) < END_TIMEOUT {
            self.fabric.arm();
            let mut attended = Attended { role: &mut self.role, report: &mut self.report };
            let driven = drive(&mut attended, &mut *self.fabric, now, &mut self.events);
            if driven.is_err() || self.connection.turn_end(now, &mut self.report, &mut *self.fabric) {
                pending = false;
            } else if matches!(driven, Ok(0)) {
                let rest = (start.time + END_TIMEOUT).since(now.time);
                drop(wait_any(&mut [Watch::reading(self.fabric.fd())], Some(rest)));
            }
            now = self.clock.now();
        }
        drop(self.role);
        if let Err(error) = self.fabric.free_domain(self.domain) {
            tracing::debug!(%error, "a client's domain goes with its fabric");
        }
    }
}
