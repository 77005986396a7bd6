//! A control message that is truncated, bit-flipped, oversized, of another version or of an older generation ends its own session
//! with a reason, and nothing else notices.

mod bus;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use keyway::{Broker, Scope};
use keyway_fabric::WorkError;
use keyway_schema::bootstrap::{Bootstrap, PREAMBLE, Role};
use keyway_schema::limits::{CONTROL_SLOT, VERSION};
use keyway_schema::message::{Arm, Publish, Release, Wake};
use keyway_schema::{Code, ToBroker, ToClient};

use crate::bus::bystander::Bystander;
use crate::bus::data::Noise;
use crate::bus::raw::{RawSession, Way, read_frame, subscription, write_frame};
use crate::bus::{PATIENCE, Watchdog, small_broker, until_counters, way};

const LIMIT: Duration = Duration::from_secs(120);

/// A message as this session may send it, to be spoilt.
fn good(session: &RawSession, subscription: u32) -> Vec<u8> {
    let mut slot = AlignedSlot([0; 1024]);
    let arm = ToBroker::from(Arm { subscription, sequence: 0 });
    let len = arm.encode(session.generation(), 0, 0, &mut slot.0).expect("it fits a slot");
    slot.0[..len].to_vec()
}

#[repr(align(16))]
struct AlignedSlot([u8; 1024]);

fn start() -> (Broker, Way) {
    let broker = small_broker().start().expect("the settings fit each other");
    let way = way(&broker);
    (broker, way)
}

#[test]
fn each_spoilt_message_ends_its_session_with_a_reason() {
    let _watchdog = Watchdog::start(LIMIT);
    let (broker, way) = start();
    let mut bystander = Bystander::start(&way);
    type Spoil = fn(&mut Vec<u8>);
    let cases: [(&str, Code, Spoil); 9] = [
        ("nothing at all", Code::Protocol, |message| message.clear()),
        ("cut in its envelope", Code::Protocol, |message| message.truncate(7)),
        ("cut by a byte", Code::Protocol, |message| message.truncate(message.len() - 1)),
        ("longer than it says", Code::Protocol, |message| message.push(0)),
        ("of no magic", Code::Protocol, |message| message[0] = b'k'),
        ("of another version", Code::Version, |message| message[2] = VERSION + 1),
        ("of no known kind", Code::Protocol, |message| message[3] = 99),
        ("with credits that do not exist", Code::Protocol, |message| message[4..6].fill(0xff)),
        ("of an older generation", Code::Generation, |message| {
            let generation = u32::from_le_bytes([message[12], message[13], message[14], message[15]]);
            message[12..16].copy_from_slice(&generation.wrapping_sub(1).to_le_bytes());
        }),
    ];
    for (place, (name, code, spoil)) in cases.into_iter().enumerate() {
        let mut session = RawSession::consumer(&way);
        let mut message = good(&session, 1);
        spoil(&mut message);
        session.send_bytes(&message);
        assert_eq!(session.reason(), Some(code), "a message {name}");
        bystander.exchange();
        let what = "the broken protocol to be counted";
        until_counters(&broker, what, |counters| counters.protocol_errors == place as u64 + 1);
    }
}

#[test]
fn a_message_that_is_out_of_place_ends_its_session() {
    let _watchdog = Watchdog::start(LIMIT);
    let (_broker, way) = start();
    let mut bystander = Bystander::start(&way);
    let messages: [ToBroker; 3] = [
        Release { subscription: 99, epoch: 1, sequence: 0, pause: false }.into(),
        Arm { subscription: 99, sequence: 0 }.into(),
        Publish { topic: 0 }.into(),
    ];
    for message in messages {
        let mut session = RawSession::consumer(&way);
        let name = message.name();
        session.send(message);
        let code = session.reason().expect("a known code");
        assert!(matches!(code, Code::Protocol | Code::SubscriptionUnknown | Code::BatchInvalid), "{name}: {code}");
        bystander.exchange();
    }
    // What cannot be true of a subscription that there is.
    let impossible: [fn(u32) -> ToBroker; 3] = [
        |subscription| Release { subscription, epoch: u64::MAX, sequence: 0, pause: false }.into(),
        |subscription| Release { subscription, epoch: 0, sequence: u64::MAX, pause: false }.into(),
        |subscription| Arm { subscription, sequence: u64::MAX }.into(),
    ];
    for message in impossible {
        let mut session = RawSession::consumer(&way);
        let subscribed = session.subscribe(subscription("bystander", Scope::Segment, 1_000_000, 4));
        let message = message(subscribed.subscription);
        let text = format!("{message:?}");
        session.send(message);
        assert_eq!(session.reason(), Some(Code::Protocol), "{text}");
        bystander.exchange();
    }
    // What a broker sends is not what it takes.
    let mut session = RawSession::consumer(&way);
    let mut slot = AlignedSlot([0; 1024]);
    let wake = ToClient::from(Wake { subscription: 1, tail: 2 });
    let len = wake.encode(session.generation(), 0, 0, &mut slot.0).expect("it fits a slot");
    session.send_bytes(&slot.0[..len]);
    assert_eq!(session.reason(), Some(Code::Protocol));
    bystander.exchange();
}

