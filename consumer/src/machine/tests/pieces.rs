//! Batch and message scope: every grant is READ once and given back, or given back unread.

use super::*;
use crate::machine::landing::arena_size;
use crate::machine::segment::CHUNK;
use std::time::Duration;

impl Bench {
    /// A grant of batch scope: from this offset to the tail.
    fn grant_batches(&mut self, offset: u64, sequence: u64) {
        self.epoch += 1;
        let segment = segment_of(offset, SEGMENT);
        let grant = Grant {
            offset,
            len: (self.log.tail - offset) as u32,
            address: address_of(offset),
            sequence,
            records: (self.log.next - sequence) as u32,
            ..self.segment_grant(self.epoch, segment, 0)
        };
        self.tell(grant);
    }

    /// A grant of message scope: the record of a batch of one.
    fn grant_record(&mut self, offset: u64, sequence: u64) {
        self.epoch += 1;
        let segment = segment_of(offset, SEGMENT);
        let at = (offset % u64::from(SEGMENT)) as usize;
        let bytes = &self.log.segments[&segment][at..];
        let header = BatchHeader::read(bytes).unwrap();
        let record = &bytes[BATCH_HEADER_LEN..header.len as usize];
        let grant = Grant {
            offset: offset + BATCH_HEADER_LEN as u64,
            len: record.len() as u32,
            address: address_of(offset) + BATCH_HEADER_LEN as u64,
            sequence,
            records: 1,
            time: sequence * 10,
            crc: crc32c::crc32c(record),
            ..self.segment_grant(self.epoch, segment, 0)
        };
        self.tell(grant);
    }
}

#[test]
fn each_grant_of_batches_is_read_once_and_released() {
    let mut bench = Bench::subscribed(Scope::Batch);
    let first = bench.log.append_one(100);
    bench.log.append_one(100);
    bench.grant_batches(first, 0);
    assert_eq!(bench.reads.len(), 1);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..2));
    assert_eq!(bench.sent(), [release(1, 2)]);
    let bytes = filler(2, 512);
    let second = bench.log.tail;
    bench.log.write(&bytes);
    bench.log.tail += 512;
    bench.log.append_one(100);
    bench.grant_batches(second, 2);
    bench.complete_all();
    assert_eq!(bench.items(), records(2..3));
    assert_eq!(bench.sent(), [release(2, 3)]);
    assert_eq!(bench.machine.counters().reads, 2);
}

#[test]
fn each_granted_record_is_read_with_the_time_that_the_grant_told() {
    let mut bench = Bench::subscribed(Scope::Message);
    for sequence in 0..3 {
        let offset = bench.log.append_one(100);
        bench.grant_record(offset, sequence);
    }
    assert_eq!(bench.reads.len(), 3);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..3));
    assert_eq!(bench.sent(), [release(1, 1), release(2, 2), release(3, 3)]);
}

#[test]
fn a_record_whose_crc_is_not_the_granted_one_is_read_again() {
    let mut bench = Bench::subscribed(Scope::Message);
    let offset = bench.log.append_one(100);
    bench.grant_record(offset, 0);
    let read = bench.reads.pop_front().unwrap();
    let zeros = vec![0; read.from.len as usize];
    bench.complete_with(read, &zeros);
    assert!(bench.items().is_empty());
    bench.complete_all();
    assert_eq!(bench.items(), records(0..1));
    assert_eq!(bench.machine.counters().rereads, 1);
    assert_eq!(bench.sent(), [release(1, 1)]);
}

#[test]
fn only_the_rest_of_a_torn_grant_of_batches_is_read_again() {
    let mut bench = Bench::subscribed(Scope::Batch);
    let first = bench.log.append_one(100);
    let second = bench.log.append_one(100);
    bench.grant_batches(first, 0);
    let read = bench.reads.pop_front().unwrap();
    let mut torn = bench.log.read(read.from).to_vec();
    torn[(second - first) as usize + 70..].fill(0);
    bench.complete_with(read, &torn);
    assert_eq!(bench.items(), records(0..1));
    assert_eq!(bench.reads[0].from.len as u64, bench.log.tail - second);
    bench.complete_all();
    assert_eq!(bench.items(), records(1..2));
}

