//! T16: four producers whose connections are cut in mid-stream: each one's records are in its order at every consumer, without a
//! duplicate and without a hole, however often a batch had to be sent again.

mod bus;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use keyway::{Consumer, Producer, Server, Start};

use crate::bus::clients::{SCOPES, receive_until};
use crate::bus::data::Noise;
use crate::bus::proxy::Proxy;
use crate::bus::{PATIENCE, Watchdog, data, until_counters};

const LIMIT: Duration = Duration::from_secs(180);

const PRODUCERS: u64 = 4;
const RECORDS: u64 = 2_500;
const TOTAL: u64 = PRODUCERS * RECORDS;

/// Sizes that make eager batches and, now and then, offered ones.
fn len(noise: &mut Noise) -> usize {
    if noise.below(100) == 0 { 70_000 } else { noise.below(400) as usize }
}

fn publish(server: &Server, whose: u64) -> u64 {
    let producer = Producer::builder(server, "stream").connect().expect("a producer can connect");
    let mut noise = Noise::new(whose);
    let mut pending = Vec::new();
    for number in 0..RECORDS {
        pending.push(producer.enqueue(data::payload(whose, number, len(&mut noise))).expect("a record is taken"));
    }
    let mut before = None;
    for pending in pending {
        let receipt = pending.wait().expect("every record is committed in the end");
        assert!(before.is_none_or(|before| before < receipt.sequence), "receipts are in order");
        before = Some(receipt.sequence);
    }
    let reconnects = producer.stats().reconnects;
    producer.close(PATIENCE).expect("it closes");
    reconnects
}

#[test]
fn cut_in_mid_stream() {
    let _watchdog = Watchdog::start(LIMIT);
    let builder = bus::broker().pool_size(64 << 20).segment_size(1 << 20).topic_segments(60).record_max(128 << 10);
    let broker = builder.listen("127.0.0.1:0").start().expect("the settings fit each other");
    let proxy = Proxy::start(broker.local_addr().expect("it listens"));
    let server: Server = proxy.server().parse().expect("a proxy's address is one");
    let done = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|whose| {
                let (server, done) = (&server, &done);
                threads.spawn(move || {
                    let reconnects = publish(server, whose);
                    done.fetch_add(1, Ordering::SeqCst);
                    reconnects
                })
            })
            .collect();
        for scope in SCOPES {
            let server = &server;
            threads.spawn(move || {
                let mut consumer = Consumer::builder(server, "stream")
                    .start(Start::Earliest)
                    .scope(scope)
                    .epoch(Duration::from_millis(5))
                    .connect()
                    .expect("a consumer can connect");
                let mut next = [0; PRODUCERS as usize];
                let missed = receive_until(&mut consumer, 0, TOTAL, |record| {
                    let (whose, number) = data::check_payload(record.payload());
                    let expected = &mut next[whose as usize];
                    assert_eq!(number, *expected, "producer {whose} in {scope:?} scope");
                    *expected += 1;
                });
                assert_eq!((missed, next), (0, [RECORDS; PRODUCERS as usize]), "{scope:?} scope");
                assert_eq!(consumer.stats().remote_access_errors, 0, "{scope:?} scope");
            });
        }
        // A cut whenever so many more records are in, wherever everybody is just then.
        for cut in 1..=8 {
            until_counters(&broker, "more records", |counters| {
                counters.records >= cut * TOTAL / 10 || done.load(Ordering::SeqCst) == PRODUCERS as usize
            });
            proxy.cut();
        }
        let reconnects: u64 = producers.into_iter().map(|thread| thread.join().expect("its claims hold")).sum();
        assert!(reconnects > 0, "no producer noticed any cut");
    });
    let counters = broker.counters().expect("the broker answers");
    assert_eq!(counters.records, TOTAL, "nothing was committed twice");
    assert!(counters.offers > 0 && counters.duplicates + counters.fillers > 0, "too little happened: {counters:?}");
}
