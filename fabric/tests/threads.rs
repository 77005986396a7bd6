//! Two threads that sleep whenever they have nothing to do lose no wake-up, whatever stream joins them.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::Builder;
use std::time::Duration;

use keyway_fabric::soft::{PREAMBLE_LEN, Pipe, SoftConfig, SoftFabric, Token, parse_preamble, preamble};
use keyway_fabric::{
    Access, DomainId, EndpointAddress, EndpointConfig, Event, Fabric, IdleStrategy, Key, LinkId, LocalId, LocalSpan,
    Memory, Op, RemoteSpan, SharedSpan, Stream, SystemClock, Target, Work,
};

const ROUNDS: u64 = 500;
const SLOT: u32 = 256 * 1024;

/// The longest sleep. A lost wake-up costs one, and is what the tests look for.
const SLEEP_MAX: Duration = Duration::from_secs(20);

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

struct Side {
    fabric: SoftFabric,
    domain: DomainId,
    idle: IdleStrategy,
    link: LinkId,
    local: LocalId,
    events: Vec<Event>,
}

impl Side {
    fn new() -> Result<(Self, EndpointAddress)> {
        let mut fabric = SoftFabric::new(SoftConfig::default())?;
        let domain = fabric.domain()?;
        let local = fabric.local(domain, 4, SLOT)?;
        let (link, address) =
            fabric.endpoint(EndpointConfig { domain, send_depth: 8, receive_depth: 8, remote_read: true })?;
        Ok((Self { fabric, domain, idle: IdleStrategy::frugal(), link, local, events: Vec::new() }, address))
    }

    fn slot(&self, slot: u32, len: u32) -> LocalSpan {
        LocalSpan { local: self.local, slot, offset: 0, len }
    }

    fn post(&mut self, op: u64, work: Work) -> Result {
        Ok(self.fabric.post(self.link, Op(op), work)?)
    }

    /// Turns, sleeping in between, until an event is there; takes it out.
    fn until(&mut self, mut wanted: impl FnMut(&Event) -> bool) -> Result<Event> {
        let clock = SystemClock::start();
        loop {
            self.fabric.submit();
            self.fabric.poll(&mut self.events, 64);
            if let Some(place) = self.events.iter().position(&mut wanted) {
                return Ok(self.events.remove(place));
            }
            if clock.now().time.0 >= SLEEP_MAX.as_nanos() as u64 {
                return Err(format!("a wake-up was lost; seen: {:?}", self.events).into());
            }
            let mut more = Vec::new();
            self.idle.step(0, clock.now().time, &mut self.fabric, &mut more, Some(SLEEP_MAX))?;
            self.events.append(&mut more);
        }
    }

    fn until_done(&mut self, op: u64) -> Result {
        match self.until(|event| matches!(event, Event::Done { op: done, .. } if done.0 == op))? {
            Event::Done { result, .. } => Ok(result.map(drop)?),
            other => Err(format!("{other:?}").into()),
        }
    }
}

/// Lends its memory anew in every round, says the key, and waits for the reader's word.
fn own(mut side: Side) -> Result {
    side.until(|event| matches!(event, Event::Up { .. }))?;
    let pool = side.fabric.shared(side.domain, u64::from(SLOT))?;
    let window = side.fabric.window(side.domain)?;
    let span = SharedSpan { shared: pool, offset: 0, len: u64::from(SLOT) };
    for round in 0..ROUNDS {
        side.fabric.write(span, &vec![round as u8; SLOT as usize]);
        side.post(1, Work::Recv { into: side.slot(1, 8) })?;
        side.post(2, Work::Bind { window, span, access: Access::Read })?;
        let from = side.slot(0, 12);
        let (address, key) = (side.fabric.address(span), side.fabric.key(window));
        let (first, last) = side.fabric.bytes_mut(from).split_at_mut(8);
        first.copy_from_slice(&address.to_le_bytes());
        last.copy_from_slice(&key.0.to_le_bytes());
        side.post(3, Work::Send { from })?;
        side.until_done(2)?;
        side.until_done(3)?;
        side.until(|event| matches!(event, Event::Message { .. }))?;
    }
    // Without this the acknowledgement of the last message might never leave.
    side.fabric.close(side.link);
    side.until(|event| matches!(event, Event::Down { .. })).map(drop)
}

/// Reads what it is lent in every round, and says that it has.
fn read(mut side: Side) -> Result {
    side.post(1, Work::Recv { into: side.slot(1, 12) })?;
    for round in 0..ROUNDS {
        let granted = side.until(|event| matches!(event, Event::Message { .. }))?;
        let Event::Message { span, .. } = granted else { return Err(format!("{granted:?}").into()) };
        let (first, last) = side.fabric.bytes(span).split_at(8);
        let (address, key) = (u64::from_le_bytes(first.try_into()?), Key(u32::from_le_bytes(last.try_into()?)));
        side.post(1, Work::Recv { into: span })?;
        let into = side.slot(2, SLOT);
        side.post(2, Work::Read { from: RemoteSpan { address, len: SLOT, key }, into: Target::Local(into) })?;
        side.until_done(2)?;
        if side.fabric.bytes(into).iter().any(|byte| *byte != round as u8) {
            return Err(format!("round {round} read other bytes than were there").into());
        }
        side.post(3, Work::Send { from: side.slot(0, 8) })?;
        side.until_done(3)?;
    }
    Ok(())
}

fn both(streams: impl FnOnce(&EndpointAddress) -> Result<(Stream, Stream)>) -> Result {
    let (mut owner, owner_address) = Side::new()?;
    let (mut reader, reader_address) = Side::new()?;
    owner.fabric.connect(owner.link, &reader_address)?;
    reader.fabric.connect(reader.link, &owner_address)?;
    let (left, right) = streams(&owner_address)?;
    owner.fabric.attach(owner.link, left)?;
    reader.fabric.attach(reader.link, right)?;
    let owner = Builder::new().name("owner".into()).spawn(|| own(owner))?;
    let reader = Builder::new().name("reader".into()).spawn(|| read(reader))?;
    let (owner, reader) = (owner.join(), reader.join());
    owner.map_err(|_| "the owner panicked")??;
    reader.map_err(|_| "the reader panicked")?
}

#[test]
fn sleepers_joined_by_a_pipe_lose_no_wake_up() -> Result {
    both(|_| {
        let (left, right) = Pipe::pair()?;
        Ok((Stream::Memory(left), Stream::Memory(right)))
    })
}

#[test]
fn sleepers_joined_by_a_unix_socket_lose_no_wake_up() -> Result {
    both(|_| {
        let (left, right) = UnixStream::pair()?;
        Ok((Stream::Unix(left), Stream::Unix(right)))
    })
}

#[test]
fn sleepers_joined_by_tcp_and_a_preamble_lose_no_wake_up() -> Result {
    both(|owner| {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut right = TcpStream::connect(listener.local_addr()?)?;
        right.write_all(&preamble(owner)?)?;
        let (mut left, _) = listener.accept()?;
        let mut bytes = [0; PREAMBLE_LEN];
        left.read_exact(&mut bytes)?;
        assert_eq!(parse_preamble(&bytes), Some(Token::of(owner)?), "the preamble names the owner's endpoint");
        Ok((Stream::Tcp(left), Stream::Tcp(right)))
    })
}
