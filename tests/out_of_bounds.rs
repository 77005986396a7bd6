//! A consumer that READs before, beyond or across its grant, or with a key that is not its own, is refused.

mod bus;

use std::time::Duration;

use keyway::Scope;
use keyway_fabric::{DownCause, Key, RemoteSpan, WorkError};
use keyway_schema::message::Grant;
use keyway_schema::record::RecordRef;

use crate::bus::raw::{RawSession, Way, granted, subscription};
use crate::bus::{Watchdog, small_broker, until_counters, way};

const LIMIT: Duration = Duration::from_secs(120);

/// What a READ may do wrong.
fn trespasses(granted: RemoteSpan) -> Vec<(&'static str, RemoteSpan)> {
    let RemoteSpan { address, len, key } = granted;
    let span = |address: u64, len: u32| RemoteSpan { address, len, key };
    let end = address + u64::from(len);
    vec![
        ("just before", span(address - 8, 8)),
        ("one byte before", span(address - 1, 1)),
        ("across its start", span(address - 8, 16)),
        ("one byte too early", span(address - 1, len)),
        ("just beyond", span(end, 8)),
        ("one byte beyond", span(end, 1)),
        ("across its end", span(end - 8, 16)),
        ("one byte too long", span(address, len + 1)),
        ("around it", span(address - 8, len + 16)),
        ("far away", span(address.wrapping_add(1 << 40), 8)),
        ("at zero", span(0, 8)),
        ("at the end of the address space", span(u64::MAX - 3, 8)),
        ("with the next key", RemoteSpan { key: Key(key.0 ^ 1), ..granted }),
        ("with the key of the next window", RemoteSpan { key: Key(key.0.wrapping_add(0x100)), ..granted }),
        ("with no key", RemoteSpan { key: Key(0), ..granted }),
    ]
}

/// A fresh consumer's session, and the second record's grant, which has neighbours in memory on both sides.
fn second_grant(way: &Way, scope: Scope) -> (RawSession, Grant) {
    let mut consumer = RawSession::consumer(way);
    consumer.subscribe(subscription("bounds", scope, 60_000_000, 8));
    let mut grant = consumer.receive_grant();
    if scope == Scope::Message {
        grant = consumer.receive_grant();
    }
    (consumer, grant)
}

#[test]
fn every_trespass_is_refused_and_costs_only_its_own_session() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let way = way(&broker);
    let mut producer = RawSession::producer(&way);
    let opened = producer.open_topic("bounds", 7);
    producer.commit(opened.topic, 7, 1, &[b"the first record", b"the second record", b"the third record"]);

    let mut expected = 0;
    for scope in [Scope::Message, Scope::Batch, Scope::Segment] {
        let (_, model) = second_grant(&way, scope);
        for place in 0..trespasses(granted(&model)).len() {
            let (mut consumer, grant) = second_grant(&way, scope);
            let inside = RemoteSpan { len: grant.len.min(4096), ..granted(&grant) };
            assert!(consumer.read(inside).is_ok(), "the grant itself may be READ");
            let (name, span) = trespasses(granted(&grant))[place];
            assert_eq!(consumer.read(span), Err(WorkError::RemoteAccess), "{name} in {scope:?} scope");
            assert_eq!(consumer.expect_down(), DownCause::Work(WorkError::RemoteAccess), "{name} in {scope:?} scope");
            expected += 1;
        }
    }
    assert!(producer.is_up(), "the producer has nothing to do with it");
    until_counters(&broker, "each refusal to be counted", |counters| counters.remote_access_violations == expected);
    until_counters(&broker, "every window to be freed", |counters| counters.windows == 0);
}

#[test]
fn a_grant_opens_exactly_its_record() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let way = way(&broker);
    let mut producer = RawSession::producer(&way);
    let opened = producer.open_topic("bounds", 7);
    producer.commit(opened.topic, 7, 1, &[b"the first record", b"the second record", b"the third record"]);
    let (mut consumer, grant) = second_grant(&way, Scope::Message);
    let bytes = consumer.read(granted(&grant)).expect("the key is live");
    let record = RecordRef::read(&bytes).expect("a record's grant holds a record");
    assert_eq!((record.payload, record.encoded_len()), (&b"the second record"[..], bytes.len()));
    assert_eq!(grant.sequence, 1);
}
