//! Batches and records lie in memory as documented, whatever they hold, and no bytes whatever make a reader panic.

use keyway_schema::batch::{self, BATCH_HEADER_LEN, Batch, BatchBuilder, BatchError, BatchHeader};
use keyway_schema::limits::{RECORD_HEADERS_MAX, RECORD_KEY_MAX};
use keyway_schema::record::{self, RecordError, RecordRef, append_header, encoded_len, headers};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// A record as a test keeps it.
#[derive(Clone, Debug)]
struct Owned {
    key: Vec<u8>,
    headers: Vec<u8>,
    payload: Vec<u8>,
}

impl Owned {
    fn borrow(&self) -> RecordRef<'_> {
        RecordRef { key: &self.key, headers: &self.headers, payload: &self.payload }
    }

    /// The layout of `record.rs`, written down a second time in the plainest way.
    fn naive(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((self.payload.len() as u32).to_le_bytes());
        bytes.extend((self.key.len() as u16).to_le_bytes());
        bytes.extend((self.headers.len() as u16).to_le_bytes());
        bytes.extend(self.key.iter().chain(&self.headers).chain(&self.payload));
        while bytes.len() % 8 > 0 {
            bytes.push(0);
        }
        bytes
    }
}

fn records() -> impl Strategy<Value = Vec<Owned>> {
    let bytes = || vec(any::<u8>(), 0..40);
    let record = (bytes(), bytes(), bytes()).prop_map(|(key, headers, payload)| Owned { key, headers, payload });
    vec(record, 1..20)
}

fn build(records: &[Owned]) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    for record in records {
        builder.push(record.borrow());
    }
    builder.finish(3, 4, 5)
}

proptest! {
    #[test]
    fn a_batch_is_what_the_naive_encoder_makes(records in records()) {
        let bytes = build(&records);
        let body: Vec<u8> = records.iter().flat_map(Owned::naive).collect();
        prop_assert_eq!(&bytes[BATCH_HEADER_LEN..], &body[..]);

        let batch = Batch::read(&bytes).expect("it was just built");
        let expected = BatchHeader {
            len: bytes.len() as u32,
            crc: crc32c::crc32c(&body),
            records: records.len() as u32,
            base_sequence: 0,
            time: 0,
            producer: 4,
            number: 5,
            topic: 3,
            filler: false,
        };
        prop_assert_eq!(*batch.header(), expected);
        let read: Vec<_> = batch.records().collect();
        let pushed: Vec<_> = records.iter().map(Owned::borrow).collect();
        prop_assert_eq!(read, pushed);
    }

    #[test]
    fn what_follows_a_batch_is_left_alone(records in records(), behind in vec(any::<u8>(), 0..100)) {
        let mut bytes = build(&records);
        let len = bytes.len();
        bytes.extend(behind);
        prop_assert_eq!(Batch::read(&bytes).map(|batch| batch.header().len as usize), Ok(len));
    }

    #[test]
    fn a_patched_header_keeps_the_batch_valid(records in records(), base_sequence in 0..u64::MAX / 2, time: u64) {
        let mut bytes = build(&records);
        let mut header = BatchHeader::read(&bytes).expect("it was just built");
        header.base_sequence = base_sequence;
        header.time = time;
        bytes[..BATCH_HEADER_LEN].copy_from_slice(&header.to_bytes());
        let batch = Batch::read(&bytes).expect("only sequence and time are different");
        prop_assert_eq!((batch.header().base_sequence, batch.header().time), (base_sequence, time));
        prop_assert_eq!(batch.header().end_sequence(), base_sequence + records.len() as u64);
    }

    #[test]
    fn one_flipped_bit_is_always_found(records in records(), at: Index, bit in 0_u8..8) {
        let mut bytes = build(&records);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(Batch::read(&bytes).is_err(), "bit {bit} of byte {at} was flipped");
    }

    #[test]
    fn a_cut_batch_is_truncated(records in records(), cut: Index) {
        let bytes = build(&records);
        let cut = cut.index(bytes.len());
        let need = if cut < BATCH_HEADER_LEN { BATCH_HEADER_LEN } else { bytes.len() };
        prop_assert_eq!(Batch::read(&bytes[..cut]).map(|_| ()), Err(BatchError::Truncated { len: cut, need }));
    }

    #[test]
    fn random_bytes_are_no_batch(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(Batch::read(&bytes).is_err());
        let _ = batch::check_records(u32::MAX, &bytes);
    }

    /// A hostile producer can compute checksums too.
    #[test]
    fn sealed_nonsense_is_refused_or_consistent(body in vec(any::<u8>(), 0..200), small: bool, records in 0_u32..30) {
        let mut bytes = vec![0; BATCH_HEADER_LEN];
        // Small lengths make records of the noise more often.
        bytes.extend(body.iter().map(|byte| if small { byte % 3 } else { *byte }));
        batch::seal(&mut bytes, records, 1, 2, 3);
        if let Ok(batch) = Batch::read(&bytes) {
            let lens: Vec<usize> = batch.records().map(|record| record.encoded_len()).collect();
            prop_assert_eq!(lens.len(), records as usize);
            prop_assert_eq!(lens.iter().sum::<usize>(), bytes.len() - BATCH_HEADER_LEN);
        }
    }

    /// Every field but the checksum at will: no arithmetic on them may overflow.
    #[test]
    fn any_header_with_a_right_checksum_is_refused_or_makes_sense(
        (len, crc, records, topic) in any::<(u32, u32, u32, u32)>(),
        (base_sequence, time, producer, number) in any::<(u64, u64, u64, u64)>(),
        filler: bool,
        aligned: bool,
    ) {
        let len = if aligned { len & !7 } else { len };
        let header = BatchHeader { len, crc, records, base_sequence, time, producer, number, topic, filler };
        let bytes = header.to_bytes();
        if let Ok(read) = BatchHeader::read(&bytes) {
            prop_assert_eq!(read, header);
            prop_assert!(read.end_sequence() >= read.base_sequence);
        }
        let _ = Batch::read(&bytes);
    }

    #[test]
    fn random_bytes_are_a_record_within_them_or_none(bytes in vec(any::<u8>(), 0..100)) {
        if let Some(record) = RecordRef::read(&bytes) {
            prop_assert!(record.encoded_len() <= bytes.len());
            prop_assert_eq!(encoded_len(record.size()), record.encoded_len());
        }
    }

    #[test]
    fn headers_go_round(pairs in vec(("[a-zä]{1,60}", vec(any::<u8>(), 0..200)), 0..8)) {
        let mut encoded = Vec::new();
        for (name, value) in &pairs {
            append_header(&mut encoded, name, value).expect("they are short");
        }
        let read: Vec<_> = headers(&encoded).map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        prop_assert_eq!(read, pairs);
    }

    #[test]
    fn random_headers_end(bytes in vec(any::<u8>(), 0..300)) {
        let total: usize = headers(&bytes).map(|(name, value)| 3 + name.len() + value.len()).sum();
        prop_assert!(total <= bytes.len());
        let mut iterator = headers(&bytes);
        while iterator.next().is_some() {}
        prop_assert!(iterator.next().is_none(), "what has ended goes on");
    }
}

