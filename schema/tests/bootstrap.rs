//! Bootstrap frames come out as they went in, are within their limits, and no bytes whatever make the decoder panic.

mod wire;

use keyway_schema::bootstrap::{Bootstrap, BootstrapError, Role};
use keyway_schema::limits::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::wire::bootstrap;

fn hello(name: &str, receive_slots: u16, receive_size: u32) -> Bootstrap {
    let fabrics = vec!["soft".to_owned()];
    Bootstrap::Hello { role: Role::Consumer, name: name.to_owned(), fabrics, receive_slots, receive_size }
}

fn split(frame: &[u8]) -> (Result<usize, BootstrapError>, &[u8]) {
    let (prefix, archive) = frame.split_first_chunk().expect("a frame has a prefix");
    (Bootstrap::frame_len(*prefix), archive)
}

proptest! {
    #[test]
    fn every_frame_goes_round(message in bootstrap()) {
        let frame = message.encode().expect("it is within the limits");
        let (len, archive) = split(&frame);
        prop_assert_eq!(len, Ok(archive.len()));
        prop_assert_eq!(Bootstrap::decode(archive), Ok(message));
    }

    #[test]
    fn random_bytes_do_not_panic(prefix: [u8; 4], archive in vec(any::<u8>(), 0..200)) {
        if let Ok(len) = Bootstrap::frame_len(prefix) {
            prop_assert!(len <= BOOTSTRAP_MAX);
        }
        let _ = Bootstrap::decode(&archive);
    }

    #[test]
    fn a_damaged_frame_is_refused_or_within_the_limits(
        message in bootstrap(),
        flips in vec((any::<Index>(), 0_u8..8), 1..6),
        cut: Index,
    ) {
        let frame = message.encode().expect("it is within the limits");
        let (_, archive) = split(&frame);
        let mut flipped = archive.to_vec();
        for (at, bit) in &flips {
            flipped[at.index(archive.len())] ^= 1 << bit;
        }
        if let Ok(message) = Bootstrap::decode(&flipped) {
            prop_assert!(message.encode().is_ok(), "{message:?} was let in and is not within the limits");
        }
        let _ = Bootstrap::decode(&archive[..cut.index(archive.len())]);
    }
}

#[test]
fn a_frame_of_another_version_is_told_apart_before_its_archive_is_looked_at() {
    let frame = Bootstrap::Ready.encode().unwrap();
    assert_eq!(frame[3], VERSION);
    let prefix = [frame[0], frame[1], 0, VERSION + 1];
    assert_eq!(Bootstrap::frame_len(prefix), Err(BootstrapError::Version { found: VERSION + 1 }));
    assert!(Bootstrap::frame_len([frame[0], frame[1], 1, VERSION]).is_err());
}

#[test]
fn the_longest_frame_is_announced_and_one_byte_more_is_refused() {
    let prefix = |len: usize| [(len & 0xff) as u8, (len >> 8) as u8, 0, VERSION];
    assert_eq!(Bootstrap::frame_len(prefix(BOOTSTRAP_MAX)), Ok(BOOTSTRAP_MAX));
    let len = BOOTSTRAP_MAX + 1;
    assert_eq!(Bootstrap::frame_len(prefix(len)), Err(BootstrapError::TooLong { len }));
    let refused = Bootstrap::Refused { code: 1, text: "x".repeat(BOOTSTRAP_MAX + 1) };
    assert!(matches!(refused.encode(), Err(BootstrapError::TooLong { .. })));
}

#[test]
fn what_could_not_work_is_refused_on_both_sides() {
    let slots = u64::from(RECEIVE_SLOTS_MIN);
    let size = u64::from(CONTROL_SLOT);
    assert!(hello(&"n".repeat(CLIENT_NAME_MAX), RECEIVE_SLOTS_MIN, CONTROL_SLOT).encode().is_ok());
    let cases = [
        (hello("", RECEIVE_SLOTS_MIN - 1, CONTROL_SLOT), "number of receive slots", slots - 1, slots),
        (hello("", RECEIVE_SLOTS_MIN, CONTROL_SLOT - 1), "receive slot size", size - 1, size),
        (hello(&"n".repeat(CLIENT_NAME_MAX + 1), 64, 1024), "name length", CLIENT_NAME_MAX as u64 + 1, 0),
        (
            Bootstrap::Confirm { endpoint: vec![0; ENDPOINT_ADDRESS_MAX + 1] },
            "endpoint address length",
            ENDPOINT_ADDRESS_MAX as u64 + 1,
            0,
        ),
    ];
    for (message, expected_field, expected_value, expected_min) in cases {
        let archive = rkyv::to_bytes::<rkyv::rancor::Error>(&message).unwrap();
        for result in [message.encode().map(|_| ()), Bootstrap::decode(&archive).map(|_| ())] {
            let Err(BootstrapError::Limit { field, value, min, .. }) = result else {
                panic!("{message:?} should have been refused, not {result:?}");
            };
            assert_eq!((field, value, min), (expected_field, expected_value, expected_min));
        }
    }
}
