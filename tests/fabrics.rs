//! T25: both sides disagree on the fabric or on the version, and each names both; devices with different MTUs agree on the smaller; and a
//! broker that comes back on another fabric.

mod bus;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::Duration;

use keyway::{Broker, Code, Consumer, ConsumerBuilder, Error, ErrorKind, FabricChoice, Producer, Server, Start};
use keyway_schema::bootstrap::{Bootstrap, PREAMBLE, Role};
use keyway_schema::limits::{CONTROL_SLOT, VERSION};
use libtest_mimic::{Arguments, Trial};

use crate::bus::clients::{next_record, publish, receive_until};
use crate::bus::device::Interface;
use crate::bus::process::{Binary, FAILURE, Process, words};
use crate::bus::raw::{read_frame, write_frame};
use crate::bus::{PATIENCE, Watchdog, assert_undisturbed, data, small_broker, trial, until};

const LIMIT: Duration = Duration::from_secs(180);

macro_rules! trials {
    ($($name:ident: $obstacle:expr,)*) => { vec![$(trial(stringify!($name), $obstacle, $name)),*] };
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let software = match bus::fabric() {
        FabricChoice::Soft => Some("KEYWAY_FABRIC names no RDMA device".to_owned()),
        _ => None,
    };
    let unequal = software.clone().or_else(|| unequal_devices().map(drop).err());
    let trials: Vec<Trial> = trials! {
        a_broker_names_its_fabric_and_those_that_the_client_speaks: None,
        a_client_whose_fabric_the_broker_does_not_speak_ends_at_once_and_names_both: None,
        a_client_of_another_version_than_the_broker_ends_at_once_and_names_both: None,
        a_device_that_is_not_there_is_named_by_client_and_command: None,
        a_device_and_software_name_each_other: software.clone(),
        a_broker_that_comes_back_on_another_fabric_is_followed: software.clone(),
        devices_with_different_mtus_agree_on_the_smaller: unequal,
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A consumer that would try for long enough to be seen trying.
fn consumer(server: &Server) -> ConsumerBuilder {
    Consumer::builder(server, "t").start(Start::Earliest).connect_timeout(PATIENCE)
}

/// Something that answers the next Hello with these bytes, and then sees whether anybody comes again. Gives what was offered.
fn answering(frame: Vec<u8>) -> (SocketAddr, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port can be had");
    let address = listener.local_addr().expect("it has an address");
    let answer = move || {
        let (mut stream, _) = listener.accept().expect("a client comes");
        let mut preamble = [0; PREAMBLE.len()];
        stream.read_exact(&mut preamble).expect("it says what it is");
        let Bootstrap::Hello { fabrics, .. } = read_frame(&mut stream) else { panic!("a client begins with Hello") };
        stream.write_all(&frame).expect("it listens");
        // The client closes the connection, since it has its answer.
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
        listener.set_nonblocking(true).expect("a port can be asked");
        assert!(listener.accept().is_err(), "what will not change is not tried again");
        fabrics
    };
    (address, std::thread::Builder::new().name("answer".into()).spawn(answer).expect("a thread can be started"))
}

fn a_broker_names_its_fabric_and_those_that_the_client_speaks() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = Broker::builder().pool_size(8 << 20).listen("127.0.0.1:0").start().expect("it starts");
    let address = broker.local_addr().expect("it listens");
    let mut stream = std::net::TcpStream::connect(address).expect("the broker can be reached");
    stream.set_read_timeout(Some(PATIENCE)).expect("a deadline can be set");
    stream.write_all(&PREAMBLE).expect("it takes a preamble");
    let fabrics = vec!["verbs".into(), "pigeon".into()];
    let name = String::from("elsewhere");
    write_frame(
        &mut stream,
        &Bootstrap::Hello { role: Role::Consumer, name, fabrics, receive_slots: 64, receive_size: CONTROL_SLOT },
    );
    let Bootstrap::Refused { code, text } = read_frame(&mut stream) else { panic!("nothing is in common") };
    assert_eq!(Code::from_number(code), Some(Code::Fabric));
    for named in ["soft", "verbs", "pigeon"] {
        assert!(text.contains(named), "{named} is missing: {text}");
    }
}

fn a_client_whose_fabric_the_broker_does_not_speak_ends_at_once_and_names_both() {
    let _watchdog = Watchdog::start(LIMIT);
    let text = String::from("this broker speaks the fabric verbs, the client speaks \"soft\"");
    let refused = Bootstrap::Refused { code: Code::Fabric.number(), text };
    let frame = refused.encode().expect("it is within the limits");
    let (address, seen) = answering(frame.clone());
    let error = consumer(&address.into()).fabric(FabricChoice::Soft).connect().expect_err("there is no session");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Refused(Code::Fabric), false));
    assert!(error.to_string().contains("verbs") && error.to_string().contains("soft"), "{error}");
    assert_eq!(seen.join().expect("it was tried once"), ["soft"]);

    let (address, seen) = answering(frame);
    let builder = Producer::builder(Server::from(address), "t").connect_timeout(PATIENCE);
    let error = builder.fabric(FabricChoice::Soft).connect().expect_err("there is no session");
    assert_eq!(error.kind(), ErrorKind::Refused(Code::Fabric), "{error}");
    assert_eq!(seen.join().expect("it was tried once"), ["soft"]);
}

