//! The thread that drives one producer or consumer: its fabric, its connection and its role.
//!
//! Each turn takes in commands, goes on with the connection, drives the machine, and lets the role exchange with the
//! application; a turn that found nothing rests. There is one thread per client object and no other. Everything that the
//! thread owns (endpoint, memory, descriptors) is gone when it ends, and it ends within the deadline that it was given.
//!
//! It blocks in one place beside its sleep: the system's resolver, when the broker is named by a host name. Deadlines are kept for the
//! caller all the same; the thread itself ends when the resolver has answered.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::JoinHandle;
use std::time::Duration;

use flume::{Receiver, Sender, TryRecvError};
use keyway_fabric::soft::{self, SoftConfig, SoftFabric};
use keyway_fabric::{
    DomainId, Event, Fabric, FabricError, IdleLimits, IdleStrategy, Now, Rest, SystemClock, Time, Waker, Watch, drive,
    wait_any,
};

use crate::bootstrap::{Preamble, Target};
use crate::connection::{Attended, Change, Connection, LinkReport};
use crate::{ATTEMPT_TIMEOUT, CONNECT_TIMEOUT, Error, Progress, Role, Server};

/// Commands that may wait for the driver: closes and flushes, not data.
const COMMANDS_MAX: usize = 64;

/// The most commands of one turn.
const COMMANDS_A_TURN: usize = 16;

/// How long the end of an endpoint is awaited when a client ends. It takes microseconds; a fabric that does not report it is left.
const END_TIMEOUT: Duration = Duration::from_millis(100);

/// Makes a client's fabric, on the thread that will use it.
pub type OpenFabric = Box<dyn FnOnce() -> Result<Box<dyn Fabric>, FabricError> + Send>;

/// What a driver needs to know.
pub struct DriverConfig {
    /// The broker.
    pub server: Server,
    /// The thread's name; 15 bytes at most are shown by the system.
    pub thread: &'static str,
    /// How long the role may take to be ready for the first time.
    pub connect_timeout: Duration,
    /// How long one attempt to connect may take.
    pub attempt_timeout: Duration,
    /// Makes the fabric.
    pub open_fabric: OpenFabric,
    /// What a data stream of that fabric begins with.
    pub preamble: Preamble,
    /// How the thread rests.
    pub idle: IdleLimits,
}

impl DriverConfig {
    /// A driver on the software fabric, with the default times.
    pub fn new(server: Server, thread: &'static str) -> Self {
        Self {
            server,
            thread,
            connect_timeout: CONNECT_TIMEOUT,
            attempt_timeout: ATTEMPT_TIMEOUT,
            open_fabric: Box::new(|| Ok(Box::new(SoftFabric::new(SoftConfig::default())?))),
            preamble: |peer| soft::preamble(peer).map(|preamble| preamble.to_vec()),
            idle: IdleLimits::BALANCED,
        }
    }
}

/// A running driver, seen from the application's threads. Dropping it abandons the role, and the thread ends by itself.
#[derive(Debug)]
pub struct Driver<C> {
    what: &'static str,
    commands: Sender<C>,
    notifier: Notifier,
    /// Disconnected when the thread ends.
    end: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// Wakes a driver that sleeps. Clones wake the same one.
#[derive(Clone, Debug)]
pub struct Notifier {
    asleep: Arc<AtomicBool>,
    waker: Waker,
}

impl Notifier {
    /// Makes the driver take another turn, if it would otherwise sleep. To be called after what it should find is there.
    pub fn notify(&self) {
        // SeqCst, paired with `sleep_soon`: either this sees that the driver is about to sleep, or the driver, which looks
        // once more after saying so, sees what was put there before.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.waker.wake();
        }
    }