#[test]
fn an_oversized_message_ends_its_session() {
    let _watchdog = Watchdog::start(LIMIT);
    let (broker, way) = start();
    let mut bystander = Bystander::start(&way);
    let mut session = RawSession::consumer(&way);
    session.send_bytes(&vec![0x4b; CONTROL_SLOT as usize + 1]);
    let cause = session.expect_down();
    assert_eq!(cause, keyway_fabric::DownCause::Work(WorkError::TooLong));
    bystander.exchange();
    until_counters(&broker, "the session to be gone", |counters| counters.sessions == 2);
}

#[test]
fn a_flipped_bit_is_refused_or_harmless() {
    let _watchdog = Watchdog::start(LIMIT);
    let (broker, way) = start();
    let mut bystander = Bystander::start(&way);
    let mut noise = Noise::new(41);
    let mut refused = 0;
    for _ in 0..100 {
        let mut session = RawSession::consumer(&way);
        let subscribed = session.subscribe(subscription("flipped", Scope::Segment, 1_000_000, 4));
        let mut message = good(&session, subscribed.subscription);
        let at = noise.below(message.len() as u64) as usize;
        message[at] ^= 1 << noise.below(8);
        session.send_bytes(&message);
        // Whether it is let in or not depends on the bit.
        refused += usize::from(!session.is_answered(subscription("flipped", Scope::Segment, 1_000_000, 4)));
    }
    assert!((1..100).contains(&refused), "{refused} of 100 flipped bits were refused");
    bystander.exchange();
    let counters = until_counters(&broker, "the sessions to be gone", |counters| counters.sessions == 2);
    assert!(counters.protocol_errors > 0);
    assert_eq!(counters.subscriptions, 1, "only the bystander is left");
}

#[test]
fn garbage_on_the_port_is_answered_with_an_end() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().listen("127.0.0.1:0").start().expect("a port can be had");
    let address = broker.local_addr().expect("it listens");
    let mut bystander = Bystander::start(&Way::Tcp(address));
    let mut huge_frame = PREAMBLE.to_vec();
    huge_frame.extend([0xff, 0xff, 0, VERSION]);
    let mut no_archive = PREAMBLE.to_vec();
    no_archive.extend([9, 0, 0, VERSION, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let mut unknown_endpoint = keyway_fabric::soft::PREAMBLE_MAGIC.to_vec();
    unknown_endpoint.extend([7; 16]);
    let cases: [&[u8]; 7] = [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"KEYW",
        &[0; 1000],
        &huge_frame,
        &no_archive,
        &unknown_endpoint,
    ];
    for garbage in cases {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        // It may close before all of it is written.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(Shutdown::Write);
        // Whatever it answers, it ends.
        let _ = stream.read_to_end(&mut Vec::new());
        bystander.exchange();
    }
}

#[test]
fn a_hello_of_another_version_or_of_impossible_slots_is_refused_with_a_reason() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().listen("127.0.0.1:0").start().expect("a port can be had");
    let address = broker.local_addr().expect("it listens");
    let hello = Bootstrap::Hello {
        role: Role::Consumer,
        name: "by hand".into(),
        fabrics: vec![bus::family().into()],
        receive_slots: 64,
        receive_size: CONTROL_SLOT,
    };
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let mut said = PREAMBLE.to_vec();
        write_frame(&mut said, &hello);
        change(&mut said);
        stream.write_all(&said).expect("it listens");
        match read_frame(&mut stream) {
            Bootstrap::Refused { code, text } => (Code::from_number(code), text),
            other => panic!("{other:?} is no refusal"),
        }
    };
    let (code, text) = refused(&|said| said[PREAMBLE.len() + 3] = VERSION + 1);
    assert_eq!(code, Some(Code::Version));
    let both = [VERSION, VERSION + 1].map(|version| version.to_string());
    assert!(both.iter().all(|version| text.contains(version)), "both versions should be named: {text}");

    // The number of slots stands in the last bytes of the archive; a search for its value finds it.
    let (code, text) = refused(&|said| {
        let place = said.windows(2).rposition(|pair| pair == [64, 0]).expect("64 slots are announced");
        said[place] = 1;
    });
    assert_eq!(code, Some(Code::Settings), "{text}");
    assert!(text.contains("receive slots"), "{text}");

    let other_fabric = {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(&PREAMBLE).expect("it listens");
        let mut hello = hello.clone();
        let Bootstrap::Hello { fabrics, .. } = &mut hello else { unreachable!("it is a Hello") };
        *fabrics = vec!["pigeon".into()];
        write_frame(&mut stream, &hello);
        read_frame(&mut stream)
    };
    let Bootstrap::Refused { code, text } = other_fabric else { panic!("{other_fabric:?} is no refusal") };
    assert_eq!(Code::from_number(code), Some(Code::Fabric));
    assert!(text.contains("pigeon") && text.contains(bus::family()), "both sides should be named: {text}");
}
