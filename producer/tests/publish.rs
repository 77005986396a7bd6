//! A producer against a real broker in the same process: every record that gets a receipt is in the log exactly once, in its
//! producer's order, whatever its size and whatever happens to the connection.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod proxy;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keyway_broker::Broker;
use keyway_producer::{ErrorKind, Pending, Producer, Record, Server, TopicSettings};
use proxy::Proxy;

/// A watchdog, not a measure.
const PATIENCE: Duration = Duration::from_secs(60);

fn broker() -> Broker {
    broker_at("127.0.0.1:0")
}

fn broker_at(address: &str) -> Broker {
    Broker::builder().listen(address).pool_size(64 << 20).segment_size(4 << 20).start().unwrap()
}

fn address(broker: &Broker) -> SocketAddr {
    broker.local_addr().unwrap()
}

fn producer(server: impl Into<Server>) -> Producer {
    Producer::builder(server.into(), "t").connect_timeout(Duration::MAX).connect().unwrap()
}

fn sequences(pending: Vec<Pending>) -> Vec<u64> {
    pending.into_iter().map(|pending| pending.wait().unwrap().sequence).collect()
}

/// Checks that receipts are for each record of a log exactly once, in order.
fn assert_whole(sequences: &[u64]) {
    let odd = sequences.iter().enumerate().find(|(place, sequence)| *place as u64 != **sequence);
    assert_eq!(odd, None, "of {}", sequences.len());
}

fn publish_many(server: impl Into<Server>) {
    const RECORDS: u64 = 100_000;
    let producer = producer(server);
    let pending = (0..RECORDS).map(|i| producer.enqueue(i.to_le_bytes().as_slice()).unwrap()).collect();
    producer.flush(Duration::MAX).unwrap();
    assert_whole(&sequences(pending));
    let stats = producer.stats();
    assert_eq!((stats.records, stats.bytes_waiting, stats.retries), (RECORDS, 0, 0));
    assert!(stats.batches < RECORDS, "records that must wait share batches: {stats:?}");
    producer.close(PATIENCE).unwrap();
}

#[test]
fn a_hundred_thousand_records_are_committed_in_order_over_tcp() {
    let broker = broker();
    publish_many(address(&broker));
    assert_eq!(broker.counters().unwrap().records, 100_000);
}

#[test]
fn a_hundred_thousand_records_are_committed_in_order_over_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keyway.sock");
    let broker = Broker::builder().unix(&path).pool_size(64 << 20).start().unwrap();
    publish_many(Server::Unix(path));
    assert_eq!(broker.counters().unwrap().records, 100_000);
}

#[test]
fn a_hundred_thousand_records_are_committed_in_order_within_the_process() {
    let broker = broker();
    publish_many(broker.connector());
    assert_eq!(broker.counters().unwrap().records, 100_000);
}

#[test]
fn a_record_of_every_size_passes_and_one_byte_over_the_most_is_refused() {
    const MOST: usize = 300_000;
    let broker = broker();
    let settings = TopicSettings { record_max: MOST as u32, ..TopicSettings::default() };
    let producer = Producer::builder(address(&broker), "t").settings(settings).connect().unwrap();
    // Around what fits a slot, and around powers of two.
    let near = |at: usize| at.saturating_sub(9)..=at + 9;
    let sizes = (0..=17).flat_map(|power| near(1 << power)).chain(near(65_536 - 100)).chain([MOST - 1, MOST]);
    let payload = vec![0xa5; MOST + 1];
    let pending = sizes.map(|size| producer.enqueue(&payload[..size]).unwrap()).collect();

    let error = producer.enqueue(&payload).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RecordTooLarge);
    assert!(error.to_string().contains("300001") && error.to_string().contains("300000"), "{error}");
    assert_eq!(error.into_record().unwrap().size(), MOST + 1);

    assert_whole(&sequences(pending));
    let record = Record::new("").key("a key").header("a", "header");
    let exact = Record::new(&payload[..MOST - record.size()]).key("a key").header("a", "header");
    assert_eq!(exact.size(), MOST);
    producer.enqueue(exact).unwrap().wait().unwrap();
    let over = Record::new(&payload[..=MOST - record.size()]).key("a key").header("a", "header");
    assert_eq!(producer.enqueue(over).unwrap_err().kind(), ErrorKind::RecordTooLarge);
    producer.enqueue("the next one").unwrap().wait().unwrap();
    producer.close(PATIENCE).unwrap();
}

