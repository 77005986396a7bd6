//! Segment scope: grants, ticks, wake-ups, pauses, deadlines, being lapped.

use std::time::Duration;

use keyway_fabric::{DownCause, Key, Machine, Transmit};
use keyway_schema::bootstrap::Role;
use keyway_schema::message::{Arm, Grant, Lagged, Release, Revoked, Scope, Start, Subscribe, Unsubscribe, Wake};
use keyway_schema::{Code, ToClient};

use super::bench::{Bench, Client, SEGMENT, config};
use super::clients::subscribe;

fn release(epoch: u64, sequence: u64) -> Release {
    Release { subscription: 1, epoch, sequence, pause: false }
}

fn arm(sequence: u64) -> Arm {
    Arm { subscription: 1, sequence }
}

/// A consumer of topic `t` from its start, and the producer.
fn start(bench: &mut Bench) -> (Client, Client) {
    start_with(bench, subscribe(Scope::Segment, Start::Earliest))
}

fn start_with(bench: &mut Bench, request: Subscribe) -> (Client, Client) {
    let producer = bench.producer(0xa);
    let consumer = bench.connect(Role::Consumer);
    bench.subscribes(consumer, request);
    (consumer, producer)
}

/// Publishes batches of one record that fill a third of a segment each.
fn fill(bench: &mut Bench, producer: Client, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        bench.publish(producer, 0xa, number, &[&[number as u8; 20_000]]);
    }
}

#[test]
fn the_segment_of_the_cursor_is_granted_and_its_key_opens_it_and_nothing_else() {
    let mut bench = Bench::new(config(8));
    let (consumer, producer) = start(&mut bench);
    bench.publish(producer, 0xa, 1, &[b"hello"]);
    let grants = bench.grants(consumer);
    let [grant] = &grants[..] else { panic!("{grants:?}") };
    assert_eq!((grant.epoch, grant.supersedes, grant.offset, grant.sequence), (1, 0, 0, 0));
    assert_eq!((u64::from(grant.len), grant.current_us), (SEGMENT, 10_000));
    let bytes = bench.read_grant(grant).unwrap();
    assert_eq!(&bytes[4096 + 64 + 8..][..5], b"hello");
    assert_eq!(bench.read(grant.key, grant.address - 1, 1), None);
    assert_eq!(bench.read(grant.key, grant.address, grant.len + 1), None);
}

#[test]
fn a_tick_makes_before_it_breaks() {
    let mut bench = Bench::new(config(8));
    let (consumer, _) = start(&mut bench);
    let first = bench.grants(consumer).remove(0);
    bench.pass_ms(10);
    let second = bench.grants(consumer).remove(0);
    assert_eq!((second.epoch, second.supersedes), (2, 1));
    assert!(bench.read_grant(&first).is_some(), "the old key works until it is released");
    assert!(bench.read_grant(&second).is_some());
    bench.send(consumer, release(1, 0));
    assert_eq!(bench.read_grant(&first), None);
    assert!(bench.read_grant(&second).is_some());
}

#[test]
fn a_consumer_that_keeps_the_protocol_is_never_without_a_key_and_no_key_comes_twice() {
    let mut bench = Bench::new(config(8));
    let (consumer, _) = start(&mut bench);
    let mut current = bench.grants(consumer).remove(0);
    let mut seen = std::collections::HashSet::from([current.key]);
    for _ in 0..1_200 {
        bench.pass_ms(10);
        let next = bench.grants(consumer).remove(0);
        assert_eq!(next.supersedes, current.epoch);
        assert!(bench.read_grant(&next).is_some());
        assert!(seen.insert(next.key), "key {:#x} was granted twice", next.key);
        bench.send(consumer, release(current.epoch, 0));
        current = next;
    }
    let counters = bench.core.counters();
    assert!(counters.windows_freed > 4, "windows are replaced before their keys come round: {counters:?}");
    assert!(counters.windows <= 6, "{counters:?}");
    assert_eq!(bench.ended(consumer), None);
}

