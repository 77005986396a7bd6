//! The thread that drives one producer or consumer: its fabric, its connection and its role.
//!
//! Each turn takes in commands, goes on with the connection, drives the machine, and lets the role exchange with the
//! application; a turn that found nothing rests. There is one thread per client object and no other. Everything that the
//! thread owns (endpoint, memory, descriptors) is gone when it ends, and it ends within the deadline that it was given.
//!
//! It blocks in one place beside its sleep: the system's resolver, when the broker is named by a host name. Deadlines are kept for the
//! caller all the same; the thread itself ends when the resolver has answered.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use flume::{Receiver, Sender};
use keyway_fabric::{FabricChoice, IdleLimits};

use crate::fabrics::{OpenFabric, open_fabric};
use crate::notifier::Notifier;
use crate::turning::Turning;
use crate::{ATTEMPT_TIMEOUT, CONNECT_TIMEOUT, Error, Role, Server};

/// Commands that may wait for the driver: closes and flushes, not data.
const COMMANDS_MAX: usize = 64;

/// How long the end of an endpoint is awaited when a client ends. It takes microseconds; a fabric that does not report it is left.
pub(crate) const END_TIMEOUT: Duration = Duration::from_millis(100);

/// As good as for ever, and short enough to be added to a clock: what `Duration::MAX` is taken as where a thread waits.
pub const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

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
    /// The fabrics that may be used.
    pub fabric: FabricChoice,
    /// Opens them, on the thread that will use them.
    pub open_fabric: OpenFabric,
    /// How the thread rests.
    pub idle: IdleLimits,
}

impl DriverConfig {
    /// A driver on whichever fabric the broker speaks, with the default times.
    pub fn new(server: Server, thread: &'static str) -> Self {
        Self {
            server,
            thread,
            connect_timeout: CONNECT_TIMEOUT,
            attempt_timeout: ATTEMPT_TIMEOUT,
            fabric: FabricChoice::Auto,
            open_fabric,
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
        match self.result.recv_timeout(self.timeout.min(WAIT_MAX) + END_TIMEOUT) {
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

pub(crate) fn connect_timeout(server: &Server, after: Duration, last: Option<Error>) -> Error {
    Error::Timeout { what: format!("connecting to {server}"), after, last: last.map(Box::new) }
}

fn died() -> Error {
    Error::Internal { what: "the driver's thread ended without a word".into() }
}

impl<C: Send + 'static> Driver<C> {
    /// Starts the thread. The connection comes about behind that.
    ///
    /// # Errors
    ///
    /// There is no thread or no descriptor to be had.
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
        match self.end.recv_timeout(timeout.min(WAIT_MAX)) {
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
