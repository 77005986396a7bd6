//! Nonblocking streams to a broker: dialling them, and the frames of the bootstrap on them.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::vec;

use keyway_fabric::{Stream, Watch};
use keyway_schema::bootstrap::{Bootstrap, BootstrapError, HOST_ASKED_AFTER, HOST_SILENCE_MAX, PREAMBLE};

/// A connected, nonblocking stream.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(crate) fn into_stream(self) -> Stream {
        match self {
            Self::Tcp(stream) => Stream::Tcp(stream),
            Self::Unix(stream) => Stream::Unix(stream),
        }
    }

    /// Writes what fits now.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    /// Reads what is there; zero is the end.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }

    /// Asks the system to end the stream when the peer's host is gone. One that is broken already refuses, and the next read tells.
    pub(crate) fn watch_host(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                let socket = socket2::SockRef::from(stream);
                let asked = socket2::TcpKeepalive::new().with_time(HOST_ASKED_AFTER).with_interval(HOST_ASKED_AFTER);
                socket.set_tcp_keepalive(&asked)?;
                socket.set_tcp_user_timeout(Some(HOST_SILENCE_MAX))
            }
            // Its peer is on this host.
            Self::Unix(_) => Ok(()),
        }
    }

    /// The address that it leaves this machine from, if it does: a device that leads to the peer has it.
    pub(crate) fn leaves_from(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) => {
                let address = stream.local_addr().ok()?.ip().to_canonical();
                (!address.is_loopback()).then_some(address)
            }
            Self::Unix(_) => None,
        }
    }

    /// Where it leads, if that is a TCP address.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            Self::Unix(_) => None,
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

/// An attempt to connect that does not block. The addresses of a name are tried one after the other.
#[derive(Debug)]
pub(crate) enum Dialling {
    /// A TCP connection attempt is under way.
    Tcp { attempt: Option<TcpStream>, rest: vec::IntoIter<SocketAddr>, last: io::Error },
    /// It was connected at once.
    Done(Socket),
}

impl Dialling {
    /// Dials `host:port`. Resolving a host's *name* blocks, for as long as the system's resolver takes; an address does not.
    pub(crate) fn tcp(authority: &str) -> io::Result<Self> {
        let addresses = match authority.parse::<SocketAddr>() {
            Ok(address) => vec![address],
            Err(_) => authority.to_socket_addrs()?.collect(),
        };
        Ok(Self::addresses(addresses))
    }

    /// Dials the first address that answers.
    pub(crate) fn addresses(addresses: Vec<SocketAddr>) -> Self {
        let last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        Self::Tcp { attempt: None, rest: addresses.into_iter(), last }
    }

    /// Dials a Unix socket: it answers at once, or its queue is full and it does not.
    pub(crate) fn unix(path: &Path) -> io::Result<Self> {
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&socket2::SockAddr::unix(path)?)?;
        Ok(Self::Done(Socket::Unix(OwnedFd::from(socket).into())))
    }

    /// A stream that somebody else has connected.
    pub(crate) fn connected(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self::Done(Socket::Unix(stream)))
    }

    /// The connected stream, once there is one; `Err(self)` while there is none yet.
    pub(crate) fn poll(self) -> io::Result<Result<Socket, Self>> {
        let (mut attempt, mut rest, mut last) = match self {
            Self::Done(socket) => return Ok(Ok(socket)),
            Self::Tcp { attempt, rest, last } => (attempt, rest, last),
        };
        loop {
            if let Some(stream) = attempt.take() {
                match connected(&stream) {
                    Ok(true) => return Ok(Ok(Socket::Tcp(stream))),
                    Ok(false) => return Ok(Err(Self::Tcp { attempt: Some(stream), rest, last })),
                    Err(error) => last = error,
                }
            }
            let Some(address) = rest.next() else { return Err(last) };
            match dial(address) {
                Ok(stream) => attempt = Some(stream),
                Err(error) => last = error,
            }
        }
    }

    pub(crate) fn watch(&self) -> Option<Watch> {
        match self {
            Self::Tcp { attempt, .. } => attempt.as_ref().map(|stream| Watch::writing(stream.as_raw_fd())),
            Self::Done(_) => None,
        }
    }
}

fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    // Control messages are small, and each is waited for.
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => Ok(socket.into()),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error),
    }
}

/// Whether an attempt has succeeded.
fn connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// The bootstrap's frames on a stream.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: Socket,
    unsent: Vec<u8>,
    received: Vec<u8>,
}

/// Why the bootstrap's stream is of no more use.
#[derive(Debug)]
pub(crate) enum WireError {
    /// The peer closed it.
    End,
    /// The system's reason.
    Io(io::Error),
    /// What came is no frame.
    Frame(BootstrapError),
}

