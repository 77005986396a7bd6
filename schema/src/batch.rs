//! Batches: what a producer sends and the broker appends in one go.
//!
//! A batch is a 64-byte header and records behind it; its length is a multiple of 8. The producer fills everything but base
//! sequence and commit time, which the broker patches (with the header's own checksum) when it commits, so that
//! appending costs one copy whatever the number of records.
//!
//! | byte | field |
//! | --- | --- |
//! | 0 | magic `KWB1` |
//! | 4 | length of the batch, header included, u32 |
//! | 8 | CRC-32C of everything behind the header, u32 |
//! | 12 | record count, u32; zero in a filler |
//! | 16 | base sequence, u64 |
//! | 24 | commit time, nanoseconds since 1970, u64 |
//! | 32 | producer id, u64 |
//! | 40 | producer's batch number, u64 |
//! | 48 | flags, u32: 1 for a filler, the others zero |
//! | 52 | topic number, u32 |
//! | 56 | CRC-32C of bytes 0 to 55, u32 |
//! | 60 | zero, u32 |
//!
//! Integers are little-endian. The header has a checksum of its own because a reader that READs behind a moving tail can
//! get half of one header and half of what was there before. A *filler* (flag 1) has no records: it stands where an offered
//! batch was to be and never came.

use crate::record::{self, RecordRef};

/// The length of a batch header: one cache line.
pub const BATCH_HEADER_LEN: usize = 64;

const MAGIC: [u8; 4] = *b"KWB1";
const FLAG_FILLER: u32 = 1;

/// A batch header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// The batch's length in bytes, header included.
    pub len: u32,
    /// The CRC-32C of everything behind the header; of a filler, zero: its bytes are whatever was there.
    pub crc: u32,
    /// How many records it has.
    pub records: u32,
    /// The sequence of its first record. Filled by the broker.
    pub base_sequence: u64,
    /// When it was committed, in nanoseconds since 1970. Filled by the broker.
    pub time: u64,
    /// Who made it.
    pub producer: u64,
    /// Which of that producer's batches for this topic it is, from 1.
    pub number: u64,
    /// The topic's number.
    pub topic: u32,
    /// Whether it only fills a gap.
    pub filler: bool,
}

/// Why bytes are not a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Fewer bytes than a header has, or than the header says.
    #[error("the batch has {len} bytes and should have {need}")]
    Truncated {
        /// How many there are.
        len: usize,
        /// How many there should be.
        need: usize,
    },
    /// Not a batch header.
    #[error("no batch begins here")]
    Magic,
    /// The header's checksum is wrong.
    #[error("the batch header's checksum is wrong")]
    HeaderChecksum,
    /// The header contradicts itself.
    #[error("the batch header contradicts itself: {len} bytes, {records} records")]
    Header {
        /// The length that it says.
        len: u32,
        /// The records that it says.
        records: u32,
    },
    /// The content's checksum is wrong.
    #[error("the batch's checksum is wrong")]
    Checksum,
    /// The records do not fill the batch exactly.
    #[error("record {index} of the batch does not fit")]
    Record {
        /// Which.
        index: u32,
    },
}

impl BatchHeader {
    /// The header's bytes, checksum included.
    pub fn to_bytes(self) -> [u8; BATCH_HEADER_LEN] {
        let mut bytes = [0; BATCH_HEADER_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.crc.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.records.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.base_sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.time.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.producer.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.number.to_le_bytes());
        bytes[48..52].copy_from_slice(&(if self.filler { FLAG_FILLER } else { 0 }).to_le_bytes());
        bytes[52..56].copy_from_slice(&self.topic.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..56]);
        bytes[56..60].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header and checks it: magic, its own checksum, and that its fields can be true.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn read(bytes: &[u8]) -> Result<Self, BatchError> {
        let Some(bytes) = bytes.first_chunk::<BATCH_HEADER_LEN>() else {
            return Err(BatchError::Truncated { len: bytes.len(), need: BATCH_HEADER_LEN });
        };
        if bytes[..4] != MAGIC {
            return Err(BatchError::Magic);
        }
        if crc32c::crc32c(&bytes[..56]) != word(bytes, 56) {
            return Err(BatchError::HeaderChecksum);
        }
        let flags = word(bytes, 48);
        let header = Self {
            len: word(bytes, 4),
            crc: word(bytes, 8),
            records: word(bytes, 12),
            base_sequence: long(bytes, 16),
            time: long(bytes, 24),
            producer: long(bytes, 32),
            number: long(bytes, 40),
            topic: word(bytes, 52),
            filler: flags & FLAG_FILLER != 0,
        };
        let body = (header.len as usize).saturating_sub(BATCH_HEADER_LEN);
        let possible = header.len as usize >= BATCH_HEADER_LEN
            && header.len.is_multiple_of(8)
            && header.records as usize <= body / record::RECORD_HEADER_LEN
            && header.filler == (header.records == 0)
            && flags & !FLAG_FILLER == 0
            && word(bytes, 60) == 0
            && header.base_sequence.checked_add(u64::from(header.records)).is_some();
        if !possible {
            return Err(BatchError::Header { len: header.len, records: header.records });
        }
        Ok(header)
    }

