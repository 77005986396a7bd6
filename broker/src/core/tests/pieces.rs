//! Batch and message scope: what each grant opens, going back, limits, being lapped.

use std::time::Duration;

use keyway_fabric::{DownCause, Memory};
use keyway_schema::batch::Batch;
use keyway_schema::bootstrap::Role;
use keyway_schema::message::{Arm, Grant, Lagged, Release, Revoked, Scope, Start, Subscribe};
use keyway_schema::record::RecordRef;
use keyway_schema::{Code, ToClient};

use super::bench::{Bench, Client, config};
use super::clients::{batch, subscribe};

fn release(epoch: u64, sequence: u64) -> Release {
    Release { subscription: 1, epoch, sequence, pause: false }
}

fn pause(epoch: u64, sequence: u64) -> Release {
    Release { subscription: 1, epoch, sequence, pause: true }
}

/// A consumer with this request, and the producer `0xa`.
fn start(bench: &mut Bench, request: Subscribe) -> (Client, Client) {
    let producer = bench.producer(0xa);
    let consumer = bench.connect(Role::Consumer);
    bench.subscribes(consumer, request);
    (consumer, producer)
}

/// The payloads of a grant of batch scope.
fn payloads(bench: &Bench, grant: &Grant) -> Vec<Vec<u8>> {
    let bytes = bench.read_grant(grant).expect("the key is alive");
    let mut payloads = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let batch = Batch::read(rest).unwrap();
        payloads.extend(batch.records().map(|record| record.payload.to_vec()));
        rest = &rest[batch.header().len as usize..];
    }
    payloads
}

fn records(grants: &[Grant]) -> Vec<(u64, u64, u32)> {
    grants.iter().map(|grant| (grant.epoch, grant.sequence, grant.records)).collect()
}

#[test]
fn a_grant_of_batch_scope_opens_what_is_committed_and_not_yet_granted() {
    let mut bench = Bench::new(config(8));
    let producer = bench.producer(0xa);
    bench.publish(producer, 0xa, 1, &[b"one", b"two"]);
    bench.publish(producer, 0xa, 2, &[b"three"]);
    let consumer = bench.connect(Role::Consumer);
    let subscribed = bench.subscribes(consumer, subscribe(Scope::Batch, Start::Earliest));
    assert_eq!((subscribed.sequence, subscribed.offset, subscribed.depth), (0, 4096, 32));
    bench.publish(producer, 0xa, 3, &[b"four"]);
    let grants = bench.grants(consumer);
    assert_eq!(records(&grants), [(1, 0, 3), (2, 3, 1)]);
    assert_eq!(payloads(&bench, &grants[0]), [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]);
    assert_eq!(payloads(&bench, &grants[1]), [b"four".to_vec()]);
    bench.send(consumer, release(2, 4));
    assert_eq!(bench.core.counters().windows_live, 0, "cumulative");
    assert_eq!(bench.grants(consumer), []);
}

#[test]
fn a_grant_of_batch_scope_keeps_to_its_limits_but_has_one_batch_at_least() {
    let limits: [(u32, u64, u64, &[u32]); 4] =
        [(200, 0, 0, &[2, 2, 1]), (0, 200, 0, &[2, 2, 1]), (0, 0, 3, &[3, 2]), (10, 0, 0, &[1; 5])];
    for (grant_bytes, bytes, records_max, expected) in limits {
        let mut bench = Bench::new(config(8));
        let producer = bench.producer(0xa);
        for number in 1..=5 {
            bench.publish(producer, 0xa, number, &[b"0123456789"]);
        }
        let consumer = bench.connect(Role::Consumer);
        let mut request = subscribe(Scope::Batch, Start::Earliest);
        (request.grant_bytes, request.epoch.bytes, request.epoch.records) = (grant_bytes, bytes, records_max);
        bench.subscribes(consumer, request);
        let counts: Vec<_> = bench.grants(consumer).iter().map(|grant| grant.records).collect();
        assert_eq!(counts, expected, "grant_bytes {grant_bytes}, bytes {bytes}, records {records_max}");
    }
}

#[test]
fn a_grant_of_message_scope_opens_one_record_with_its_checksum() {
    let mut bench = Bench::new(config(8));
    let mut request = subscribe(Scope::Message, Start::Earliest);
    request.depth = 3;
    let (consumer, producer) = start(&mut bench, request);
    bench.publish(producer, 0xa, 1, &[b"one", b"two", b"three", b"four"]);
    let grants = bench.grants(consumer);
    assert_eq!(records(&grants), [(1, 0, 1), (2, 1, 1), (3, 2, 1)]);
    for (grant, payload) in grants.iter().zip([b"one".as_slice(), b"two", b"three"]) {
        let bytes = bench.read_grant(grant).unwrap();
        assert_eq!(RecordRef::read(&bytes).unwrap().payload, payload);
        assert_eq!((crc32c::crc32c(&bytes), bench.now.wall.0), (grant.crc, grant.time));
        assert_eq!(bench.read(grant.key, grant.address, grant.len + 8), None, "nothing but its record");
    }
    bench.send(consumer, release(1, 1));
    assert_eq!(records(&bench.grants(consumer)), [(4, 3, 1)]);
}