impl Wire {
    /// Frames behind the preamble, which goes out first.
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, unsent: PREAMBLE.to_vec(), received: Vec::new() }
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.socket.peer()
    }

    /// Queues a message.
    pub(crate) fn send(&mut self, message: &Bootstrap) -> Result<(), BootstrapError> {
        self.unsent.extend_from_slice(&message.encode()?);
        Ok(())
    }

    /// Writes what fits, and returns the next message if it is there.
    pub(crate) fn poll(&mut self) -> Result<Option<Bootstrap>, WireError> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A broker that refused and closed is heard below, if its word is still there.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                Err(error) => return Err(WireError::Io(error)),
            }
        }
        self.receive()
    }

    fn receive(&mut self) -> Result<Option<Bootstrap>, WireError> {
        loop {
            if let Some((word, rest)) = self.received.split_first_chunk::<4>() {
                let len = Bootstrap::frame_len(*word).map_err(WireError::Frame)?;
                if let Some(archive) = rest.get(..len) {
                    let message = Bootstrap::decode(archive).map_err(WireError::Frame)?;
                    self.received.drain(..4 + len);
                    return Ok(Some(message));
                }
            }
            let mut chunk = [0; 1024];
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err(WireError::End),
                Ok(read) => self.received.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(WireError::Io(error)),
            }
        }
    }

    pub(crate) fn watches(&self, to: &mut Vec<Watch>) {
        to.push(Watch::reading(self.socket.as_raw_fd()));
        if !self.unsent.is_empty() {
            to.push(Watch::writing(self.socket.as_raw_fd()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    use keyway_fabric::wait_any;

    fn finish(mut dialling: Dialling) -> io::Result<Socket> {
        loop {
            match dialling.poll()? {
                Ok(socket) => return Ok(socket),
                Err(pending) => dialling = pending,
            }
            let mut watches: Vec<Watch> = dialling.watch().into_iter().collect();
            wait_any(&mut watches, None).unwrap();
        }
    }

    #[test]
    fn the_second_address_is_tried_when_the_first_refuses() {
        let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let alive = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = finish(Dialling::addresses(vec![dead, alive.local_addr().unwrap()])).unwrap();
        assert_eq!(socket.peer(), alive.local_addr().ok());
    }

    #[test]
    fn a_host_that_does_not_answer_is_given_up_by_the_system() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = finish(Dialling::tcp(&listener.local_addr().unwrap().to_string()).unwrap()).unwrap();
        socket.watch_host().unwrap();
        let Socket::Tcp(stream) = &socket else { panic!("it was dialled over TCP") };
        let options = socket2::SockRef::from(stream);
        assert!(options.keepalive().unwrap());
        assert_eq!(options.tcp_keepalive_time().unwrap(), HOST_ASKED_AFTER);
        assert_eq!(options.tcp_keepalive_interval().unwrap(), HOST_ASKED_AFTER);
        assert_eq!(options.tcp_user_timeout().unwrap(), Some(HOST_SILENCE_MAX));
    }

    #[test]
    fn a_port_where_nobody_listens_refuses() {
        let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = finish(Dialling::tcp(&dead.to_string()).unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let missing = Dialling::unix(Path::new("/nonexistent/keyway.sock")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_frame_in_pieces_is_put_together_and_a_garbled_one_is_refused() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let Ok(Dialling::Done(socket)) = Dialling::connected(ours) else { panic!("it is connected") };
        let mut wire = Wire::new(socket);
        wire.send(&Bootstrap::Confirm { endpoint: vec![1, 2, 3] }).unwrap();
        let frame = Bootstrap::Ready.encode().unwrap();
        for byte in &frame {
            assert!(wire.poll().unwrap().is_none());
            theirs.write_all(&[*byte]).unwrap();
        }
        assert_eq!(wire.poll().unwrap(), Some(Bootstrap::Ready));
        let mut sent = vec![0; PREAMBLE.len()];
        theirs.read_exact(&mut sent).unwrap();
        assert_eq!(sent, PREAMBLE);
        theirs.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        assert!(matches!(wire.poll(), Err(WireError::Frame(BootstrapError::Prefix { .. }))));
    }

    #[test]
    fn the_end_of_the_stream_is_noticed_behind_the_last_message() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let Ok(Dialling::Done(socket)) = Dialling::connected(ours) else { panic!("it is connected") };
        theirs.write_all(&Bootstrap::Refused { code: 1, text: "no".into() }.encode().unwrap()).unwrap();
        drop(theirs);
        let mut wire = Wire::new(socket);
        assert_eq!(wire.poll().unwrap(), Some(Bootstrap::Refused { code: 1, text: "no".into() }));
        assert!(matches!(wire.poll(), Err(WireError::End)));
    }
}
