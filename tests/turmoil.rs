//! Everything at once: producers and consumers of all scopes over connections that are cut, subscribers that are stopped and killed,
//! a broker that serves them all. Whoever stays gets every record whole, in order and once, or the exact gap.
//!
//! What happens when follows from a seed, which is printed and taken back from `KEYWAY_SEED`; what it meets is up to the machine.

mod bus;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keyway::{Broker, Consumer, Scope, Server, Start};

use crate::bus::clients::{SCOPES, producer, receive_until};
use crate::bus::data::Noise;
use crate::bus::process::{Binary, Process, words};
use crate::bus::proxy::Proxy;
use crate::bus::{PATIENCE, Watchdog, data, until_counters};

const LIMIT: Duration = Duration::from_secs(240);

const PRODUCERS: u64 = 2;
const RECORDS: u64 = 8_000;
const TOTAL: u64 = PRODUCERS * RECORDS;

/// How many things happen in the course of it.
const EVENTS: u64 = 24;

#[allow(clippy::disallowed_methods, reason = "a test takes its seed from the environment")]
fn seed() -> u64 {
    let given = std::env::var("KEYWAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
    println!("KEYWAY_SEED={seed}");
    seed
}

fn publish(server: &Server, whose: u64, seed: u64) {
    let producer = producer(server, "turmoil");
    let mut noise = Noise::new(seed ^ whose);
    for number in 0..RECORDS {
        let len = if noise.below(200) == 0 { 100_000 } else { noise.below(300) as usize };
        drop(producer.enqueue(data::payload(whose, number, len)).expect("a record is taken"));
    }
    producer.flush(PATIENCE).expect("every record is committed in the end");
    producer.close(PATIENCE).expect("it closes");
}

fn consume(mut consumer: Consumer, scope: Scope) {
    let mut next = [0; PRODUCERS as usize];
    receive_until(&mut consumer, 0, TOTAL, |record| {
        let (whose, number) = data::check_payload(record.payload());
        let expected = &mut next[whose as usize];
        assert!(number >= *expected, "record {number} of producer {whose} came again in {scope:?} scope");
        *expected = number + 1;
    });
    assert_eq!(next, [RECORDS; PRODUCERS as usize], "the last records are not lost in {scope:?} scope");
    assert_eq!(consumer.stats().remote_access_errors, 0, "{scope:?} scope: {:?}", consumer.stats());
    consumer.close(PATIENCE).expect("it closes");
}

/// Cuts, stops and kills, one thing whenever so many more records are in.
fn disturb(broker: &Broker, proxy: &Proxy, address: &str, seed: u64, is_over: &AtomicBool) {
    let mut noise = Noise::new(seed);
    let mut victims: Vec<Process> = Vec::new();
    for event in 1..=EVENTS {
        until_counters(broker, "more records", |counters| {
            counters.records >= event * TOTAL / (EVENTS + 1) || is_over.load(Ordering::SeqCst)
        });
        match noise.below(5) {
            0 => proxy.cut(),
            1 | 2 => {
                let scope = ["segment", "batch", "message"][noise.below(3) as usize];
                let line = format!(
                    "sub turmoil --server {address} --from earliest --scope {scope} --epoch 1ms --grace 40ms -q"
                );
                victims.push(Process::start(Binary::Cli, &words(&line)));
            }
            3 => victims.iter().for_each(|victim| victim.signal(if noise.below(2) == 0 { "STOP" } else { "CONT" })),
            _ => victims.clear(),
        }
    }
}

#[test]
fn whoever_stays_gets_everything() {
    let _watchdog = Watchdog::start(LIMIT);
    let seed = seed();
    let directory = tempfile::tempdir().expect("a directory can be made");
    let path = directory.path().join("broker.sock");
    let builder = bus::broker().pool_size(16 << 20).segment_size(256 << 10).topic_segments(48).record_max(128 << 10);
    let broker = builder.listen("127.0.0.1:0").unix(&path).start().expect("the settings fit each other");
    let proxy = Proxy::start(broker.local_addr().expect("it listens"));
    let server: Server = proxy.server().parse().expect("a proxy's address is one");
    let address = format!("keyway+unix://{}", path.display());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for scope in SCOPES {
            let consumer = Consumer::builder(&server, "turmoil")
                .start(Start::Sequence(0))
                .scope(scope)
                .epoch(Duration::from_millis(2))
                .connect()
                .expect("a consumer can connect");
            threads.spawn(move || consume(consumer, scope));
        }
        threads.spawn(|| disturb(&broker, &proxy, &address, seed, &is_over));
        std::thread::scope(|publishers| {
            for whose in 0..PRODUCERS {
                let server = &server;
                publishers.spawn(move || publish(server, whose, seed));
            }
        });
        is_over.store(true, Ordering::SeqCst);
    });
    let counters = until_counters(&broker, "everything to be given back", |counters| {
        counters.sessions == 0 && counters.windows == 0 && counters.segments_limbo == 0
    });
    assert_eq!(counters.records, TOTAL, "nothing was committed twice: {counters:?}");
    // Somebody who wakes up after the key was taken from them may still READ with it before they hear of it.
    assert!(counters.remote_access_violations <= counters.revocations_forced, "{counters:?}");
}