#[test]
fn grants_that_are_not_the_next_piece_are_given_back_unread() {
    let mut bench = Bench::subscribed(Scope::Batch);
    let first = bench.log.append_one(100);
    bench.grant_batches(first, 0);
    bench.complete_all();
    assert_eq!(bench.sent(), [release(1, 1)]);
    bench.grant_batches(first, 0);
    assert!(bench.reads.is_empty());
    assert_eq!(bench.sent(), [release(2, 1)]);
    assert_eq!(bench.machine.counters().stale_grants, 1);
    assert_eq!(bench.items(), records(0..1));
}

#[test]
fn a_start_within_a_granted_batch_skips_the_records_before_it() {
    let mut bench = Bench::new(|config| (config.scope, config.start) = (Scope::Batch, Start::Sequence(1)));
    let offset = bench.log.append(&[0, 1, 2].map(|sequence| payload(sequence, 20)));
    bench.connect(1);
    bench.confirm(1, offset);
    bench.grant_batches(offset, 0);
    bench.complete_all();
    assert_eq!(bench.items(), records(1..3));
    assert_eq!(bench.sent(), [release(1, 3)]);
}

#[test]
fn pieces_go_from_arena_to_arena() {
    let mut bench = Bench::subscribed(Scope::Batch);
    let arenas = 5 * u64::from(arena_size(BATCH_MAX));
    while bench.log.tail < arenas {
        let sequence = bench.log.next;
        let offset = bench.log.append_one(15_000);
        bench.grant_batches(offset, sequence);
        if sequence.is_multiple_of(3) {
            bench.complete_all();
        }
    }
    bench.complete_all();
    let next = bench.log.next;
    assert_eq!(bench.items(), records(0..next));
    assert_eq!(bench.machine.counters().reads, next);
    assert!(matches!(bench.sent().last(), Some(ToBroker::Release(last)) if last.epoch == next && !last.pause));
}

#[test]
fn grants_that_cannot_be_read_are_given_up_before_half_of_their_grace_and_asked_for_again() {
    let mut bench = Bench::subscribed(Scope::Batch);
    bench.kept = Some(Vec::new());
    while bench.machine.lasting.landing.is_available() {
        let sequence = bench.log.next;
        let offset = bench.log.append_one(15_000);
        bench.grant_batches(offset, sequence);
        bench.complete_all();
    }
    bench.sent();
    let next = bench.machine.next_sequence();
    assert_eq!(next, bench.log.next - 1, "the last grant lies unread");
    bench.advance(Duration::from_millis(499));
    assert!(bench.sent().is_empty());
    bench.advance(Duration::from_millis(1));
    let unread = bench.epoch;
    assert_eq!(bench.sent(), [pause(unread, next)]);
    assert_eq!(bench.machine.timeout(), None);
    bench.kept = None;
    bench.run();
    assert_eq!(bench.sent(), [arm(next)]);
    let size = batch(TOPIC, 0, &[payload(0, 15_000)]).len() as u64;
    let offset = bench.log.tail - size;
    bench.grant_batches(offset, next);
    bench.complete_all();
    assert_eq!(bench.items(), records(0..next + 1));
}

#[test]
fn a_lapped_batch_consumer_delivers_what_was_in_flight_and_tells_the_gap() {
    let mut bench = Bench::subscribed(Scope::Batch);
    let first = bench.log.append_one(100);
    bench.grant_batches(first, 0);
    let sequence = bench.log.next;
    bench.log.seal();
    bench.log.next = 10;
    let offset = bench.log.append_one(100);
    bench.tell(Lagged { subscription: 5, sequence: 10, offset });
    bench.tell(Revoked { subscription: 5, epoch: 1, code: 0 });
    bench.complete_all();
    assert_eq!(bench.items(), [Item::Record(0), Item::Lagged { from: sequence, to: 10 }]);
    assert_eq!(bench.sent(), [release(1, 10)]);
    bench.grant_batches(offset, 10);
    bench.complete_all();
    assert_eq!(bench.items(), records(10..11));
}

#[test]
fn a_grant_beyond_what_can_be_landed_ends_the_session() {
    let mut bench = Bench::subscribed(Scope::Batch);
    bench.epoch += 1;
    let grant = Grant { len: CHUNK + 8, ..bench.segment_grant(1, 0, 0) };
    bench.tell(grant);
    assert!(bench.closed);
}
