//! A channel posts receives before messages and messages in order, spends and returns credits, and names what it refuses.

mod slots;

use keyway_channel::{Channel, Post, ProtocolError, Received};
use keyway_fabric::{LocalSpan, Memory, Op, Work};
use keyway_schema::limits::{CONTROL_SLOT, VERSION};
use keyway_schema::message::{Arm, Credit, Publish, Wake};
use keyway_schema::{Code, DecodeError, ENVELOPE_LEN, Envelope, ToBroker, ToBrokerRef, ToClient};

use crate::slots::{Bytes, RECEIVE, config};

fn arm(sequence: u64) -> ToBroker {
    Arm { subscription: 1, sequence }.into()
}

/// A channel with its receives posted.
fn open(receive_slots: u16, send_slots: u16, peer_slots: u16) -> (Channel, Bytes) {
    let config = config(receive_slots, send_slots, peer_slots, CONTROL_SLOT);
    let (mut channel, mut memory) = (Channel::new(config), Bytes::of(&config));
    for _ in 0..receive_slots {
        let post = channel.transmit::<ToBroker>(&mut memory).expect("every receive slot is posted");
        assert!(matches!(post.work, Work::Recv { .. }), "{post:?}");
    }
    assert_eq!(channel.transmit::<ToBroker>(&mut memory), None);
    (channel, memory)
}

/// Puts a message into a receive slot, as the fabric would.
fn arrive(memory: &mut Bytes, slot: u32, message: &[u8]) -> LocalSpan {
    let span = LocalSpan { local: RECEIVE, slot, offset: 0, len: message.len() as u32 };
    memory.bytes_mut(span).copy_from_slice(message);
    span
}

/// A message as a peer of this generation writes it.
fn written(message: &ToBroker, generation: u32, credits: u16) -> Vec<u8> {
    // A channel's own send slots are as aligned as a peer's.
    let config = config(4, 4, 4, CONTROL_SLOT);
    let mut memory = Bytes::of(&config);
    let slot = memory.bytes_mut(LocalSpan { local: config.send, slot: 0, offset: 0, len: CONTROL_SLOT });
    let len = message.encode(generation, credits, 0, slot).expect("it fits a control slot");
    slot[..len].to_vec()
}

/// Takes a message in and says what it was, as text, since the message itself borrows the slot.
fn receive(channel: &mut Channel, memory: &Bytes, span: LocalSpan) -> Result<ToBroker, ProtocolError> {
    let received: Received<ToBrokerRef<'_>> = channel.receive(memory, span)?;
    Ok(received.message.to_message())
}

fn sent(post: Post) -> (Op, LocalSpan) {
    let Work::Send { from } = post.work else { panic!("{post:?} is no SEND") };
    (post.op, from)
}

#[test]
fn receives_come_first_and_messages_in_order() {
    let config = config(4, 8, 8, CONTROL_SLOT);
    let (mut channel, mut memory) = (Channel::new(config), Bytes::of(&config));
    channel.send(&mut memory, &arm(0)).unwrap();
    channel.send(&mut memory, &arm(1)).unwrap();
    let posts: Vec<_> = std::iter::from_fn(|| channel.transmit::<ToBroker>(&mut memory)).collect();
    let (receives, sends) = posts.split_at(4);
    let slots: Vec<u32> = receives
        .iter()
        .map(|post| {
            let Work::Recv { into } = post.work else { panic!("{post:?} comes before the receives") };
            assert_eq!((into.local, into.offset, into.len), (RECEIVE, 0, CONTROL_SLOT));
            into.slot
        })
        .collect();
    assert_eq!(slots, [0, 1, 2, 3]);
    for (place, post) in sends.iter().enumerate() {
        let (_, from) = sent(*post);
        let (envelope, message) = ToBrokerRef::decode(memory.bytes(from)).unwrap();
        assert_eq!(message.to_message(), arm(place as u64));
        assert_eq!((envelope.generation, envelope.credits), (40, 0));
    }
    assert_eq!(sends.len(), 2);
}

