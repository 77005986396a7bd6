//! Whatever a broker says that cannot be true ends the session with a typed fault, and only the session.

use super::*;
use crate::events::Event as ConsumerEvent;
use crate::machine::{Fault, FinalRefusal};
use keyway_schema::Code;
use std::time::Duration;

/// A subscribed bench with a grant of epoch 1 and one record read.
fn reading() -> Bench {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(100);
    bench.grant(0, 0);
    bench.complete_all();
    bench
}

#[test]
fn every_message_that_cannot_be_true_ends_the_session_with_its_reason() {
    type Break = fn(&mut Bench) -> ToClient;
    type Case = (&'static str, Box<dyn Fn(&mut Bench) -> ToClient>);
    let grant = |change: fn(&mut Grant)| {
        move |bench: &mut Bench| {
            let mut grant = bench.segment_grant(2, 0, 1);
            change(&mut grant);
            ToClient::from(grant)
        }
    };
    let cases: Vec<Case> = vec![
        ("epoch 3", Box::new(grant(|grant| grant.epoch = 3))),
        ("superseded epoch", Box::new(grant(|grant| grant.supersedes = 2))),
        ("the offset", Box::new(grant(|grant| grant.offset = u64::MAX - 7))),
        ("the offset", Box::new(grant(|grant| grant.offset = 8))),
        ("the length", Box::new(grant(|grant| grant.len = SEGMENT / 2))),
        ("the length", Box::new(grant(|grant| grant.len = 0))),
        ("the address", Box::new(grant(|grant| grant.address = u64::MAX))),
        ("the sequence", Box::new(grant(|grant| (grant.sequence, grant.records) = (u64::MAX, 1)))),
        ("another subscription", Box::new(grant(|grant| grant.subscription = 6))),
        ("up to 9", Box::new((|_| Revoked { subscription: 5, epoch: 9, code: 0 }.into()) as Break)),
        ("offset 3", Box::new((|_| Wake { subscription: 5, tail: 3 }.into()) as Break)),
        ("offset 17", Box::new((|_| Lagged { subscription: 5, sequence: 9, offset: 17 }.into()) as Break)),
        ("offset 0", Box::new((|_| Lagged { subscription: 5, sequence: 9, offset: 0 }.into()) as Break)),
        ("Subscribed", Box::new((|bench: &mut Bench| bench.subscribed_message(0, start_of(0)).into()) as Break)),
        ("Withdraw", Box::new((|_| Withdraw { topic: TOPIC, number: 1 }.into()) as Break)),
    ];
    for (reason, message) in cases {
        let mut bench = reading();
        let message = message(&mut bench);
        bench.tell(message.clone());
        let fault = bench.machine.last_fault().unwrap_or_else(|| panic!("{message:?} is accepted")).to_string();
        assert!(fault.contains(reason), "{message:?}: {fault}");
        assert!(bench.closed, "{message:?}");
        assert_eq!(bench.machine.counters().faults, 1);
        // The consumer goes on at its cursor.
        bench.down();
        bench.connect(1);
        assert!(matches!(bench.sent.last(), Some(ToBroker::Subscribe(s)) if s.start == Start::Sequence(1)));
    }
}

#[test]
fn a_subscription_that_cannot_be_true_ends_the_session() {
    type Case = (&'static str, fn(&mut Subscribed));
    let cases: [Case; 9] = [
        ("another request", |told| told.request += 1),
        ("the segment size", |told| told.segment_size = 100),
        ("the segment size", |told| told.segment_size = u32::MAX),
        ("the longest batch", |told| told.batch_max = 8),
        ("the longest batch", |told| told.batch_max = SEGMENT),
        ("the depth", |told| told.depth = 0),
        ("the depth", |told| told.depth = 65),
        ("offset 0", |told| told.offset = 0),
        ("offset 18446744073709551608", |told| told.offset = u64::MAX - 7),
    ];
    for (reason, change) in cases {
        let mut bench = Bench::new(|_| ());
        bench.connect(1);
        let mut told = bench.subscribed_message(0, start_of(0));
        change(&mut told);
        bench.tell(told);
        let fault = bench.machine.last_fault().expect(reason).to_string();
        assert!(fault.contains(reason), "{fault}");
        assert!(bench.closed);
    }
}

#[test]
fn a_tail_word_of_another_segment_ends_the_session() {
    for offset in [start_of(1), 8, start_of(0) + 4, u64::MAX >> 1] {
        let mut bench = Bench::subscribed(Scope::Segment);
        bench.grant(0, 0);
        let read = bench.reads.pop_front().unwrap();
        bench.complete_with(read, &Tail { offset, sealed: false }.word().to_le_bytes());
        assert_eq!(bench.machine.last_fault(), Some(&Fault::Tail { segment: 0, offset }));
        assert!(bench.closed);
    }
}

#[test]
fn a_refused_read_ends_the_session_and_is_counted() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(10);
    bench.grant(0, 0);
    bench.fail_reads(WorkError::RemoteAccess);
    assert!(bench.closed);
    assert_eq!(bench.machine.counters().remote_access_errors, 1);
    assert_eq!(bench.machine.last_fault().map(Fault::code), Some(Code::KeyViolation.number()));
    bench.down();
    bench.sent();
    bench.connect(1);
    bench.confirm(0, start_of(0));
    bench.grant(0, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..1));
}

