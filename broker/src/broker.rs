//! A running broker.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::Receiver;
use keyway_fabric::Dial;
use tokio::sync::oneshot;

use crate::builder::{Builder, system};
use crate::connector::Connector;
use crate::core::Counters;
use crate::inbox::{Inbox, Request};
use crate::listener::Listener;
use crate::reactor::{Reactor, STOP_MARGIN, Stopped};
use crate::supervise::{OnFailure, Supervisor};
use crate::unix_socket::SocketFile;
use crate::{BrokerError, one_line};

/// How long the reactor may take to answer, beyond what it was given. It answers within a turn, some microseconds; more means
/// that it hangs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

const REACTOR: &str = "keyway-reactor";
const LISTENER: &str = "keyway-listener";

/// A broker, running in threads of this process. Dropping it stops it at once; [`stop`](Self::stop) lets what was committed be
/// read first.
pub struct Broker {
    addresses: Vec<SocketAddr>,
    socket_file: Option<SocketFile>,
    connector: Arc<Connector>,
    inbox: Inbox,
    /// Held while asking: the inbox has one place for all callers' questions.
    asking: Mutex<()>,
    threads: Option<Threads>,
}

/// Both threads, until they are joined.
struct Threads {
    reactor: JoinHandle<()>,
    /// What the reactor's thread came to.
    ended: Receiver<Result<Stopped, BrokerError>>,
    listener: JoinHandle<Result<(), BrokerError>>,
    stop_listener: oneshot::Sender<()>,
}

/// What a broker is started from.
pub(crate) struct Parts {
    pub(crate) reactor: Reactor,
    pub(crate) listener: Listener,
    pub(crate) inbox: Inbox,
    pub(crate) connector: Connector,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) socket_file: Option<SocketFile>,
    pub(crate) on_failure: Option<OnFailure>,
}

impl Parts {
    pub(crate) fn start(self) -> Result<Broker, BrokerError> {
        let supervisor = Supervisor::new(self.on_failure);
        let (stop_listener, stopped) = oneshot::channel();
        let listener = self.listener.prepare().map_err(system("make the listener's runtime"))?;
        let listener_supervisor = supervisor.clone();
        let listener = std::thread::Builder::new()
            .name(LISTENER.to_owned())
            .spawn(move || {
                listener_supervisor.run(LISTENER, || {
                    listener
                        .run(stopped)
                        .map_err(|error| BrokerError::Failed { thread: LISTENER, reason: one_line(&error) })
                })
            })
            .map_err(system("start the listener's thread"))?;
        let (tell, ended) = crossbeam_channel::bounded(1);
        let reactor = self.reactor;
        // If this fails, `stop_listener` is dropped, which ends the listener.
        let reactor = std::thread::Builder::new()
            .name(REACTOR.to_owned())
            .spawn(move || drop(tell.send(supervisor.run(REACTOR, || reactor.run()))))
            .map_err(system("start the reactor's thread"))?;
        Ok(Broker {
            addresses: self.addresses,
            socket_file: self.socket_file,
            connector: Arc::new(self.connector),
            inbox: self.inbox,
            asking: Mutex::new(()),
            threads: Some(Threads { reactor, ended, listener, stop_listener }),
        })
    }
}

impl Broker {
    /// A builder with the default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The first TCP address that it listens on, with the port that the system chose if 0 was asked for.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.addresses.first().copied()
    }

    /// Every TCP address that it listens on.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The path of its Unix socket.
    pub fn unix_path(&self) -> Option<&Path> {
        self.socket_file.as_ref().map(SocketFile::path)
    }

    /// For clients in this process.
    pub fn connector(&self) -> Arc<dyn Dial> {
        Arc::clone(&self.connector) as Arc<dyn Dial>
    }

    /// The counters now.
    ///
    /// # Errors
    ///
    /// The broker has failed, or is held up.
    pub fn counters(&self) -> Result<Counters, BrokerError> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        self.inbox.post_within(Request::Counters { reply }, ANSWER_TIMEOUT).map_err(|_| BrokerError::Silent)?;
        answer.recv_timeout(ANSWER_TIMEOUT).map_err(|_| BrokerError::Silent)
    }

    /// Stops: tells every client, takes no new ones, and lets consumers read what is committed, for `deadline` at most. When
    /// this returns, its threads have ended and its Unix socket is removed.
    ///
    /// # Errors
    ///
    /// The broker had failed before, or its reactor hangs.
    pub fn stop(mut self, deadline: Duration) -> Result<Stopped, BrokerError> {
        match self.threads.take() {
            Some(threads) => self.end(threads, deadline),
            None => Err(BrokerError::Silent),
        }
    }

    fn end(&mut self, threads: Threads, deadline: Duration) -> Result<Stopped, BrokerError> {
        // A reactor that has failed takes nothing, and has said what it came to.
        let _ = self.inbox.post_within(Request::Stop { deadline }, ANSWER_TIMEOUT);
        let limit = deadline.saturating_add(STOP_MARGIN).saturating_add(ANSWER_TIMEOUT);
        let stopped = threads.ended.recv_timeout(limit).unwrap_or(Err(BrokerError::Silent));
        if !matches!(stopped, Err(BrokerError::Silent)) {
            drop(threads.reactor.join());
        }
        // Only now, so that whoever connected meanwhile was told that the broker stops.
        let _ = threads.stop_listener.send(());
        let listened = threads.listener.join();
        self.socket_file = None;
        let stopped = stopped?;
        match listened {
            Ok(result) => result.map(|()| stopped),
            Err(_) => Err(BrokerError::Failed { thread: LISTENER, reason: "it panicked while ending".to_owned() }),
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take()
            && let Err(error) = self.end(threads, Duration::ZERO)
        {
            tracing::error!(error = one_line(&error), "the broker did not stop cleanly");
        }
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker")
            .field("addresses", &self.addresses)
            .field("unix", &self.unix_path())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_the_reactor_is_told_and_nothing_hangs() {
        let (tell, told) = crossbeam_channel::bounded(1);
        let broker = Broker::builder()
            .pool_size(8 << 20)
            .on_failure(move |error| tell.send(error.to_string()).expect("the test waits for it"))
            .start()
            .expect("a broker without a port starts");
        broker.inbox.post(Request::Panic).expect("the reactor runs");
        let reason = told.recv_timeout(Duration::from_secs(20)).expect("the failure is told");
        assert!(reason.contains("keyway-reactor") && reason.ends_with("asked to by a test"), "{reason}");
        assert!(matches!(broker.counters(), Err(BrokerError::Silent)));
        assert!(matches!(broker.stop(Duration::from_secs(60)), Err(BrokerError::Failed { .. })));
    }
}
