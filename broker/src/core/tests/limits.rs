//! What is exhausted is refused to the one who asked, and everyone else goes on; and how the core stops.

use std::time::Duration;

use keyway_fabric::{DownCause, Machine};
use keyway_schema::bootstrap::Role;
use keyway_schema::message::{
    Arm, Goodbye, OpenTopic, Publish, Release, Scope, ShuttingDown, Start, Subscribe, Unsubscribe,
};
use keyway_schema::{Code, ToClient};

use super::bench::{Bench, Client, config};
use super::clients::{batch, subscribe};

fn refused(bench: &mut Bench, client: Client) -> Option<Code> {
    match bench.inbox(client).as_slice() {
        [ToClient::Failed(failed)] if failed.request > 0 => Code::from_number(failed.code),
        _ => None,
    }
}

#[test]
fn sessions_topics_subscriptions_and_windows_run_out_one_by_one_and_come_back() {
    let mut config = config(8);
    (config.sessions_max, config.topics_max, config.subscriptions_max, config.windows_max) = (3, 2, 2, 8);
    let mut bench = Bench::new(config);
    let producer = bench.producer(0xa);
    let consumer = bench.connect(Role::Consumer);
    let other = bench.connect(Role::Consumer);
    assert_eq!(bench.open(Role::Consumer).unwrap_err().code, Code::SessionsExhausted);

    let open = |name: &str| OpenTopic { request: 4, topic: name.to_owned(), settings: None, producer: 0xa };
    bench.send(producer, open("u"));
    bench.inbox(producer);
    bench.send(producer, open("v"));
    assert_eq!(refused(&mut bench, producer), Some(Code::TopicsExhausted));
    bench.send(producer, open("not a name"));
    assert_eq!(refused(&mut bench, producer), Some(Code::Name));

    bench.subscribes(consumer, subscribe(Scope::Segment, Start::Latest));
    bench.inbox(consumer);
    bench.subscribes(consumer, subscribe(Scope::Segment, Start::Latest));
    bench.inbox(consumer);
    bench.send(consumer, subscribe(Scope::Segment, Start::Latest));
    assert_eq!(refused(&mut bench, consumer), Some(Code::SubscriptionsExhausted));
    bench.send(other, subscribe(Scope::Segment, Start::Latest));
    assert_eq!(refused(&mut bench, other), Some(Code::WindowsExhausted));

    bench.send(consumer, Unsubscribe { subscription: 2 });
    bench.subscribes(other, subscribe(Scope::Segment, Start::Latest));
    bench.publish(producer, 0xa, 1, &[b"still here"]);
    assert_eq!(bench.ended(producer), None);

    bench.send(consumer, Goodbye {});
    bench.run();
    assert!(bench.open(Role::Consumer).is_ok());
    assert_eq!(bench.core.counters().refusals, 5);
}

#[test]
fn a_fabric_without_windows_refuses_the_subscriber_by_name() {
    let mut bench = Bench::new(config(8));
    bench.windows_left = 0;
    let consumer = bench.connect(Role::Consumer);
    bench.subscribes(consumer, subscribe(Scope::Segment, Start::Latest));
    bench.pass_ms(200);
    assert_eq!(bench.ended(consumer), Some(Code::WindowsExhausted));
}

#[test]
fn a_subscription_goes_on_with_fewer_windows_than_its_depth() {
    let mut bench = Bench::new(config(8));
    bench.windows_left = 2;
    let producer = bench.producer(0xa);
    let consumer = bench.connect(Role::Consumer);
    bench.subscribes(consumer, subscribe(Scope::Batch, Start::Earliest));
    for number in 1..=10 {
        bench.publish(producer, 0xa, number, &[b"record"]);
    }
    let (mut epoch, mut sequence) = (0, 0);
    while sequence < 10 {
        let grants = bench.grants(consumer);
        assert!((1..=2).contains(&grants.len()), "{grants:?}");
        for grant in grants {
            assert_eq!((grant.epoch, grant.sequence), (epoch + 1, sequence));
            (epoch, sequence) = (grant.epoch, grant.sequence + u64::from(grant.records));
        }
        bench.send(consumer, Release { subscription: 1, epoch, sequence, pause: false });
    }
}