#[test]
fn a_key_that_is_not_released_dies_at_its_deadline_and_ends_only_its_session() {
    let mut bench = Bench::new(config(8));
    let (consumer, _) = start(&mut bench);
    let other = bench.connect(Role::Consumer);
    bench.subscribes(other, subscribe(Scope::Segment, Start::Latest));
    bench.send(other, arm(0));
    let first = bench.grants(consumer).remove(0);
    bench.pass_ms(109);
    assert!(bench.read_grant(&first).is_some());
    bench.send(other, Release { subscription: 1, epoch: 1, sequence: 0, pause: false });
    bench.pass_ms(1);
    assert_eq!(bench.read_grant(&first), None);
    bench.pass_ms(200);
    assert_eq!(bench.ended(consumer), Some(Code::GraceOver));
    assert_eq!(bench.ended(other), None);
    assert_eq!((bench.core.counters().revocations_forced, bench.core.counters().windows_live), (1, 0));
}

#[test]
fn a_key_dies_at_its_deadline_though_a_tick_is_overdue_that_cannot_be_done() {
    let mut bench = Bench::new(config(8));
    bench.windows_left = 1;
    let (consumer, _) = start(&mut bench);
    let only = bench.grants(consumer).remove(0);
    bench.pass_ms(110);
    assert_eq!(bench.read_grant(&only), None);
}

#[test]
fn a_deadline_is_kept_though_an_event_of_the_same_turn_comes_first() {
    let mut bench = Bench::new(config(8));
    let (consumer, _) = start(&mut bench);
    let grant = bench.grants(consumer).remove(0);
    bench.pass_ms(109);
    bench.now.time = bench.now.time + Duration::from_millis(1);
    bench.send(consumer, arm(0));
    bench.pass_ms(0);
    assert_eq!(bench.read_grant(&grant), None);
}

#[test]
fn a_key_whose_bind_never_completes_dies_with_its_endpoint_at_its_deadline() {
    let mut bench = Bench::new(config(8));
    bench.holds_binds = true;
    let (consumer, _) = start(&mut bench);
    bench.pass_ms(200);
    assert!(bench.is_closed(consumer));
    assert_eq!(bench.core.counters().windows, 0);
}

#[test]
fn an_overdue_key_is_freed_at_once_though_one_before_it_waits_for_the_endpoint() {
    let mut bench = Bench::new(config(8));
    let (consumer, _) = start(&mut bench);
    bench.pass_ms(10);
    bench.holds_binds = true;
    bench.send(consumer, release(1, 0));
    bench.now.time = bench.now.time + Duration::from_secs(1);
    bench.core.handle_timeout(bench.now, &mut bench.memory);
    let first = bench.core.transmit(bench.now, &mut bench.memory);
    assert!(
        matches!(first, Some(Transmit::FreeWindow { .. })),
        "the second key's, and not the end of the link: {first:?}"
    );
}

#[test]
fn an_armed_consumer_is_woken_once_when_there_is_something_to_read() {
    let mut bench = Bench::new(config(8));
    let (consumer, producer) = start(&mut bench);
    bench.grants(consumer);
    bench.send(consumer, arm(0));
    assert_eq!(bench.inbox(consumer), []);
    bench.publish(producer, 0xa, 1, &[b"one"]);
    bench.publish(producer, 0xa, 2, &[b"two"]);
    let tail = 4096 + 64 + 16;
    assert_eq!(bench.inbox(consumer), [ToClient::Wake(Wake { subscription: 1, tail })]);
    bench.send(consumer, arm(1));
    assert!(matches!(bench.inbox(consumer)[..], [ToClient::Wake(_)]), "it armed behind the tail");
}

#[test]
fn a_wake_up_that_brings_no_more_than_the_last_one_is_not_sent() {
    let mut bench = Bench::new(config(8));
    let request = Subscribe { depth: 2, ..subscribe(Scope::Segment, Start::Earliest) };
    let (consumer, producer) = start_with(&mut bench, request);
    fill(&mut bench, producer, 1..=4);
    assert_eq!(bench.grants(consumer).len(), 1);
    // The consumer is at the end of the first segment, and may not know that it is sealed.
    bench.send(consumer, arm(3));
    assert!(matches!(bench.inbox(consumer)[..], [ToClient::Wake(_)]));
    bench.send(consumer, arm(3));
    assert_eq!(bench.inbox(consumer), []);
    bench.send(consumer, release(1, 3));
    assert_eq!(bench.grants(consumer)[0].offset, SEGMENT);
    bench.send(consumer, arm(3));
    assert!(matches!(bench.inbox(consumer)[..], [ToClient::Wake(_)]), "it has a new key");
}

