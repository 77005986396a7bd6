//! A software endpoint at the mercy of whatever writes to the other end of its stream.

#![allow(clippy::unwrap_used, reason = "a test whose set-up fails has failed")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use keyway_fabric::soft::{SoftConfig, SoftFabric, Token};
use keyway_fabric::{
    Access, DomainId, DownCause, EndpointAddress, EndpointConfig, Event, Fabric, Key, LinkId, LocalId, LocalSpan,
    Memory, Op, SharedId, SharedSpan, Stream, WindowId, Work,
};

pub(crate) const HELLO: u8 = 1;
pub(crate) const SEND: u8 = 2;
pub(crate) const ACK: u8 = 3;
pub(crate) const READ: u8 = 4;
pub(crate) const DATA: u8 = 5;
pub(crate) const REFUSE: u8 = 6;

/// The protocol's version.
pub(crate) const VERSION: u16 = 1;
/// The length of a frame's header.
pub(crate) const HEADER: usize = 24;
/// The size of the pool, all of it lent.
pub(crate) const POOL: u64 = 8 * 1024 * 1024;
/// What the pool is filled with.
pub(crate) const LENT: u8 = 0x11;
/// The size of a receive slot.
pub(crate) const SLOT: u32 = 4096;

/// The token that the attacker was given.
pub(crate) const ATTACKER: [u8; 16] = [0xaa; 16];

