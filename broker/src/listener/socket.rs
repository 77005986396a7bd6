//! Ports and connections, whatever they are made of.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use keyway_fabric::Stream;
use keyway_schema::bootstrap::{HOST_ASKED_AFTER, HOST_SILENCE_MAX};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;

/// When the system asks a silent TCP peer whether it is still there. A process that merely does not run still answers.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);

/// Where connections come in.
#[derive(Debug)]
pub(super) enum Port {
    Tcp(TcpListener),
    Unix(UnixListener),
    /// From clients in this process.
    InProcess(mpsc::Receiver<StdUnixStream>),
}

/// A connection.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Who is at the other end, for logs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    Tcp(SocketAddr),
    /// A process, where the system tells which.
    Unix(Option<i32>),
    InProcess,
}

impl Port {
    /// The next connection, or none when there will never be one.
    pub(super) async fn accept(&mut self) -> io::Result<Option<(Socket, Peer)>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                tune(&stream);
                Ok(Some((Socket::Tcp(stream), Peer::Tcp(address))))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
                Ok(Some((Socket::Unix(stream), Peer::Unix(pid))))
            }
            Self::InProcess(streams) => {
                let Some(stream) = streams.recv().await else { return Ok(None) };
                stream.set_nonblocking(true)?;
                Ok(Some((Socket::Unix(UnixStream::from_std(stream)?), Peer::InProcess)))
            }
        }
    }
}

impl Socket {
    /// Fills `bytes`, and takes nothing of what comes behind them.
    pub(super) async fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.read_exact(bytes).await?,
            Self::Unix(stream) => stream.read_exact(bytes).await?,
        };
        Ok(())
    }

    /// Reads what has come, 0 at the end.
    pub(super) async fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes).await,
            Self::Unix(stream) => stream.read(bytes).await,
        }
    }

    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes).await,
            Self::Unix(stream) => stream.write_all(bytes).await,
        }
    }

    /// Writes what fits now: a last word to a peer that may not be reading.
    pub(super) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }

    /// Says that nothing more will be said, and reads to the end, so that the last words arrive.
    pub(super) async fn part(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown().await?,
            Self::Unix(stream) => stream.shutdown().await?,
        }
        while self.read(&mut [0; 1024]).await? > 0 {}
        Ok(())
    }

    /// Asks the system to end a bootstrap stream when the client's host is gone. A data stream has no such limit: a client that does not
    /// run reads nothing, and what waits for it there is no sign of a dead host.
    pub(super) fn watch_host(&self) {
        let Self::Tcp(stream) = self else { return };
        let asked = TcpKeepalive::new().with_time(HOST_ASKED_AFTER).with_interval(HOST_ASKED_AFTER);
        let socket = SockRef::from(stream);
        let watched =
            socket.set_tcp_keepalive(&asked).and_then(|()| socket.set_tcp_user_timeout(Some(HOST_SILENCE_MAX)));
        // A connection that is gone already refuses this, and the next read will tell.
        if let Err(error) = watched {
            tracing::debug!(%error, "cannot have the host of a client watched");
        }
    }

    /// The stream itself, nonblocking, for the fabric.
    pub(super) fn into_stream(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) => stream.into_std().map(Stream::Tcp),
            Self::Unix(stream) => stream.into_std().map(Stream::Unix),
        }
    }
}

/// Small frames leave at once, and a peer whose host is gone is noticed. A connection that is gone already refuses this, and
/// the first read will tell.
fn tune(stream: &TcpStream) {
    let (time, interval, retries) = KEEPALIVE;
    let keepalive = TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(retries);
    let tuned = stream.set_nodelay(true).and_then(|()| SockRef::from(stream).set_tcp_keepalive(&keepalive));
    if let Err(error) = tuned {
        tracing::debug!(%error, "cannot set the options of a new connection");
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(Some(pid)) => write!(f, "process {pid}"),
            Self::Unix(None) => f.write_str("a process of this host"),
            Self::InProcess => f.write_str("this process"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_host_of_a_client_that_does_not_answer_is_given_up_by_the_system() {
        let mut port = Port::Tcp(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let Port::Tcp(listener) = &port else { unreachable!("it was just made") };
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = port.accept().await.unwrap().expect("a client has connected");
        let Socket::Tcp(stream) = &socket else { panic!("it came over TCP") };
        let options = SockRef::from(stream);
        assert_eq!(options.tcp_user_timeout().unwrap(), None, "it may be a data stream");
        socket.watch_host();
        assert!(options.keepalive().unwrap());
        assert_eq!(options.tcp_keepalive_time().unwrap(), HOST_ASKED_AFTER);
        assert_eq!(options.tcp_keepalive_interval().unwrap(), HOST_ASKED_AFTER);
        assert_eq!(options.tcp_user_timeout().unwrap(), Some(HOST_SILENCE_MAX));
    }
}
