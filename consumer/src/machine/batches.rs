//! Whether what was READ is the batch that is expected there.
//!
//! A READ may bring half of a batch and half of what was there before, a batch of the segment's life in an older lap of the
//! ring, or one of another topic that owned the segment then. So the header's own checksum, the topic, the sequence and
//! the content's CRC are all checked, and nothing of a batch is used before.

use keyway_schema::batch::{BATCH_HEADER_LEN, Batch, BatchError, BatchHeader};

use super::cursor::Cursor;

/// What stands at the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The batch that is expected. It may be delivered.
    Valid(BatchHeader),
    /// So far nothing is wrong, but this many bytes are needed, from the batch's start.
    Incomplete(u32),
    /// Not that batch, or not yet.
    Invalid(Invalid),
}

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Invalid {
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[error("it is a batch of topic {found}, not of topic {expected}")]
    Topic { found: u32, expected: u32 },
    #[error("it is the batch of record {found}, not of record {expected}")]
    Sequence { found: u64, expected: u64 },
    #[error("it has {len} bytes, and only {limit} are committed")]
    BeyondTail { len: u32, limit: u64 },
    #[error("it has {len} bytes, and the topic's longest batch has {max}")]
    TooLong { len: u32, max: u32 },
}

/// What a subscription expects of every batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) topic: u32,
    pub(super) batch_max: u32,
}

impl Expected {
    /// Judges the batch that `bytes` should begin with; `limit` bytes from there on are committed.
    pub(super) fn examine(&self, bytes: &[u8], limit: u64, cursor: &Cursor) -> Verdict {
        match self.check(bytes, limit, cursor) {
            Ok(verdict) => verdict,
            Err(invalid) => Verdict::Invalid(invalid),
        }
    }

    fn check(&self, bytes: &[u8], limit: u64, cursor: &Cursor) -> Result<Verdict, Invalid> {
        let header_len = BATCH_HEADER_LEN as u32;
        if u64::from(header_len) > limit {
            return Err(Invalid::BeyondTail { len: header_len, limit });
        }
        if bytes.len() < BATCH_HEADER_LEN {
            return Ok(Verdict::Incomplete(header_len));
        }
        let header = BatchHeader::read(bytes)?;
        let (len, max) = (header.len, self.batch_max);
        if header.topic != self.topic {
            return Err(Invalid::Topic { found: header.topic, expected: self.topic });
        }
        if !cursor.accepts(&header) {
            return Err(Invalid::Sequence { found: header.base_sequence, expected: cursor.next() });
        }
        if u64::from(len) > limit {
            return Err(Invalid::BeyondTail { len, limit });
        }
        if len > max {
            return Err(Invalid::TooLong { len, max });
        }
        if bytes.len() < len as usize {
            return Ok(Verdict::Incomplete(len));
        }
        Ok(Verdict::Valid(*Batch::read(bytes)?.header()))
    }
}

#[cfg(test)]
mod tests {
    use keyway_schema::batch::BatchBuilder;
    use keyway_schema::message::Start;
    use keyway_schema::record::RecordRef;

    use super::*;

    const EXPECTED: Expected = Expected { topic: 7, batch_max: 1024 };

    fn batch(topic: u32, base_sequence: u64) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Vec::new());
        builder.push(RecordRef { key: b"key", headers: b"", payload: b"payload" });
        builder.push(RecordRef { key: b"", headers: b"", payload: b"second" });
        let mut bytes = builder.finish(topic, 1, 1);
        let header = BatchHeader { base_sequence, ..BatchHeader::read(&bytes).unwrap() };
        bytes[..BATCH_HEADER_LEN].copy_from_slice(&header.to_bytes());
        bytes
    }

    fn cursor(next: u64) -> Cursor {
        let mut cursor = Cursor::new(Start::Earliest);
        cursor.advance(next);
        cursor
    }

    #[test]
    fn only_the_expected_batch_is_valid() {
        let bytes = batch(7, 40);
        let examine = |bytes: &[u8], limit, next| EXPECTED.examine(bytes, limit, &cursor(next));
        assert!(matches!(examine(&bytes, 1000, 40), Verdict::Valid(header) if header.end_sequence() == 42));
        let stale = examine(&bytes, 1000, 400);
        assert_eq!(stale, Verdict::Invalid(Invalid::Sequence { found: 40, expected: 400 }));
        let foreign = examine(&batch(8, 40), 1000, 40);
        assert_eq!(foreign, Verdict::Invalid(Invalid::Topic { found: 8, expected: 7 }));
        assert!(matches!(examine(&[0; 200], 1000, 40), Verdict::Invalid(Invalid::Batch(BatchError::Magic))));
        let beyond = examine(&bytes, bytes.len() as u64 - 8, 40);
        assert!(matches!(beyond, Verdict::Invalid(Invalid::BeyondTail { .. })));
        assert!(matches!(examine(&bytes, 8, 40), Verdict::Invalid(Invalid::BeyondTail { len: 64, limit: 8 })));
    }

    #[test]
    fn a_batch_is_incomplete_until_its_last_byte_is_there_and_never_valid_with_a_wrong_one() {
        let bytes = batch(7, 40);
        for len in 0..bytes.len() {
            let need = if len < BATCH_HEADER_LEN { BATCH_HEADER_LEN } else { bytes.len() };
            let verdict = EXPECTED.examine(&bytes[..len], 1000, &cursor(40));
            assert_eq!(verdict, Verdict::Incomplete(need as u32), "with {len} bytes");
        }
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 0x10;
            let verdict = EXPECTED.examine(&torn, 1000, &cursor(40));
            assert!(matches!(verdict, Verdict::Invalid(_)), "byte {at} is wrong: {verdict:?}");
        }
    }

    #[test]
    fn a_batch_longer_than_the_topic_takes_is_refused() {
        let mut builder = BatchBuilder::new(Vec::new());
        builder.push(RecordRef { key: b"", headers: b"", payload: &[1; 1000] });
        let bytes = builder.finish(7, 1, 1);
        let verdict = EXPECTED.examine(&bytes, 1 << 20, &cursor(0));
        assert_eq!(verdict, Verdict::Invalid(Invalid::TooLong { len: 1072, max: 1024 }));
    }
}
