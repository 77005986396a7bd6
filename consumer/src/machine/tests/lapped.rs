//! Being lapped, gaps, and coming back: what the application is told is exact, and told once.

use super::*;

fn lagged(sequence: u64, offset: u64) -> Lagged {
    Lagged { subscription: 5, sequence, offset }
}

fn revoked(epoch: u64) -> Revoked {
    Revoked { subscription: 5, epoch, code: 0 }
}

/// A consumer that has read one record, and has lost its session since.
fn disconnected() -> Bench {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(100);
    bench.grant(0, 0);
    bench.complete_all();
    bench.down();
    bench.items();
    bench
}

#[test]
fn a_consumer_that_was_lapped_delivers_what_was_in_flight_then_tells_the_exact_gap() {
    let mut bench = Bench::subscribed(Scope::Segment);
    for _ in 0..3 {
        bench.log.append_one(100);
    }
    bench.grant(0, 0);
    bench.complete();
    // The data is on its way; the ring moves on meanwhile.
    for _ in 0..7 {
        bench.log.append_one(100);
    }
    bench.log.seal();
    let offset = bench.log.append_one(100);
    bench.tell(lagged(10, offset));
    bench.tell(revoked(1));
    assert!(bench.items().is_empty() && bench.sent().is_empty(), "a READ is still in flight");
    assert_eq!(bench.reads.len(), 1, "and no other is posted");
    bench.complete();
    let mut expected = records(0..3);
    expected.push(Item::Lagged { from: 3, to: 10 });
    assert_eq!(bench.items(), expected);
    assert_eq!(bench.sent(), [release(1, 10), arm(10)]);
    bench.grant(1, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(10..11));
    assert_eq!(bench.machine.counters().lagged, 7);
    assert_eq!(bench.machine.counters().gaps, 1);
}

#[test]
fn a_consumer_that_had_read_everything_that_is_dropped_is_told_no_gap() {
    let mut bench = Bench::subscribed(Scope::Segment);
    for _ in 0..5 {
        bench.log.append_one(100);
    }
    bench.grant(0, 0);
    bench.complete_all();
    bench.log.seal();
    let offset = bench.log.append_one(100);
    bench.sent();
    bench.tell(lagged(5, offset));
    bench.tell(revoked(1));
    assert_eq!(bench.sent(), [release(1, 5)]);
    bench.grant(1, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..6));
}

#[test]
fn a_late_lag_that_the_cursor_has_passed_changes_nothing() {
    let mut bench = Bench::subscribed(Scope::Segment);
    for _ in 0..5 {
        bench.log.append_one(100);
    }
    bench.grant(0, 0);
    bench.complete_all();
    bench.tell(lagged(2, start_of(0)));
    bench.log.append_one(100);
    bench.wake();
    bench.complete_all();
    assert_eq!(bench.items(), records(0..6));
    assert_eq!(bench.machine.counters().gaps, 0);
}

#[test]
fn two_laps_in_a_row_are_one_gap_when_nothing_was_read_between() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(100);
    bench.grant(0, 0);
    bench.complete();
    bench.tell(lagged(5, start_of(1)));
    bench.tell(lagged(9, start_of(2)));
    bench.complete();
    assert_eq!(bench.items(), [Item::Record(0), Item::Lagged { from: 1, to: 9 }]);
}

#[test]
fn half_of_a_batch_that_was_lapped_is_dropped() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(100);
    bench.log.append_one(10_000);
    bench.grant(0, 0);
    bench.complete();
    bench.complete();
    assert_eq!(bench.items(), records(0..1));
    assert!(bench.reads.iter().any(|read| read.from.len > 8), "the rest of record 1 is asked for");
    let reads: Vec<Pending> = bench.reads.drain(..).collect();
    bench.log.seal();
    bench.log.next = 20;
    bench.log.append_one(50);
    bench.tell(lagged(20, start_of(1)));
    bench.tell(revoked(1));
    for read in reads {
        // What was not committed when the segment was cut off never comes.
        let zeros = vec![0; read.from.len as usize];
        let word = bench.log.read(read.from).to_vec();
        let bytes = if read.from.len == 8 { word } else { zeros };
        bench.complete_with(read, &bytes);
    }
    bench.grant(1, 0);
    bench.complete_all();
    assert_eq!(bench.items(), [Item::Lagged { from: 1, to: 20 }, Item::Record(20)]);
    assert_eq!(bench.machine.counters().faults, 0);
}

