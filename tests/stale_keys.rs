//! A consumer that keeps a key and READs with it is refused: after release, after revocation, after 256 and after 1,000 epochs.
//!
//! The consumer is a session by hand. A refused READ is the end of its endpoint, so each attempt is made by a stranger: a fresh
//! session of the same domain, which is what any client could have.

mod bus;

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use keyway::{Broker, Scope};
use keyway_fabric::WorkError;
use keyway_schema::message::{Grant, Release};
use keyway_schema::{Code, ToClient};

use crate::bus::raw::{RawSession, Way, granted, subscription};
use crate::bus::{Watchdog, small_broker, until_counters, way};

const LIMIT: Duration = Duration::from_secs(120);

/// Tries a grant's key from a session of its own.
fn try_key(way: &Way, grant: &Grant) -> Result<Vec<u8>, WorkError> {
    let mut span = granted(grant);
    span.len = span.len.min(4096);
    RawSession::consumer(way).read(span)
}

/// A broker with three records in a topic.
fn broker_with_records(topic: &str) -> (Broker, Way) {
    let broker = small_broker().start().expect("the settings fit each other");
    let way = way(&broker);
    let mut producer = RawSession::producer(&way);
    let opened = producer.open_topic(topic, 7);
    producer.commit(opened.topic, 7, 1, &[b"one", b"two", b"three"]);
    (broker, way)
}

#[test]
fn after_release() {
    let _watchdog = Watchdog::start(LIMIT);
    let (broker, way) = broker_with_records("released");
    let mut consumer = RawSession::consumer(&way);
    let subscribed = consumer.subscribe(subscription("released", Scope::Message, 1_000_000, 8));
    let grants: Vec<Grant> = (0..3).map(|_| consumer.receive_grant()).collect();
    assert!(try_key(&way, &grants[0]).is_ok(), "a live key opens its record");

    consumer.send(Release {
        subscription: subscribed.subscription,
        epoch: grants[1].epoch,
        sequence: grants[2].sequence,
        pause: false,
    });
    until_counters(&broker, "both windows to be unbound", |counters| counters.windows_live == 1);
    for grant in &grants[..2] {
        assert_eq!(try_key(&way, grant), Err(WorkError::RemoteAccess), "epoch {}", grant.epoch);
    }
    assert!(try_key(&way, &grants[2]).is_ok(), "the key that was not released is another matter");
    assert_eq!(consumer.read(granted(&grants[0])), Err(WorkError::RemoteAccess), "nor may the consumer itself");
    consumer.expect_down();
    until_counters(&broker, "each refusal to be counted", |counters| counters.remote_access_violations == 3);
}

#[test]
fn after_a_revocation_that_was_heeded() {
    let _watchdog = Watchdog::start(LIMIT);
    let (broker, way) = broker_with_records("lapped");
    let mut consumer = RawSession::consumer(&way);
    let subscribed = consumer.subscribe(subscription("lapped", Scope::Segment, 60_000_000, 4));
    let grant = consumer.receive_grant();
    lap(&way, "lapped");
    let revoked = consumer.receive_some("a revocation", |message| match message {
        ToClient::Revoked(revoked) => Some(revoked),
        _ => None,
    });
    assert!(revoked.epoch >= grant.epoch);
    let mut epoch = revoked.epoch;
    consumer.send(Release { subscription: subscribed.subscription, epoch, sequence: 0, pause: true });
    until_counters(&broker, "the windows to be unbound", |counters| {
        // Grants that were on their way are released as they come.
        while let Some(message) = consumer.poll() {
            if let ToClient::Grant(grant) = message {
                epoch = epoch.max(grant.epoch);
                consumer.send(Release { subscription: subscribed.subscription, epoch, sequence: 0, pause: true });
            }
        }
        counters.windows_live == 0
    });
    assert_eq!(try_key(&way, &grant), Err(WorkError::RemoteAccess));
    assert!(consumer.is_up(), "who releases in time keeps the session");
}

#[test]
fn after_a_revocation_that_was_ignored() {
    let _watchdog = Watchdog::start(LIMIT);
    let (broker, way) = broker_with_records("ignored");
    let mut consumer = RawSession::consumer(&way);
    let mut subscribe = subscription("ignored", Scope::Segment, 20_000, 4);
    subscribe.epoch.grace_ms = 20;
    consumer.subscribe(subscribe);
    let grant = consumer.receive_grant();
    // It never releases, so its windows are freed at the deadline and its session ends with a reason.
    assert_eq!(consumer.reason(), Some(Code::GraceOver));
    assert_eq!(try_key(&way, &grant), Err(WorkError::RemoteAccess));
    let counters = until_counters(&broker, "everything of it to be freed", |counters| counters.windows == 0);
    assert!(counters.revocations_forced > 0);
}

#[test]
fn after_256_and_after_1000_epochs() {
    let _watchdog = Watchdog::start(LIMIT);
    let (broker, way) = broker_with_records("rotated");
    let mut consumer = RawSession::consumer(&way);
    let subscribed = consumer.subscribe(subscription("rotated", Scope::Segment, 500, 4));
    let mut keys = HashSet::new();
    let mut kept: Vec<Grant> = Vec::new();
    let mut ages = BTreeSet::new();
    let mut released = 0;
    while kept.last().is_none_or(|grant| grant.epoch < 1_050) {
        let grant = consumer.receive_grant();
        assert!(keys.insert(grant.key), "key {:#x} was issued before, epoch {}", grant.key, grant.epoch);
        if grant.supersedes > released {
            released = grant.supersedes;
            let release = Release { subscription: subscribed.subscription, epoch: released, sequence: 0, pause: false };
            consumer.send(release);
        }
        let epoch = grant.epoch;
        kept.push(grant);
        // Around the epochs at which a window's key could come round, and now and then.
        if matches!(epoch, 128 | 129 | 256..=259 | 512 | 513 | 999..=1_003) {
            for old in [1, epoch.saturating_sub(256), epoch.saturating_sub(512)] {
                let Some(old) = kept.iter().find(|grant| grant.epoch == old && grant.epoch + 3 < released) else {
                    continue;
                };
                assert_eq!(try_key(&way, old), Err(WorkError::RemoteAccess), "epoch {} at {epoch}", old.epoch);
                ages.insert(epoch - old.epoch);
            }
        }
    }
    assert!(ages.contains(&256) && ages.last() >= Some(&1_000), "keys of these ages were tried: {ages:?}");
    for old in kept.iter().filter(|grant| grant.epoch + 10 < released).step_by(97) {
        assert_eq!(try_key(&way, old), Err(WorkError::RemoteAccess), "epoch {} at the end", old.epoch);
    }
    let counters = broker.counters().expect("the broker answers");
    assert!(counters.windows_allocated > 4, "no window was replaced before its keys came round");
    assert_eq!(counters.revocations_forced, 0);
    assert!(consumer.is_up(), "all of this is nothing to a consumer that keeps the protocol");
}

/// Publishes until the ring has dropped what was there.
fn lap(way: &Way, topic: &str) {
    let mut producer = RawSession::producer(way);
    let opened = producer.open_topic(topic, 8);
    let payload = vec![1; 30 << 10];
    // Two records a segment, 16 segments.
    for number in 1..=40 {
        producer.commit(opened.topic, 8, number, &[&payload]);
    }
}
