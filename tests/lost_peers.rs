//! T23: a consumer that holds keys and dies, or whose host vanishes without a word, is noticed; its windows and segments are the
//! broker's again, and whoever comes back goes on where they were.
//!
//! How long it took is printed. It should be about two seconds for a host, and nothing to speak of for a process.

mod bus;

use std::process::ExitCode;
use std::time::Duration;

use keyway::{Broker, Consumer, Event, FabricChoice, Producer, Server, Start};
use libtest_mimic::Arguments;

use crate::bus::clients::{next_record, publish};
use crate::bus::device::Interface;
use crate::bus::process::{Binary, Process, words};
use crate::bus::{PATIENCE, Watchdog, data, small_broker, timed, trial, until_counters};

const LIMIT: Duration = Duration::from_secs(180);

/// How many records are published at a time.
const SOME: u64 = 10;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let obstacle = Interface::alone(0).map(drop).err();
    let trials = vec![
        trial("a_killed_consumer_that_holds_keys", None, a_killed_consumer_that_holds_keys),
        trial("a_host_that_vanishes_and_comes_back", obstacle, a_host_that_vanishes_and_comes_back),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A consumer's process that is stopped and is then granted keys to what the producer publishes, which it keeps for a minute.
fn holder(broker: &Broker, address: &str, producer: &Producer, first: u64) -> Process {
    let line = format!("sub lost --server {address} --scope batch --epoch 1m --grace 1m --raw --count {SOME}");
    let subscriptions = broker.counters().expect("the broker answers").subscriptions;
    let holder = Process::start(Binary::Cli, &words(&line));
    until_counters(broker, "its subscription", |counters| counters.subscriptions > subscriptions);
    holder.signal("STOP");
    let held = broker.counters().expect("the broker answers").windows_live;
    publish(producer, 1, first, SOME, 100);
    until_counters(broker, "it to hold a key", |counters| counters.windows_live > held);
    holder
}

fn a_killed_consumer_that_holds_keys() {
    let _watchdog = Watchdog::start(LIMIT);
    let directory = tempfile::tempdir().expect("a directory can be made");
    let path = directory.path().join("broker.sock");
    let broker = small_broker().unix(&path).start().expect("the settings fit each other");
    let producer = bus::clients::producer(&Server::from(broker.connector()), "lost");
    let mut holder = holder(&broker, &format!("keyway+unix://{}", path.display()), &producer, 0);
    let ((), took) = timed(|| {
        holder.kill();
        until_counters(&broker, "its windows and its session to be gone", |counters| {
            counters.windows == 0 && counters.sessions == 1 && counters.segments_limbo == 0
        });
    });
    println!("a process that was killed was noticed after {took:?}");
    let counters = broker.counters().expect("the broker answers");
    assert_eq!(counters.revocations_forced, 0, "it was not its key that gave it away: {counters:?}");
}

fn a_host_that_vanishes_and_comes_back() {
    let _watchdog = Watchdog::start(LIMIT);
    let interface = Interface::alone(0).expect("it could be made before");
    // Clients in this process have no address of their own that would tell their device.
    let fabric = match bus::fabric() {
        FabricChoice::Soft => FabricChoice::Soft,
        _ => FabricChoice::Verbs { device: Some(interface.device().to_owned()) },
    };
    let broker = small_broker().fabric(fabric.clone()).listen(format!("{}:0", interface.address())).start();
    let broker = broker.expect("the settings fit each other");
    let address = format!("keyway://{}", broker.local_addr().expect("it listens"));
    let server: Server = address.parse().expect("it is one");
    let near = Server::from(broker.connector());
    let producer = Producer::builder(&near, "lost").fabric(fabric.clone()).connect().expect("it can connect");
    let consumer = Consumer::builder(&server, "lost").fabric(fabric).start(Start::Earliest).connect();
    let mut consumer = consumer.expect("it can connect");
    let events = consumer.events();
    let holder = holder(&broker, &address, &producer, 0);
    for number in 0..SOME {
        assert_eq!(data::check_payload(next_record(&mut consumer).payload()), (1, number));
    }

    let (counters, took) = timed(|| {
        interface.plug(false);
        until_counters(&broker, "windows and sessions to be gone", |counters| {
            counters.windows == 0 && counters.sessions <= 1 && counters.segments_limbo == 0
        })
    });
    println!("a host that vanished was noticed after {took:?} by the broker");
    assert_eq!(counters.revocations_forced, 0, "it was not its key that gave it away: {counters:?}");
    let (lost, took) = timed(|| {
        std::iter::from_fn(|| events.recv_timeout(PATIENCE)).find(|event| matches!(event, Event::SessionLost { .. }))
    });
    println!("and by the consumer {took:?} later: {lost:?}");
    assert!(lost.is_some(), "nobody told the consumer that its session is over");

    interface.plug(true);
    holder.signal("CONT");
    publish(&producer, 1, SOME, SOME, 100);
    for number in SOME..2 * SOME {
        assert_eq!(data::check_payload(next_record(&mut consumer).payload()), (1, number));
    }
    let received = holder.wait().success();
    let expected: Vec<u8> = (0..SOME).flat_map(|number| data::payload(1, number, 100)).collect();
    assert!(received == expected, "the one that was away gets what it was granted and could not read");
}
