//! Publish to commit: order, receipts sent again, gaps, offers and what becomes of them, back-pressure.

use keyway_fabric::DownCause;
use keyway_schema::batch::{Batch, BatchHeader};
use keyway_schema::bootstrap::Role;
use keyway_schema::message::{Commit, Committed, Offer, OpenTopic, Publish, Scope, Start, TopicSettings, Withdraw};
use keyway_schema::segment::{Tail, segment_start};
use keyway_schema::{Code, ToClient};

use crate::core::SegmentState;

use super::bench::{Bench, Client, POOL, SEGMENT, config};
use super::clients::{batch, subscribe};
use keyway_fabric::{Memory, SharedSpan};

fn commits(messages: Vec<ToClient>) -> Vec<Commit> {
    let of = |message| match message {
        ToClient::Committed(Committed { topic: 1, commits }) => commits,
        other => panic!("commits were to come, and {other:?} did"),
    };
    messages.into_iter().flat_map(of).collect()
}

fn numbers(messages: Vec<ToClient>) -> Vec<(u64, u64)> {
    commits(messages).iter().map(|commit| (commit.number, commit.base_sequence)).collect()
}

fn load(bench: &Bench, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    bench.memory.load(SharedSpan { shared: POOL, offset, len }, &mut bytes);
    bytes
}

fn tail(bench: &Bench, segment: u64) -> Tail {
    Tail::from_word(u64::from_le_bytes(load(bench, segment * SEGMENT, 8).try_into().unwrap()))
}

fn offers(bench: &mut Bench, client: Client, producer: u64, number: u64, size: usize) -> Vec<u8> {
    let bytes = batch(1, producer, number, &[&vec![number as u8; size]]);
    bench.offer_bytes(client, 0x1000 * number, bytes.clone());
    bench.send(client, Offer { topic: 1, number, address: 0x1000 * number, len: bytes.len() as u32, key: 9 });
    bytes
}

