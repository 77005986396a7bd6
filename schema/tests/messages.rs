//! Control messages come out of a slot as they went in, and no bytes whatever make a decoder panic.

mod wire;

use keyway_schema::limits::*;
use keyway_schema::message::*;
use keyway_schema::{DecodeError, ENVELOPE_LEN, MAGIC, ToBroker, ToClient};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::wire::{Direction, aligned, slot, to_broker, to_client};

/// A message with a few of its bits flipped, or cut short, or with something behind it.
fn damaged(mut bytes: Vec<u8>, flips: &[(Index, u8)], cut: Option<Index>, tail: &[u8]) -> Vec<u8> {
    for (at, bit) in flips {
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << (bit % 8);
    }
    if let Some(cut) = cut {
        bytes.truncate(cut.index(bytes.len()));
    }
    bytes.extend_from_slice(tail);
    bytes
}

fn goes_round<M: Direction>(message: &M, generation: u32, credits: u16) -> Result<(), TestCaseError> {
    let bytes = message.to_bytes(generation, credits);
    let (envelope, decoded) = M::decode(&bytes).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(&decoded, message);
    prop_assert_eq!((envelope.generation, envelope.credits, envelope.attachment_len), (generation, credits, 0));
    prop_assert_eq!(envelope.attachment_start(), bytes.len());

    let mut dirty = slot(CONTROL_SLOT as usize, 0xa5);
    let len = message.encode(generation, credits, 0, &mut dirty).expect("it fitted a clean slot");
    prop_assert_eq!(&dirty[..len], &bytes[..], "what the slot held before must not travel");
    Ok(())
}

fn is_truncated<T>(result: Result<T, DecodeError>) -> bool {
    matches!(result, Err(DecodeError::Truncated { .. }))
}

/// Either refused, or a message that can be used: `decode` copies it out and prints it.
fn does_not_panic(bytes: &[u8]) {
    let bytes = aligned(bytes);
    let _ = ToBroker::decode(&bytes);
    let _ = ToClient::decode(&bytes);
}