#[test]
fn one_credit_and_one_send_slot_are_kept_back() {
    for (send_slots, peer_slots, expected) in [(8, 5, 4), (5, 8, 4), (2, 64, 1)] {
        let (mut channel, mut memory) = open(4, send_slots, peer_slots);
        assert_eq!(channel.room(), expected);
        for sequence in 0..expected as u64 {
            channel.send(&mut memory, &arm(sequence)).unwrap();
        }
        assert_eq!(channel.room(), 0);
    }
}

#[test]
#[should_panic(expected = "whoever sends on a channel asks for room first")]
fn sending_without_room_is_a_bug() {
    let (mut channel, mut memory) = open(4, 8, 4);
    for sequence in 0..4 {
        let _ = channel.send(&mut memory, &arm(sequence));
    }
}

#[test]
#[should_panic(expected = "a channel of 3 receive slots cannot return its credits")]
fn a_channel_of_three_slots_is_refused() {
    Channel::new(config(3, 8, 4, CONTROL_SLOT));
}

#[test]
fn a_send_slot_is_used_again_only_after_its_completion() {
    let (mut channel, mut memory) = open(4, 2, 64);
    channel.send(&mut memory, &arm(0)).unwrap();
    let (op, _) = sent(channel.transmit::<ToBroker>(&mut memory).unwrap());
    assert_eq!(channel.room(), 0);
    assert!(!channel.is_drained());
    assert!(channel.done(op));
    assert_eq!(channel.room(), 1);
    assert!(channel.is_drained());
}

#[test]
fn only_the_tags_of_the_channel_are_its_own() {
    let (mut channel, mut memory) = open(4, 4, 4);
    let flushed_receive = Op(0xc0 << 56 | 3);
    assert!(channel.done(flushed_receive));
    assert!(!channel.done(Op(3)));
    assert!(!channel.done(Op(0xc2 << 56 | 3)));
    assert_eq!(channel.transmit::<ToBroker>(&mut memory), None);
}

#[test]
fn credits_are_returned_with_the_next_message_whatever_it_is() {
    let (mut channel, mut memory) = open(8, 8, 8);
    for slot in 0..3 {
        let span = arrive(&mut memory, slot, &written(&arm(9), 40, 0));
        assert_eq!(receive(&mut channel, &memory, span), Ok(arm(9)));
        channel.repost(Op(0xc0 << 56 | u64::from(slot)));
    }
    channel.send(&mut memory, &arm(1)).unwrap();
    let posts: Vec<_> = std::iter::from_fn(|| channel.transmit::<ToBroker>(&mut memory)).collect();
    assert_eq!(posts.len(), 4, "three receives, then the message");
    let (_, from) = sent(posts[3]);
    assert_eq!(Envelope::read(memory.bytes(from)).unwrap().credits, 3);
}

#[test]
fn when_half_of_the_slots_are_owed_a_credit_message_returns_them() {
    let (mut channel, mut memory) = open(8, 8, 8);
    for slot in 0..4 {
        assert_eq!(channel.transmit::<ToBroker>(&mut memory), None, "{slot} owed slots are not worth a message");
        channel.repost(Op(0xc0 << 56 | slot));
        assert!(matches!(channel.transmit::<ToBroker>(&mut memory).unwrap().work, Work::Recv { .. }));
    }
    let (_, from) = sent(channel.transmit::<ToBroker>(&mut memory).unwrap());
    let (envelope, message) = ToBrokerRef::decode(memory.bytes(from)).unwrap();
    assert_eq!((envelope.credits, message.to_message()), (4, Credit {}.into()));
    assert_eq!(channel.transmit::<ToBroker>(&mut memory), None);
}

