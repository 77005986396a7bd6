//! A client by hand: bootstrap, channel and fabric, with nothing in between that keeps the protocol for the test.
//!
//! It keeps keys, READs with whatever it is told to, and sends whatever bytes it is given. It does what any stranger could do
//! that connects to a broker, and no more.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyway_channel::{Channel, ChannelConfig, Received};
use keyway_fabric::soft::preamble;
use keyway_fabric::{
    Dial, DomainId, DownCause, EndpointAddress, EndpointConfig, Event, Fabric, FabricOptions, Key, LinkId, LocalId,
    LocalSpan, Op, Outcome, RemoteSpan, Stream, Target, Watch, Work, WorkError, wait_any,
};
use keyway_schema::batch::BatchBuilder;
use keyway_schema::bootstrap::{Bootstrap, PREAMBLE, Role};
use keyway_schema::limits::CONTROL_SLOT;
use keyway_schema::message::{
    Commit, EpochSettings, Grant, OpenTopic, Publish, Scope, Start, Subscribe, Subscribed, TopicOpened,
};
use keyway_schema::record::RecordRef;
use keyway_schema::{Code, ToBroker, ToClient, ToClientRef};

use super::PATIENCE;

/// The client's own slots.
const SLOTS: u16 = 64;

/// The most that one READ of a test fetches, and the most that it sends out of the ordinary.
const SCRATCH: u32 = 256 * 1024;

/// Sleeps this long at most before it looks after its deadline and its bootstrap stream.
const NAP: Duration = Duration::from_millis(20);

/// The tag of everything that is posted beside the channel counts up from here.
const FIRST_TAG: u64 = 1;

/// How to reach a broker.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    InProcess(Arc<dyn Dial>),
    Tcp(SocketAddr),
    Unix(PathBuf),
}

trait Both: Read + Write + AsRawFd + Debug {}
impl<T: Read + Write + AsRawFd + Debug> Both for T {}

