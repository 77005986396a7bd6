//! T22: when sessions, topics, subscriptions or the pool are exhausted, the one who asks gets a clear error, everybody else goes on,
//! and it works again when something is freed.

mod bus;

use std::time::Duration;

use keyway::{Consumer, ErrorKind, Producer, Scope, Server, Start};
use keyway_schema::message::Unsubscribe;
use keyway_schema::{Code, ToClient};

use crate::bus::clients::{SCOPES, next_record, producer, publish, receive_until};
use crate::bus::raw::{RawSession, subscription};
use crate::bus::{PATIENCE, Watchdog, data, small_broker, until_counters, way};

const LIMIT: Duration = Duration::from_secs(120);

/// How long a client that is refused keeps trying before it says so: time enough for a first refusal on a busy machine.
const SHORT: Duration = Duration::from_secs(3);

#[test]
fn sessions() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().sessions_max(2).start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    let first = producer(&server, "topic");
    let mut second = Consumer::builder(&server, "topic").start(Start::Earliest).connect().expect("there is room");
    let error = Producer::builder(&server, "topic").connect_timeout(SHORT).connect().expect_err("there is none left");
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains("2 sessions"), "the limit should be named: {error}");
    publish(&first, 1, 0, 10, 10);
    assert_eq!(next_record(&mut second).sequence(), 0);

    assert!(broker.counters().expect("the broker answers").refusals > 0);

    first.close(PATIENCE).expect("it closes");
    producer(&server, "topic").enqueue("another").expect("it is taken").wait().expect("it is committed");
}

#[test]
fn topics() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().topics_max(2).start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    let (first, _second) = (producer(&server, "one"), producer(&server, "two"));
    for error in [
        Producer::builder(&server, "three").connect_timeout(SHORT).connect().map(drop),
        Consumer::builder(&server, "three").connect_timeout(SHORT).connect().map(drop),
    ] {
        let error = error.expect_err("there is no topic left");
        assert!(is_refused(error.kind(), Code::TopicsExhausted), "{error}");
    }
    publish(&first, 1, 0, 10, 10);
    let mut consumer = Consumer::builder(&server, "one").start(Start::Earliest).connect().expect("it exists");
    assert_eq!(next_record(&mut consumer).sequence(), 0);
    assert_eq!(first.stats().reconnects, 0);
}

/// A client that keeps trying until its deadline may say so, as long as it says why.
fn is_refused(kind: ErrorKind, code: Code) -> bool {
    kind == ErrorKind::Refused(code) || kind == ErrorKind::Timeout
}

#[test]
fn subscriptions_of_a_session() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let way = way(&broker);
    let mut session = RawSession::consumer(&way);
    let mut subscriptions = Vec::new();
    let refused = loop {
        session.send(subscription("topic", Scope::Batch, 1_000_000, 1));
        let answer = session.receive_some("an answer", |message| match message {
            ToClient::Subscribed(subscribed) => Some(Ok(subscribed.subscription)),
            ToClient::Failed(failed) => Some(Err(failed)),
            _ => None,
        });
        match answer {
            Ok(subscription) => subscriptions.push(subscription),
            Err(failed) => break failed,
        }
        assert!(subscriptions.len() < 10_000, "there is no limit");
    };
    assert_eq!(Code::from_number(refused.code), Some(Code::SubscriptionsExhausted), "{}", refused.text);
    assert_eq!(refused.request, 2, "the request is refused, not the session ended");
    assert!(refused.text.contains(&subscriptions.len().to_string()), "the limit should be named: {}", refused.text);
    session.send(Unsubscribe { subscription: subscriptions[0] });
    until_counters(&broker, "one to be gone", |counters| counters.subscriptions as usize == subscriptions.len() - 1);
    session.subscribe(subscription("topic", Scope::Batch, 1_000_000, 1));
    assert!(session.is_up());
}

#[test]
fn the_pool() {
    let _watchdog = Watchdog::start(LIMIT);
    // Two segments, and a topic that takes both.
    let broker = small_broker().pool_size(128 << 10).topic_segments(2).start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    let rich = producer(&server, "rich");
    publish(&rich, 1, 0, 100, 1_000);
    let poor = Producer::builder(&server, "poor").connect_timeout(SHORT).connect();
    let error = match poor {
        Err(error) => error,
        Ok(poor) => poor.enqueue("penny").expect("it is taken").wait().expect_err("there is no segment left"),
    };
    assert!(is_refused(error.kind(), Code::PoolExhausted), "{error}");
    assert!(error.to_string().contains("segment"), "{error}");
    // The rich go on: their ring drops its own.
    publish(&rich, 1, 100, 500, 1_000);
    let mut consumer = Consumer::builder(&server, "rich").start(Start::Earliest).connect().expect("it exists");
    assert!(next_record(&mut consumer).sequence() > 0);
    assert_eq!(rich.stats().reconnects, 0);
}

/// A ring's size is a limit and no claim: who needs a first segment takes the oldest of the largest ring.
#[test]
fn the_pool_is_shared_with_a_newcomer() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().pool_size(512 << 10).topic_segments(8).start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    let mut consumers: Vec<_> = SCOPES
        .into_iter()
        .map(|scope| {
            let builder = Consumer::builder(&server, "rich").start(Start::Earliest).scope(scope);
            builder.connect().expect("a consumer can connect")
        })
        .collect();
    let rich = producer(&server, "rich");
    publish(&rich, 1, 0, 600, 1_000);
    until_counters(&broker, "the pool to be in one hand", |counters| counters.segments_live == 8);
    let poor = producer(&server, "poor");
    publish(&poor, 2, 0, 200, 1_000);
    publish(&rich, 1, 600, 600, 1_000);
    for consumer in &mut consumers {
        receive_until(consumer, 0, 1_200, |record| {
            assert_eq!(data::check_payload(record.payload()), (1, record.sequence()));
        });
    }
    let mut heir = Consumer::builder(&server, "poor").start(Start::Sequence(0)).connect().expect("it exists");
    receive_until(&mut heir, 0, 200, |record| {
        assert_eq!(data::check_payload(record.payload()), (2, record.sequence()));
    });
    assert_eq!((rich.stats().reconnects, poor.stats().reconnects), (0, 0));
}

/// A stopped consumer pins the segments that it holds keys of; with none free the producer waits, and goes on when the keys are gone.
#[test]
fn the_pool_while_a_consumer_holds_on_to_its_segments() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().pool_size(128 << 10).topic_segments(2).start().expect("the settings fit each other");
    let server = Server::from(broker.connector());
    let producer = producer(&server, "pinned");
    publish(&producer, 1, 0, 3, 10);
    let mut holder = RawSession::consumer(&way(&broker));
    let mut subscribe = subscription("pinned", Scope::Segment, 200_000, 4);
    subscribe.epoch.grace_ms = 300;
    holder.subscribe(subscribe);
    holder.receive_grant();
    let pending: Vec<_> =
        (0..400).map(|number| producer.enqueue(data::payload(1, number, 1_000)).expect("a record is taken")).collect();
    until_counters(&broker, "the producer to wait", |counters| {
        counters.batches_waiting > 0 || counters.segments_limbo > 0
    });
    for pending in pending {
        pending.wait().expect("it is committed once the key is dead");
    }
    let counters = broker.counters().expect("the broker answers");
    assert!(counters.revocations_forced > 0, "the holder never let go by itself: {counters:?}");
    assert_eq!(counters.segments_limbo, 0, "{counters:?}");
    assert_eq!(producer.stats().reconnects, 0);
}