/// A frame as the fabric's documentation lays it out.
pub(crate) fn frame(kind: u8, code: u8, half: u16, length: u32, wide: u64, key: u32) -> Vec<u8> {
    let mut bytes = vec![kind, code];
    bytes.extend(half.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend(wide.to_le_bytes());
    bytes.extend(key.to_le_bytes());
    bytes.extend([0; 4]);
    bytes
}

pub(crate) fn hello(version: u16, token: [u8; 16]) -> Vec<u8> {
    let mut bytes = frame(HELLO, 0, version, u32::from_le_bytes(*b"kwyf"), 0, 0);
    bytes[8..].copy_from_slice(&token);
    bytes
}

pub(crate) fn read(address: u64, len: u32, key: Key) -> Vec<u8> {
    frame(READ, 0, 0, len, address, key.0)
}

/// The attacker's end of a stream.
pub(crate) trait Wire: Read + Write {
    /// Ends the stream both ways.
    fn hang_up(&self);
}

impl Wire for UnixStream {
    fn hang_up(&self) {
        self.shutdown(Shutdown::Both).unwrap();
    }
}

impl Wire for TcpStream {
    fn hang_up(&self) {
        self.shutdown(Shutdown::Both).unwrap();
    }
}

/// A Unix socket: the attacker's end, and the victim's.
pub(crate) fn unix() -> (Box<dyn Wire>, Stream) {
    let (attacker, stream) = UnixStream::pair().unwrap();
    attacker.set_nonblocking(true).unwrap();
    (Box::new(attacker), Stream::Unix(stream))
}

/// A TCP connection.
pub(crate) fn tcp() -> (Box<dyn Wire>, Stream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let attacker = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    attacker.set_nonblocking(true).unwrap();
    (Box::new(attacker), Stream::Tcp(listener.accept().unwrap().0))
}

/// A new endpoint of a fabric, at the end of a stream on which nothing was said yet.
pub(crate) fn join(fabric: &mut SoftFabric, domain: DomainId, stream: Stream) -> LinkId {
    let config = EndpointConfig { domain, send_depth: 16, receive_depth: 16, remote_read: true };
    let (link, own) = fabric.endpoint(config).unwrap();
    // An address is a magic number and a token; the attacker's differs in the token alone.
    let mut theirs = own.0.clone();
    let start = theirs.len() - ATTACKER.len();
    theirs[start..].copy_from_slice(&ATTACKER);
    let theirs = EndpointAddress(theirs);
    assert_eq!(Token::of(&theirs).unwrap(), Token(ATTACKER));
    fabric.connect(link, &theirs).unwrap();
    fabric.attach(link, stream).unwrap();
    link
}

/// The endpoint under attack: four receives posted, its whole pool lent under `key`.
pub(crate) struct Victim {
    pub(crate) fabric: SoftFabric,
    pub(crate) domain: DomainId,
    pub(crate) local: LocalId,
    pub(crate) pool: SharedId,
    pub(crate) window: WindowId,
    pub(crate) key: Key,
    pub(crate) address: u64,
    pub(crate) link: LinkId,
    pub(crate) events: Vec<Event>,
    pub(crate) attacker: Box<dyn Wire>,
}

impl Victim {
    /// Waits for the attacker's greeting.
    pub(crate) fn waiting() -> Self {
        Self::waiting_on(unix())
    }

    fn waiting_on((attacker, stream): (Box<dyn Wire>, Stream)) -> Self {
        let mut fabric = SoftFabric::new(SoftConfig::default()).unwrap();
        let domain = fabric.domain().unwrap();
        let local = fabric.local(domain, 8, SLOT).unwrap();
        let pool = fabric.shared(domain, POOL).unwrap();
        let whole = SharedSpan { shared: pool, offset: 0, len: POOL };
        fabric.write(whole, &vec![LENT; POOL as usize]);
        let window = fabric.window(domain).unwrap();
        let address = fabric.address(whole);
        let link = join(&mut fabric, domain, stream);
        for slot in 0..4 {
            let into = LocalSpan { local, slot, offset: 0, len: SLOT };
            fabric.post(link, Op(u64::from(slot)), Work::Recv { into }).unwrap();
        }
        let key = fabric.key(window);
        let events = Vec::new();
        Self { fabric, domain, local, pool, window, key, address, link, events, attacker }
    }

    /// Has been greeted as it expects, and has lent its pool.
    pub(crate) fn greeted() -> Self {
        Self::greeted_on(unix())
    }

    pub(crate) fn greeted_on(ends: (Box<dyn Wire>, Stream)) -> Self {
        let mut victim = Self::waiting_on(ends);
        victim.attack(&hello(VERSION, ATTACKER));
        let span = SharedSpan { shared: victim.pool, offset: 0, len: POOL };
        let bind = Work::Bind { window: victim.window, span, access: Access::Read };
        victim.fabric.post(victim.link, Op(100), bind).unwrap();
        victim.turns(3);
        victim.key = victim.fabric.key(victim.window);
        assert!(matches!(victim.events[..], [Event::Up { .. }, Event::Done { result: Ok(_), .. }]));
        let mut greeting = [0; HEADER];
        victim.attacker.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting[0], HELLO);
        victim
    }

    /// Writes as much as the stream takes.
    pub(crate) fn attack(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.attacker.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.turns(1),
                // The victim has hung up.
                Err(_) => return,
            }
        }
    }

    /// Lets the victim work. Everything that it does is bounded, so no more turns than these are ever needed.
    pub(crate) fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.fabric.submit();
            self.fabric.poll(&mut self.events, 64);
        }
    }

    pub(crate) fn down(&self) -> Option<DownCause> {
        self.events.iter().find_map(|event| match event {
            Event::Down { cause, .. } => Some(*cause),
            _ => None,
        })
    }

    /// Everything that can be read from the victim now.
    pub(crate) fn drain(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        self.drain_into(&mut all);
        all
    }

    /// Everything that the victim says until it ends the stream, which it must.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        // Each turn writes at least as much as was read before it, so this is far more than it takes.
        for _ in 0..1_000 {
            if self.drain_into(&mut all) {
                return all;
            }
            self.turns(1);
        }
        panic!("the stream has not ended after {} bytes: {:?}", all.len(), self.events);
    }

    /// Reads what is there; `true` at the end of the stream.
    fn drain_into(&mut self, all: &mut Vec<u8>) -> bool {
        let mut buffer = vec![0; 1 << 20];
        loop {
            match self.attacker.read(&mut buffer) {
                Ok(0) => return true,
                Ok(count) => all.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) => panic!("the attacker's read failed: {error}"),
            }
        }
    }
}