impl Way {
    fn bootstrap(&self) -> io::Result<Box<dyn Both>> {
        Ok(match self {
            Self::InProcess(dial) => Box::new(unix_with_timeout(dial.bootstrap()?)?),
            Self::Unix(path) => Box::new(unix_with_timeout(UnixStream::connect(path)?)?),
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Box::new(stream)
            }
        })
    }

    fn data(&self, peer: &EndpointAddress) -> io::Result<Stream> {
        let preamble = preamble(peer).map_err(io::Error::other)?;
        match self {
            Self::InProcess(dial) => dial.data(&preamble),
            Self::Unix(path) => {
                let mut stream = UnixStream::connect(path)?;
                stream.write_all(&preamble)?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(stream))
            }
            Self::Tcp(address) => {
                let mut stream = TcpStream::connect(address)?;
                stream.write_all(&preamble)?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

fn unix_with_timeout(stream: UnixStream) -> io::Result<UnixStream> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A session by hand.
pub(crate) struct RawSession {
    fabric: Box<dyn Fabric>,
    link: LinkId,
    channel: Channel,
    scratch: LocalId,
    bootstrap: Box<dyn Both>,
    events: Vec<Event>,
    inbox: VecDeque<ToClient>,
    finished: HashMap<Op, Result<Outcome, WorkError>>,
    up: bool,
    down: Option<DownCause>,
    next_tag: u64,
    /// It has sent what the channel does not know of: its account of credits is off by then.
    is_lawless: bool,
}

impl RawSession {
    /// A consumer's session.
    pub(crate) fn consumer(way: &Way) -> Self {
        Self::open(way, Role::Consumer)
    }

    /// A producer's session.
    pub(crate) fn producer(way: &Way) -> Self {
        Self::open(way, Role::Producer)
    }

    fn open(way: &Way, role: Role) -> Self {
        let options = FabricOptions::new(super::fabric());
        let mut fabric: Box<dyn Fabric> = options.open().expect("the fabric under test can be opened").fabric;
        let domain = fabric.domain().expect("it has domains");
        let mut bootstrap = way.bootstrap().expect("the broker can be reached");
        bootstrap.write_all(&PREAMBLE).expect("the preamble can be written");
        let hello = Bootstrap::Hello {
            role,
            name: "by hand".into(),
            fabrics: vec![super::family().into()],
            receive_slots: SLOTS,
            receive_size: CONTROL_SLOT,
        };
        write_frame(&mut bootstrap, &hello);
        let Bootstrap::Welcome { generation, endpoint, receive_slots, receive_size, .. } = read_frame(&mut bootstrap)
        else {
            panic!("the broker does not welcome an ordinary client");
        };
        let peer = EndpointAddress(endpoint);
        let (channel, address) = make_channel(&mut *fabric, domain, generation, receive_slots, receive_size);
        let scratch = fabric.local(domain, 1, SCRATCH).expect("memory can be had");
        let link = channel.link;
        fabric.connect(link, &peer).expect("the broker's endpoint has an address of this fabric");
        write_frame(&mut bootstrap, &Bootstrap::Confirm { endpoint: address.0 });
        if fabric.needs_stream() {
            let stream = way.data(&peer).expect("the broker takes a data stream");
            fabric.attach(link, stream).expect("the endpoint takes its stream");
        }
        assert_eq!(read_frame(&mut bootstrap), Bootstrap::Ready);
        let mut session = Self {
            fabric,
            link,
            channel: Channel::new(channel),
            scratch,
            bootstrap,
            events: Vec::new(),
            inbox: VecDeque::new(),
            finished: HashMap::new(),
            up: false,
            down: None,
            next_tag: FIRST_TAG,
            is_lawless: false,
        };
        session.pump_until("the endpoint to come up", |session| session.up.then_some(()));
        session
    }

    /// Sends a message by the channel's rules.
    pub(crate) fn send(&mut self, message: impl Into<ToBroker>) {
        let message = message.into();
        self.pump_until("room to send", |session| (session.channel.room() > 0).then_some(()));
        self.channel.send(&mut *self.fabric, &message).expect("it fits a slot");
        self.pump();
    }

    /// Sends a batch by the channel's rules.
    pub(crate) fn publish(&mut self, topic: u32, batch: &[u8]) {
        let message = ToBroker::from(Publish { topic });
        self.pump_until("room to send", |session| (session.channel.room() > 0).then_some(()));
        let fill = |slot: &mut [u8]| slot.copy_from_slice(batch);
        self.channel.send_with(&mut *self.fabric, &message, batch.len(), fill).expect("it fits a slot");
        self.pump();
    }

    /// Sends any bytes at all, by no rules.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.is_lawless = true;
        let len = u32::try_from(bytes.len()).expect("a test sends less than 4 GiB");
        let from = self.scratch_span(len);
        self.fabric.bytes_mut(from).copy_from_slice(bytes);
        self.post(Work::Send { from });
    }

    /// Opens a topic for publishing.
    pub(crate) fn open_topic(&mut self, topic: &str, producer: u64) -> TopicOpened {
        self.send(OpenTopic { request: 1, topic: topic.into(), settings: None, producer });
        self.receive_some("the topic to be opened", |message| match message {
            ToClient::TopicOpened(opened) => Some(opened),
            ToClient::Failed(failed) => panic!("{topic} is not opened: {failed:?}"),
            _ => None,
        })
    }

    /// Publishes one batch of records and waits until it is committed.
    pub(crate) fn commit(&mut self, topic: u32, producer: u64, number: u64, payloads: &[&[u8]]) -> Commit {
        let mut builder = BatchBuilder::default();
        for payload in payloads {
            builder.push(RecordRef { key: b"", headers: b"", payload });
        }
        self.publish(topic, &builder.finish(topic, producer, number));
        self.receive_some("the batch to be committed", |message| match message {
            ToClient::Committed(committed) => committed.commits.into_iter().find(|commit| commit.number == number),
            ToClient::Failed(failed) => panic!("batch {number} is not committed: {failed:?}"),
            _ => None,
        })
    }

    /// Subscribes.
    pub(crate) fn subscribe(&mut self, subscribe: Subscribe) -> Subscribed {
        self.send(subscribe);
        self.receive_some("the subscription", |message| match message {
            ToClient::Subscribed(subscribed) => Some(subscribed),
            ToClient::Failed(failed) => panic!("there is no subscription: {failed:?}"),
            _ => None,
        })
    }

    /// The session's generation.
    pub(crate) fn generation(&self) -> u32 {
        self.channel.config().generation
    }

    /// The next message of the broker.
    pub(crate) fn receive(&mut self) -> ToClient {
        self.pump_until("a message of the broker", |session| session.inbox.pop_front())
    }

    /// The next message that `pick` takes; those before it are dropped.
    pub(crate) fn receive_some<T>(&mut self, what: &str, mut pick: impl FnMut(ToClient) -> Option<T>) -> T {
        self.pump_until(what, |session| {
            while let Some(message) = session.inbox.pop_front() {
                if let Some(picked) = pick(message) {
                    return Some(picked);
                }
            }
            None
        })
    }

    /// The next grant.
    pub(crate) fn receive_grant(&mut self) -> Grant {
        self.receive_some("a grant", |message| match message {
            ToClient::Grant(grant) => Some(grant),
            ToClient::Failed(failed) => panic!("a grant was expected: {failed:?}"),
            _ => None,
        })
    }

    /// What has arrived and was not received.
    pub(crate) fn poll(&mut self) -> Option<ToClient> {
        self.pump();
        self.inbox.pop_front()
    }

    /// READs. A refusal is an error, and the end of this session's endpoint.
    pub(crate) fn read(&mut self, from: RemoteSpan) -> Result<Vec<u8>, WorkError> {
        let into = self.scratch_span(from.len);
        let op = self.post(Work::Read { from, into: Target::Local(into) });
        let result = self.pump_until("the READ's completion", |session| session.finished.remove(&op));
        result.map(|_| self.fabric.bytes(into).to_vec())
    }

    /// Whether the broker still answers a request of this session, or has ended it.
    pub(crate) fn is_answered(&mut self, request: impl Into<ToBroker>) -> bool {
        let mut request = Some(request.into());
        self.pump_until("an answer or the end of the session", |session| {
            if session.down.is_some() {
                return Some(false);
            }
            if session.channel.room() > 0
                && let Some(request) = request.take()
            {
                session.channel.send(&mut *session.fabric, &request).expect("it fits a slot");
            }
            session.inbox.drain(..).find_map(|message| match message {
                ToClient::Subscribed(_) => Some(true),
                ToClient::Failed(failed) => Some(failed.request != 0),
                _ => None,
            })
        })
    }

    /// Why the endpoint went down, once it has.
    pub(crate) fn expect_down(&mut self) -> DownCause {
        self.pump_until("the end of the session", |session| session.down)
    }

    /// Whether the endpoint is still up, as far as was heard.
    pub(crate) fn is_up(&mut self) -> bool {
        self.pump();
        self.down.is_none()
    }

    /// Waits for the session's end and gives its reason, which comes in a message if the endpoint still carries it in time, and
    /// on the bootstrap stream in any case. What else had come is dropped.
    pub(crate) fn reason(&mut self) -> Option<Code> {
        self.expect_down();
        let told = self.inbox.drain(..).find_map(|message| match message {
            ToClient::Failed(failed) if failed.request == 0 => Some(failed.code),
            _ => None,
        });
        let on_stream = self.farewell();
        if let (Some(told), Some(on_stream)) = (told, on_stream) {
            assert_eq!(told, on_stream, "the reason is told twice, differently");
        }
        on_stream.or(told).and_then(Code::from_number)
    }

    /// What the broker says on the bootstrap stream before it ends it.
    fn farewell(&mut self) -> Option<u16> {
        let mut said = Vec::new();
        match self.bootstrap.read_to_end(&mut said) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the broker does not end the bootstrap stream: {error}"),
        }
        if said.is_empty() {
            return None;
        }
        match read_frame(&mut &said[..]) {
            Bootstrap::Refused { code, .. } => Some(code),
            other => panic!("{other:?} is no farewell"),
        }
    }

    fn scratch_span(&self, len: u32) -> LocalSpan {
        assert!(len <= SCRATCH, "{len} bytes are more than a test's scratch slot has");
        LocalSpan { local: self.scratch, slot: 0, offset: 0, len }
    }

    fn post(&mut self, work: Work) -> Op {
        let op = Op(self.next_tag);
        self.next_tag += 1;
        self.fabric.post(self.link, op, work).expect("the endpoint was not closed");
        op
    }

    fn pump_until<T>(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let worked = self.pump();
            if let Some(found) = condition(self) {
                return found;
            }
            assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for {what}");
            if !worked {
                if let Some(cause) = self.down {
                    panic!("{what} was expected, and the session has ended: {cause}");
                }
                self.fabric.arm();
                self.fabric.poll(&mut self.events, 64);
                if self.events.is_empty() {
                    self.nap();
                }
            }
        }
    }

    /// Waits for a moment. Where endpoints have no stream of their own, a peer's end is only told by the bootstrap stream's.
    fn nap(&mut self) {
        let mut watches = [Watch::reading(self.fabric.fd()), Watch::reading(self.bootstrap.as_raw_fd())];
        let watched = if self.fabric.needs_stream() { 1 } else { 2 };
        wait_any(&mut watches[..watched], Some(NAP)).expect("descriptors can be waited for");
        if watches[1].ready {
            // Once it is up, the broker says nothing on it but its farewell.
            self.fabric.close(self.link);
        }
    }

    /// Posts what the channel wants posted and takes in what has happened.
    fn pump(&mut self) -> bool {
        while self.down.is_none()
            && let Some(post) = self.channel.transmit::<ToBroker>(&mut *self.fabric)
        {
            self.fabric.post(self.link, post.op, post.work).expect("the endpoint was not closed");
        }
        self.fabric.submit();
        let mut events = std::mem::take(&mut self.events);
        self.fabric.poll(&mut events, 64);
        let worked = !events.is_empty();
        for event in events {
            self.handle(event);
        }
        worked
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Up { .. } => self.up = true,
            Event::Message { op, span, .. } => {
                let message = if self.is_lawless {
                    let (_, message) = ToClientRef::decode(self.fabric.bytes(span)).expect("the broker sends messages");
                    message.to_message()
                } else {
                    let received: Received<ToClientRef<'_>> =
                        self.channel.receive(&*self.fabric, span).expect("the broker keeps the protocol");
                    received.message.to_message()
                };
                self.channel.repost(op);
                if !matches!(message, ToClient::Credit(_)) {
                    self.inbox.push_back(message);
                }
            }
            Event::Done { op, result, .. } => {
                if !self.channel.done(op) {
                    self.finished.insert(op, result);
                }
            }
            Event::Down { cause, .. } => self.down = Some(cause),
            Event::Allocated { .. } => {}
        }
    }
}