#[test]
fn what_cannot_be_meant_ends_the_session_with_a_reason_and_no_other() {
    type Act = fn(&mut Bench, Client);
    let acts: [(Act, Code); 9] = [
        (|bench, it| bench.send(it, Arm { subscription: 1, sequence: 1 }), Code::Protocol),
        (|bench, it| bench.send(it, Arm { subscription: 9, sequence: 0 }), Code::SubscriptionUnknown),
        (|bench, it| bench.send(it, Release { subscription: 1, epoch: 2, sequence: 0, pause: false }), Code::Protocol),
        (|bench, it| bench.send(it, Release { subscription: 1, epoch: 1, sequence: 5, pause: true }), Code::Protocol),
        (|bench, it| bench.send(it, Unsubscribe { subscription: 0 }), Code::SubscriptionUnknown),
        (|bench, it| bench.send_with(it, &Publish { topic: 1 }.into(), &batch(1, 1, 1, &[b"x"])), Code::Protocol),
        (|bench, it| assert!(bench.send_raw(it, b"")), Code::Protocol),
        (|bench, it| assert!(bench.send_raw(it, b"KW\x02\x09\0\0\0\0\0\0\0\0\x07\0\0\0")), Code::Version),
        (|bench, it| assert!(bench.send_raw(it, b"KW\x01\x09\xff\x7f\0\0\0\0\0\0\x07\0\0\0")), Code::Protocol),
    ];
    for (place, (act, code)) in acts.into_iter().enumerate() {
        let mut bench = Bench::new(config(8));
        let (consumer, other) = (bench.connect(Role::Consumer), bench.connect(Role::Consumer));
        for client in [consumer, other] {
            bench.subscribes(client, subscribe(Scope::Segment, Start::Latest));
            bench.inbox(client);
        }
        act(&mut bench, consumer);
        assert_eq!(bench.ended(consumer), Some(code), "act {place}");
        let told = bench.inbox(consumer);
        assert!(
            matches!(&told[..], [ToClient::Failed(failed)] if failed.code == code.number()),
            "act {place}: {told:?}"
        );
        bench.send(other, Arm { subscription: 1, sequence: 0 });
        assert_eq!(bench.ended(other), None);
    }
}

#[test]
fn a_session_that_takes_no_last_message_is_closed_after_the_linger() {
    let mut bench = Bench::new(config(8));
    let consumer = bench.connect(Role::Consumer);
    bench.holds_sends = true;
    bench.send_raw(consumer, b"rubbish");
    assert!(!bench.is_closed(consumer));
    bench.pass_ms(100);
    assert!(bench.is_closed(consumer));
    assert_eq!(bench.ended(consumer), Some(Code::Protocol));
}

#[test]
fn absurd_numbers_are_brought_to_what_is_possible() {
    let mut bench = Bench::new(config(8));
    let consumer = bench.connect(Role::Consumer);
    let mut request = subscribe(Scope::Message, Start::Sequence(u64::MAX));
    request.depth = u16::MAX;
    request.epoch.interval_us = 1;
    request.epoch.grace_ms = u32::MAX;
    let subscribed = bench.subscribes(consumer, request);
    assert_eq!((subscribed.depth, subscribed.sequence), (64, 0));
    assert_eq!((subscribed.epoch.interval_us, subscribed.epoch.grace_ms), (100, 60_000));
    let request = Subscribe { depth: 1, ..subscribe(Scope::Segment, Start::Latest) };
    assert_eq!(bench.subscribes(consumer, request).depth, 2);
}