    /// The sequence behind the batch's last record.
    pub const fn end_sequence(&self) -> u64 {
        self.base_sequence + self.records as u64
    }
}

/// A batch whose header, checksum and record structure have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    header: BatchHeader,
    body: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Checks the batch that `bytes` begin with; what follows it is left alone.
    ///
    /// # Errors
    ///
    /// What is wrong with it; `Truncated` if `bytes` end before the batch does.
    pub fn read(bytes: &'a [u8]) -> Result<Self, BatchError> {
        let header = BatchHeader::read(bytes)?;
        let Some(body) = bytes.get(BATCH_HEADER_LEN..header.len as usize) else {
            return Err(BatchError::Truncated { len: bytes.len(), need: header.len as usize });
        };
        if header.filler {
            return Ok(Self { header, body: &[] });
        }
        if crc32c::crc32c(body) != header.crc {
            return Err(BatchError::Checksum);
        }
        check_records(header.records, body)?;
        Ok(Self { header, body })
    }

    /// The header.
    pub const fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The records, in order.
    pub fn records(&self) -> impl Iterator<Item = RecordRef<'a>> + use<'a> {
        let mut rest = self.body;
        std::iter::from_fn(move || {
            let record = RecordRef::read(rest)?;
            rest = &rest[record.encoded_len()..];
            Some(record)
        })
    }
}

/// Checks that `count` records fill a batch's body exactly. For whoever has checked the body's CRC already.
///
/// # Errors
///
/// The first record that does not fit.
pub fn check_records(count: u32, body: &[u8]) -> Result<(), BatchError> {
    let mut rest = body;
    for index in 0..count {
        let record = RecordRef::read(rest).ok_or(BatchError::Record { index })?;
        rest = &rest[record.encoded_len()..];
    }
    if rest.is_empty() { Ok(()) } else { Err(BatchError::Record { index: count }) }
}

/// Builds a batch in a growing buffer: a producer appends records and finishes with the header.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    bytes: Vec<u8>,
    records: u32,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl BatchBuilder {
    /// An empty batch in `buffer`, whose content is dropped and whose capacity is used again.
    pub fn new(mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        buffer.resize(BATCH_HEADER_LEN, 0);
        Self { bytes: buffer, records: 0 }
    }

    /// How long the batch is so far, header included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no record yet.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// How many records it has.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Appends a record.
    ///
    /// # Panics
    ///
    /// If the record does not fit the format: whoever appends one has [checked](RecordRef::check) it.
    pub fn push(&mut self, record: RecordRef<'_>) {
        record.append(&mut self.bytes);
        self.records += 1;
    }

    /// The batch without its header, and the number of its records: for whoever [`seal`]s it later.
    pub fn into_unsealed(self) -> (Vec<u8>, u32) {
        (self.bytes, self.records)
    }

    /// Finishes the batch: checksums, header. Base sequence and time are left to the broker.
    ///
    /// # Panics
    ///
    /// If the batch has 4 GiB or more; the largest of a topic is [`batch_max`](record::batch_max).
    pub fn finish(mut self, topic: u32, producer: u64, number: u64) -> Vec<u8> {
        seal(&mut self.bytes, self.records, topic, producer, number);
        self.bytes
    }
}

/// Writes the header of a batch of `records` records that lies in `bytes`, with its checksums.
///
/// # Panics
///
/// If there is no room for a header, or the batch has 4 GiB or more.
pub fn seal(bytes: &mut [u8], records: u32, topic: u32, producer: u64, number: u64) {
    let header = BatchHeader {
        len: u32::try_from(bytes.len()).expect("a batch is shorter than a segment"),
        crc: crc32c::crc32c(&bytes[BATCH_HEADER_LEN..]),
        records,
        base_sequence: 0,
        time: 0,
        producer,
        number,
        topic,
        filler: false,
    };
    bytes[..BATCH_HEADER_LEN].copy_from_slice(&header.to_bytes());
}

fn word(bytes: &[u8; BATCH_HEADER_LEN], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8; BATCH_HEADER_LEN], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}
