//! A broker's stand-in for tests of the client alone: it does the bootstrap, opens topics and commits batches to nowhere, or
//! keeps silent where a test wants that.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use keyway_channel::{Channel, ChannelConfig, Received};
use keyway_fabric::soft::{PREAMBLE_LEN, SoftConfig, SoftFabric, parse_preamble};
use keyway_fabric::{DomainId, EndpointAddress, EndpointConfig, Event, Fabric, Memory, Stream};
use keyway_schema::batch::Batch;
use keyway_schema::bootstrap::{Bootstrap, PREAMBLE};
use keyway_schema::limits::{CONTROL_SLOT, PUBLISH_SLOT};
use keyway_schema::message::{Commit, Committed, TopicOpened};
use keyway_schema::record::batch_max;
use keyway_schema::{ToBrokerRef, ToClient};

/// What the stand-in does with batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batches {
    Commit,
    Ignore,
}

/// A stand-in on a port of its own. Dropping it closes everything.
#[derive(Debug)]
pub(crate) struct Stub {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Stub {
    pub(crate) fn start(batches: Batches) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("stub".into())
            .spawn(move || {
                let mut server = Server::new(batches);
                while !asked.load(Ordering::Relaxed) {
                    server.turn(&listener);
                }
                server.records
            })
            .unwrap();
        Self { address, stop, thread: Some(thread) }
    }

    /// Stops it. Returns how many records it has committed.
    pub(crate) fn stop(mut self) -> u64 {
        self.join().expect("it runs until it is stopped")
    }

    fn join(&mut self) -> Option<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(|thread| thread.join().unwrap())
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.join();
    }
}

struct Server {
    batches: Batches,
    fabric: SoftFabric,
    domain: DomainId,
    sessions: Vec<(Channel, TcpStream)>,
    events: Vec<Event>,
    records: u64,
}

impl Server {
    fn new(batches: Batches) -> Self {
        let mut fabric = SoftFabric::new(SoftConfig::default()).unwrap();
        let domain = fabric.domain().unwrap();
        Self { batches, fabric, domain, sessions: Vec::new(), events: Vec::new(), records: 0 }
    }

    fn turn(&mut self, listener: &TcpListener) {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(false).unwrap();
            self.greet(stream);
        }
        for (channel, _) in &mut self.sessions {
            while let Some(post) = channel.transmit::<ToClient>(&mut self.fabric) {
                // An endpoint whose end was polled takes nothing more.
                let _ = self.fabric.post(channel.link(), post.op, post.work);
            }
        }
        self.fabric.submit();
        let mut events = std::mem::take(&mut self.events);
        self.fabric.poll(&mut events, 256);
        if events.is_empty() {
            std::thread::yield_now();
        }
        for event in events.drain(..) {
            self.handle(event);
        }
        self.events = events;
    }

    fn greet(&mut self, mut stream: TcpStream) {
        let mut start = [0; PREAMBLE.len()];
        stream.read_exact(&mut start).unwrap();
        if start == PREAMBLE {
            return self.bootstrap(stream);
        }
        let mut preamble = [0; PREAMBLE_LEN];
        preamble[..start.len()].copy_from_slice(&start);
        stream.read_exact(&mut preamble[start.len()..]).unwrap();
        let link = self.fabric.find(parse_preamble(&preamble).unwrap()).unwrap();
        self.fabric.attach(link, Stream::Tcp(stream)).unwrap();
    }

    fn bootstrap(&mut self, mut stream: TcpStream) {
        let Bootstrap::Hello { receive_slots: peer_slots, receive_size: peer_size, .. } = receive(&mut stream) else {
            panic!("a Hello comes first")
        };
        let endpoint = EndpointConfig { domain: self.domain, send_depth: 64, receive_depth: 16, remote_read: false };
        let (link, address) = self.fabric.endpoint(endpoint).unwrap();
        let config = ChannelConfig {
            link,
            generation: 1,
            receive: self.fabric.local(self.domain, 16, PUBLISH_SLOT).unwrap(),
            receive_slots: 16,
            receive_size: PUBLISH_SLOT,
            send: self.fabric.local(self.domain, 32, CONTROL_SLOT).unwrap(),
            send_slots: 32,
            send_size: CONTROL_SLOT,
            peer_slots,
            peer_size,
        };
        send(
            &mut stream,
            &Bootstrap::Welcome {
                instance: 1,
                session: 1,
                generation: 1,
                fabric: "soft".into(),
                endpoint: address.0,
                receive_slots: 16,
                receive_size: PUBLISH_SLOT,
                offers: 4,
            },
        );
        let Bootstrap::Confirm { endpoint } = receive(&mut stream) else { panic!("a Confirm comes next") };
        self.fabric.connect(link, &EndpointAddress(endpoint)).unwrap();
        send(&mut stream, &Bootstrap::Ready);
        self.sessions.push((Channel::new(config), stream));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Message { link, op, span } => {
                let place = self.sessions.iter().position(|(channel, _)| channel.link() == link).unwrap();
                let (channel, _) = &mut self.sessions[place];
                let Received { message, attachment } = channel.receive::<ToBrokerRef<'_>>(&self.fabric, span).unwrap();
                let answer = match message {
                    ToBrokerRef::OpenTopic(open) => Some(ToClient::from(TopicOpened {
                        request: open.request.to_native(),
                        topic: 1,
                        next_sequence: self.records,
                        record_max: 1 << 20,
                        batch_max: batch_max(1 << 20),
                        last_number: 0,
                    })),
                    ToBrokerRef::Publish(_) if self.batches == Batches::Commit => {
                        let header = *Batch::read(self.fabric.bytes(attachment)).unwrap().header();
                        let commit = Commit { number: header.number, base_sequence: self.records, time: 1 };
                        self.records += u64::from(header.records);
                        Some(ToClient::from(Committed { topic: 1, commits: vec![commit] }))
                    }
                    ToBrokerRef::Goodbye(_) => {
                        self.fabric.close(link);
                        None
                    }
                    _ => None,
                };
                channel.repost(op);
                if let Some(answer) = answer {
                    channel.send(&mut self.fabric, &answer).unwrap();
                }
            }
            Event::Done { link, op, .. } => {
                if let Some((channel, _)) = self.sessions.iter_mut().find(|(channel, _)| channel.link() == link) {
                    channel.done(op);
                }
            }
            Event::Down { link, .. } => self.sessions.retain(|(channel, _)| channel.link() != link),
            Event::Up { .. } | Event::Allocated { .. } => {}
        }
    }
}

fn receive(stream: &mut TcpStream) -> Bootstrap {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).unwrap();
    let mut archive = vec![0; Bootstrap::frame_len(prefix).unwrap()];
    stream.read_exact(&mut archive).unwrap();
    Bootstrap::decode(&archive).unwrap()
}

fn send(stream: &mut TcpStream, message: &Bootstrap) {
    stream.write_all(&message.encode().unwrap()).unwrap();
}