    fn sleep_soon(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

/// The wait for a role to be ready for the first time.
#[derive(Debug)]
pub struct Opening {
    result: Receiver<Result<(), Error>>,
    server: Server,
    timeout: Duration,
}

impl Opening {
    /// Waits on this thread.
    ///
    /// # Errors
    ///
    /// Why the role is not ready: it was refused, or the connect deadline is over.
    pub fn wait(self) -> Result<(), Error> {
        // The driver keeps the deadline and knows what went wrong; this one is for a driver that the resolver holds up.
        match self.result.recv_timeout(self.timeout + END_TIMEOUT) {
            Ok(result) => result,
            Err(flume::RecvTimeoutError::Timeout) => Err(connect_timeout(&self.server, self.timeout, None)),
            Err(flume::RecvTimeoutError::Disconnected) => Err(died()),
        }
    }

    /// Waits without holding a thread.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait).
    pub async fn ready(self) -> Result<(), Error> {
        self.result.recv_async().await.unwrap_or_else(|_| Err(died()))
    }
}

fn connect_timeout(server: &Server, after: Duration, last: Option<Error>) -> Error {
    Error::Timeout { what: format!("connecting to {server}"), after, last: last.map(Box::new) }
}

fn died() -> Error {
    Error::Internal { what: "the driver's thread ended without a word".into() }
}

impl<C: Send + 'static> Driver<C> {
    /// Starts the thread. It has made its fabric when this returns; the connection comes about behind that.
    ///
    /// # Errors
    ///
    /// There is no thread or no fabric to be had.
    pub fn spawn<R>(what: &'static str, config: DriverConfig, role: R) -> Result<(Self, Opening), Error>
    where
        R: Role<Command = C> + Send + 'static,
    {
        let (commands, inbox) = flume::bounded(COMMANDS_MAX);
        let (started, start) = flume::bounded(1);
        let (ready, result) = flume::bounded(1);
        let (ended, end) = flume::bounded(1);
        let name = config.thread;
        let opening = Opening { result, server: config.server.clone(), timeout: config.connect_timeout };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // Dropped last: whoever awaits the end finds everything else gone.
                let _ended = ended;
                match Turning::prepare(config, role, inbox, ready) {
                    Ok(turning) => {
                        let told = started.send(Ok(turning.notifier.clone()));
                        debug_assert!(told.is_ok(), "whoever spawns a driver waits for its start");
                        turning.run();
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            })
            .map_err(|source| Error::Thread { name, source: Arc::new(source) })?;
        let notifier = start.recv().unwrap_or_else(|_| Err(died()))?;
        Ok((Self { what, commands, notifier, end, thread: Some(thread) }, opening))
    }

    /// Gives the role a command. Waits only while as many as may be are waiting.
    ///
    /// # Errors
    ///
    /// The driver has ended.
    pub fn command(&self, command: C) -> Result<(), Error> {
        self.commands.send(command).map_err(|_| Error::Closed { what: self.what, cause: None })?;
        self.notifier.notify();
        Ok(())
    }

    /// Like [`command`](Self::command), without holding a thread.
    ///
    /// # Errors
    ///
    /// The driver has ended.
    pub async fn command_async(&self, command: C) -> Result<(), Error> {
        self.commands.send_async(command).await.map_err(|_| Error::Closed { what: self.what, cause: None })?;
        self.notifier.notify();
        Ok(())
    }

    /// What wakes it.
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Abandons the role, and waits until the thread has ended, for so long at most. Returns whether it has.
    pub fn abandon(mut self, timeout: Duration) -> bool {
        self.disconnect();
        self.join(timeout)
    }

    /// Waits until the thread has ended, for so long at most. Returns whether it has.
    pub fn join(mut self, timeout: Duration) -> bool {
        match self.end.recv_timeout(timeout) {
            Err(flume::RecvTimeoutError::Timeout) => false,
            _ => self.join_ended(),
        }
    }

    /// Like [`join`](Self::join), without holding a thread and without a limit: the role's own deadline is one.
    pub async fn join_async(mut self) {
        // Nothing is ever sent: the error is the end.
        let _ = self.end.recv_async().await;
        self.join_ended();
    }

    fn join_ended(&mut self) -> bool {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(what = self.what, "a driver's thread has panicked");
        }
        true
    }
}

impl<C> Driver<C> {
    /// Takes the commands' only sender away, so that the role finds itself abandoned.
    fn disconnect(&mut self) {
        let (closed, _) = flume::bounded(1);
        self.commands = closed;
        self.notifier.notify();
    }
}

impl<C> Drop for Driver<C> {
    fn drop(&mut self) {
        self.disconnect();
    }
}

/// What the thread works with.
struct Turning<R: Role> {
    role: R,
    server: Server,
    fabric: Box<dyn Fabric>,
    domain: DomainId,
    clock: SystemClock,
    connection: Connection,
    report: LinkReport,
    events: Vec<Event>,
    inbox: Receiver<R::Command>,
    notifier: Notifier,
    /// Who waits for the role to be ready, until when, and what went wrong meanwhile.
    ready: Option<Sender<Result<(), Error>>>,
    ready_by: Time,
    connect_timeout: Duration,
    last: Option<Error>,
    abandoned: bool,
    idle: IdleStrategy,
    /// Whether the fabric was armed, and this turn is the last look before sleeping.
    armed: bool,
    watches: Vec<Watch>,
}

impl<R: Role> Turning<R> {
    fn prepare(
        config: DriverConfig,
        mut role: R,
        inbox: Receiver<R::Command>,
        ready: Sender<Result<(), Error>>,
    ) -> Result<Self, Error> {
        let mut fabric = (config.open_fabric)().map_err(Error::fabric("opening the fabric"))?;
        let domain = fabric.domain().map_err(Error::fabric("making a domain"))?;
        role.prepare(domain, &mut *fabric)?;
        let notifier = Notifier { asleep: Arc::new(AtomicBool::new(false)), waker: fabric.waker() };
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
            idle: IdleStrategy::new(config.idle),
            armed: false,
            watches: Vec::new(),
        })
    }

    fn run(mut self) {
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
                tracing::warn!(server = %self.server, %cause, "the session is over");
                // Whatever ended a session that existed: only the role decides that it is the last one.
                (cause, false)
            }
            Change::Unreachable(cause) => {
                let fatal = self.is_fatal(&cause);
                if self.connection.failures() == 1 {
                    tracing::warn!(server = %self.server, %cause, "cannot connect; trying again");
                } else {
                    tracing::debug!(server = %self.server, %cause, "cannot connect; trying again");
                }
                self.role.unreachable(now, &cause);
                (cause, fatal)
            }
        };
        if fatal {
            return Err(cause);
        }
        self.last = Some(cause);
        Ok(1)
    }

    /// Whether no later attempt can succeed. A client that has been ready once takes an answer that makes no sense for a
    /// passing fault: something else may hold the broker's port while it is away.
    fn is_fatal(&self, cause: &Error) -> bool {
        match cause {
            Error::Handshake { .. } => self.ready.is_some(),
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