#[test]
fn a_start_in_the_middle_of_a_batch_begins_there_or_at_the_batch() {
    for (scope, first) in [(Scope::Batch, 0), (Scope::Message, 2), (Scope::Segment, 0)] {
        let mut bench = Bench::new(config(8));
        let producer = bench.producer(0xa);
        bench.publish(producer, 0xa, 1, &[b"one", b"two", b"three"]);
        let consumer = bench.connect(Role::Consumer);
        let subscribed = bench.subscribes(consumer, subscribe(scope, Start::Sequence(2)));
        assert_eq!((subscribed.sequence, subscribed.offset), (2, 4096));
        assert_eq!(bench.grants(consumer)[0].sequence, first, "{scope:?}");
    }
}

#[test]
fn a_subscription_starts_where_it_was_asked_to() {
    let mut bench = Bench::new(config(8));
    let producer = bench.producer(0xa);
    let mut times = Vec::new();
    for number in 1..=40 {
        bench.pass_ms(1);
        times.push(bench.now.wall.0);
        bench.publish(producer, 0xa, number, &[&[number as u8; 9_000]]);
    }
    let oldest = bench.core.topics().next().unwrap().oldest_sequence;
    assert!(oldest > 0);
    let starts = [
        (Start::Latest, 40),
        (Start::Earliest, oldest),
        (Start::Sequence(0), oldest),
        (Start::Sequence(33), 33),
        (Start::Sequence(40), 40),
        (Start::Sequence(u64::MAX), 40),
        (Start::Time(0), oldest),
        (Start::Time(times[33]), 33),
        (Start::Time(times[33] + 1), 34),
        (Start::Time(u64::MAX), 40),
    ];
    for (start, sequence) in starts {
        for scope in [Scope::Segment, Scope::Batch, Scope::Message] {
            let consumer = bench.connect(Role::Consumer);
            assert_eq!(bench.subscribes(consumer, subscribe(scope, start)).sequence, sequence, "{start:?}");
            if sequence < 40 && scope != Scope::Segment {
                assert_eq!(bench.grants(consumer)[0].sequence, sequence, "{start:?} {scope:?}");
            }
        }
    }
}

#[test]
fn a_paused_consumer_gets_again_what_it_has_not_read() {
    for scope in [Scope::Batch, Scope::Message] {
        let mut bench = Bench::new(config(8));
        let (consumer, producer) = start(&mut bench, subscribe(scope, Start::Earliest));
        bench.publish(producer, 0xa, 1, &[b"one"]);
        bench.publish(producer, 0xa, 2, &[b"two"]);
        bench.publish(producer, 0xa, 3, &[b"three"]);
        assert_eq!(records(&bench.grants(consumer)), [(1, 0, 1), (2, 1, 1), (3, 2, 1)]);
        bench.send(consumer, pause(3, 1));
        bench.publish(producer, 0xa, 4, &[b"four"]);
        assert_eq!((bench.inbox(consumer), bench.core.counters().windows_live), (vec![], 0));
        bench.send(consumer, Arm { subscription: 1, sequence: 1 });
        let grants = bench.grants(consumer);
        assert_eq!(grants.iter().map(|grant| grant.sequence).min(), Some(1));
        assert_eq!(grants.iter().map(|grant| grant.records).sum::<u32>(), 3);
    }
}

#[test]
fn grants_on_their_way_to_a_consumer_that_pauses_do_not_open_records_twice_or_not_at_all() {
    let mut bench = Bench::new(config(8));
    let (consumer, producer) = start(&mut bench, subscribe(Scope::Batch, Start::Earliest));
    for number in 1..=4 {
        bench.publish(producer, 0xa, number, &[b"record"]);
    }
    assert_eq!(records(&bench.grants(consumer)).len(), 4);
    // It has seen two grants, read the first, and pauses; the other two are on their way.
    bench.send(consumer, pause(2, 1));
    bench.send(consumer, Arm { subscription: 1, sequence: 1 });
    let again = bench.grants(consumer);
    assert_eq!(records(&again), [(5, 1, 3)]);
    // It gets the two, which do not go on where it is, and releases them unread.
    bench.send(consumer, release(4, 1));
    assert_eq!(bench.grants(consumer), [], "what goes on where it is, is granted already");
    assert!(bench.read_grant(&again[0]).is_some());
    bench.send(consumer, release(5, 4));
    assert_eq!(bench.core.counters().windows_live, 0);
}

