//! A peer that breaks the protocol, stops or dies costs its own endpoint, and learns nothing.

#![allow(clippy::unwrap_used, reason = "a test whose set-up fails has failed")]

use keyway_fabric::{
    DownCause, Event, Fabric, Key, LocalSpan, Memory, Op, Outcome, SharedSpan, Stream, Work, WorkError,
};
use proptest::prelude::*;

mod victim;

use victim::{
    ACK, ATTACKER, DATA, HEADER, HELLO, LENT, POOL, READ, REFUSE, SEND, SLOT, VERSION, Victim, Wire, frame, hello,
    join, read, tcp, unix,
};

/// The most READs that a peer may have outstanding.
const READS_MAX: usize = 128;

/// The endpoint ends with a protocol error, everything that was posted to it having ended first.
fn expect_protocol_error(mut victim: Victim, bytes: &[u8]) {
    victim.attack(bytes);
    victim.turns(5);
    assert_eq!(victim.down(), Some(DownCause::Protocol), "{:?}", victim.events);
    let flushed = victim.events.iter().filter(|event| matches!(event, Event::Done { result: Err(_), .. })).count();
    assert_eq!(flushed, 4, "the four receives: {:?}", victim.events);
    assert_eq!(victim.fabric.holdings().endpoints, 0);
}