#[test]
fn a_batch_cannot_be_a_filler_with_records_nor_empty_without_being_one() {
    let header = BatchHeader::read(&build(&[Owned { key: vec![], headers: vec![], payload: vec![1] }])).unwrap();
    for (records, filler, valid) in [(0, true, true), (1, false, true), (0, false, false), (1, true, false)] {
        let bytes = BatchHeader { records, filler, ..header }.to_bytes();
        assert_eq!(BatchHeader::read(&bytes).is_ok(), valid, "{records} records, filler {filler}");
    }
}

#[test]
fn a_filler_is_read_whatever_its_bytes_are() {
    let header = BatchHeader {
        len: 128,
        crc: 0,
        records: 0,
        base_sequence: 9,
        time: 1,
        producer: 2,
        number: 3,
        topic: 4,
        filler: true,
    };
    let mut bytes = header.to_bytes().to_vec();
    assert_eq!(Batch::read(&bytes).map(|_| ()), Err(BatchError::Truncated { len: 64, need: 128 }));
    bytes.resize(128, 0xee);
    let batch = Batch::read(&bytes).unwrap();
    assert_eq!((batch.records().count(), batch.header().end_sequence()), (0, 9));
}

#[test]
fn flags_of_a_later_version_are_refused() {
    let mut bytes = build(&[Owned { key: vec![], headers: vec![], payload: vec![] }]);
    bytes[48] = 2;
    let crc = crc32c::crc32c(&bytes[..56]);
    bytes[56..60].copy_from_slice(&crc.to_le_bytes());
    assert!(matches!(BatchHeader::read(&bytes), Err(BatchError::Header { .. })));
}

#[test]
fn the_sizes_of_a_record_are_checked_one_by_one() {
    let long = vec![0; RECORD_KEY_MAX + 1];
    let record = |key, headers, payload| RecordRef { key, headers, payload };
    assert_eq!(record(&long[1..], &long[1..], b"x").check(u32::MAX), Ok(()));
    assert_eq!(record(&long, b"", b"").check(u32::MAX), Err(RecordError::Key { len: RECORD_KEY_MAX + 1 }));
    assert_eq!(record(b"", &long, b"").check(u32::MAX), Err(RecordError::Headers { len: RECORD_HEADERS_MAX + 1 }));
    assert_eq!(record(b"k", b"hh", b"ppp").check(6), Ok(()));
    let error = record(b"k", b"hh", b"ppp").check(5).unwrap_err();
    assert_eq!(error, RecordError::TooLarge { size: 6, max: 5 });
    assert_eq!(
        error.to_string(),
        "the record has 6 bytes of key, headers and payload, the topic takes at most 5",
        "the one who asks is told both sizes"
    );
}

#[test]
fn the_largest_record_fills_the_largest_batch_exactly() {
    for record_max in [0, 1, 7, 8, 9, 1000] {
        let payload = vec![1; record_max as usize];
        let batch = build(&[Owned { key: vec![], headers: vec![], payload }]);
        assert_eq!(batch.len(), record::batch_max(record_max) as usize);
    }
}

#[test]
fn a_header_without_a_name_or_beyond_the_limits_is_refused() {
    let mut encoded = Vec::new();
    assert!(append_header(&mut encoded, "", b"value").is_err());
    assert!(append_header(&mut encoded, &"n".repeat(256), b"value").is_err());
    assert!(append_header(&mut encoded, "name", &vec![0; 65_536]).is_err());
    assert_eq!(encoded.len(), 0, "what is refused leaves nothing behind");
    assert_eq!(append_header(&mut encoded, "n", &vec![0; 65_000]), Ok(()));
    let refused = append_header(&mut encoded, "n", &[0; 1000]);
    assert_eq!(refused, Err(RecordError::Headers { len: 65_004 + 1004 }));
}

#[test]
#[should_panic(expected = "whoever appends a record has checked it")]
fn a_record_that_was_not_checked_is_not_cut_silently() {
    let key = vec![0; RECORD_KEY_MAX + 1];
    RecordRef { key: &key, headers: b"", payload: b"" }.append(&mut Vec::new());
}