#[test]
fn a_session_lost_before_it_was_up_leaves_nothing_behind() {
    let mut bench = Bench::new(config(8));
    let client = bench.open(Role::Consumer).unwrap();
    bench.core.session_lost(bench.now, client.id);
    bench.run();
    assert!(bench.is_closed(client));
    assert_eq!((bench.core.counters().sessions, bench.locals()), (0, 0));
}

#[test]
fn stopping_ends_each_session_as_soon_as_it_has_nothing_left_to_do() {
    let mut bench = Bench::new(config(8));
    let producer = bench.producer(0xa);
    bench.publish(producer, 0xa, 1, &[b"one"]);
    bench.inbox(producer);
    let (reader, idle) = (bench.connect(Role::Consumer), bench.connect(Role::Consumer));
    let mut request = subscribe(Scope::Batch, Start::Earliest);
    request.epoch.grace_ms = 60_000;
    bench.subscribes(reader, request);
    let mut request = subscribe(Scope::Segment, Start::Latest);
    request.epoch.grace_ms = 60_000;
    bench.subscribes(idle, request);
    assert_eq!(bench.grants(reader).len() + bench.grants(idle).len(), 2);
    let unborn = bench.open(Role::Consumer).unwrap();

    bench.core.shut_down(bench.now, Duration::from_secs(5));
    bench.run();
    assert_eq!(bench.core.admit(Role::Consumer).unwrap_err().code, Code::ShuttingDown);
    // What was on its way is still taken.
    bench.pass_ms(99);
    bench.publish(producer, 0xa, 2, &[b"two"]);
    bench.send(idle, Arm { subscription: 1, sequence: 1 });
    bench.inbox(idle);
    bench.send(idle, Arm { subscription: 1, sequence: 2 });
    assert_eq!(bench.core.counters().records, 2);
    bench.pass_ms(99);
    assert!(!bench.is_closed(producer) && !bench.is_closed(idle));
    bench.pass_ms(1);
    let told = bench.inbox(producer);
    assert_eq!(told[0], ToClient::ShuttingDown(ShuttingDown { deadline_ms: 5_000 }));
    assert!(bench.is_closed(producer) && bench.is_closed(idle) && bench.is_closed(unborn));
    assert_eq!(bench.ended(idle), Some(Code::ShuttingDown));
    assert!(!bench.is_closed(reader) && !bench.core.is_drained());

    bench.send(reader, Release { subscription: 1, epoch: 2, sequence: 2, pause: false });
    bench.pass_ms(100);
    assert!(bench.is_closed(reader) && bench.core.is_drained());
    assert_eq!((bench.core.counters().windows, bench.locals()), (0, 0));
}

#[test]
fn stopping_cuts_off_at_the_deadline_who_does_not_read() {
    let mut bench = Bench::new(config(8));
    let producer = bench.producer(0xa);
    bench.publish(producer, 0xa, 1, &[b"one"]);
    let reader = bench.connect(Role::Consumer);
    let mut request = subscribe(Scope::Batch, Start::Earliest);
    request.epoch.grace_ms = 60_000;
    bench.subscribes(reader, request);
    bench.core.shut_down(bench.now, Duration::from_secs(5));
    bench.pass(Duration::from_millis(4_999));
    assert!(!bench.core.is_drained());
    bench.pass_ms(1);
    assert!(bench.core.is_drained());
    assert_eq!((bench.ended(reader), bench.core.timeout()), (Some(Code::ShuttingDown), None));
}

#[test]
fn a_clone_of_a_core_goes_its_own_way() {
    let mut bench = Bench::new(config(8));
    let consumer = bench.connect(Role::Consumer);
    bench.subscribes(consumer, subscribe(Scope::Segment, Start::Latest));
    let twin = bench.core.clone();
    bench.down(consumer.link, DownCause::PeerLost);
    bench.run();
    assert_eq!((twin.counters().sessions, bench.core.counters().sessions), (1, 0));
    assert!(format!("{twin:?}").contains("Subscription"));
}
