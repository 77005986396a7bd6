//! Whatever comes in at the port disturbs nothing but its own connection.

#![allow(clippy::unwrap_used, reason = "this is a test")]

mod support;

use std::io::Write;
use std::time::Duration;

use keyway_broker::Broker;
use keyway_schema::Code;
use keyway_schema::bootstrap::{Bootstrap, PREAMBLE, Role};
use support::{begin, builder, dial, expect_end, hello, hello_of, receive, receive_refusal, receive_welcome, send};

/// A bootstrap that was begun before, and must go on after, what a test does to the broker.
struct Witness(std::net::TcpStream);

impl Witness {
    fn new(broker: &Broker) -> Self {
        let mut stream = dial(broker);
        begin(&mut stream);
        receive_welcome(&mut stream);
        Self(stream)
    }

    fn expect_service(mut self) {
        // An address of another fabric is answered, and so the session was still there.
        send(&mut self.0, &Bootstrap::Confirm { endpoint: vec![1, 2, 3] });
        let (code, text) = receive_refusal(&mut self.0);
        assert_eq!(code, Code::Protocol.number());
        assert!(text.contains("endpoint address"), "{text}");
    }
}

#[test]
fn garbage_is_cut_off_and_others_are_served() {
    let broker = builder().start().unwrap();
    let witness = Witness::new(&broker);
    let random: Vec<u8> = (0..100_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for garbage in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &[0; 64], &[0xff; 8], &random] {
        let mut stream = dial(&broker);
        // The broker may have closed the connection before everything was written.
        drop(stream.write_all(garbage));
        expect_end(&mut stream);
    }
    witness.expect_service();
    broker.stop(Duration::ZERO).unwrap();
}

