//! Segment scope: reading behind the tail, re-keying, torn READs, the ends of segments and arenas.

use super::*;
use crate::machine::landing::{ARENA_SLACK, arena_size};
use crate::machine::segment::{CHUNK, REREADS_MAX};

#[test]
fn what_is_committed_is_read_in_order_and_then_the_consumer_arms_once() {
    let mut bench = Bench::subscribed(Scope::Segment);
    for _ in 0..100 {
        bench.log.append_one(100);
    }
    assert!(bench.sent().is_empty(), "it waits for grants");
    bench.grant(0, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..100));
    assert_eq!(bench.sent(), [arm(100)]);
    assert!(bench.reads.is_empty(), "it sleeps");
}

#[test]
fn the_tail_word_and_what_stands_behind_it_come_in_one_round_trip() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(10);
    bench.grant(0, 0);
    assert_eq!(bench.reads.len(), 2);
    assert_eq!((bench.reads[0].from.address, bench.reads[0].from.len), (STRIDE, 8));
    assert_eq!(bench.reads[1].from.address, STRIDE + u64::from(SEGMENT_HEADER));
    bench.complete();
    assert!(bench.items().is_empty());
    bench.complete();
    assert_eq!(bench.items(), records(0..1));
}

#[test]
fn a_wake_is_answered_with_one_round_trip_and_one_arm() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.grant(0, 0);
    bench.complete_all();
    assert_eq!(bench.sent(), [arm(0)]);
    bench.log.append_one(50);
    bench.log.append_one(50);
    bench.wake();
    assert_eq!(bench.reads.len(), 2, "the word, and the batches that the wake told of with what may follow");
    bench.complete();
    bench.complete();
    assert_eq!(bench.items(), records(0..2));
    assert_eq!(bench.sent(), [arm(2)]);
}

#[test]
fn a_known_tail_is_read_up_to_in_chunks_several_at_once() {
    let mut bench = Bench::subscribed(Scope::Segment);
    while bench.log.space() > 20_000 {
        bench.log.append_one(8_000);
    }
    let next = bench.log.next;
    bench.grant(0, 0);
    bench.complete();
    bench.complete();
    let ahead: u32 = bench.reads.iter().filter(|read| read.from.len > 8).map(|read| read.from.len).sum();
    assert!(ahead > 40_000 && bench.reads.iter().all(|read| read.from.len <= CHUNK));
    bench.complete_all();
    assert_eq!(bench.items(), records(0..next));
}

#[test]
fn a_new_key_is_used_at_once_and_the_old_one_released_when_its_reads_are_over() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(10);
    bench.grant(0, 0);
    assert_eq!(bench.reads.len(), 2);
    bench.grant(0, 1);
    assert!(bench.sent().is_empty(), "READs are outstanding under epoch 1");
    bench.complete();
    assert!(bench.sent().is_empty());
    bench.complete();
    assert_eq!(bench.sent(), [release(1, 1)]);
    assert!(bench.reads.iter().all(|read| read.from.key == Key(2)));
    bench.complete_all();
    assert_eq!(bench.items(), records(0..1));
}

#[test]
fn no_read_is_posted_under_an_epoch_before_the_newest_superseded_one() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(10);
    bench.log.seal();
    bench.log.append_one(10);
    bench.grant(0, 0);
    bench.grant(1, 0);
    // The tick re-keys both segments; the second message is still on its way when the first is there.
    bench.grant(0, 1);
    assert!(bench.reads.iter().all(|read| read.from.key == Key(1)));
    bench.complete();
    bench.complete();
    assert_eq!(bench.items(), records(0..1));
    // Segment 0 is done with. Epoch 2 is not dead yet and serves segment 1.
    assert!(bench.reads.iter().all(|read| read.from.key == Key(2)), "segment 1 is read under its own key");
    assert_eq!(bench.sent(), [release(1, 1)], "epoch 2 is in use, and 3 is behind it");
    bench.grant(1, 2);
    bench.complete_all();
    assert_eq!(bench.items(), records(1..2));
    assert_eq!(bench.sent(), [release(3, 2), arm(2)]);
}