#[test]
fn the_longest_batch_fits_and_one_byte_more_is_an_error_that_costs_nothing() {
    let config = config(4, 4, 4, 4096);
    let (mut channel, mut memory) = (Channel::new(config), Bytes::of(&config));
    let publish = ToBroker::from(Publish { topic: 5 });
    let (max, room) = (channel.publish_max(), channel.room());
    let error = channel.send_with(&mut memory, &publish, max + 1, |_| panic!("there is no room to fill"));
    assert_eq!(error.unwrap_err().attachment, max + 1);
    assert_eq!(channel.room(), room);
    channel.send_with(&mut memory, &publish, max, |batch| batch.fill(0x77)).unwrap();

    let posts: Vec<_> = std::iter::from_fn(|| channel.transmit::<ToBroker>(&mut memory)).collect();
    let (_, from) = sent(*posts.last().unwrap());
    let message = memory.bytes(from).to_vec();
    let span = arrive(&mut memory, 0, &message);
    let received: Received<ToBrokerRef<'_>> = channel.receive(&memory, span).unwrap();
    assert_eq!(received.message.to_message(), publish);
    assert_eq!(received.attachment.len as usize, max);
    assert!(memory.bytes(received.attachment).iter().all(|byte| *byte == 0x77));
}

#[test]
fn the_shorter_of_both_sides_slots_is_the_limit() {
    let mut config = config(4, 4, 4, 4096);
    config.peer_size = 2048;
    assert_eq!(Channel::new(config).message_max(), 2048);
    config.send_size = 1024;
    assert_eq!(Channel::new(config).message_max(), 1024);
}

#[test]
fn what_is_refused_has_a_code_and_changes_nothing() {
    let (mut channel, mut memory) = open(4, 4, 4);
    let (good, room) = (written(&arm(1), 40, 0), channel.room());
    let mut refuse = |message: &[u8]| {
        let span = arrive(&mut memory, 0, message);
        let error = receive(&mut channel, &memory, span).unwrap_err();
        assert_eq!(channel.room(), room);
        (error.code(), error)
    };
    let changed = |at: usize, to: u8| {
        let mut message = good.clone();
        message[at] = to;
        message
    };

    let older = ProtocolError::Generation { found: 39, expected: 40 };
    assert_eq!(refuse(&written(&arm(1), 39, 3)), (Code::Generation, older));
    let version = ProtocolError::Decode(DecodeError::Version { found: VERSION + 1 });
    assert_eq!(refuse(&changed(2, VERSION + 1)), (Code::Version, version));
    let kind = ProtocolError::Decode(DecodeError::Kind { kind: 200 });
    assert_eq!(refuse(&changed(3, 200)), (Code::Protocol, kind));
    assert_eq!(refuse(&changed(0, 0)).0, Code::Protocol);
    assert_eq!(refuse(&good[..good.len() - 1]).0, Code::Protocol);
    assert_eq!(refuse(&good[..ENVELOPE_LEN - 1]).0, Code::Protocol);
    assert_eq!(refuse(&[]).0, Code::Protocol);
    // All four of the peer's slots are free already.
    let credits = ProtocolError::Credits { given: 1, held: 4, slots: 4 };
    assert_eq!(refuse(&written(&arm(1), 40, 1)), (Code::Protocol, credits));
    assert_eq!(refuse(&written(&arm(1), 40, u16::MAX)).0, Code::Protocol);
}

#[test]
fn a_message_for_the_other_side_is_refused() {
    let (mut channel, mut memory) = open(4, 4, 4);
    let slot = memory.bytes_mut(LocalSpan { local: RECEIVE, slot: 0, offset: 0, len: CONTROL_SLOT });
    let len = ToClient::from(Wake { subscription: 1, tail: 2 }).encode(40, 0, 0, slot).unwrap();
    let span = LocalSpan { local: RECEIVE, slot: 0, offset: 0, len: len as u32 };
    let error = receive(&mut channel, &memory, span).unwrap_err();
    assert_eq!(error, ProtocolError::Decode(DecodeError::Kind { kind: 70 }));
}