#[test]
fn a_truncated_bootstrap_ends_with_its_connection() {
    let broker = builder().start().unwrap();
    let witness = Witness::new(&broker);
    let whole = [&PREAMBLE[..], &hello().encode().unwrap()].concat();
    for len in [0, 1, 7, 8, 9, 11, 12, 13, whole.len() - 1] {
        let mut stream = dial(&broker);
        stream.write_all(&whole[..len]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        expect_end(&mut stream);
    }
    witness.expect_service();
}

#[test]
fn a_message_longer_than_any_is_refused_before_it_is_read() {
    let broker = builder().start().unwrap();
    let mut stream = dial(&broker);
    stream.write_all(&PREAMBLE).unwrap();
    stream.write_all(&[0xff, 0xff, 0, keyway_schema::limits::VERSION]).unwrap();
    let (code, text) = receive_refusal(&mut stream);
    assert_eq!(code, Code::Protocol.number());
    assert!(text.contains("65535 bytes"), "{text}");
}

#[test]
fn another_version_is_refused_and_both_are_named() {
    let broker = builder().start().unwrap();
    let mut stream = dial(&broker);
    stream.write_all(&PREAMBLE).unwrap();
    let mut frame = hello().encode().unwrap();
    frame[3] = 9;
    stream.write_all(&frame).unwrap();
    let (code, text) = receive_refusal(&mut stream);
    assert_eq!(code, Code::Version.number());
    assert!(text.contains("version 9") && text.contains("speaks 1"), "{text}");
}

#[test]
fn a_flipped_bit_in_any_place_of_a_hello_is_no_panic() {
    let broker = builder().start().unwrap();
    let witness = Witness::new(&broker);
    let frame = hello().encode().unwrap();
    for place in 4..frame.len() {
        let mut stream = dial(&broker);
        stream.write_all(&PREAMBLE).unwrap();
        let mut flipped = frame.clone();
        flipped[place] ^= 0x40;
        stream.write_all(&flipped).unwrap();
        // A flip in the name or in padding leaves a good Hello.
        assert!(matches!(receive(&mut stream), Bootstrap::Refused { .. } | Bootstrap::Welcome { .. }));
    }
    witness.expect_service();
    support::await_sessions(&broker, 0);
}

#[test]
fn no_fabric_in_common_is_refused_and_both_sides_are_named() {
    let broker = builder().start().unwrap();
    for (fabrics, named) in [(&["verbs", "carrier-pigeon"][..], "verbs, carrier-pigeon"), (&[], "\"\"")] {
        let mut stream = dial(&broker);
        stream.write_all(&PREAMBLE).unwrap();
        send(&mut stream, &hello_of(fabrics));
        let (code, text) = receive_refusal(&mut stream);
        assert_eq!(code, Code::Fabric.number());
        assert!(text.contains("soft") && text.contains(named), "{text}");
    }
}

#[test]
fn messages_out_of_order_are_refused() {
    let broker = builder().start().unwrap();
    let mut early = dial(&broker);
    early.write_all(&PREAMBLE).unwrap();
    send(&mut early, &Bootstrap::Ready);
    assert_eq!(receive_refusal(&mut early).0, Code::Protocol.number());

    let mut twice = dial(&broker);
    begin(&mut twice);
    receive_welcome(&mut twice);
    send(&mut twice, &hello());
    assert_eq!(receive_refusal(&mut twice).0, Code::Protocol.number());
    support::await_sessions(&broker, 0);
}

#[test]
fn slots_too_small_for_a_channel_are_refused_with_the_limit() {
    let broker = builder().start().unwrap();
    let mut stream = dial(&broker);
    stream.write_all(&PREAMBLE).unwrap();
    let honest = Bootstrap::Hello {
        role: Role::Producer,
        name: String::new(),
        fabrics: vec!["soft".to_owned()],
        receive_slots: 0x0777,
        receive_size: 0x0666_0666,
    };
    // Encoding checks the limits, so the number is changed in the encoded message.
    let mut frame = honest.encode().unwrap();
    let place =
        frame.windows(2).position(|bytes| bytes == [0x77, 0x07]).expect("the archive holds the number of slots");
    frame[place..place + 2].copy_from_slice(&[1, 0]);
    stream.write_all(&frame).unwrap();
    let (code, text) = receive_refusal(&mut stream);
    assert_eq!(code, Code::Settings.number());
    assert!(text.contains("receive slots is 1"), "{text}");
}

#[test]
fn who_is_slow_is_cut_off_at_every_step() {
    let broker = builder().bootstrap_timeout(Duration::from_millis(50)).start().unwrap();
    let mut silent = dial(&broker);
    expect_end(&mut silent);
    let mut hesitant = dial(&broker);
    hesitant.write_all(&PREAMBLE[..3]).unwrap();
    expect_end(&mut hesitant);
    let mut halfway = dial(&broker);
    halfway.write_all(&PREAMBLE).unwrap();
    assert_eq!(receive_refusal(&mut halfway).0, Code::Timeout.number());
    let mut unconfirmed = dial(&broker);
    begin(&mut unconfirmed);
    receive_welcome(&mut unconfirmed);
    assert_eq!(receive_refusal(&mut unconfirmed).0, Code::Timeout.number());
    support::await_sessions(&broker, 0);
}

#[test]
fn a_crowd_of_silent_connections_only_delays_a_client() {
    let broker = builder().bootstrap_timeout(Duration::from_millis(500)).start().unwrap();
    // More than may be without a bootstrap at once.
    let crowd: Vec<_> = (0..300).map(|_| dial(&broker)).collect();
    let mut client = dial(&broker);
    begin(&mut client);
    receive_welcome(&mut client);
    drop(crowd);
}

#[test]
fn a_data_stream_for_no_endpoint_is_dropped() {
    let broker = builder().start().unwrap();
    let mut stream = dial(&broker);
    stream.write_all(&keyway_fabric::soft::PREAMBLE_MAGIC).unwrap();
    stream.write_all(&[7; keyway_fabric::soft::TOKEN_LEN]).unwrap();
    expect_end(&mut stream);
}