#[test]
fn large_records_are_offered_and_keep_their_place_among_small_ones() {
    const LARGE: usize = 600;
    let broker = broker();
    let producer = producer(address(&broker));
    let large = vec![1; 100_000];
    let pending = (0..LARGE)
        .flat_map(|i| [producer.enqueue(&large).unwrap(), producer.enqueue(i.to_string()).unwrap()])
        .collect();
    assert_whole(&sequences(pending));
    // 600 offers are 1,200 binds and unbinds: windows were replaced before their keys came round.
    assert_eq!(producer.stats().offers, LARGE as u64);
    producer.close(PATIENCE).unwrap();
    let counters = broker.counters().unwrap();
    assert_eq!((counters.offers, counters.records), (LARGE as u64, 2 * LARGE as u64));
    assert_eq!(counters.remote_access_violations, 0);
}

#[test]
fn batches_may_be_made_larger_than_a_slot() {
    let broker = broker();
    let producer = Producer::builder(address(&broker), "t").batch_max(512 << 10).connect().unwrap();
    let pending = (0..50_000).map(|_| producer.enqueue(&[7; 100]).unwrap()).collect();
    assert_whole(&sequences(pending));
    assert!(producer.stats().offers > 0, "{:?}", producer.stats());
    producer.close(PATIENCE).unwrap();
}

#[test]
fn a_linger_gathers_records() {
    let broker = broker();
    let producer = Producer::builder(address(&broker), "t").linger(Duration::from_millis(200)).connect().unwrap();
    let pending = (0..100).map(|i| producer.enqueue(i.to_string()).unwrap()).collect();
    assert_whole(&sequences(pending));
    let stats = producer.stats();
    assert!(stats.batches <= 2, "{stats:?}");
    // A flush does not wait for the linger.
    let last = producer.enqueue("last").unwrap();
    producer.flush(PATIENCE).unwrap();
    assert!(last.try_result().is_some());
    producer.close(PATIENCE).unwrap();
}

#[test]
fn connections_that_are_cut_cost_no_record_and_double_none() {
    const RECORDS: usize = 20_000;
    let broker = broker();
    let proxy = Proxy::start(address(&broker));
    let mut pending: Vec<Vec<Pending>> = Vec::new();
    let was_cut = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (address, was_cut) = (proxy.address(), &was_cut);
                scope.spawn(move || {
                    let producer = producer(address);
                    let large = vec![3; 80_000];
                    let publish = |i: usize| {
                        // Nobody is done before the last cut, however fast the machine is.
                        while i == RECORDS * 3 / 4 && !was_cut.load(Ordering::Acquire) {
                            std::thread::yield_now();
                        }
                        match i % 500 {
                            0 => producer.enqueue(&large).unwrap(),
                            _ => producer.enqueue(i.to_string()).unwrap(),
                        }
                    };
                    let pending: Vec<Pending> = (0..RECORDS).map(publish).collect();
                    producer.flush(PATIENCE).unwrap();
                    let stats = producer.stats();
                    producer.close(PATIENCE).unwrap();
                    (pending, stats)
                })
            })
            .collect();
        let mut reconnects = 0;
        // Cut by progress, not by time: each cut comes in the midst of what is being published.
        for cut in 1..=8 {
            while broker.counters().unwrap().records < cut * RECORDS as u64 / 3 {
                std::thread::yield_now();
            }
            proxy.cut();
        }
        was_cut.store(true, Ordering::Release);
        for thread in threads {
            let (receipts, stats) = thread.join().unwrap();
            reconnects += stats.reconnects;
            assert_eq!(stats.records, RECORDS as u64);
            pending.push(receipts);
        }
        assert!(reconnects >= 4, "every producer was cut off: {reconnects}");
    });
    let mut all = Vec::new();
    for receipts in pending {
        let sequences = sequences(receipts);
        assert!(sequences.is_sorted_by(|a, b| a < b), "each producer's order is kept");
        all.extend(sequences);
    }
    all.sort_unstable();
    assert_whole(&all);
    assert_eq!(broker.counters().unwrap().records, 4 * RECORDS as u64, "nothing is in the log that has no receipt");
}

#[test]
fn a_broker_that_is_started_anew_gets_what_the_old_one_did_not_acknowledge() {
    const RECORDS: usize = 30_000;
    let old = broker();
    let address = address(&old);
    let producer = producer(address);
    let has_stopped = AtomicBool::new(false);
    let (first, second) = std::thread::scope(|scope| {
        let publishing = scope.spawn(|| {
            let publish = |i: usize| {
                // The last third comes after the stop, however fast the rest was.
                while i == RECORDS * 2 / 3 && !has_stopped.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                enqueue_persistently(&producer, &i.to_string())
            };
            (0..RECORDS).map(publish).collect::<Vec<Pending>>()
        });
        while old.counters().unwrap().records < RECORDS as u64 / 3 {
            std::thread::yield_now();
        }
        old.stop(PATIENCE).unwrap();
        has_stopped.store(true, Ordering::Release);
        let new = broker_at(&address.to_string());
        let mut sequences = sequences(publishing.join().unwrap());
        let turn = sequences.iter().skip(1).position(|sequence| *sequence == 0).expect("the new log begins at 0") + 1;
        let second = sequences.split_off(turn);
        assert_eq!(new.counters().unwrap().records, second.len() as u64);
        (sequences, second)
    });
    assert_whole(&first);
    assert_whole(&second);
    assert_eq!(first.len() + second.len(), RECORDS);
    assert_eq!(producer.stats().reconnects, 1);
    producer.close(PATIENCE).unwrap();
}