proptest! {
    #[test]
    fn every_message_to_the_broker_goes_round(message in to_broker(), generation: u32, credits: u16) {
        goes_round(&message, generation, credits)?;
    }

    #[test]
    fn every_message_to_the_client_goes_round(message in to_client(), generation: u32, credits: u16) {
        goes_round(&message, generation, credits)?;
    }

    #[test]
    fn a_batch_travels_behind_its_publish(topic: u32, batch in vec(any::<u8>(), 1..2000), filled_with: u8) {
        let mut slot = slot(4096, filled_with);
        let start = ToBroker::from(Publish { topic }).encode(1, 2, batch.len(), &mut slot).expect("it fits");
        prop_assert_eq!(start % 8, 0, "a batch header in a slot is aligned");
        slot[start..start + batch.len()].copy_from_slice(&batch);
        slot.resize(start + batch.len(), 0);
        let (envelope, message) = ToBroker::decode(&slot).expect("it is well formed");
        prop_assert_eq!(message, ToBroker::from(Publish { topic }));
        prop_assert_eq!(&slot[envelope.attachment_start()..], &batch[..]);
        prop_assert_eq!(envelope.attachment_len as usize, batch.len());
    }

    #[test]
    fn random_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..300)) {
        does_not_panic(&bytes);
    }

    /// An envelope that is right, so that the validator of each archive gets its share of noise.
    #[test]
    fn random_archives_do_not_panic(kind in 0_u8..80, archive in vec(any::<u8>(), 0..200), attachment in 0_u32..9) {
        let mut bytes = vec![MAGIC[0], MAGIC[1], VERSION, kind, 0, 0];
        bytes.extend((archive.len() as u16).to_le_bytes());
        bytes.extend(attachment.to_le_bytes());
        bytes.extend(7_u32.to_le_bytes());
        bytes.extend(&archive);
        if attachment > 0 {
            bytes.resize(bytes.len().next_multiple_of(8) + attachment as usize, 0);
        }
        does_not_panic(&bytes);
    }

    #[test]
    fn damaged_messages_do_not_panic(
        to_broker in to_broker(),
        to_client in to_client(),
        flips in vec((any::<Index>(), any::<u8>()), 0..6),
        cut: Option<Index>,
        tail in vec(any::<u8>(), 0..20),
    ) {
        does_not_panic(&damaged(to_broker.to_bytes(7, 0).to_vec(), &flips, cut, &tail));
        does_not_panic(&damaged(to_client.to_bytes(7, 0).to_vec(), &flips, cut, &tail));
    }

    #[test]
    fn a_cut_or_prolonged_message_is_refused(message in to_client(), cut: Index, tail in vec(any::<u8>(), 1..20)) {
        let bytes = message.to_bytes(7, 0);
        let short = aligned(&bytes[..cut.index(bytes.len())]);
        prop_assert!(is_truncated(ToClient::decode(&short)));
        let long = aligned(&damaged(bytes.to_vec(), &[], None, &tail));
        prop_assert!(is_truncated(ToClient::decode(&long)));
    }

    /// An archive is read where it lies, or refused; a slot at an odd address is nobody's crash.
    #[test]
    fn a_misaligned_slot_is_refused_or_read_alike(message in to_client(), shift in 1_usize..16) {
        let bytes = message.to_bytes(7, 0);
        let mut shifted = slot(shift, 0);
        shifted.extend_from_slice(&bytes);
        match ToClient::decode(&shifted[shift..]) {
            Ok((_, decoded)) => prop_assert_eq!(decoded, message),
            Err(DecodeError::Archive { .. }) => (),
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn a_slot_that_is_too_small_is_an_error(message in to_broker(), size in 0_usize..64, attachment in 0_usize..100) {
        let mut slot = slot(size, 0);
        match message.encode(1, 0, attachment, &mut slot) {
            Ok(start) => prop_assert!(start + attachment <= size),
            Err(error) => prop_assert_eq!((error.attachment, error.slot), (attachment, size)),
        }
    }
}

/// The largest messages that the limits allow, by direction.
fn largest() -> (Vec<ToBroker>, Vec<ToClient>) {
    let epoch = EpochSettings { interval_us: u32::MAX, grace_ms: u32::MAX, bytes: u64::MAX, records: u64::MAX };
    let commit = Commit { number: u64::MAX, base_sequence: u64::MAX, time: u64::MAX };
    let open = OpenTopic {
        request: u32::MAX,
        topic: "t".repeat(TOPIC_NAME_MAX),
        settings: Some(TopicSettings { segments: u32::MAX, record_max: u32::MAX, overflow: Overflow::DropOldest }),
        producer: u64::MAX,
    };
    let subscribe = Subscribe {
        request: u32::MAX,
        topic: "t".repeat(TOPIC_NAME_MAX),
        name: "n".repeat(CLIENT_NAME_MAX),
        start: Start::Time(u64::MAX),
        scope: Scope::Message,
        epoch,
        depth: u16::MAX,
        grant_bytes: u32::MAX,
    };
    let committed = Committed { topic: u32::MAX, commits: vec![commit; COMMITS_MAX] };
    let failed = Failed { request: u32::MAX, subject: u32::MAX, code: u16::MAX, text: "x".repeat(ERROR_TEXT_MAX) };
    (vec![open.into(), subscribe.into()], vec![committed.into(), failed.into()])
}

#[test]
fn the_largest_messages_fit_a_control_slot() {
    fn fits<M: Direction>(message: &M) {
        let bytes = message.to_bytes(u32::MAX, u16::MAX);
        assert!(bytes.len() <= CONTROL_SLOT as usize);
        assert_eq!(M::decode(&bytes).unwrap().1, *message);
    }
    let (to_broker, to_client) = largest();
    to_broker.iter().for_each(fits);
    to_client.iter().for_each(fits);
}

#[test]
fn what_is_over_the_limits_and_over_the_slot_is_an_error_with_both_sizes() {
    let commits = vec![Commit { number: 0, base_sequence: 0, time: 0 }; 2 * COMMITS_MAX];
    let mut slot = slot(CONTROL_SLOT as usize, 0);
    let error = ToClient::from(Committed { topic: 0, commits }).encode(1, 0, 0, &mut slot).unwrap_err();
    assert_eq!(error.to_string(), "a Committed with an attachment of 0 bytes does not fit a slot of 1024 bytes");
    let error = ToBroker::from(Publish { topic: 0 }).encode(1, 0, 1 << 40, &mut slot).unwrap_err();
    assert_eq!(error.attachment, 1 << 40);
}

#[test]
fn each_fault_of_an_envelope_is_named() {
    let good = ToBroker::from(Arm { subscription: 1, sequence: 2 }).to_bytes(7, 3);
    let decode = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = good.clone();
        change(&mut bytes);
        ToBroker::decode(&bytes).map(|(_, message)| message)
    };
    assert_eq!(decode(&|bytes| bytes[0] = b'X'), Err(DecodeError::Magic { found: *b"XW" }));
    assert_eq!(decode(&|bytes| bytes[2] = 2), Err(DecodeError::Version { found: 2 }));
    assert_eq!(decode(&|bytes| bytes[3] = 0), Err(DecodeError::Kind { kind: 0 }));
    assert_eq!(decode(&|bytes| bytes[3] = 69), Err(DecodeError::Kind { kind: 69 }), "a Grant is not for the broker");
    let need = |archive: usize, attachment: usize| {
        let end = ENVELOPE_LEN + archive;
        let need = if attachment == 0 { end } else { end.next_multiple_of(8) + attachment };
        Err(DecodeError::Truncated { len: good.len(), need })
    };
    let archive = good.len() - ENVELOPE_LEN;
    assert_eq!(decode(&|bytes| bytes[6..8].fill(0xff)), need(0xffff, 0));
    assert_eq!(decode(&|bytes| bytes[8..12].fill(0xff)), need(archive, 0xffff_ffff));
    let wrong_kind = decode(&|bytes| bytes[3] = 1).unwrap_err();
    assert!(matches!(wrong_kind, DecodeError::Archive { kind: "OpenTopic", .. }), "{wrong_kind}");
}

#[test]
fn only_a_publish_may_have_an_attachment() {
    let mut slot = slot(CONTROL_SLOT as usize, 0);
    let message = ToBroker::from(Unsubscribe { subscription: 1 });
    let start = message.encode(7, 0, 5, &mut slot).unwrap();
    slot.resize(start + 5, 0);
    let expected = DecodeError::Attachment { kind: "Unsubscribe", len: 5 };
    assert_eq!(ToBroker::decode(&slot), Err(expected));
}