#[test]
fn a_lost_session_is_resumed_at_the_cursor() {
    let mut bench = Bench::subscribed(Scope::Segment);
    for _ in 0..4 {
        bench.log.append_one(100);
    }
    bench.grant(0, 0);
    bench.complete_all();
    bench.log.append_one(100);
    bench.wake();
    bench.down();
    assert_eq!(bench.items(), records(0..4));
    bench.sent();
    bench.connect(1);
    match bench.sent.last() {
        Some(ToBroker::Subscribe(subscribe)) => assert_eq!(subscribe.start, Start::Sequence(4)),
        other => panic!("{other:?}"),
    }
    let offset = bench.log.tail - batch(TOPIC, 0, &[payload(0, 100)]).len() as u64;
    bench.confirm(4, offset);
    bench.grant(0, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(4..5));
    assert_eq!(bench.machine.counters().subscriptions, 2);
}

#[test]
fn a_resumption_below_the_oldest_record_is_an_exact_gap() {
    let mut bench = disconnected();
    bench.log.seal();
    bench.log.next = 30;
    bench.log.append_one(100);
    bench.connect(1);
    bench.confirm(30, start_of(1));
    assert_eq!(bench.items(), [Item::Lagged { from: 1, to: 30 }]);
    bench.grant(1, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(30..31));
}

#[test]
fn a_new_broker_is_told_once_and_read_from_its_start() {
    let mut bench = disconnected();
    bench.log = Log::new();
    bench.log.append_one(100);
    bench.connect(2);
    match bench.sent.last() {
        Some(ToBroker::Subscribe(subscribe)) => assert_eq!(subscribe.start, Start::Sequence(0)),
        other => panic!("{other:?}"),
    }
    // That session is lost before it is confirmed; the restart is not told again.
    bench.down();
    bench.connect(2);
    bench.confirm(0, start_of(0));
    bench.grant(0, 0);
    bench.complete_all();
    assert_eq!(bench.items(), [Item::Restarted(2), Item::Record(0)]);
}

#[test]
fn what_a_new_broker_has_dropped_before_it_was_reached_is_told_behind_the_restart() {
    let mut bench = disconnected();
    bench.connect(2);
    bench.confirm(51, start_of(1));
    assert_eq!(bench.items(), [Item::Restarted(2), Item::Lagged { from: 0, to: 51 }]);
}

#[test]
fn a_first_start_that_is_gone_is_told_too() {
    let mut bench = Bench::new(|config| config.start = Start::Sequence(2));
    bench.connect(1);
    bench.confirm(6, start_of(0));
    assert_eq!(bench.items(), [Item::Lagged { from: 2, to: 6 }]);
}

#[test]
fn a_reconnect_with_reads_in_flight_reuses_the_arena_behind_what_was_handed_out() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.kept = Some(Vec::new());
    for round in 0..20 {
        bench.log.append_one(500);
        bench.grant(0, 0);
        bench.complete_all();
        bench.log.append_one(500);
        bench.wake();
        bench.down();
        assert_eq!(bench.items(), records(round * 2..round * 2 + 1));
        bench.connect(1);
        let offset = bench.log.tail - batch(TOPIC, 0, &[payload(0, 500)]).len() as u64;
        bench.confirm(round * 2 + 1, offset);
        bench.grant(0, 0);
        bench.complete_all();
        assert_eq!(bench.items(), records(round * 2 + 1..round * 2 + 2));
        bench.down();
        bench.connect(1);
        let offset = bench.log.tail;
        bench.confirm(round * 2 + 2, offset);
    }
    assert!(bench.retired.is_empty());
}
