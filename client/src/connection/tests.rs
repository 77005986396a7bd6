//! A connection, with a broker played by hand: what each event makes of each state, and that nothing is left behind.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use keyway_channel::ChannelConfig;
use keyway_fabric::soft::{Pipe, SoftConfig, SoftFabric};
use keyway_fabric::{
    Dial, DomainId, EndpointAddress, EndpointConfig, Fabric, FabricChoice, FabricError, Holdings, LocalSpan, Op,
    Stream, Work, drive,
};
use keyway_schema::Code;
use keyway_schema::bootstrap::{Bootstrap, PREAMBLE, Role as Part};
use keyway_schema::limits::{CONTROL_SLOT, VERSION};

use super::*;
use crate::Server;
use crate::fabrics::OpenFabric;

const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// The broker's ends of what was dialled.
#[derive(Debug, Default)]
struct Desk {
    streams: Mutex<VecDeque<UnixStream>>,
    data: Mutex<VecDeque<Pipe>>,
}

impl Dial for Desk {
    fn bootstrap(&self) -> io::Result<UnixStream> {
        let (client, broker) = UnixStream::pair()?;
        self.streams.lock().unwrap().push_back(broker);
        Ok(client)
    }

    fn data(&self, _preamble: &[u8]) -> io::Result<Stream> {
        let (client, broker) = Pipe::pair()?;
        self.data.lock().unwrap().push_back(broker);
        Ok(Stream::Memory(client))
    }
}

/// A role that wants nothing.
struct Idle;

impl Machine for Idle {
    fn handle(&mut self, _: Now, _: Event, _: &mut dyn Memory) {}
    fn handle_timeout(&mut self, _: Now, _: &mut dyn Memory) {}
    fn timeout(&self) -> Option<Time> {
        None
    }
    fn transmit(&mut self, _: Now, _: &mut dyn Memory) -> Option<Transmit> {
        None
    }
}

struct Bench {
    now: Now,
    desk: Arc<Desk>,
    connection: Connection,
    report: LinkReport,
    fabrics: Fabrics,
    events: Vec<Event>,
    empty: Holdings,
    /// The broker's side.
    broker: SoftFabric,
    domain: Option<DomainId>,
    link: Option<LinkId>,
    stream: Option<UnixStream>,
    /// What it speaks.
    fabric: &'static str,
    /// The fabrics that the client has moved to.
    moves: Vec<String>,
}

/// Opens the software fabric, whatever the client takes it for.
fn open(_: &FabricChoice, _: Option<IpAddr>) -> Result<Box<dyn Fabric>, FabricError> {
    Ok(Box::new(SoftFabric::new(SoftConfig::default())?))
}

impl Bench {
    fn new() -> Self {
        Self::choosing(FabricChoice::Soft)
    }

    fn choosing(choice: FabricChoice) -> Self {
        Self::opening(choice, open)
    }

    fn opening(choice: FabricChoice, open: OpenFabric) -> Self {
        let desk = Arc::new(Desk::default());
        let mut fabrics = Fabrics::new(choice, open).unwrap();
        let empty = fabrics.fabric().holdings();
        let server = Server::InProcess(Arc::clone(&desk) as Arc<dyn Dial>);
        let connection = Connection::new(Target { server }, ATTEMPT_TIMEOUT, fastrand::Rng::with_seed(1));
        Self {
            now: Now::default(),
            desk,
            connection,
            report: LinkReport::default(),
            fabrics,
            events: Vec::new(),
            empty,
            broker: SoftFabric::new(SoftConfig::default()).unwrap(),
            domain: None,
            link: None,
            stream: None,
            fabric: "soft",
            moves: Vec::new(),
        }
    }

    /// Turns until nothing more happens, and collects the changes.
    fn settle(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut quiet = 0;
        while quiet < 3 {
            let plan = || SessionPlan {
                role: Part::Consumer,
                name: "test".into(),
                receive_slots: 8,
                receive_size: CONTROL_SLOT,
                send_slots_max: 8,
                send_size_max: CONTROL_SLOT,
                work_depth: 4,
                remote_read: false,
                offers_max: 0,
            };
            self.connection.woken();
            let mut change = self.connection.turn(self.now, plan, &mut self.report, &mut self.fabrics);
            if let Some(Change::Moving(fabric)) = &change {
                drop(self.fabrics.move_to(fabric));
                self.moves.push(fabric.clone());
                change = self.connection.turn(self.now, plan, &mut self.report, &mut self.fabrics);
            }
            let mut attended = Attended { role: &mut Idle, report: &mut self.report };
            let work = drive(&mut attended, self.fabrics.fabric(), self.now, &mut self.events).unwrap();
            let mut events = Vec::new();
            self.broker.poll(&mut events, 16);
            quiet = if work > 0 || change.is_some() || !events.is_empty() { 0 } else { quiet + 1 };
            changes.extend(change);
        }
        changes
    }