#[test]
fn a_published_batch_is_committed_under_its_sequence_and_lies_in_the_ring() {
    let mut bench = Bench::new(config(8));
    let client = bench.producer(0xa);
    bench.publish(client, 0xa, 1, &[b"one", b"two"]);
    bench.publish(client, 0xa, 2, &[b"three"]);
    let commits = commits(bench.inbox(client));
    assert_eq!(commits.iter().map(|commit| commit.base_sequence).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(commits[0].time, bench.now.wall.0);
    let bytes = load(&bench, 4096, SEGMENT - 4096);
    let batch = Batch::read(&bytes).unwrap();
    let payloads: Vec<_> = batch.records().map(|record| record.payload).collect();
    assert_eq!(payloads, [b"one".as_slice(), b"two"]);
    let second = BatchHeader::read(&bytes[batch.header().len as usize..]).unwrap();
    assert_eq!((second.base_sequence, second.number, second.producer), (2, 2, 0xa));
    let end = segment_start(0, SEGMENT as u32) + u64::from(batch.header().len + second.len);
    assert_eq!(tail(&bench, 0), Tail { offset: end, sealed: false });
}

#[test]
fn a_batch_sent_again_gets_its_first_receipt_and_a_gap_ends_the_session() {
    let mut bench = Bench::new(config(8));
    let client = bench.producer(0xa);
    bench.publish(client, 0xa, 1, &[b"one"]);
    bench.publish(client, 0xa, 1, &[b"one"]);
    assert_eq!(numbers(bench.inbox(client)), [(1, 0), (1, 0)]);
    assert_eq!((bench.core.counters().records, bench.core.counters().duplicates), (1, 1));
    bench.publish(client, 0xa, 3, &[b"three"]);
    assert!(
        matches!(bench.inbox(client).as_slice(), [ToClient::Failed(failed)] if failed.code == Code::BatchOrder.number())
    );
    assert_eq!(bench.ended(client), Some(Code::BatchOrder));
    assert!(bench.is_closed(client));
}

#[test]
fn a_producer_that_comes_back_learns_where_to_go_on() {
    let mut bench = Bench::new(config(8));
    let client = bench.producer(0xa);
    bench.publish(client, 0xa, 1, &[b"one"]);
    bench.down(client.link, DownCause::PeerLost);
    let again = bench.connect(Role::Producer);
    let opened = bench.opens(again, 0xa);
    assert_eq!((opened.last_number, opened.next_sequence), (1, 1));
    bench.publish(again, 0xa, 1, &[b"one"]);
    bench.publish(again, 0xa, 2, &[b"two"]);
    assert_eq!(numbers(bench.inbox(again)), [(1, 0), (2, 1)]);
}

#[test]
fn commit_times_never_decrease() {
    let mut bench = Bench::new(config(8));
    let client = bench.producer(0xa);
    bench.publish(client, 0xa, 1, &[b"one"]);
    bench.now.wall.0 -= 500;
    bench.publish(client, 0xa, 2, &[b"two"]);
    let commits = commits(bench.inbox(client));
    assert_eq!(commits[0].time, commits[1].time);
}

#[test]
fn invalid_batches_end_the_session_with_a_reason() {
    let mut damaged = batch(1, 0xa, 1, &[b"one"]);
    damaged[70] ^= 1;
    let huge = batch(1, 0xa, 1, &[&vec![0; 33 * 1024]]);
    let cases = [
        (damaged, Code::BatchInvalid),
        (batch(2, 0xa, 1, &[b"one"]), Code::BatchInvalid),
        (batch(1, 0xb, 1, &[b"one"]), Code::BatchInvalid),
        (vec![0; 64], Code::BatchInvalid),
        (huge, Code::BatchTooLarge),
    ];
    for (bytes, code) in cases {
        let mut bench = Bench::new(config(8));
        let client = bench.producer(0xa);
        let other = bench.producer(0xc);
        bench.send_with(client, &Publish { topic: 1 }.into(), &bytes);
        assert_eq!(bench.ended(client), Some(code));
        bench.publish(other, 0xc, 1, &[b"unmoved"]);
        assert_eq!(numbers(bench.inbox(other)), [(1, 0)]);
    }
}

#[test]
fn an_offered_batch_is_read_into_its_place_and_what_follows_waits_for_it() {
    let mut bench = Bench::new(config(8));
    let (first, second) = (bench.producer(0xa), bench.producer(0xb));
    bench.holds_reads = true;
    offers(&mut bench, first, 0xa, 1, 20_000);
    bench.publish(second, 0xb, 1, &[b"behind"]);
    assert_eq!((bench.inbox(first), bench.inbox(second)), (vec![], vec![]));
    bench.release_work();
    let told = bench.inbox(first);
    assert!(
        matches!(&told[..], [ToClient::Withdraw(Withdraw { topic: 1, number: 1 }), ToClient::Committed(_)]),
        "{told:?}"
    );
    assert_eq!(numbers(bench.inbox(second)), [(1, 1)]);
    let bytes = load(&bench, 4096, SEGMENT - 4096);
    let offered = Batch::read(&bytes).unwrap();
    assert_eq!(offered.records().next().unwrap().payload, vec![1; 20_000]);
    assert_eq!(BatchHeader::read(&bytes[offered.header().len as usize..]).unwrap().base_sequence, 1);
}

#[test]
fn a_batch_offered_twice_is_withdrawn_once_it_is_read() {
    let mut bench = Bench::new(config(8));
    let client = bench.producer(0xa);
    bench.holds_reads = true;
    offers(&mut bench, client, 0xa, 1, 20_000);
    offers(&mut bench, client, 0xa, 1, 20_000);
    assert_eq!(bench.inbox(client), []);
    bench.release_work();
    let withdrawn = ToClient::Withdraw(Withdraw { topic: 1, number: 1 });
    assert_eq!(bench.inbox(client)[0], withdrawn);
    offers(&mut bench, client, 0xa, 1, 20_000);
    let told = bench.inbox(client);
    assert!(told.contains(&withdrawn) && told.len() == 2, "it is answered with its receipt, and withdrawn: {told:?}");
}

#[test]
fn an_offer_that_does_not_come_becomes_a_filler_and_so_does_what_its_producer_sent_behind_it() {
    let mut bench = Bench::new(config(8));
    let (first, second) = (bench.producer(0xa), bench.producer(0xb));
    bench.holds_reads = true;
    offers(&mut bench, first, 0xa, 1, 20_000);
    bench.publish(first, 0xa, 2, &[b"mine"]);
    bench.publish(second, 0xb, 1, &[b"other"]);
    bench.pass_ms(350);
    assert_eq!(numbers(bench.inbox(second)), [(1, 0)]);
    assert_eq!(bench.ended(first), Some(Code::OfferTimeout));
    assert_eq!(bench.core.counters().fillers, 2);
    // It sends both again on its next session.
    bench.holds_reads = false;
    let again = bench.connect(Role::Producer);
    assert_eq!(bench.opens(again, 0xa).last_number, 0);
    offers(&mut bench, again, 0xa, 1, 20_000);
    bench.publish(again, 0xa, 2, &[b"mine"]);
    let told: Vec<_> = bench.inbox(again).into_iter().filter(|it| matches!(it, ToClient::Committed(_))).collect();
    assert_eq!(numbers(told), [(1, 1), (2, 2)]);
}

#[test]
fn an_offer_of_rubbish_or_of_a_dead_key_becomes_a_filler() {
    for is_rubbish in [true, false] {
        let mut bench = Bench::new(config(8));
        let client = bench.producer(0xa);
        if is_rubbish {
            bench.offer_bytes(client, 0x1000, vec![7; 20_000]);
        }
        bench.send(client, Offer { topic: 1, number: 1, address: 0x1000, len: 20_000, key: 9 });
        assert_eq!(bench.core.counters().fillers, 1);
        assert!(bench.ended(client) == Some(if is_rubbish { Code::BatchInvalid } else { Code::OfferTimeout }));
        let topic = bench.core.topics().next().unwrap();
        assert_eq!((topic.next_sequence, topic.reserved), (0, 0));
    }
}

#[test]
fn offers_that_cannot_be_are_refused_before_anything_is_read() {
    let offers = [(72, u64::MAX, Code::BatchInvalid), (71, 0, Code::BatchInvalid), (60_000, 0, Code::BatchTooLarge)];
    for (len, address, code) in offers {
        let mut bench = Bench::new(config(8));
        let client = bench.producer(0xa);
        bench.send(client, Offer { topic: 1, number: 1, address, len, key: 9 });
        assert_eq!(bench.ended(client), Some(code));
    }
}

#[test]
fn a_newer_session_of_a_producer_takes_over_from_its_old_one() {
    let mut bench = Bench::new(config(8));
    let old = bench.producer(0xa);
    bench.publish(old, 0xa, 1, &[b"one"]);
    bench.holds_reads = true;
    offers(&mut bench, old, 0xa, 2, 20_000);
    let new = bench.connect(Role::Producer);
    assert_eq!(bench.opens(new, 0xa).last_number, 1);
    bench.publish(new, 0xa, 2, &[b"two"]);
    bench.pass_ms(100);
    assert!(bench.is_closed(old));
    assert_eq!(numbers(bench.inbox(new)), [(2, 1)]);
}

#[test]
fn the_ring_drops_its_oldest_segment_and_goes_on() {
    let mut bench = Bench::new(config(8));
    let client = bench.producer(0xa);
    for number in 1..=40 {
        bench.publish(client, 0xa, number, &[&[number as u8; 20_000]]);
    }
    let topic = bench.core.topics().next().unwrap();
    assert_eq!((topic.segments, topic.next_sequence), (4, 40));
    assert!(topic.oldest_sequence > 20, "{topic:?}");
    assert_eq!(bench.core.counters().segments_free, 4);
    let is_live = |state: &SegmentState| matches!(state, SegmentState::Live { .. });
    let live = bench.core.segments().filter(|segment| is_live(&segment.state));
    let sealed = live.filter(|segment| tail(&bench, segment.index.into()).sealed).count();
    assert_eq!(sealed, 3, "all but the one that is written to");
}

#[test]
fn a_topic_that_finds_the_pool_empty_takes_from_the_largest_ring_what_a_ring_needs() {
    let mut bench = Bench::new(config(5));
    let rich = bench.producer(0xa);
    for number in 1..=20 {
        bench.publish(rich, 0xa, number, &[&[number as u8; 20_000]]);
    }
    let segments = |bench: &Bench| bench.core.topics().map(|topic| topic.segments).collect::<Vec<_>>();
    assert_eq!(segments(&bench), [4]);
    let poor = bench.connect(Role::Producer);
    for (name, expected) in [("u", vec![4, 1]), ("v", vec![3, 1, 1]), ("w", vec![2, 1, 1, 1])] {
        bench.send(poor, OpenTopic { request: 5, topic: name.to_owned(), settings: None, producer: 1 });
        assert!(matches!(bench.inbox(poor).as_slice(), [ToClient::TopicOpened(_)]), "{name} was not opened");
        assert_eq!(segments(&bench), expected);
    }
    bench.send(poor, OpenTopic { request: 6, topic: "x".to_owned(), settings: None, producer: 1 });
    let told = bench.inbox(poor);
    let refused = matches!(&told[..], [ToClient::Failed(failed)] if failed.code == Code::PoolExhausted.number());
    assert!(refused, "no ring is left that has more than it needs: {told:?}");
    assert_eq!(bench.core.counters().segments_free, 0);
}

#[test]
fn a_topic_keeps_what_it_has_while_it_waits_for_a_segment_of_the_largest_ring() {
    let mut bench = Bench::new(config(5));
    let rich = bench.producer(0xa);
    let reader = bench.connect(Role::Consumer);
    bench.subscribes(reader, subscribe(Scope::Batch, Start::Earliest));
    for number in 1..=12 {
        bench.publish(rich, 0xa, number, &[&[number as u8; 20_000]]);
    }
    let poor = bench.connect(Role::Producer);
    bench.send(poor, OpenTopic { request: 5, topic: "u".to_owned(), settings: None, producer: 1 });
    for number in 1..=4 {
        bench.send_with(poor, &Publish { topic: 2 }.into(), &batch(2, 1, number, &[&[7; 20_000]]));
    }
    let view = |bench: &Bench| bench.core.topics().nth(1).unwrap();
    assert_eq!((view(&bench).segments, view(&bench).next_sequence, view(&bench).waiting), (1, 3, 1));
    bench.pass_ms(400);
    assert_eq!((view(&bench).segments, view(&bench).next_sequence, view(&bench).oldest_sequence), (2, 4, 0));
}

#[test]
fn a_topic_that_finds_the_pool_empty_is_not_created_and_the_asker_goes_on() {
    let mut bench = Bench::new(config(1));
    let client = bench.producer(0xa);
    bench.send(client, OpenTopic { request: 5, topic: "u".to_owned(), settings: None, producer: 1 });
    let told = bench.inbox(client);
    let [ToClient::Failed(failed)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((failed.request, failed.code), (5, Code::PoolExhausted.number()));
    bench.publish(client, 0xa, 1, &[b"one"]);
    assert_eq!(numbers(bench.inbox(client)), [(1, 0)]);
}

#[test]
fn settings_outside_the_limits_are_refused_with_their_values() {
    let mut bench = Bench::new(config(8));
    let client = bench.connect(Role::Producer);
    let overflow = keyway_schema::message::Overflow::DropOldest;
    for (segments, record_max) in [(1, 0), (5000, 0), (0, 40_000)] {
        let settings = Some(TopicSettings { segments, record_max, overflow });
        bench.send(client, OpenTopic { request: 3, topic: "x".to_owned(), settings, producer: 1 });
        let told = bench.inbox(client);
        assert!(matches!(&told[..], [ToClient::Failed(failed)] if failed.code == Code::Settings.number()), "{told:?}");
    }
    let settings = Some(TopicSettings { segments: 2, record_max: 100, overflow });
    bench.send(client, OpenTopic { request: 3, topic: "x".to_owned(), settings, producer: 1 });
    let told = bench.inbox(client);
    assert!(matches!(&told[..], [ToClient::TopicOpened(opened)] if opened.record_max == 100), "{told:?}");
}

#[test]
fn a_client_that_takes_no_answers_gets_to_ask_no_more_questions() {
    let mut bench = Bench::new(config(8));
    let client = bench.producer(0xa);
    bench.stops_crediting(client);
    let mut asked = 0;
    while bench.receives(client) > 0 {
        asked += 1;
        assert!(asked < 1000, "the broker keeps answering somebody who does not listen");
        bench.send(client, OpenTopic { request: 1, topic: "t".to_owned(), settings: None, producer: 0xa });
    }
}