#[test]
fn a_sealed_segment_that_ends_exactly_at_its_end_is_left_for_the_next() {
    let mut bench = Bench::subscribed(Scope::Segment);
    while bench.log.space() > 2_000 {
        bench.log.append_one(1_000);
    }
    // A batch that fills the segment to its last byte.
    let len = bench.log.space() as usize - BATCH_HEADER_LEN - 8;
    let bytes = batch(TOPIC, bench.log.next, &[payload(bench.log.next, len)]);
    assert_eq!(bytes.len() as u64, bench.log.space());
    bench.log.write(&bytes);
    bench.log.tail += bytes.len() as u64;
    bench.log.next += 1;
    bench.log.seal();
    bench.log.append_one(10);
    let next = bench.log.next;
    bench.grant(0, 0);
    bench.grant(1, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..next));
    assert_eq!(bench.sent(), [release(1, next - 1), arm(next)]);
}

#[test]
fn a_consumer_at_the_end_of_a_sealed_segment_without_a_key_to_the_next_asks_for_one() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(10);
    bench.log.seal();
    bench.grant(0, 0);
    bench.complete_all();
    assert_eq!(bench.sent(), [release(1, 1), arm(1)]);
    bench.log.append_one(10);
    bench.grant(1, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..2));
}

#[test]
fn a_batch_that_is_torn_behind_a_new_tail_is_read_again_and_delivered_once() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(200);
    bench.grant(0, 0);
    bench.complete();
    // The device showed the tail before the batch: half of it is old.
    let data = bench.reads.pop_front().unwrap();
    let mut torn = bench.log.read(data.from).to_vec();
    torn[100..].fill(0);
    bench.complete_with(data, &torn);
    assert!(bench.items().is_empty());
    assert_eq!(bench.machine.counters().rereads, 1);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..1));
    assert_eq!(bench.machine.counters().faults, 0);
}

#[test]
fn a_torn_header_an_older_laps_batch_and_another_topics_are_all_read_again() {
    let older = batch(TOPIC, 0, &[payload(0, 100)]);
    let foreign = batch(TOPIC + 1, 1, &[payload(1, 100)]);
    let mut header = batch(TOPIC, 1, &[payload(1, 100)]);
    header[20..40].fill(0xaa);
    for wrong in [older, foreign, header] {
        let mut bench = Bench::subscribed(Scope::Segment);
        bench.log.append_one(100);
        bench.grant(0, 0);
        bench.complete_all();
        assert_eq!(bench.items(), records(0..1));
        bench.log.append_one(100);
        bench.wake();
        bench.complete();
        let data = bench.reads.pop_front().unwrap();
        let mut bytes = bench.log.read(data.from).to_vec();
        bytes[..wrong.len()].copy_from_slice(&wrong);
        bench.complete_with(data, &bytes);
        assert!(bench.items().is_empty());
        assert_eq!(bench.machine.counters().rereads, 1);
        bench.complete_all();
        assert_eq!(bench.items(), records(1..2));
    }
}

#[test]
fn what_stays_invalid_ends_the_session_after_a_bounded_number_of_reads() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.write(&[0x55; 200]);
    bench.log.tail += 200;
    bench.log.store_tail(false);
    bench.grant(0, 0);
    for _ in 0..10 * REREADS_MAX {
        if bench.closed {
            break;
        }
        bench.complete();
    }
    assert!(bench.closed);
    assert_eq!(bench.machine.counters().rereads, u64::from(REREADS_MAX) + 1);
    let fault = bench.machine.last_fault().unwrap().to_string();
    assert!(fault.contains("offset 4096"), "{fault}");
}

#[test]
fn fillers_are_read_past() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(10);
    let bytes = filler(1, 4096);
    bench.log.write(&bytes);
    bench.log.tail += 4096;
    bench.log.append_one(10);
    bench.grant(0, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..2));
    assert_eq!(bench.sent(), [arm(2)]);
}

#[test]
fn a_start_within_a_batch_skips_the_records_before_it() {
    let mut bench = Bench::new(|config| config.start = Start::Sequence(3));
    bench.log.append(&[0, 1].map(|sequence| payload(sequence, 30)));
    let offset = bench.log.append(&[2, 3, 4].map(|sequence| payload(sequence, 30)));
    bench.log.append_one(30);
    bench.connect(1);
    bench.confirm(3, offset);
    bench.grant(0, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(3..6));
    assert_eq!(bench.machine.counters().records, 3);
}