#[test]
fn fillers_are_skipped() {
    for scope in [Scope::Batch, Scope::Message] {
        let mut bench = Bench::new(config(8));
        let (consumer, producer) = start(&mut bench, subscribe(scope, Start::Earliest));
        for round in 0..3 {
            let rival = bench.producer(0xb);
            let offer = keyway_schema::message::Offer { topic: 1, number: 1, address: 0, len: 20_000, key: 1 };
            bench.send(rival, offer);
            bench.publish(producer, 0xa, round + 1, &[b"real"]);
        }
        assert_eq!(bench.core.counters().fillers, 3);
        assert_eq!(records(&bench.grants(consumer)), [(1, 0, 1), (2, 1, 1), (3, 2, 1)], "{scope:?}");
    }
}

#[test]
fn a_grant_of_one_batch_is_no_longer_than_the_longest_batch_whatever_fillers_are_before_it() {
    let mut bench = Bench::new(config(8));
    let producer = bench.producer(0xa);
    let rival = bench.producer(0xb);
    let offer = keyway_schema::message::Offer { topic: 1, number: 1, address: 0, len: 20_000, key: 1 };
    bench.send(rival, offer);
    bench.publish(producer, 0xa, 1, &[&[1; 20_000]]);
    bench.publish(producer, 0xa, 2, &[b"small"]);
    let consumer = bench.connect(Role::Consumer);
    let request = Subscribe { grant_bytes: 1_000, ..subscribe(Scope::Batch, Start::Earliest) };
    bench.subscribes(consumer, request);
    let lens: Vec<_> = bench.grants(consumer).iter().map(|grant| grant.len).collect();
    assert_eq!(lens, [64 + 8 + 20_000, 64 + 8 + 8]);
}

#[test]
fn a_lapped_consumer_is_told_the_exact_gap_and_gets_the_rest() {
    for scope in [Scope::Batch, Scope::Message] {
        let mut bench = Bench::new(config(8));
        let mut request = subscribe(scope, Start::Earliest);
        request.depth = 2;
        let (consumer, producer) = start(&mut bench, request);
        for number in 1..=30 {
            bench.publish(producer, 0xa, number, &[&[number as u8; 20_000]]);
        }
        let oldest = bench.core.topics().next().unwrap().oldest_sequence;
        let told = bench.inbox(consumer);
        let lagged =
            told.iter().rev().find_map(|it| if let ToClient::Lagged(it) = it { Some(it.clone()) } else { None });
        assert_eq!(lagged.as_ref().map(|it| it.sequence), Some(oldest), "{scope:?} {told:?}");
        assert!(told.contains(&ToClient::Revoked(Revoked { subscription: 1, epoch: 2, code: 0 })), "{told:?}");
        // What it holds can still be read, and is not what replaced it.
        let grant =
            told.iter().find_map(|it| if let ToClient::Grant(it) = it { Some(it.clone()) } else { None }).unwrap();
        let bytes = bench.read_grant(&grant).unwrap();
        assert_eq!(bytes.last(), Some(&1));
        bench.send(consumer, release(2, oldest));
        let grants = bench.grants(consumer);
        assert_eq!(grants[0].sequence, oldest);
        assert_eq!(bench.core.counters().segments_limbo, 0);
    }
}

#[test]
fn a_subscription_without_grants_is_told_when_it_arms() {
    let mut bench = Bench::new(config(8));
    let (consumer, producer) = start(&mut bench, subscribe(Scope::Batch, Start::Earliest));
    bench.publish(producer, 0xa, 1, &[b"one"]);
    bench.grants(consumer);
    bench.send(consumer, pause(1, 0));
    for number in 2..=30 {
        bench.publish(producer, 0xa, number, &[&[number as u8; 20_000]]);
    }
    assert_eq!(bench.inbox(consumer), []);
    bench.send(consumer, Arm { subscription: 1, sequence: 0 });
    let oldest = bench.core.topics().next().unwrap().oldest_sequence;
    let told = bench.inbox(consumer);
    assert!(matches!(&told[0], ToClient::Lagged(Lagged { sequence, .. }) if *sequence == oldest), "{told:?}");
    assert!(matches!(&told[1], ToClient::Grant(grant) if grant.sequence == oldest), "{told:?}");
}

