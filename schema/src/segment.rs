//! A segment's header page, and offsets in a topic's log.
//!
//! | byte | field |
//! | --- | --- |
//! | 0 | tail word, u64: on a cache line of its own, since it is written with every commit |
//! | 64 | magic `KWS1` |
//! | 68 | topic number, u32 |
//! | 72 | segment number, u64 |
//! | 80 | sequence of the segment's first record, u64 |
//! | 88 | broker instance, u64 |
//!
//! Integers are little-endian. Batches begin at byte 4096.

use crate::limits::SEGMENT_HEADER;

/// Where the tail word is.
pub const TAIL_AT: u64 = 0;

/// Where the rest of the header begins.
pub const HEADER_AT: u64 = 64;

/// The length of the rest of the header.
pub const HEADER_LEN: usize = 32;

const MAGIC: [u8; 4] = *b"KWS1";

/// The bit of the tail word that says that the segment is sealed: no batch will follow in it.
const SEALED: u64 = 1 << 63;

/// The tail word: the log offset up to which batches are committed, and whether the segment is sealed. Being an offset in
/// the log, it names its segment too: a reader that finds another segment's tail knows that the ring has lapped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The offset behind the last committed batch of the segment.
    pub offset: u64,
    /// Whether the log goes on in the next segment.
    pub sealed: bool,
}

impl Tail {
    /// The word as it stands in the segment.
    pub const fn word(self) -> u64 {
        if self.sealed { self.offset | SEALED } else { self.offset }
    }

    /// Reads the word.
    pub const fn from_word(word: u64) -> Self {
        Self { offset: word & !SEALED, sealed: word & SEALED != 0 }
    }
}

/// What a segment is, besides its tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The topic's number.
    pub topic: u32,
    /// The segment's number in the topic, from 0, without gaps.
    pub number: u64,
    /// The sequence of its first record.
    pub base_sequence: u64,
    /// The broker's instance.
    pub instance: u64,
}

impl SegmentHeader {
    /// The bytes at [`HEADER_AT`].
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.topic.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.base_sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.instance.to_le_bytes());
        bytes
    }

    /// Reads what stands at [`HEADER_AT`], or `None` if that is no segment's header: memory that no topic owns is zeroed.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<HEADER_LEN>()?;
        let (magic, rest) = bytes.split_first_chunk()?;
        let (topic, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (base_sequence, rest) = rest.split_first_chunk()?;
        let (instance, _) = rest.split_first_chunk()?;
        (*magic == MAGIC).then(|| Self {
            topic: u32::from_le_bytes(*topic),
            number: u64::from_le_bytes(*number),
            base_sequence: u64::from_le_bytes(*base_sequence),
            instance: u64::from_le_bytes(*instance),
        })
    }
}

/// The offset of a segment's first batch.
pub const fn segment_start(number: u64, segment_size: u32) -> u64 {
    number * segment_size as u64 + SEGMENT_HEADER as u64
}

/// The number of the segment that an offset lies in.
pub const fn segment_of(offset: u64, segment_size: u32) -> u64 {
    offset / segment_size as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_word_carries_offset_and_seal() {
        for tail in [Tail { offset: 0, sealed: false }, Tail { offset: u64::MAX >> 1, sealed: true }] {
            assert_eq!(Tail::from_word(tail.word()), tail);
        }
    }

    #[test]
    fn the_header_is_laid_out_as_documented() {
        let header = SegmentHeader { topic: 1, number: 2, base_sequence: 3, instance: 4 };
        let mut expected = b"KWS1".to_vec();
        expected.extend_from_slice(&1_u32.to_le_bytes());
        expected.extend([2_u64, 3, 4].into_iter().flat_map(u64::to_le_bytes));
        assert_eq!(header.to_bytes().as_slice(), expected);
        assert_eq!(SegmentHeader::read(&expected), Some(header));
        assert_eq!(SegmentHeader::read(&[0; HEADER_LEN]), None);
        assert_eq!(SegmentHeader::read(&expected[1..]), None);
    }
}