#[test]
fn an_idle_consumer_holds_no_key_and_a_fresh_grant_wakes_it() {
    let mut bench = Bench::new(config(8));
    let (consumer, producer) = start(&mut bench);
    let first = bench.grants(consumer).remove(0);
    bench.send(consumer, arm(0));
    bench.pass_ms(10);
    assert_eq!(bench.inbox(consumer), [ToClient::Revoked(Revoked { subscription: 1, epoch: 1, code: 0 })]);
    bench.send(consumer, release(1, 0));
    assert_eq!(bench.read_grant(&first), None);
    bench.pass_ms(10_000);
    assert_eq!(bench.inbox(consumer), []);
    bench.publish(producer, 0xa, 1, &[b"one"]);
    let grant = bench.grants(consumer).remove(0);
    assert_eq!((grant.epoch, grant.supersedes), (2, 0));
}

#[test]
fn a_paused_consumer_gets_no_grants_until_it_arms() {
    let mut bench = Bench::new(config(8));
    let (consumer, producer) = start(&mut bench);
    bench.grants(consumer);
    bench.send(consumer, Release { subscription: 1, epoch: 1, sequence: 0, pause: true });
    bench.publish(producer, 0xa, 1, &[b"one"]);
    bench.pass_ms(1_000);
    assert_eq!(bench.inbox(consumer), []);
    assert_eq!(bench.core.counters().windows_live, 0);
    bench.send(consumer, arm(0));
    assert_eq!(bench.grants(consumer).len(), 1);
}