fn a_client_of_another_version_than_the_broker_ends_at_once_and_names_both() {
    let _watchdog = Watchdog::start(LIMIT);
    let refused = Bootstrap::Refused { code: Code::Version.number(), text: String::from("not yours") };
    let mut frame = refused.encode().expect("it is within the limits");
    frame[3] = VERSION + 1;
    let (address, seen) = answering(frame);
    let error = consumer(&address.into()).connect().expect_err("there is no session");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Version, false));
    let Error::Version { theirs, ours, .. } = error else { panic!("{error}") };
    assert_eq!((theirs, ours), (VERSION + 1, VERSION));
    assert!(!seen.join().expect("it was tried once").is_empty());
}

fn a_device_that_is_not_there_is_named_by_client_and_command() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = Broker::builder().pool_size(8 << 20).listen("127.0.0.1:0").start().expect("it starts");
    let address = broker.local_addr().expect("it listens");
    let device = FabricChoice::Verbs { device: Some("no-such-device".into()) };
    let error = consumer(&address.into()).fabric(device).connect().expect_err("there is no such device");
    assert_eq!(error.kind(), ErrorKind::System, "{error}");
    assert!(error.to_string().starts_with("cannot open the fabric verbs:no-such-device: "), "{error}");
    let line = format!("sub t --server keyway://{address} --fabric verbs:no-such-device");
    let line = Process::run(Binary::Cli, &words(&line)).one_line(FAILURE);
    assert!(line.contains("cannot open the fabric verbs:no-such-device: "), "{line}");
}

fn a_device_and_software_name_each_other() {
    let _watchdog = Watchdog::start(LIMIT);
    let device = bus::fabric();
    for (ours, theirs) in [(FabricChoice::Soft, device.clone()), (device, FabricChoice::Soft)] {
        let broker = small_broker().fabric(theirs).start().expect("it starts");
        let server = Server::from(broker.connector());
        let error = consumer(&server).fabric(ours).connect().expect_err("they do not understand each other");
        assert_eq!(error.kind(), ErrorKind::Refused(Code::Fabric), "{error}");
        assert!(error.to_string().contains("verbs") && error.to_string().contains("soft"), "{error}");
    }
}