/// Reads sealed segments, enough to fill so many arenas, of batches with payloads of such lengths, by their number. Returns how many
/// bytes were READ more than once.
fn read_sealed(arenas: u64, len: impl Fn(u64) -> usize) -> u64 {
    let segments = arenas * u64::from(arena_size(BATCH_MAX)) / u64::from(SEGMENT);
    let mut bench = Bench::subscribed(Scope::Segment);
    while segment_of(bench.log.tail, SEGMENT) < segments {
        bench.log.append_one(len(bench.log.next));
    }
    for segment in 0..=segments {
        bench.grant(segment, 0);
        bench.complete_all();
    }
    let next = bench.log.next;
    assert_eq!(bench.items(), records(0..next));
    assert_eq!(bench.machine.counters().rereads, 0, "a batch at an arena's end is no torn one");
    assert_eq!(bench.machine.counters().pauses, 0);
    bench.read_again
}

#[test]
fn batches_of_one_length_are_read_once_wherever_an_arena_ends() {
    for len in [15_000, 8_000, 100] {
        assert_eq!(read_sealed(3, |_| len), 0, "in batches of {len} bytes");
    }
}

#[test]
fn the_beginning_of_a_batch_at_an_arenas_end_is_carried_over_and_not_read_again() {
    assert_eq!(read_sealed(5, |number| 1_000 + (number * 7_919 % 13_000) as usize), 0);
}

#[test]
fn a_batch_that_comes_as_a_surprise_at_an_arenas_end_is_read_again_into_the_next() {
    // Of one length for so long that no room is left for the beginning of another, then of another.
    let around = u64::from(arena_size(BATCH_MAX)) / 1_072;
    let again: Vec<_> = (around - 150..around + 60)
        .step_by(3)
        .map(|after| read_sealed(2, |number| if number < after { 1_000 } else { 15_000 }))
        .collect();
    assert!(again.iter().any(|bytes| *bytes > 0), "no arena ended within a batch that was not expected");
    assert!(again.contains(&0), "and some did not");
}

#[test]
fn at_the_tail_arenas_follow_one_another_without_a_batch_read_again() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.grant(0, 0);
    let mut epoch = 1;
    // More than two arenas, in batches that do not divide one.
    let total = 2 * u64::from(arena_size(BATCH_MAX)) + u64::from(ARENA_SLACK);
    let mut segment = 0;
    while bench.log.tail < total {
        bench.log.append_one(15_000);
        let now_in = segment_of(bench.log.tail, SEGMENT);
        if now_in != segment {
            segment = now_in;
            epoch = bench.grant(segment, 0);
        }
        bench.wake();
        bench.complete_all();
    }
    assert!(epoch > 20);
    let next = bench.log.next;
    assert_eq!(bench.items(), records(0..next));
    assert_eq!(bench.machine.counters().rereads, 0, "a batch at an arena's end is no torn one");
    assert_eq!(bench.machine.counters().pauses, 0);
}

#[test]
fn an_armed_consumer_whose_key_is_revoked_gives_it_up_and_waits_for_a_grant() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.grant(0, 0);
    bench.complete_all();
    assert_eq!(bench.sent(), [arm(0)]);
    bench.tell(Revoked { subscription: 5, epoch: 1, code: 0 });
    assert_eq!(bench.sent(), [release(1, 0)]);
    bench.log.append_one(10);
    bench.grant(0, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..1));
    assert_eq!(bench.sent(), [arm(1)]);
}