#[test]
fn two_segments_are_granted_in_order_and_the_consumer_moves_on() {
    let mut bench = Bench::new(config(8));
    let (consumer, producer) = start(&mut bench);
    fill(&mut bench, producer, 1..=7);
    let offsets =
        |grants: &[Grant]| grants.iter().map(|grant| (grant.epoch, grant.offset / SEGMENT)).collect::<Vec<_>>();
    let grants = bench.grants(consumer);
    assert_eq!(offsets(&grants), [(1, 0), (2, 1)]);
    // Three segments exist; the third is granted once the first is through.
    let end = grants[1].sequence;
    bench.send(consumer, release(1, end));
    let third = bench.grants(consumer);
    assert_eq!(offsets(&third), [(3, 2)]);
    // A tick re-keys both, in segment order.
    bench.pass_ms(10);
    let again = bench.grants(consumer);
    assert_eq!(offsets(&again), [(4, 1), (5, 2)]);
    assert_eq!(again.iter().map(|grant| grant.supersedes).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_segment_that_was_left_is_not_rekeyed_in_place_of_one_that_is_needed() {
    let mut bench = Bench::new(config(8));
    let (consumer, producer) = start(&mut bench);
    fill(&mut bench, producer, 1..=10);
    let first = bench.grants(consumer);
    bench.pass_ms(10);
    assert_eq!(bench.grants(consumer).len(), 2, "both are re-keyed");
    // Its release names the keys before, as it has not seen the new ones yet; it is through with both segments.
    bench.pass_ms(10);
    let end = first[1].sequence * 2;
    bench.send(consumer, release(2, end));
    let offsets: Vec<_> = bench.grants(consumer).iter().map(|grant| grant.offset / SEGMENT).collect();
    assert_eq!(offsets, [1, 2]);
}

#[test]
fn a_tick_waits_for_a_release_where_the_depth_leaves_no_room() {
    let mut bench = Bench::new(config(8));
    let (consumer, producer) = start(&mut bench);
    fill(&mut bench, producer, 1..=7);
    bench.pass_ms(10);
    assert_eq!(bench.grants(consumer).len(), 4);
    bench.pass_ms(10);
    assert_eq!(bench.grants(consumer), []);
    bench.send(consumer, release(2, 0));
    assert_eq!(bench.grants(consumer).len(), 2);
}

#[test]
fn an_epoch_ends_early_at_its_limit_of_records_or_bytes() {
    for (bytes, records) in [(0, 3), (250, 0)] {
        let mut bench = Bench::new(config(8));
        let mut request = subscribe(Scope::Segment, Start::Earliest);
        (request.epoch.bytes, request.epoch.records) = (bytes, records);
        let (consumer, producer) = start_with(&mut bench, request);
        assert_eq!(bench.grants(consumer).len(), 1);
        bench.publish(producer, 0xa, 1, &[b"one"]);
        bench.publish(producer, 0xa, 2, &[b"two"]);
        bench.publish(producer, 0xa, 3, &[b"three"]);
        bench.publish(producer, 0xa, 4, &[b"four"]);
        assert_eq!(bench.grants(consumer).len(), 1, "bytes {bytes}, records {records}");
    }
}

#[test]
fn a_lapped_consumer_is_told_the_oldest_record_and_goes_on_there() {
    let mut bench = Bench::new(config(8));
    let (consumer, producer) = start(&mut bench);
    bench.publish(producer, 0xa, 1, &[b"small"]);
    let first = bench.grants(consumer).remove(0);
    fill(&mut bench, producer, 2..=15);
    let oldest = bench.core.topics().next().unwrap().oldest_sequence;
    assert!(oldest > 1);
    let told = bench.inbox(consumer);
    let lagged: Vec<_> =
        told.iter().filter_map(|it| if let ToClient::Lagged(it) = it { Some(it) } else { None }).collect();
    let Some(Lagged { sequence, offset, .. }) = lagged.last() else { panic!("{told:?}") };
    assert_eq!((*sequence, offset % SEGMENT), (oldest, 4096));
    let place = |wanted: fn(&ToClient) -> bool| told.iter().position(wanted).unwrap();
    assert!(place(|it| matches!(it, ToClient::Lagged(_))) < place(|it| matches!(it, ToClient::Revoked(_))));
    assert!(bench.read_grant(&first).is_some(), "in limbo, its window still covers it");
    assert!(bench.core.counters().segments_limbo >= 1);
    let last =
        told.iter().filter_map(|it| if let ToClient::Grant(it) = it { Some(it) } else { None }).next_back().unwrap();
    bench.send(consumer, release(last.epoch - 1, oldest));
    assert_eq!(bench.read_grant(&first), None);
    assert_eq!(bench.core.counters().segments_limbo, 0);
}

#[test]
fn a_stopped_consumer_pins_its_own_segments_only_and_only_until_its_deadline() {
    let mut bench = Bench::new(config(8));
    let (consumer, producer) = start(&mut bench);
    fill(&mut bench, producer, 1..=60);
    let counters = bench.core.counters();
    assert!(counters.segments_limbo >= 1 && counters.segments_limbo <= 4, "{counters:?}");
    assert_eq!(counters.records, 60, "the producer is not held up");
    bench.pass_ms(400);
    assert_eq!(bench.core.counters().segments_limbo, 0);
    assert_eq!(bench.ended(consumer), Some(Code::GraceOver));
}

#[test]
fn producers_wait_while_the_pool_is_pinned_and_go_on_when_it_is_not() {
    let mut bench = Bench::new(config(2));
    let (consumer, producer) = start(&mut bench);
    let mut number = 0;
    while bench.receives(producer) > 0 {
        number += 1;
        bench.publish(producer, 0xa, number, &[&[1; 20_000]]);
    }
    let waiting = bench.core.counters().batches_waiting;
    assert!(waiting > 0 && u64::from(waiting) < number);
    assert_eq!(bench.core.counters().records, number - u64::from(waiting));
    bench.pass_ms(400);
    assert_eq!(bench.ended(consumer), Some(Code::GraceOver));
    assert_eq!((bench.core.counters().records, bench.core.counters().batches_waiting), (number, 0));
    assert!(bench.receives(producer) > 0);
}

#[test]
fn a_segment_is_written_anew_only_once_the_windows_over_it_have_been_freed() {
    let mut bench = Bench::new(config(2));
    let (_consumer, producer) = start(&mut bench);
    for number in 1.. {
        if bench.receives(producer) == 0 {
            break;
        }
        bench.publish(producer, 0xa, number, &[&[1; 20_000]]);
    }
    assert!(bench.core.counters().batches_waiting > 0);
    let before = bench.memory.pool.clone();
    bench.now.time = bench.now.time + Duration::from_millis(400);
    bench.core.handle_timeout(bench.now, &mut bench.memory);
    assert!(bench.memory.pool == before, "the windows have not been freed yet, and open what is written");
    bench.run();
    assert_eq!(bench.core.counters().batches_waiting, 0);
}

#[test]
fn a_window_that_would_yield_a_key_in_quarantine_is_moved_on_first() {
    let mut bench = Bench::new(config(8));
    bench.windows_left = 1;
    bench.first_keys.extend([Key(0x4200)]);
    let (consumer, _) = start(&mut bench);
    assert_eq!(bench.grants(consumer)[0].key, 0x4201);
    bench.down(consumer.link, DownCause::PeerLost);
    bench.run();
    for (minutes, expected) in [(4, 0x4202), (6, 0x4201)] {
        // The device gives the index again.
        bench.first_keys.extend([Key(0x4200)]);
        bench.pass(Duration::from_secs(minutes * 60));
        let other = bench.connect(Role::Consumer);
        bench.subscribes(other, subscribe(Scope::Segment, Start::Latest));
        let grant = bench.grants(other).remove(0);
        assert_eq!((grant.epoch, grant.key), (1, expected));
        bench.down(other.link, DownCause::PeerLost);
        bench.run();
    }
}

#[test]
fn a_bind_that_yields_a_key_in_quarantine_all_the_same_is_not_granted() {
    for scope in [Scope::Segment, Scope::Batch, Scope::Message] {
        let mut bench = Bench::new(config(8));
        bench.first_keys.extend([Key(0x4200)]);
        let (consumer, producer) = start(&mut bench);
        assert_eq!(bench.grants(consumer)[0].key, 0x4201);
        bench.down(consumer.link, DownCause::PeerLost);
        bench.publish(producer, 0xa, 1, &[b"one"]);
        // The device gives the index again, and passes over 0x4200.
        bench.first_keys.extend([Key(0x42ff), Key(0x5500)]);
        bench.keys_passed = 1;
        let other = bench.connect(Role::Consumer);
        bench.subscribes(other, subscribe(scope, Start::Earliest));
        let grants = bench.grants(other);
        assert_eq!((grants.len(), grants[0].epoch, grants[0].sequence, grants[0].key), (1, 1, 0, 0x5501), "{scope:?}");
        assert!(bench.read_grant(&grants[0]).is_some());
        assert_eq!(bench.core.counters().windows_live, 1, "the other is unbound again");
    }
}

#[test]
fn an_unsubscribed_or_lost_consumer_leaves_nothing_behind() {
    for is_lost in [false, true] {
        let mut bench = Bench::new(config(8));
        let (consumer, producer) = start(&mut bench);
        fill(&mut bench, producer, 1..=4);
        let grants = bench.grants(consumer);
        if is_lost {
            bench.down(consumer.link, DownCause::PeerLost);
            bench.run();
        } else {
            bench.send(consumer, Unsubscribe { subscription: 1 });
        }
        assert!(grants.iter().all(|grant| bench.read_grant(grant).is_none()));
        let counters = bench.core.counters();
        assert_eq!((counters.windows_live, counters.subscriptions, counters.windows), (0, 0, 0), "lost: {is_lost}");
        assert_eq!(bench.core.timeout(), None);
    }
}

#[test]
fn ten_thousand_subscriptions_in_turn_leave_the_broker_as_it_was() {
    let mut bench = Bench::new(config(8));
    let (consumer, _) = start(&mut bench);
    for number in 1..10_000 {
        bench.send(consumer, Unsubscribe { subscription: number });
        bench.inbox(consumer);
        bench.subscribes(consumer, subscribe(Scope::Segment, Start::Latest));
    }
    let counters = bench.core.counters();
    assert_eq!((counters.subscriptions, counters.windows_live), (1, 1));
    assert!(counters.windows <= 4, "{counters:?}");
}

#[test]
fn a_peer_that_violates_a_key_is_counted_and_its_windows_die() {
    let mut bench = Bench::new(config(8));
    let (consumer, _) = start(&mut bench);
    let grant = bench.grants(consumer).remove(0);
    bench.down(consumer.link, DownCause::PeerViolation);
    bench.run();
    assert_eq!(bench.read_grant(&grant), None);
    assert_eq!(bench.core.counters().remote_access_violations, 1);
}