/// Tries again while the broker says that it is about to stop.
fn enqueue_persistently(producer: &Producer, payload: &str) -> Pending {
    loop {
        match producer.enqueue(payload) {
            Ok(pending) => return pending,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ShuttingDown, "{error}");
                assert!(error.is_retryable());
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn four_producers_share_a_topic() {
    const RECORDS: usize = 10_000;
    let broker = broker();
    let mut all: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let connector = broker.connector();
                scope.spawn(move || {
                    let producer = producer(connector);
                    let pending = (0..RECORDS).map(|i| producer.enqueue(i.to_string()).unwrap()).collect();
                    let sequences = sequences(pending);
                    assert!(sequences.is_sorted_by(|a, b| a < b));
                    producer.close(PATIENCE).unwrap();
                    sequences
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_unstable();
    assert_whole(&all);
}

#[test]
fn many_tasks_send_at_once_under_tokio() {
    let broker = broker();
    let server = Server::from(address(&broker));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut all = runtime.block_on(async move {
        let producer = Producer::builder(server, "t").buffer(1000).connect_async().await.unwrap();
        let producer = std::sync::Arc::new(producer);
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..200 {
            let producer = std::sync::Arc::clone(&producer);
            tasks.spawn(async move {
                let mut sequences = Vec::new();
                for _ in 0..10 {
                    sequences.push(producer.send(format!("task {task}")).await.unwrap().sequence);
                }
                sequences
            });
        }
        let all: Vec<u64> = tasks.join_all().await.into_iter().flatten().collect();
        producer.flush_async(PATIENCE).await.unwrap();
        std::sync::Arc::into_inner(producer).unwrap().close_async(PATIENCE).await.unwrap();
        all
    });
    all.sort_unstable();
    assert_whole(&all);
    assert_eq!(all.len(), 2000);
}

#[test]
fn what_the_broker_refuses_for_good_ends_the_attempt_at_once() {
    let broker = broker();
    let impossible = TopicSettings { record_max: u32::MAX, ..TopicSettings::default() };
    let error = Producer::builder(address(&broker), "t").settings(impossible).connect().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Refused(_)), "{error}");
    assert!(!error.is_retryable());
    let error = Producer::builder(address(&broker), "no topic").connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let error = Producer::builder("keyway:/oops", "t").connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let missing = Server::Unix(Path::new("/nonexistent/keyway.sock").into());
    let timeout = Duration::from_millis(100);
    let error = Producer::builder(missing, "t").connect_timeout(timeout).connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

#[test]
fn a_producer_waits_for_a_session_until_its_deadline() {
    let broker = Broker::builder().listen("127.0.0.1:0").pool_size(64 << 20).sessions_max(1).start().unwrap();
    let first = producer(address(&broker));
    let timeout = Duration::from_millis(200);
    let error = Producer::builder(address(&broker), "t").connect_timeout(timeout).connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("no session left"), "{error}");
    std::thread::scope(|scope| {
        let second = scope.spawn(|| producer(address(&broker)));
        first.close(PATIENCE).unwrap();
        second.join().unwrap().enqueue("it has the session now").unwrap().wait().unwrap();
    });
}

#[test]
fn a_broker_that_stops_is_told_apart_and_its_successor_found() {
    let old = broker();
    let address = address(&old);
    let producer = producer(address);
    producer.enqueue("before").unwrap().wait().unwrap();
    old.stop(PATIENCE).unwrap();
    let error = loop {
        // What is taken before the word of the stop has come waits for the successor.
        match producer.try_send("meanwhile") {
            Err(error) if error.kind() != ErrorKind::Full => break error,
            _ => std::thread::yield_now(),
        }
    };
    assert_eq!(error.kind(), ErrorKind::ShuttingDown, "{error}");
    assert!(error.is_retryable());
    assert_eq!(error.into_record(), Some(Record::new("meanwhile").into_owned()));
    let new = broker_at(&address.to_string());
    enqueue_persistently(&producer, "after").wait().unwrap();
    assert!(new.counters().unwrap().records >= 1);
    producer.close(PATIENCE).unwrap();
}