    fn say(&mut self, message: &Bootstrap) {
        self.stream.as_mut().unwrap().write_all(&message.encode().unwrap()).unwrap();
    }

    fn hear(&mut self) -> Bootstrap {
        let stream = self.stream.as_mut().unwrap();
        let mut prefix = [0; 4];
        stream.read_exact(&mut prefix).unwrap();
        let mut archive = vec![0; Bootstrap::frame_len(prefix).unwrap()];
        stream.read_exact(&mut archive).unwrap();
        Bootstrap::decode(&archive).unwrap()
    }

    /// The client has dialled and said its Hello.
    fn dialled(&mut self) {
        assert!(self.settle().is_empty());
        self.stream = self.desk.streams.lock().unwrap().pop_front();
        let mut preamble = [0; PREAMBLE.len()];
        self.stream.as_mut().unwrap().read_exact(&mut preamble).unwrap();
        assert_eq!(preamble, PREAMBLE);
        assert!(matches!(self.hear(), Bootstrap::Hello { role: Part::Consumer, .. }));
    }

    /// The broker has welcomed it, and both endpoints are up; `Ready` is not said.
    fn welcomed(&mut self) {
        self.dialled();
        let domain = self.broker.domain().unwrap();
        let config = EndpointConfig { domain, send_depth: 8, receive_depth: 8, remote_read: true };
        let (link, address) = self.broker.endpoint(config).unwrap();
        (self.domain, self.link) = (Some(domain), Some(link));
        self.say(&Bootstrap::Welcome {
            instance: 11,
            session: 12,
            generation: 13,
            fabric: self.fabric.into(),
            endpoint: address.0,
            receive_slots: 6,
            receive_size: CONTROL_SLOT,
            offers: 0,
        });
        assert!(self.settle().is_empty());
        let Bootstrap::Confirm { endpoint } = self.hear() else { panic!("the client confirms") };
        self.broker.connect(link, &EndpointAddress(endpoint)).unwrap();
        let data = self.desk.data.lock().unwrap().pop_front().unwrap();
        self.broker.attach(link, Stream::Memory(data)).unwrap();
        assert!(self.settle().is_empty());
    }

    fn up(&mut self) {
        self.welcomed();
        self.say(&Bootstrap::Ready);
        let changes = self.settle();
        let [Change::Connected(connected)] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!((connected.instance, connected.session, connected.channel.generation), (11, 12, 13));
        assert_eq!((connected.channel.send_slots, connected.channel.receive_slots), (6, 8));
    }

    /// A message comes over the session's endpoint.
    fn broker_speaks(&mut self) {
        let State::Up { session, .. } = &self.connection.state else { panic!("{:?}", self.connection) };
        let ChannelConfig { link, receive, .. } = session.connected.channel;
        let into = LocalSpan { local: receive, slot: 0, offset: 0, len: 8 };
        let fabric = self.fabrics.fabric();
        fabric.post(link, Op(1), Work::Recv { into }).unwrap();
        fabric.submit();
        let domain = self.domain.expect("the endpoint's");
        let from = LocalSpan { local: self.broker.local(domain, 1, 8).unwrap(), ..into };
        self.broker.post(self.link.unwrap(), Op(1), Work::Send { from }).unwrap();
        self.broker.submit();
        assert!(self.settle().is_empty());
    }

    /// The bootstrap stream has ended under a session.
    fn ending(&mut self) {
        self.up();
        self.stream = None;
        assert!(self.settle().is_empty());
    }

    fn state(&self) -> &'static str {
        match self.connection.state {
            State::Pausing { .. } => "Pausing",
            State::Connecting(_) => "Connecting",
            State::Up { .. } => "Up",
            State::Ending { .. } => "Ending",
            State::Closing { .. } => "Closing",
        }
    }
}

