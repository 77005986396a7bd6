//! Whatever a client says, the broker neither panics nor lets anybody else feel it.

use keyway_schema::bootstrap::Role;
use keyway_schema::message::*;
use keyway_schema::{ToBroker, ToClient};
use proptest::prelude::*;

use super::bench::{Bench, Client, config};
use super::clients::{batch, subscribe};

/// A number that is small, or at an edge, or anything.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0_u64..6, 2 => Just(u64::MAX), 1 => Just(1 << 40), 1 => any::<u64>()]
}

fn start() -> impl Strategy<Value = Start> {
    prop_oneof![
        Just(Start::Latest),
        Just(Start::Earliest),
        number().prop_map(Start::Sequence),
        number().prop_map(Start::Time)
    ]
}

fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![Just(Scope::Segment), Just(Scope::Batch), Just(Scope::Message)]
}

fn consumer_message() -> impl Strategy<Value = ToBroker> {
    let subscribe = (number(), start(), scope(), number(), number(), number(), number(), "[a-t/ ]{0,3}").prop_map(
        |(depth, start, scope, interval, grace, bytes, records, topic)| {
            ToBroker::from(Subscribe {
                request: 1,
                topic,
                name: String::new(),
                start,
                scope,
                epoch: EpochSettings { interval_us: interval as u32, grace_ms: grace as u32, bytes, records },
                depth: depth as u16,
                grant_bytes: bytes as u32,
            })
        },
    );
    let release = (number(), number(), number(), any::<bool>()).prop_map(|(subscription, epoch, sequence, pause)| {
        ToBroker::from(Release { subscription: subscription as u32, epoch, sequence, pause })
    });
    let arm = (number(), number())
        .prop_map(|(subscription, sequence)| ToBroker::from(Arm { subscription: subscription as u32, sequence }));
    let end = number().prop_map(|it| ToBroker::from(Unsubscribe { subscription: it as u32 }));
    prop_oneof![3 => subscribe, 6 => release, 4 => arm, 1 => end, 1 => Just(ToBroker::from(Credit {}))]
}

fn producer_message() -> impl Strategy<Value = ToBroker> {
    let open = ("[a-t/ ]{0,3}", number(), number(), number()).prop_map(|(topic, producer, segments, record_max)| {
        let (segments, record_max) = (segments as u32, record_max as u32);
        let settings = Some(TopicSettings { segments, record_max, overflow: Overflow::DropOldest });
        ToBroker::from(OpenTopic { request: 1, topic, settings: settings.filter(|_| segments > 3), producer })
    });
    let publish = number().prop_map(|topic| ToBroker::from(Publish { topic: topic as u32 }));
    let offer = (number(), number(), number(), number()).prop_map(|(topic, number, address, len)| {
        let len = (len as u32).wrapping_mul(20_000);
        ToBroker::from(Offer { topic: topic as u32, number, address, len, key: 1 })
    });
    prop_oneof![2 => open, 4 => publish, 4 => offer, 1 => Just(ToBroker::from(Goodbye {}))]
}

/// A bench with a consumer and a producer that behave, of which the others must not be felt.
fn bystanders() -> (Bench, Client, Client) {
    let mut config = config(8);
    config.windows_max = 40;
    let mut bench = Bench::new(config);
    let producer = bench.producer(0xabcd);
    let consumer = bench.connect(Role::Consumer);
    let mut request = subscribe(Scope::Batch, Start::Earliest);
    request.epoch.grace_ms = 60_000;
    bench.subscribes(consumer, request);
    (bench, producer, consumer)
}

/// They still work: a record goes through.
fn still_work(bench: &mut Bench, producer: Client, consumer: Client, number: u64) {
    bench.publish(producer, 0xabcd, number, &[b"through"]);
    assert!(bench.ended(producer).is_none() && bench.ended(consumer).is_none());
    let told = bench.inbox(consumer);
    let grant = told.iter().rev().find_map(|it| if let ToClient::Grant(grant) = it { Some(grant) } else { None });
    let grant = grant.unwrap_or_else(|| panic!("the record is granted, but what came is {told:?}"));
    assert!(bench.read_grant(grant).is_some());
    let (epoch, sequence) = (grant.epoch, grant.sequence + u64::from(grant.records));
    bench.send(consumer, Release { subscription: 1, epoch, sequence, pause: false });
    bench.inbox(producer);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_end_their_session_at_most(
        messages in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..200)), 1..8),
    ) {
        let (mut bench, producer, consumer) = bystanders();
        for (place, (is_producer, mut bytes)) in messages.into_iter().enumerate() {
            let client = bench.connect(if is_producer { Role::Producer } else { Role::Consumer });
            if bytes.len() >= 16 {
                // Let it get past the envelope.
                bytes[..3].copy_from_slice(b"KW\x01");
                bytes[3] %= 10;
                bytes[4..6].fill(0);
                bytes[12..16].copy_from_slice(&7_u32.to_le_bytes());
                let len = bytes.len() as u16 - 16;
                bytes[6..8].copy_from_slice(&len.to_le_bytes());
                bytes[8..12].fill(0);
            }
            bench.send_raw(client, &bytes);
            still_work(&mut bench, producer, consumer, place as u64 + 1);
        }
    }

    #[test]
    fn any_messages_of_a_consumer_end_its_session_at_most(
        steps in prop::collection::vec((consumer_message(), 0_u64..40), 1..60),
    ) {
        let (mut bench, producer, consumer) = bystanders();
        let mut client = bench.connect(Role::Consumer);
        bench.subscribes(client, subscribe(Scope::Segment, Start::Earliest));
        for (place, (message, ms)) in steps.into_iter().enumerate() {
            if bench.is_closed(client) {
                client = bench.connect(Role::Consumer);
            }
            let bytes = bench.encode(client, &message, &[]);
            bench.send_raw(client, &bytes);
            bench.pass_ms(ms);
            still_work(&mut bench, producer, consumer, place as u64 + 1);
        }
        bench.pass_ms(200_000);
        prop_assert_eq!(bench.core.counters().segments_limbo, 0);
    }

    #[test]
    fn any_messages_of_a_producer_end_its_session_at_most(
        steps in prop::collection::vec((producer_message(), number(), number(), 0_u64..40, any::<bool>()), 1..40),
    ) {
        let (mut bench, producer, consumer) = bystanders();
        let mut client = bench.producer(1);
        for (place, (message, number, topic, ms, holds)) in steps.into_iter().enumerate() {
            if bench.is_closed(client) {
                client = bench.producer(1);
            }
            bench.holds_reads = holds;
            let is_publish = matches!(message, ToBroker::Publish(_));
            let content = batch(topic as u32, 1, number, &[b"some", b"records"]);
            let bytes = bench.encode(client, &message, if is_publish { &content } else { &[] });
            bench.send_raw(client, &bytes);
            bench.pass_ms(ms);
            bench.pass_ms(400);
            bench.release_work();
            still_work(&mut bench, producer, consumer, place as u64 + 1);
        }
        let topic = bench.core.topics().next().unwrap();
        prop_assert_eq!((topic.reserved, topic.waiting), (0, 0));
    }
}
