//! The listener's thread: who may come in, and what for.
//!
//! It accepts on TCP, on a Unix socket and from clients in this process, does the bootstrap with each client, hands data
//! streams to the reactor and then watches over the silent bootstrap streams, whose end tells that a client died. It
//! promises that whatever comes in at a port disturbs nothing but its own connection: lengths, time and the number of
//! connections whose bootstrap is not done are all limited.
//!
//! It lacks any knowledge of what a session is for.

mod greeting;
mod socket;

use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use keyway_fabric::SystemClock;
use keyway_fabric::soft::Token;
use keyway_schema::Code;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use self::greeting::{Greeting, Rejection, bootstrap, recognise, refusal, refuse};
use self::socket::{Peer, Port, Socket};
use crate::inbox::{Inbox, Opened, Request};
use crate::throttle::Throttle;

/// The most connections of one kind of port whose bootstrap is not done. More wait in the system's backlog, so a burst of
/// reconnecting clients is served in turn, and silent strangers can delay newcomers on their own kind of port, by the
/// bootstrap timeout at most.
pub(crate) const CONNECTIONS_MAX: usize = 256;

/// How long accepting pauses when the system refuses (for want of descriptors, most likely).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a refused client has to take its refusal.
const PARTING: Duration = Duration::from_secs(1);

/// How long a stop waits for connections to tell their clients of it. Those with a session do so at once; who has not even said
/// what it is holds up a stop this long at most.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Where to listen, and what to do with who comes.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) tcp: Vec<StdTcpListener>,
    pub(crate) unix: Option<StdUnixListener>,
    pub(crate) in_process: mpsc::Receiver<StdUnixStream>,
    pub(crate) inbox: Inbox,
    /// The fabric that the broker speaks.
    pub(crate) fabric: String,
    /// How long a connection has until its bootstrap is done.
    pub(crate) timeout: Duration,
}

/// What repeats in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Line {
    Accept,
    Stranger,
    Slow,
    Refused(Code),
    UnknownEndpoint,
    Chatter,
}

/// What a connection is, once it is let in.
enum Greeted {
    Data(Token),
    Session(Opened),
}

/// What all connections share.
#[derive(Debug)]
struct Shared {
    inbox: Inbox,
    fabric: String,
    timeout: Duration,
    clock: SystemClock,
    lines: Mutex<Throttle<Line>>,
}

/// A listener with its runtime, to be run by a thread of its own.
#[derive(Debug)]
pub(crate) struct PreparedListener {
    listener: Listener,
    runtime: Runtime,
}

impl PreparedListener {
    /// Serves until `stop` resolves or is dropped; every connection is closed then.
    ///
    /// # Errors
    ///
    /// A port cannot be set up, or accepting has failed for good.
    pub(crate) fn run(self, stop: oneshot::Receiver<()>) -> io::Result<()> {
        self.runtime.block_on(self.listener.serve(stop))
    }
}

impl Listener {
    /// Makes the runtime, while whoever starts the broker can still be told that there is none.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(crate) fn prepare(self) -> io::Result<PreparedListener> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        Ok(PreparedListener { listener: self, runtime })
    }

    async fn serve(self, stop: oneshot::Receiver<()>) -> io::Result<()> {
        let shared = Arc::new(Shared {
            inbox: self.inbox,
            fabric: self.fabric,
            timeout: self.timeout,
            clock: SystemClock::start(),
            lines: Mutex::new(Throttle::new()),
        });
        let (stopping, told) = watch::channel(());
        let mut ports = JoinSet::new();
        let mut open = |port, permits| ports.spawn(accept(port, permits, Arc::clone(&shared), told.clone()));
        let permits = || Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let tcp_permits = permits();
        for listener in self.tcp {
            open(Port::Tcp(TcpListener::from_std(listener)?), Arc::clone(&tcp_permits));
        }
        if let Some(listener) = self.unix {
            open(Port::Unix(UnixListener::from_std(listener)?), permits());
        }
        open(Port::InProcess(self.in_process), permits());

        let ended = async {
            while let Some(result) = ports.join_next().await {
                result.map_err(io::Error::other)?;
            }
            Ok(())
        };
        tokio::pin!(ended);
        tokio::select! {
            // An error counts as a request too: whoever could ask is gone.
            _ = stop => {}
            failed = &mut ended => return failed,
        }
        drop(stopping);
        ended.await
    }
}