/// A subscription from the earliest record, with the longest grace that goes.
pub(crate) fn subscription(topic: &str, scope: Scope, interval_us: u32, depth: u16) -> Subscribe {
    Subscribe {
        request: 2,
        topic: topic.into(),
        name: "by hand".into(),
        start: Start::Earliest,
        scope,
        epoch: EpochSettings { interval_us, grace_ms: 30_000, bytes: 0, records: 0 },
        depth,
        grant_bytes: SCRATCH,
    }
}

/// What a grant opens.
pub(crate) fn granted(grant: &Grant) -> RemoteSpan {
    RemoteSpan { address: grant.address, len: grant.len, key: Key(grant.key) }
}

fn make_channel(
    fabric: &mut dyn Fabric,
    domain: DomainId,
    generation: u32,
    peer_slots: u16,
    peer_size: u32,
) -> (ChannelConfig, EndpointAddress) {
    let receive = fabric.local(domain, SLOTS.into(), CONTROL_SLOT).expect("memory can be had");
    let send_size = peer_size.max(CONTROL_SLOT);
    let send = fabric.local(domain, SLOTS.into(), send_size).expect("memory can be had");
    let endpoint =
        EndpointConfig { domain, send_depth: u32::from(SLOTS) + 16, receive_depth: SLOTS.into(), remote_read: false };
    let (link, address) = fabric.endpoint(endpoint).expect("an endpoint can be made");
    let channel = ChannelConfig {
        link,
        generation,
        receive,
        receive_slots: SLOTS,
        receive_size: CONTROL_SLOT,
        send,
        send_slots: SLOTS,
        send_size,
        peer_slots,
        peer_size,
    };
    (channel, address)
}

/// Writes one bootstrap message.
pub(crate) fn write_frame(stream: &mut dyn Write, message: &Bootstrap) {
    let frame = message.encode().expect("it is within the limits");
    stream.write_all(&frame).expect("the bootstrap stream takes a message");
}

/// Reads one bootstrap message.
pub(crate) fn read_frame(stream: &mut dyn Read) -> Bootstrap {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).expect("the broker answers");
    let mut archive = vec![0; Bootstrap::frame_len(prefix).expect("the broker's frame is one")];
    stream.read_exact(&mut archive).expect("the broker's frame is complete");
    Bootstrap::decode(&archive).expect("the broker's message is one")
}