fn a_broker_that_comes_back_on_another_fabric_is_followed() {
    let _watchdog = Watchdog::start(LIMIT);
    let device = bus::fabric();
    let start = |address: &str, fabric| {
        let builder = Broker::builder().pool_size(16 << 20).segment_size(1 << 20).record_max(256 << 10);
        builder.listen(address).fabric(fabric).start().expect("it starts")
    };
    let mut broker = start("127.0.0.1:0", FabricChoice::Soft);
    let address = broker.local_addr().expect("it listens");
    let server = Server::from(address);
    let producer = Producer::builder(&server, "t").connect().expect("it connects");
    let mut consumer = consumer(&server).connect().expect("it connects");
    for fabric in [FabricChoice::Soft, device.clone(), FabricChoice::Soft, device.clone()] {
        // A producer that was told of the stop takes nothing until it has found the broker's successor.
        let taken = until("the producer to follow the broker", || match producer.try_send("first") {
            Ok(pending) => Some(pending),
            Err(error) if error.kind() == ErrorKind::ShuttingDown => None,
            Err(error) => panic!("{error}"),
        });
        taken.wait().expect("it is committed");
        // Larger ones are offered through windows of the producer's.
        for len in [100, 100_000] {
            publish(&producer, 1, 0, 8, len);
        }
        for _ in 0..17 {
            next_record(&mut consumer);
        }
        let used = [producer.stats().fabric, consumer.stats().fabric];
        let on_device = fabric != FabricChoice::Soft;
        assert!(used.iter().all(|used| used.starts_with(if on_device { "verbs:" } else { "soft" })), "{used:?}");
        broker.stop(PATIENCE).expect("it stops");
        broker = start(&address.to_string(), if on_device { FabricChoice::Soft } else { device.clone() });
        let told = consumer.recv_timeout(PATIENCE).expect_err("the new broker has new topics");
        assert_eq!(told.kind(), ErrorKind::Restarted, "{told}");
    }
}

/// A device with an MTU of 4096, and one with 1024, on a wire of their own.
fn unequal_devices() -> Result<[Interface; 2], String> {
    let devices = Interface::pair([1, 2], [4200, 1500])?;
    for device in &devices {
        packets(device)?;
    }
    Ok(devices)
}

/// How many packets have left a device.
fn packets(device: &Interface) -> Result<u64, String> {
    let path = format!("/sys/class/infiniband/{}/ports/1/hw_counters/sent_pkts", device.device());
    let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}"))?;
    text.trim().parse().map_err(|error| format!("{path} says {text:?}: {error}"))
}

fn devices_with_different_mtus_agree_on_the_smaller() {
    const RECORDS: u64 = 100;
    const LEN: usize = 20_000;
    let _watchdog = Watchdog::start(LIMIT);
    let devices = unequal_devices().expect("they could be made before");
    for (brokers, clients) in [(&devices[0], &devices[1]), (&devices[1], &devices[0])] {
        let on = |device: &Interface| FabricChoice::Verbs { device: Some(device.device().to_owned()) };
        let broker =
            small_broker().topic_segments(64).fabric(on(brokers)).start().expect("the settings fit each other");
        let server = Server::from(broker.connector());
        let producer = Producer::builder(&server, "mtu").fabric(on(clients)).connect().expect("it can connect");
        let consumer = Consumer::builder(&server, "mtu").fabric(on(clients)).start(Start::Earliest).connect();
        let mut consumer = consumer.expect("it can connect");
        let before = packets(brokers).expect("it could be told before");
        publish(&producer, 1, 0, RECORDS, LEN);
        let missed = receive_until(&mut consumer, 0, RECORDS, |record| {
            assert_eq!(data::check_payload(record.payload()), (1, record.sequence()));
        });
        assert_eq!(missed, 0);
        assert_undisturbed(consumer.stats().reconnects + producer.stats().reconnects, &consumer.stats());
        let sent = packets(brokers).expect("it could be told before") - before;
        assert!(sent >= RECORDS * LEN as u64 / 1024, "{sent} packets are too few for 1024 bytes each at most");
    }
}