/// Accepts on one port until it is told to stop, and then lets its connections say their last words.
async fn accept(mut port: Port, permits: Arc<Semaphore>, shared: Arc<Shared>, mut told: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // Nothing is ever sent: it ends with its sender.
            _ = told.changed() => break,
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection's task failed");
                }
            }
            accepted = next_connection(&mut port, &permits) => match accepted {
                Ok(Some((socket, peer, permit))) => {
                    connections.spawn(serve(socket, peer, permit, Arc::clone(&shared)));
                }
                Ok(None) => break,
                Err(error) => {
                    shared.warn(Line::Accept, format_args!("cannot accept connections ({error}); trying again"));
                    #[allow(clippy::disallowed_methods, reason = "a descriptor that becomes free is no event to wait for")]
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(port);
    let last_words = async { while connections.join_next().await.is_some() {} };
    let _ = timeout_at(Instant::now() + LAST_WORDS, last_words).await;
}

/// The next connection, as soon as one more may be without a session; none when there will never be one.
async fn next_connection(
    port: &mut Port,
    permits: &Arc<Semaphore>,
) -> io::Result<Option<(Socket, Peer, OwnedSemaphorePermit)>> {
    let permit = Arc::clone(permits).acquire_owned().await.expect("the semaphore is never closed");
    Ok(port.accept().await?.map(|(socket, peer)| (socket, peer, permit)))
}

/// Serves one connection to its end. The permit is held until it is known what the connection is.
async fn serve(mut socket: Socket, peer: Peer, permit: OwnedSemaphorePermit, shared: Arc<Shared>) {
    let deadline = Instant::now() + shared.timeout;
    match greet(&mut socket, deadline, &shared).await {
        Ok(Greeted::Data(token)) => hand_over(socket, token, peer, &shared).await,
        Ok(Greeted::Session(opened)) => {
            // From here on it is the number of sessions that is limited.
            drop(permit);
            watch(socket, opened, peer, &shared).await;
        }
        Err(rejection) => reject(socket, peer, rejection, &shared).await,
    }
}

/// Finds out what a connection is, and does the bootstrap if it is a client's.
async fn greet(socket: &mut Socket, deadline: Instant, shared: &Shared) -> Result<Greeted, Rejection> {
    match timeout_at(deadline, recognise(socket)).await {
        Err(_) => Err(Rejection::Slow),
        Ok(recognised) => match recognised? {
            Greeting::Data(token) => Ok(Greeted::Data(token)),
            Greeting::Bootstrap => {
                socket.watch_host();
                let opened = timeout_at(deadline, bootstrap(socket, &shared.inbox, &shared.fabric)).await;
                let late = || refusal(Code::Timeout, format!("the bootstrap was not done within {:?}", shared.timeout));
                Ok(Greeted::Session(opened.map_err(|_| late())??))
            }
        },
    }
}

/// Closes a connection that is not let in, saying so on both sides.
async fn reject(mut socket: Socket, peer: Peer, rejection: Rejection, shared: &Shared) {
    match rejection {
        Rejection::Stranger(first) => shared.warn(
            Line::Stranger,
            format_args!(
                "closed a connection from {peer}: it began with \"{}\", which is neither a bootstrap nor a data stream; \
                 something that is no client dials this port",
                first.escape_ascii()
            ),
        ),
        Rejection::Slow => shared.warn(
            Line::Slow,
            format_args!("closed a connection from {peer} that did not say what it is within {:?}", shared.timeout),
        ),
        Rejection::Ended(error) => tracing::debug!(%peer, %error, "a connection ended before its bootstrap was done"),
        Rejection::Refused(refusal) => {
            shared.warn(
                Line::Refused(refusal.code),
                format_args!("refused a client from {peer}: {} ({})", refusal.text, refusal.code),
            );
            refuse(&mut socket, &refusal);
            // Closing with bytes unread would reset the connection, and could take the refusal with it.
            let _ = timeout_at(Instant::now() + PARTING, socket.part()).await;
        }
    }
}

/// Gives a data stream to the reactor.
async fn hand_over(socket: Socket, token: Token, peer: Peer, shared: &Shared) {
    let stream = match socket.into_stream() {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%peer, %error, "cannot take over a data stream"),
    };
    let (reply, answer) = oneshot::channel();
    let reply = Box::new(move |known| {
        // The listener may be ending.
        let _ = reply.send(known);
    });
    if shared.inbox.post(Request::Data { token, stream, reply }).is_ok() && answer.await == Ok(false) {
        let text = format_args!("closed a data stream from {peer} for {token:?}: no endpoint waits for it");
        shared.warn(Line::UnknownEndpoint, text);
    }
}

/// Keeps a session's bootstrap stream until either side ends it.
async fn watch(mut socket: Socket, mut opened: Opened, peer: Peer, shared: &Shared) {
    let session = opened.session.id().0;
    tracing::debug!(session, %peer, "session opened");
    let mut byte = [0];
    tokio::select! {
        read = socket.read(&mut byte) => match read {
            Ok(0) => tracing::debug!(session, %peer, "the client's bootstrap stream has ended"),
            Err(error) => tracing::debug!(session, %peer, %error, "the client's bootstrap stream is broken"),
            Ok(_) => shared.warn(
                Line::Chatter,
                format_args!("closing session {session} of {peer}: it spoke on its bootstrap stream after Ready"),
            ),
        },
        closed = &mut opened.closed => match closed {
            Ok(None) => tracing::debug!(session, %peer, "session closed"),
            Ok(Some(reason)) => {
                tracing::debug!(session, %peer, code = ?reason.code, text = reason.text, "session closed by the broker");
                refuse(&mut socket, &reason);
            }
            Err(_) => tracing::debug!(session, %peer, "session closed: the broker has stopped"),
        },
    }
}

impl Shared {
    /// Writes a line, unless one of its kind was written within the last second.
    fn warn(&self, line: Line, text: std::fmt::Arguments<'_>) {
        let now = self.clock.now().time;
        let pass = self.lines.lock().unwrap_or_else(PoisonError::into_inner).pass(line, now);
        match pass {
            None => (),
            Some(pass) if pass.kept_back == 0 => tracing::warn!("{text}"),
            Some(pass) => tracing::warn!("{text} (and {} more like it)", pass.kept_back),
        }
    }
}