#[test]
fn a_grant_that_is_not_released_ends_its_session_at_its_deadline() {
    let mut bench = Bench::new(config(8));
    let (consumer, producer) = start(&mut bench, subscribe(Scope::Batch, Start::Earliest));
    bench.publish(producer, 0xa, 1, &[b"one"]);
    let grant = bench.grants(consumer).remove(0);
    bench.pass_ms(109);
    assert!(bench.read_grant(&grant).is_some());
    bench.pass_ms(1);
    assert_eq!(bench.read_grant(&grant), None);
    bench.pass_ms(100);
    assert_eq!(bench.ended(consumer), Some(Code::GraceOver));
}

#[test]
fn no_key_is_granted_twice_within_its_quarantine() {
    let mut bench = Bench::new(config(8));
    let mut request = subscribe(Scope::Message, Start::Earliest);
    request.depth = 2;
    let (consumer, producer) = start(&mut bench, request);
    let mut seen = std::collections::HashSet::new();
    for number in 1..=1_500 {
        bench.publish(producer, 0xa, number, &[b"one"]);
        let grant = bench.grants(consumer).remove(0);
        assert!(seen.insert(grant.key), "key {:#x} was granted twice", grant.key);
        assert!(bench.read_grant(&grant).is_some());
        bench.send(consumer, release(grant.epoch, number));
        assert_eq!(bench.read_grant(&grant), None);
    }
}

#[test]
fn where_a_freed_index_comes_back_at_once_keys_are_neither_repeated_nor_searched_for() {
    const GRANTS: u64 = 3_000;
    let mut bench = Bench::new(config(8));
    bench.reuses_indices = true;
    let mut request = subscribe(Scope::Message, Start::Earliest);
    request.depth = 2;
    let (mut consumer, producer) = start(&mut bench, request.clone());
    let mut seen = std::collections::HashSet::new();
    for number in 1..=GRANTS {
        bench.publish(producer, 0xa, number, &[b"one"]);
        let grant = bench.grants(consumer).remove(0);
        assert!(seen.insert(grant.key), "key {:#x} was granted twice", grant.key);
        bench.send(consumer, release(grant.epoch, number));
        if number % 1_000 == 0 {
            // What one session has used up the next one meets.
            bench.down(consumer.link, DownCause::PeerLost);
            bench.run();
            consumer = bench.connect(Role::Consumer);
            request.start = Start::Sequence(number);
            bench.subscribes(consumer, request.clone());
        }
    }
    // Each grant has one unbind of its own.
    assert!(bench.unbinds < GRANTS + GRANTS / 20, "{} unbinds for {GRANTS} grants", bench.unbinds);
    let parked = bench.core.counters().windows_parked;
    assert!(parked > 0, "without windows that are kept there is nothing to see here");
    bench.pass(Duration::from_secs(301));
    assert_eq!(bench.core.counters().windows_parked, 0, "their keys may be issued again");
}

#[test]
fn windows_that_are_kept_are_freed_when_the_core_stops() {
    let mut bench = Bench::new(config(8));
    bench.reuses_indices = true;
    let (consumer, producer) = start(&mut bench, subscribe(Scope::Message, Start::Earliest));
    let mut number = 0;
    while bench.core.counters().windows_parked == 0 {
        number += 1;
        bench.publish(producer, 0xa, number, &[b"one"]);
        let grant = bench.grants(consumer).remove(0);
        bench.send(consumer, release(grant.epoch, number));
    }
    bench.core.shut_down(bench.now, Duration::from_secs(1));
    bench.run();
    bench.pass_ms(2_000);
    for client in [consumer, producer] {
        bench.down(client.link, DownCause::PeerLost);
    }
    bench.run();
    assert!(bench.core.is_drained());
    assert!(bench.memory.windows.is_empty());
}

#[test]
fn records_are_checked_in_shared_memory_as_in_a_slot() {
    // A batch whose checksums are right and whose last record claims more than there is.
    let mut bytes = batch(1, 0xa, 1, &[&[1; 600], &[2; 8]]);
    let last = 64 + 608;
    bytes[last..last + 4].copy_from_slice(&9_u32.to_le_bytes());
    keyway_schema::batch::seal(&mut bytes, 2, 1, 0xa, 1);
    let mut bench = Bench::new(config(8));
    let producer = bench.producer(0xa);
    bench.offer_bytes(producer, 8, bytes.clone());
    let len = bytes.len() as u32;
    bench.send(producer, keyway_schema::message::Offer { topic: 1, number: 1, address: 8, len, key: 1 });
    assert_eq!(bench.ended(producer), Some(Code::BatchInvalid));
    let span = keyway_fabric::SharedSpan { shared: super::bench::POOL, offset: 4096, len: 64 };
    let mut header = [0; 64];
    bench.memory.load(span, &mut header);
    assert!(keyway_schema::batch::BatchHeader::read(&header).unwrap().filler);
}
