//! A seek moves the subscription within its session: what was on its way before counts no more, and nothing is lost, given
//! twice or left in flight.

use super::*;

/// How long the batch of one such record is.
const BATCH: u64 = 64 + 8 + 1_000;

/// A bench with two segments of records of 1,000 bytes, and keys to both.
fn two_segments() -> Bench {
    let mut bench = Bench::subscribed(Scope::Segment);
    for _ in 0..100 {
        bench.log.append_one(1_000);
    }
    bench.grant(0, 0);
    bench.grant(1, 0);
    bench.sent();
    bench
}

fn requested(sent: &[ToBroker]) -> Option<Start> {
    match sent {
        [ToBroker::Unsubscribe(_), ToBroker::Subscribe(subscribe)] => Some(subscribe.start),
        _ => None,
    }
}

#[test]
fn reads_in_flight_are_let_end_and_not_used_before_the_broker_is_asked() {
    let mut bench = two_segments();
    let in_flight = bench.reads.len();
    assert!(in_flight >= 2, "{in_flight}");
    let ticket = bench.seek(Start::Sequence(7));
    for left in (0..in_flight).rev() {
        assert_eq!(bench.sent(), [], "READs are outstanding");
        bench.complete();
        assert_eq!(bench.reads.len(), left, "no READ is posted any more");
    }
    assert_eq!(requested(&bench.sent()), Some(Start::Sequence(7)));
    assert_eq!(bench.items(), []);
    assert!(!bench.machine.is_subscribed());
    bench.tell(bench.subscribed_message(7, start_of(0) + 7 * BATCH));
    assert_eq!(bench.items(), [Item::Sought { ticket, sequence: 7 }]);
    bench.grant(0, 0);
    bench.grant(1, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(7..100));
    assert_eq!((bench.machine.counters().seeks, bench.machine.counters().subscriptions), (1, 1));
    assert_eq!((bench.machine.counters().faults, bench.machine.counters().records), (0, 93));
}

#[test]
fn what_was_read_and_not_taken_is_passed_over_and_its_memory_comes_back() {
    let mut bench = two_segments();
    bench.taking = false;
    bench.complete_all();
    assert!(bench.machine.counters().records > 0);
    bench.taking = true;
    let ticket = bench.seek(Start::Earliest);
    assert_eq!(bench.items(), []);
    bench.tell(bench.subscribed_message(0, start_of(0)));
    assert_eq!(bench.items(), [Item::Sought { ticket, sequence: 0 }]);
    // The whole log several times over: an arena that was not given back would be missed.
    for _ in 0..40 {
        bench.grant(0, 0);
        bench.grant(1, 0);
        bench.complete_all();
        assert_eq!(bench.items(), records(0..100));
        let ticket = bench.seek(Start::Earliest);
        bench.tell(bench.subscribed_message(0, start_of(0)));
        assert_eq!(bench.items(), [Item::Sought { ticket, sequence: 0 }]);
    }
}

#[test]
fn what_the_broker_said_of_the_old_subscription_before_it_heard_of_the_end_is_ignored() {
    let mut bench = two_segments();
    bench.seek(Start::Earliest);
    let old = bench.subscription;
    let late: [ToClient; 4] = [
        Grant { subscription: old, epoch: 3, ..bench.segment_grant(3, 1, 2) }.into(),
        Revoked { subscription: old, epoch: 2, code: 0 }.into(),
        Lagged { subscription: old, sequence: 50, offset: start_of(1) }.into(),
        Wake { subscription: old, tail: bench.log.tail }.into(),
    ];
    // While its READs are in flight, and after it was told of the end.
    late.iter().for_each(|message| bench.tell(message.clone()));
    bench.complete_all();
    late.iter().for_each(|message| bench.tell(message.clone()));
    assert_eq!(bench.machine.last_fault(), None);
    bench.tell(bench.subscribed_message(0, start_of(0)));
    bench.items();
    bench.grant(0, 0);
    bench.grant(1, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..100));
    assert_eq!(bench.machine.counters().gaps, 0);
}

#[test]
fn what_is_said_of_a_subscription_that_never_was_still_ends_the_session() {
    let mut bench = two_segments();
    bench.seek(Start::Earliest);
    bench.tell(Wake { subscription: 99, tail: start_of(0) });
    assert!(bench.closed);
}

#[test]
fn a_later_seek_overtakes_an_earlier_one_at_every_step() {
    // The READs in flight are over, and the first answer has come, before the second seek: neither, one, both.
    for (reads_over, answered) in [(false, false), (true, false), (true, true)] {
        let mut bench = two_segments();
        let first = bench.seek(Start::Sequence(3));
        if reads_over {
            bench.complete_all();
            assert_eq!(requested(&bench.sent()), Some(Start::Sequence(3)));
        }
        if answered {
            bench.tell(bench.subscribed_message(3, start_of(0)));
            assert_eq!(bench.items(), [Item::Sought { ticket: first, sequence: 3 }]);
        }
        let second = bench.seek(Start::Sequence(60));
        if reads_over && !answered {
            // The answer to the first one opens a subscription that nobody wants.
            assert_eq!(bench.sent(), []);
            let mut told = bench.subscribed_message(3, start_of(0));
            told.request = bench.machine.lasting.requests;
            bench.tell(told);
        }
        bench.complete_all();
        assert_eq!(requested(&bench.sent()), Some(Start::Sequence(60)), "{reads_over} {answered}");
        bench.tell(bench.subscribed_message(60, start_of(1)));
        assert_eq!(bench.items(), [Item::Sought { ticket: second, sequence: 60 }]);
        assert_eq!(bench.machine.counters().seeks, 2);
    }
}