#[test]
fn every_event_in_every_state() {
    type Step = fn(&mut Bench);
    let states: [(&str, Step); 4] = [
        ("ExpectWelcome", Bench::dialled),
        ("ExpectReady", Bench::welcomed),
        ("Up", Bench::up),
        ("Ending", Bench::ending),
    ];
    let events: [(&str, Step); 7] = [
        ("the stream ends", |bench| bench.stream = None),
        ("Refused", |bench| bench.say(&Bootstrap::Refused { code: 5, text: "no".into() })),
        ("garbage", |bench| bench.stream.as_mut().unwrap().write_all(b"HTTP/1.1 400").unwrap()),
        ("Confirm", |bench| bench.say(&Bootstrap::Confirm { endpoint: vec![] })),
        ("the time for last words is over", |bench| bench.now.time = bench.now.time + LAST_WORDS),
        ("the link goes down", |bench| {
            if let Some(link) = bench.link {
                bench.broker.close(link);
            }
        }),
        ("the attempt's time is over", |bench| bench.now.time = bench.now.time + ATTEMPT_TIMEOUT),
    ];
    let mut table = String::new();
    for (name, prepare) in states {
        for (event, happen) in &events {
            let mut bench = Bench::new();
            prepare(&mut bench);
            if name == "Ending" && ["Refused", "garbage", "Confirm"].contains(event) {
                // Nothing comes on a stream that has ended.
                continue;
            }
            happen(&mut bench);
            let changes: Vec<String> = bench
                .settle()
                .into_iter()
                .map(|change| match change {
                    Change::Connected(_) => "connected".into(),
                    Change::Disconnected(cause) => format!("disconnected, {:?}", cause.kind()),
                    Change::Unreachable(cause) => format!("unreachable, {:?}", cause.kind()),
                    Change::Moving(fabric) => format!("moving, {fabric}"),
                })
                .collect();
            table += &format!("{name} + {event} -> {}: {}\n", bench.state(), changes.join("; "));
            if bench.state() == "Pausing" {
                assert_eq!(bench.fabrics.fabric().holdings(), bench.empty, "{name} + {event} leaves something behind");
            }
        }
    }
    assert_eq!(table, include_str!("table.txt"), "the table is now:\n{table}");
}

#[test]
fn the_next_attempt_begins_after_a_pause() {
    let mut bench = Bench::new();
    bench.ending();
    assert_eq!(bench.connection.timeout(), Some(bench.now.time + LAST_WORDS));
    bench.now.time = bench.now.time + LAST_WORDS;
    assert!(matches!(bench.settle().as_slice(), [Change::Disconnected(_)]));
    assert!(bench.desk.streams.lock().unwrap().is_empty(), "not yet");
    let pause = bench.connection.timeout().unwrap().since(bench.now.time);
    assert!(pause >= crate::PAUSE_MIN && pause <= 2 * crate::PAUSE_MIN, "{pause:?}");
    bench.now.time = bench.now.time + pause;
    bench.up();
}