#[test]
fn a_consumer_whose_landing_is_full_gives_its_keys_up_at_the_next_tick_and_comes_back() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.kept = Some(Vec::new());
    bench.grant(0, 0);
    let mut segment = 0;
    let mut held = 1;
    // Fills both arenas; the application keeps every record.
    while bench.machine.lasting.landing.is_available() {
        bench.log.append_one(15_000);
        let now_in = segment_of(bench.log.tail, SEGMENT);
        if now_in != segment {
            segment = now_in;
            held = bench.grant(segment, 0);
        }
        bench.wake();
        bench.complete_all();
    }
    bench.sent();
    assert!(bench.reads.is_empty());
    let next = bench.machine.next_sequence();
    bench.grant(segment, held);
    let newest = bench.epoch;
    assert_eq!(bench.sent(), [pause(newest, next)]);
    // A grant that was already on its way is given back too.
    bench.grant(segment, 0);
    assert_eq!(bench.sent(), [pause(newest + 1, next)]);
    bench.kept = None;
    bench.run();
    assert_eq!(bench.sent(), [arm(next)]);
    bench.grant(segment, 0);
    bench.complete_all();
    let last = bench.log.next;
    assert_eq!(bench.items(), records(0..last));
    assert!(bench.machine.counters().pauses >= 2);
}

#[test]
fn a_full_landing_still_releases_what_was_superseded_while_reads_were_in_flight() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(100);
    bench.grant(0, 0);
    // The host takes nothing: outputs pile up, but keys do not.
    bench.taking = false;
    bench.grant(0, 1);
    bench.complete();
    bench.complete();
    assert_eq!(bench.sent(), [release(1, 1)]);
}

#[test]
fn a_known_tail_does_not_shrink_when_a_word_arrives_late() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.grant(0, 0);
    let word = bench.log.read(bench.reads[0].from).to_vec();
    bench.log.append_one(10);
    bench.tell(Wake { subscription: 5, tail: bench.log.tail });
    let first = bench.reads.pop_front().unwrap();
    bench.complete_with(first, &word);
    let data = bench.reads.pop_front().unwrap();
    let zeros = vec![0; data.from.len as usize];
    bench.complete_with(data, &zeros);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..1));
    assert_eq!(bench.machine.counters().rereads, 0, "what came with the older word was not believed beyond it");
}

#[test]
fn a_grant_of_a_segment_that_was_read_to_its_end_is_given_back_at_once() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(10);
    bench.log.seal();
    bench.log.append_one(10);
    bench.grant(0, 0);
    bench.grant(1, 0);
    bench.complete_all();
    assert_eq!(bench.sent(), [release(1, 1), arm(2)]);
    // The tick was on its way when the release was sent.
    bench.grant(0, 1);
    bench.complete_all();
    assert_eq!(bench.sent(), [arm(2)], "epoch 2 is in use, and holds 3 back");
    bench.grant(1, 2);
    bench.complete_all();
    assert_eq!(bench.sent(), [release(3, 2), arm(2)]);
    assert_eq!(bench.items(), records(0..2));
}

#[test]
fn a_consumer_that_lost_its_key_before_it_saw_the_segments_end_goes_on_with_the_next_segment() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(10);
    bench.grant(0, 0);
    bench.complete_all();
    assert_eq!(bench.sent(), [arm(1)]);
    bench.tell(Revoked { subscription: 5, epoch: 1, code: 0 });
    let bytes = filler(1, 4096);
    bench.log.write(&bytes);
    bench.log.tail += 4096;
    bench.log.seal();
    bench.log.append_one(10);
    // The broker knows that no record is left in segment 0.
    let grant = Grant { sequence: 1, ..bench.segment_grant(2, 1, 0) };
    bench.tell(grant);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..2));
    assert_eq!(bench.sent(), [release(1, 1), arm(2)]);
}

#[test]
fn a_segment_is_not_skipped_while_records_of_it_are_missing() {
    let mut bench = Bench::subscribed(Scope::Segment);
    bench.log.append_one(10);
    let grant = Grant { sequence: 1, ..bench.segment_grant(1, 1, 0) };
    bench.tell(grant);
    assert!(bench.reads.is_empty());
    assert_eq!(bench.sent(), [arm(0)]);
    // A broker that insists ends the session, not the processor's patience.
    for _ in 0..100 {
        if bench.closed {
            break;
        }
        bench.tell(Wake { subscription: 5, tail: start_of(1) });
    }
    let fault = bench.machine.last_fault().unwrap().to_string();
    assert!(fault.contains("again and again"), "{fault}");
}