#[test]
fn a_stream_that_begins_with_anything_but_the_expected_greeting_is_refused() {
    expect_protocol_error(Victim::waiting(), &hello(VERSION + 1, ATTACKER));
    expect_protocol_error(Victim::waiting(), &hello(VERSION, [0xab; 16]));
    expect_protocol_error(Victim::waiting(), &frame(SEND, 0, 0, 0, 0, 0));
    expect_protocol_error(Victim::waiting(), &[0; HEADER]);
    expect_protocol_error(Victim::waiting(), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

#[test]
fn a_second_greeting_is_refused() {
    expect_protocol_error(Victim::greeted(), &hello(VERSION, ATTACKER));
}

#[test]
fn a_response_that_nobody_asked_for_is_refused() {
    expect_protocol_error(Victim::greeted(), &frame(DATA, 0, 0, 8, 0, 0));
    expect_protocol_error(Victim::greeted(), &frame(DATA, 0, 0, 0, 0, 0));
    expect_protocol_error(Victim::greeted(), &frame(REFUSE, 1, 0, 0, 0, 0));
    expect_protocol_error(Victim::greeted(), &frame(REFUSE, 2, 0, 0, 0, 0));
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_refused() {
    expect_protocol_error(Victim::greeted(), &frame(ACK, 0, 0, 0, 1, 0));
    expect_protocol_error(Victim::greeted(), &frame(ACK, 0, 0, 0, u64::MAX, 0));
}

#[test]
fn an_absurd_length_is_refused_before_anything_is_set_aside_for_it() {
    expect_protocol_error(Victim::greeted(), &frame(SEND, 0, 0, u32::MAX, 0, 0));
    expect_protocol_error(Victim::greeted(), &frame(SEND, 0, 0, SLOT + 1, 0, 0));
}

#[test]
fn more_outstanding_reads_than_agreed_are_refused() {
    let victim = Victim::greeted();
    let flood: Vec<u8> = (0..=READS_MAX).flat_map(|_| read(victim.address, 1 << 20, victim.key)).collect();
    expect_protocol_error(victim, &flood);
}

#[test]
fn a_response_longer_than_its_read_is_refused() {
    let mut victim = Victim::greeted();
    let into = LocalSpan { local: victim.local, slot: 7, offset: 0, len: 100 };
    let from = keyway_fabric::RemoteSpan { address: 0, len: 100, key: Key(0) };
    let work = Work::Read { from, into: keyway_fabric::Target::Local(into) };
    victim.fabric.post(victim.link, Op(7), work).unwrap();
    victim.turns(1);
    victim.attack(&frame(DATA, 0, 0, 60, 0, 0));
    victim.attack(&[1; 60]);
    victim.attack(&frame(DATA, 0, 0, 41, 0, 0));
    victim.attack(&[2; 41]);
    victim.turns(5);
    assert_eq!(victim.down(), Some(DownCause::Protocol));
    let flushed = |event: &Event| matches!(event, Event::Done { op: Op(7), result: Err(WorkError::Flushed), .. });
    assert!(victim.events.iter().any(flushed), "{:?}", victim.events);
    assert!(victim.fabric.bytes(LocalSpan { offset: 100, ..into }).iter().all(|byte| *byte == 0));
}

#[test]
fn a_stream_that_ends_in_the_middle_takes_the_endpoint_down() {
    let whole = [frame(SEND, 0, 0, 100, 0, 0), vec![7; 100]].concat();
    for cut in [1, HEADER - 1, HEADER, HEADER + 1, whole.len() - 1] {
        let mut victim = Victim::greeted();
        victim.attack(&whole[..cut]);
        victim.turns(2);
        assert_eq!(victim.down(), None);
        victim.attacker.hang_up();
        victim.turns(3);
        assert_eq!(victim.down(), Some(DownCause::PeerLost), "cut at {cut}");
        let flushed = |event: &&Event| matches!(event, Event::Done { result: Err(WorkError::Flushed), .. });
        let flushed = victim.events.iter().filter(flushed).count();
        assert_eq!(flushed, 4, "all four receives, cut at {cut}: {:?}", victim.events);
    }
}

#[test]
fn frames_may_come_byte_by_byte() {
    let mut victim = Victim::greeted();
    let bytes = [frame(SEND, 0, 0, 3, 0, 0), b"abc".to_vec(), read(victim.address, 5, victim.key)].concat();
    for byte in bytes {
        victim.attack(&[byte]);
        victim.turns(1);
    }
    victim.turns(2);
    let Some(Event::Message { op: Op(0), span, .. }) = victim.events.last() else { panic!("{:?}", victim.events) };
    assert_eq!(victim.fabric.bytes(*span), b"abc");
    let answer = victim.drain();
    let expected = [frame(ACK, 0, 0, 0, 1, 0), frame(DATA, 0, 0, 5, 0, 0), vec![LENT; 5]].concat();
    assert_eq!(answer, expected);
}

/// Asks for the whole pool, reads nothing, and lets the victim work until its stream is full.
fn stalled() -> Victim {
    stalled_on(unix())
}

fn stalled_on(ends: (Box<dyn Wire>, Stream)) -> Victim {
    let mut victim = Victim::greeted_on(ends);
    let reads: Vec<u8> = (0..8).flat_map(|_| read(victim.address, POOL as u32, victim.key)).collect();
    victim.attack(&reads);
    victim.turns(50);
    assert_eq!(victim.down(), None);
    victim
}

/// What came, frame by frame: the number of payload bytes, and whether a refusal ended it.
fn take_apart(mut bytes: &[u8]) -> (usize, bool) {
    let mut payload = 0;
    while bytes.len() >= HEADER {
        let (header, rest) = bytes.split_at(HEADER);
        if header[0] == REFUSE {
            assert_eq!(header, frame(REFUSE, 1, 0, 0, 0, 0), "a remote access error");
            assert!(rest.is_empty(), "a refusal is the last frame");
            return (payload, true);
        }
        assert_eq!(header[0], DATA);
        let len = u32::from_le_bytes(header[4..8].try_into().unwrap()) as usize;
        let (part, rest) = rest.split_at(len.min(rest.len()));
        assert!(part.iter().all(|byte| *byte == LENT), "a byte that was never lent has leaked");
        payload += part.len();
        bytes = rest;
    }
    (payload, false)
}

/// A fabric with more sockets than it looks at one by one asks the system which are ready.
fn with_idle_neighbours(mut victim: Victim) -> Victim {
    for _ in 0..4 {
        let (attacker, stream) = unix();
        join(&mut victim.fabric, victim.domain, stream);
        // It stays open, and says nothing.
        std::mem::forget(attacker);
    }
    victim
}

#[test]
fn a_peer_that_stops_reading_cannot_keep_its_key_alive_nor_see_recycled_memory() {
    nothing_leaks_to(stalled());
}

#[test]
fn among_many_peers_one_that_stops_reading_cannot_keep_its_key_alive_either() {
    nothing_leaks_to(with_idle_neighbours(stalled()));
}

fn nothing_leaks_to(mut victim: Victim) {
    victim.fabric.post(victim.link, Op(200), Work::Unbind { window: victim.window }).unwrap();
    victim.turns(2);
    let unbound = |event: &Event| matches!(event, Event::Done { op: Op(200), result: Ok(Outcome::Unbound), .. });
    assert!(victim.events.iter().any(unbound), "{:?}", victim.events);
    // The memory goes on to its next use.
    let whole = SharedSpan { shared: victim.pool, offset: 0, len: POOL };
    victim.fabric.write(whole, &vec![0xff; POOL as usize]);
    let seen = victim.read_to_end();
    assert_eq!(victim.down(), Some(DownCause::PeerViolation));
    let (payload, refused) = take_apart(&seen);
    assert!(refused);
    assert!(payload > 0 && payload < POOL as usize, "{payload} bytes were on the way");
}

#[test]
fn a_refusal_reaches_even_a_peer_that_goes_on_sending_to_a_dead_endpoint() {
    let mut victim = stalled_on(tcp());
    victim.fabric.free_window(victim.window).unwrap();
    // Bytes that the victim never reads would, if it closed its socket over them, reset the connection.
    while victim.down().is_none() {
        victim.attack(&read(victim.address, 8, victim.key));
        victim.turns(1);
    }
    victim.attack(&vec![0; 10_000]);
    let seen = victim.read_to_end();
    assert!(take_apart(&seen).1, "the refusal");
}

#[test]
fn the_memory_behind_a_stalled_response_can_be_freed() {
    let mut victim = stalled();
    victim.fabric.free_window(victim.window).unwrap();
    victim.fabric.free_shared(victim.pool).unwrap();
    let seen = victim.read_to_end();
    assert!(take_apart(&seen).1);
}

#[test]
fn a_stalled_peer_holds_up_nobody_else() {
    let mut victim = stalled();
    let (attacker, stream) = unix();
    let stalled = std::mem::replace(&mut victim.attacker, attacker);
    join(&mut victim.fabric, victim.domain, stream);
    victim.attack(&hello(VERSION, ATTACKER));
    victim.turns(3);
    victim.attack(&read(victim.address, 1000, victim.key));
    victim.turns(3);
    let answer = victim.drain();
    assert_eq!(take_apart(&answer[HEADER..]), (1000, false), "behind the greeting");
    drop(stalled);
    victim.turns(3);
    assert_eq!(victim.down(), Some(DownCause::PeerLost));
}

/// A frame, or something like one.
fn anything() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop_oneof![Just(HELLO), Just(SEND), Just(ACK), Just(READ), Just(DATA), Just(REFUSE), any::<u8>()];
    let lengths = prop_oneof![0..100_u32, Just(SLOT), Just(u32::MAX), any::<u32>()];
    let small = prop_oneof![4 => Just(0_u8), 1 => 1..4_u8];
    let wide = prop_oneof![0..3_u64, any::<u64>()];
    let shaped = (kinds, small, lengths, wide, any::<u32>(), prop::collection::vec(any::<u8>(), 0..200)).prop_map(
        |(kind, code, length, wide, key, payload)| {
            let mut bytes = frame(kind, code, 0, length, wide, key);
            bytes.extend(payload);
            bytes
        },
    );
    prop_oneof![3 => shaped, 1 => prop::collection::vec(any::<u8>(), 0..100)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_an_endpoint_panic_or_leak(attacks in prop::collection::vec(anything(), 1..8), greets in any::<bool>()) {
        let mut victim = if greets { Victim::greeted() } else { Victim::waiting() };
        for (number, attack) in (0..).zip(&attacks) {
            if victim.down().is_none() {
                // It has work of its own under way, for the attacker to answer wrongly.
                let slot = 4 + number % 4;
                let from = LocalSpan { local: victim.local, slot, offset: 0, len: 64 };
                let remote = keyway_fabric::RemoteSpan { address: 0, len: 64, key: Key(0) };
                let into = keyway_fabric::Target::Local(LocalSpan { offset: 64, ..from });
                let _ = victim.fabric.post(victim.link, Op(300 + u64::from(number)), Work::Send { from });
                let _ = victim.fabric.post(victim.link, Op(400 + u64::from(number)), Work::Read { from: remote, into });
            }
            victim.attack(attack);
            victim.turns(2);
        }
        victim.attacker.hang_up();
        victim.turns(4);
        prop_assert!(victim.down().is_some(), "the endpoint ends with its stream: {:?}", victim.events);
        prop_assert_eq!(victim.fabric.holdings().endpoints, 0);
        // Whatever was claimed is free again.
        for slot in 0..8 {
            victim.fabric.bytes_mut(LocalSpan { local: victim.local, slot, offset: 0, len: SLOT });
        }
    }
}