#[test]
fn a_sequence_that_is_gone_is_told_as_a_gap_after_the_seek() {
    let mut bench = two_segments();
    let ticket = bench.seek(Start::Sequence(10));
    bench.complete_all();
    bench.tell(bench.subscribed_message(61, start_of(1)));
    assert_eq!(bench.items(), [Item::Sought { ticket, sequence: 61 }, Item::Lagged { from: 10, to: 61 }]);
}

#[test]
fn a_seek_without_a_session_or_over_the_end_of_one_takes_place_in_the_next() {
    let mut bench = two_segments();
    bench.seek(Start::Latest);
    // With READs in flight.
    bench.down();
    let ticket = bench.seek(Start::Sequence(5));
    bench.connect(1);
    assert!(matches!(bench.sent().as_slice(), [ToBroker::Subscribe(s)] if s.start == Start::Sequence(5)));
    bench.tell(bench.subscribed_message(5, start_of(0)));
    assert_eq!(bench.items(), [Item::Sought { ticket, sequence: 5 }]);
    bench.grant(0, 0);
    bench.complete();
    assert_eq!(bench.machine.counters().subscriptions, 2);
}

#[test]
fn a_refused_read_of_the_old_subscription_is_counted_and_the_seek_takes_place_all_the_same() {
    let mut bench = two_segments();
    let ticket = bench.seek(Start::Sequence(5));
    bench.fail_reads(WorkError::RemoteAccess);
    assert!(bench.closed);
    assert_eq!(bench.machine.counters().remote_access_errors, 1);
    bench.down();
    bench.connect(1);
    bench.tell(bench.subscribed_message(5, start_of(0)));
    assert_eq!(bench.items(), [Item::Sought { ticket, sequence: 5 }]);
}

#[test]
fn a_broker_that_was_started_anew_is_told_after_the_seek_and_old_sequences_mean_nothing_to_it() {
    for (start, asked) in
        [(Start::Sequence(50), Start::Sequence(0)), (Start::Latest, Start::Latest), (Start::Time(9), Start::Time(9))]
    {
        let mut bench = two_segments();
        let ticket = bench.seek(start);
        bench.down();
        bench.sent();
        bench.connect(2);
        assert!(matches!(bench.sent().as_slice(), [ToBroker::Subscribe(s)] if s.start == asked), "{start:?}");
        bench.tell(bench.subscribed_message(0, start_of(0)));
        assert_eq!(bench.items(), [Item::Sought { ticket, sequence: 0 }, Item::Restarted(2)]);
    }
}

#[test]
fn a_consumer_that_leaves_while_it_seeks_says_goodbye() {
    let mut bench = two_segments();
    bench.seek(Start::Earliest);
    bench.machine.leave();
    bench.run();
    assert_eq!(bench.sent(), [], "READs are outstanding");
    bench.complete_all();
    assert!(matches!(bench.sent().as_slice(), [ToBroker::Unsubscribe(_), ToBroker::Goodbye(_)]));
    assert!(bench.closed);
}

#[test]
fn pieces_that_were_fetched_or_granted_before_a_seek_are_not_handed_out() {
    let mut bench = Bench::subscribed(Scope::Batch);
    let offsets: Vec<u64> = (0..4).map(|_| bench.log.append_one(1_000)).collect();
    let piece = |bench: &mut Bench, sequence: u64| {
        bench.epoch += 1;
        let offset = offsets[sequence as usize];
        let len = BATCH as u32;
        let address = address_of(offset);
        let grant = bench.segment_grant(bench.epoch, 0, 0);
        bench.tell(Grant { offset, len, address, sequence, records: 1, ..grant });
    };
    (0..3).for_each(|sequence| piece(&mut bench, sequence));
    // The second one is over before the first, and waits for it.
    let second = bench.reads.remove(1).unwrap();
    let bytes = bench.log.read(second.from).to_vec();
    bench.complete_with(second, &bytes);
    assert_eq!(bench.items(), []);
    let ticket = bench.seek(Start::Sequence(2));
    bench.complete_all();
    assert_eq!(requested(&bench.sent()), Some(Start::Sequence(2)));
    bench.tell(bench.subscribed_message(2, offsets[2]));
    piece(&mut bench, 2);
    piece(&mut bench, 3);
    bench.complete_all();
    assert_eq!(bench.items(), [vec![Item::Sought { ticket, sequence: 2 }], records(2..4)].concat());
}