#[test]
fn the_brokers_reason_wins_over_the_end_that_it_leads_to() {
    let mut bench = Bench::new();
    bench.up();
    bench.say(&Bootstrap::Refused { code: Code::KeyViolation.number(), text: "a stale key".into() });
    assert!(bench.settle().is_empty(), "what is still on the endpoint is heard first");
    bench.broker.close(bench.link.unwrap());
    let changes = bench.settle();
    let [Change::Disconnected(cause)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(cause.kind(), ErrorKind::Refused(Code::KeyViolation));
}

#[test]
fn a_device_that_was_never_heard_is_said_to_be_out_of_reach() {
    for (fabric, speaks, ends, hinted) in [
        ("verbs", false, false, true),
        ("verbs", true, false, false),
        ("verbs", false, true, false),
        ("soft", false, false, false),
    ] {
        let mut bench = Bench::choosing(FabricChoice::Auto);
        bench.fabric = fabric;
        bench.up();
        if speaks {
            bench.broker_speaks();
        }
        if ends {
            // Then it is the broker that is gone, not the way to its device.
            bench.stream = None;
            assert!(bench.settle().is_empty());
        }
        bench.broker.close(bench.link.unwrap());
        let changes = bench.settle();
        let [Change::Disconnected(cause)] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!(cause.kind(), ErrorKind::Lost);
        assert_eq!(cause.to_string().contains("UDP port 4791"), hinted, "{fabric}: {cause}");
    }
}

#[test]
fn an_end_in_every_state_leaves_nothing_behind() {
    let prepare: [fn(&mut Bench); 4] = [Bench::dialled, Bench::welcomed, Bench::up, Bench::ending];
    for prepare in prepare {
        let mut bench = Bench::new();
        prepare(&mut bench);
        let mut pending = bench.connection.end(bench.now, &mut bench.report, &mut bench.fabrics);
        while pending {
            let mut attended = Attended { role: &mut Idle, report: &mut bench.report };
            drive(&mut attended, bench.fabrics.fabric(), bench.now, &mut bench.events).unwrap();
            pending = !bench.connection.turn_end(bench.now, &mut bench.report, &mut bench.fabrics);
        }
        assert_eq!(bench.fabrics.fabric().holdings(), bench.empty);
    }
}

#[test]
fn a_broker_that_comes_back_on_another_fabric_is_followed() {
    let mut bench = Bench::choosing(FabricChoice::Auto);
    for fabric in ["verbs", "soft", "soft", "verbs"] {
        bench.fabric = fabric;
        bench.up();
        bench.broker.close(bench.link.unwrap());
        assert!(matches!(bench.settle().as_slice(), [Change::Disconnected(_)]));
        assert_eq!(bench.fabrics.fabric().holdings(), bench.empty);
        bench.now.time = bench.connection.timeout().unwrap();
    }
    assert_eq!(bench.moves, ["verbs", "soft", "verbs"]);
}

#[test]
fn a_fabric_that_was_not_offered_is_not_taken() {
    let mut bench = Bench::new();
    bench.fabric = "verbs";
    bench.dialled();
    bench.say(&Bootstrap::Welcome {
        instance: 1,
        session: 1,
        generation: 1,
        fabric: "verbs".into(),
        endpoint: vec![],
        receive_slots: 6,
        receive_size: CONTROL_SLOT,
        offers: 0,
    });
    let changes = bench.settle();
    let [Change::Unreachable(cause)] = changes.as_slice() else { panic!("{changes:?}") };
    assert!(cause.kind() == ErrorKind::Handshake && cause.to_string().contains("\"verbs\", which was not offered"));
}

#[test]
fn a_client_without_a_device_says_why_where_the_broker_wants_one() {
    fn no_device(choice: &FabricChoice, address: Option<IpAddr>) -> Result<Box<dyn Fabric>, FabricError> {
        match choice {
            FabricChoice::Soft => open(choice, address),
            _ => Err(FabricError::Unsupported { fabric: "verbs", what: "be used: there is no device" }),
        }
    }
    let told = [(Code::Fabric, FabricChoice::Auto, true), (Code::Fabric, FabricChoice::Soft, false)];
    for (code, choice, explained) in told.into_iter().chain([(Code::ShuttingDown, FabricChoice::Auto, false)]) {
        let mut bench = Bench::opening(choice.clone(), no_device);
        bench.dialled();
        bench.say(&Bootstrap::Refused { code: code.number(), text: "this broker speaks the fabric verbs".into() });
        let changes = bench.settle();
        let [Change::Unreachable(cause)] = changes.as_slice() else { panic!("{changes:?}") };
        let why = "; this client offers no device: the verbs fabric cannot be used: there is no device";
        assert_eq!(cause.to_string().contains(why), explained, "{code:?}, {choice}: {cause}");
        assert!(cause.to_string().contains("this broker speaks the fabric verbs"), "{cause}");
    }
}

#[test]
fn a_broker_of_another_version_is_told_by_both_versions() {
    let mut bench = Bench::new();
    bench.dialled();
    let mut frame = Bootstrap::Refused { code: Code::Version.number(), text: String::new() }.encode().unwrap();
    frame[3] = VERSION + 1;
    bench.stream.as_mut().unwrap().write_all(&frame).unwrap();
    let changes = bench.settle();
    let [Change::Unreachable(cause)] = changes.as_slice() else { panic!("{changes:?}") };
    assert!(matches!(cause, Error::Version { theirs, ours, .. } if (*theirs, *ours) == (VERSION + 1, VERSION)));
    assert!(!cause.is_retryable());
}