#[test]
fn work_that_ends_with_its_endpoint_is_not_held_against_the_broker() {
    for error in [WorkError::Flushed, WorkError::Disconnected] {
        let mut bench = Bench::subscribed(Scope::Segment);
        bench.log.append_one(10);
        bench.grant(0, 0);
        bench.fail_reads(error);
        assert!(!bench.closed && bench.items().is_empty(), "its end is on its way");
        bench.down();
        assert_eq!((bench.machine.counters().faults, bench.machine.last_fault()), (0, None));
        bench.sent();
        bench.connect(1);
        bench.confirm(0, start_of(0));
        bench.grant(0, 0);
        bench.complete_all();
        assert_eq!(bench.items(), records(0..1));
    }
}

#[test]
fn bytes_that_are_no_message_or_of_another_session_end_the_session() {
    let garbage = |bench: &mut Bench, generation: u32, flip: bool| {
        let (op, span) = bench.receives.pop_front().unwrap();
        let message = ToClient::from(Wake { subscription: 5, tail: 0 });
        let slot = bench.locals.bytes_mut(span);
        let len = message.encode(generation, 0, 0, slot).unwrap();
        if flip {
            slot[0] ^= 1;
        }
        bench.event(Event::Message { link: LINK, op, span: span.part(0, len as u32) });
    };
    for (generation, flip) in [(GENERATION, true), (GENERATION - 1, false)] {
        let mut bench = reading();
        garbage(&mut bench, generation, flip);
        assert!(bench.closed && matches!(bench.machine.last_fault(), Some(Fault::Message(_))));
    }
}

#[test]
fn a_refusal_for_good_ends_the_consumer_and_one_for_now_does_not() {
    for (code, last) in [
        (Code::Settings.number(), true),
        (Code::TopicUnknown.number(), true),
        (999, true),
        (Code::WindowsExhausted.number(), false),
        (Code::ShuttingDown.number(), false),
    ] {
        let mut bench = Bench::new(|_| ());
        bench.connect(1);
        let request = bench.machine.lasting.requests;
        bench.tell(Failed { request, subject: 0, code, text: "no".into() });
        assert!(bench.closed);
        let refusal = FinalRefusal { code, text: "no".into() };
        assert_eq!(bench.machine.refusal(), last.then_some(&refusal), "code {code}");
        assert_eq!(bench.machine.counters().faults, 0, "the broker kept the protocol");
    }
}

#[test]
fn a_session_that_the_broker_ends_is_a_typed_event_and_reading_goes_on() {
    let mut bench = reading();
    let code = Code::GraceOver.number();
    bench.tell(Failed { request: 0, subject: 5, code, text: "epoch 1 was not released".into() });
    assert!(bench.closed && bench.machine.refusal().is_none());
    let mut events = Vec::new();
    let (sink, taken) = crate::events::events();
    sink.hand_over(bench.machine.events());
    events.extend(std::iter::from_fn(|| taken.try_recv()));
    let reason = "the broker ended the session: epoch 1 was not released (code 16)".to_owned();
    assert_eq!(events, [ConsumerEvent::SessionLost { code: Some(Code::GraceOver), reason }]);
}

#[test]
fn a_broker_that_does_not_answer_the_subscription_is_given_up() {
    let mut bench = Bench::new(|_| ());
    bench.connect(1);
    bench.advance(Duration::from_millis(4_999));
    assert!(!bench.closed);
    bench.advance(Duration::from_millis(1));
    assert!(bench.closed);
    assert_eq!(bench.machine.last_fault(), Some(&Fault::SubscribeTimeout { after_ms: 5_000 }));
    assert_eq!(bench.machine.timeout(), None);
}

#[test]
fn leaving_lets_reads_end_then_says_goodbye_then_closes() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(10);
    bench.grant(0, 0);
    bench.machine.leave();
    bench.run();
    assert!(!bench.closed && bench.sent().is_empty());
    bench.complete();
    bench.complete();
    assert_eq!(bench.sent(), [Unsubscribe { subscription: 5 }.into(), Goodbye {}.into()]);
    assert!(bench.closed && bench.reads.is_empty() && !bench.machine.has_left());
    bench.down();
    assert!(bench.machine.has_left());
    assert_eq!(bench.items(), records(0..1));
}

#[test]
fn no_read_is_posted_under_a_key_whose_time_is_over() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.grant(0, 0);
    bench.complete_all();
    bench.sent();
    // The process was frozen: a second of currency and half of the grace went by.
    bench.now.time = bench.now.time + Duration::from_millis(1_500);
    bench.log.append_one(10);
    bench.wake();
    assert!(bench.reads.is_empty());
    assert_eq!(bench.sent(), [arm(0)]);
    bench.grant(0, 1);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..1));
}
