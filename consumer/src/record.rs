//! What an application receives: records that lie where the fabric landed them, and are not copied.

use std::fmt;
use std::sync::Arc;

use keyway_fabric::{View, WallTime};
use keyway_schema::batch::{BATCH_HEADER_LEN, BatchHeader};
use keyway_schema::record::{self, RECORD_HEADER_LEN, RecordRef};

/// A record, in the consumer's landing memory.
///
/// It is a counted view: a clone costs one increment, and the bytes stay where they are until the last clone is gone, even
/// if the consumer is closed or dropped before. What is kept holds its whole arena (1 MiB or more) and keeps the consumer from
/// reading into it; an application that keeps single records for long copies them out.
#[derive(Clone)]
pub struct Record {
    bytes: Arc<View>,
    /// Where the encoded record begins.
    at: u32,
    key_len: u16,
    headers_len: u16,
    payload_len: u32,
    sequence: u64,
    time: WallTime,
}

impl Record {
    /// The record that stands at `at`, which was checked when it arrived.
    fn read(bytes: &Arc<View>, at: usize, sequence: u64, time: u64) -> Self {
        let record = RecordRef::read(&bytes[at..]).expect("records are checked before they are handed out");
        Self {
            bytes: Arc::clone(bytes),
            at: at as u32,
            key_len: record.key.len() as u16,
            headers_len: record.headers.len() as u16,
            payload_len: record.payload.len() as u32,
            sequence,
            time: WallTime(time),
        }
    }

    /// A view that is exactly one record.
    pub(crate) fn alone(view: View, sequence: u64, time: u64) -> Self {
        Self::read(&Arc::new(view), 0, sequence, time)
    }

    fn part(&self, offset: usize, len: usize) -> &[u8] {
        let start = self.at as usize + RECORD_HEADER_LEN + offset;
        &self.bytes[start..start + len]
    }

    /// Its number in the topic, from 0, without gaps.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// When the broker committed it, by the broker's wall clock.
    pub fn time(&self) -> WallTime {
        self.time
    }

    /// Its key, if it has one.
    pub fn key(&self) -> Option<&[u8]> {
        (self.key_len > 0).then(|| self.part(0, self.key_len.into()))
    }

    /// Its headers, as name and value, in order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        record::headers(self.part(self.key_len.into(), self.headers_len.into()))
    }

    /// Its payload.
    pub fn payload(&self) -> &[u8] {
        self.part(usize::from(self.key_len) + usize::from(self.headers_len), self.payload_len as usize)
    }
}

impl AsRef<[u8]> for Record {
    /// The payload.
    fn as_ref(&self) -> &[u8] {
        self.payload()
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("sequence", &self.sequence)
            .field("key_len", &self.key_len)
            .field("payload_len", &self.payload_len)
            .finish_non_exhaustive()
    }
}

/// Batches that lie one behind the other, being taken apart.
#[derive(Debug)]
pub(crate) struct Run {
    bytes: Arc<View>,
    /// Where the next record, or batch header, begins.
    at: usize,
    /// Records of the present batch that are left.
    left: u32,
    sequence: u64,
    time: u64,
    /// The first record to give out.
    from: u64,
}

impl Run {
    /// Batches that were checked when they arrived, of which the records before `from` are skipped.
    pub(crate) fn new(view: View, from: u64) -> Self {
        Self { bytes: Arc::new(view), at: 0, left: 0, sequence: 0, time: 0, from }
    }

    fn next_batch(&mut self) -> Option<()> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let header = BatchHeader::read(&self.bytes[self.at..]).expect("batches are checked before they are handed out");
        self.at += if header.filler { header.len as usize } else { BATCH_HEADER_LEN };
        self.left = header.records;
        self.sequence = header.base_sequence;
        self.time = header.time;
        Some(())
    }
}

impl Iterator for Run {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        loop {
            while self.left == 0 {
                self.next_batch()?;
            }
            let record = Record::read(&self.bytes, self.at, self.sequence, self.time);
            let size = usize::from(record.key_len) + usize::from(record.headers_len) + record.payload_len as usize;
            self.at += record::encoded_len(size);
            self.left -= 1;
            self.sequence += 1;
            if record.sequence >= self.from {
                return Some(record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use keyway_fabric::Waker;
    use keyway_fabric::memory::{LocalMemory, SlotRange};
    use keyway_schema::batch::BatchBuilder;

    use super::*;

    fn view(bytes: &[u8]) -> View {
        let mut memory = LocalMemory::new(1, bytes.len() as u32, Waker::new().unwrap()).unwrap();
        let range = SlotRange { slot: 0, offset: 0, len: bytes.len() as u32 };
        memory.bytes_mut(range).copy_from_slice(bytes);
        memory.view(range)
    }

    fn batch(base_sequence: u64, payloads: &[&[u8]]) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Vec::new());
        let mut headers = Vec::new();
        record::append_header(&mut headers, "unit", b"C").unwrap();
        for payload in payloads {
            builder.push(RecordRef { key: b"k", headers: &headers, payload });
        }
        let mut bytes = builder.finish(1, 1, 1);
        let header = BatchHeader { base_sequence, time: 5, ..BatchHeader::read(&bytes).unwrap() };
        bytes[..BATCH_HEADER_LEN].copy_from_slice(&header.to_bytes());
        bytes
    }

    fn filler(base_sequence: u64) -> Vec<u8> {
        let header = BatchHeader {
            len: 128,
            crc: 0,
            records: 0,
            base_sequence,
            time: 0,
            producer: 0,
            number: 0,
            topic: 1,
            filler: true,
        };
        let mut bytes = header.to_bytes().to_vec();
        bytes.resize(128, 0xff);
        bytes
    }

    #[test]
    fn a_run_gives_out_the_records_of_its_batches_from_the_first_wanted_one_on() {
        let bytes = [batch(10, &[b"a", b"", b"ccc"]), filler(13), batch(13, &[b"d"])].concat();
        let records: Vec<Record> = Run::new(view(&bytes), 11).collect();
        let seen: Vec<(u64, &[u8])> = records.iter().map(|record| (record.sequence(), record.payload())).collect();
        assert_eq!(seen, [(11, &b""[..]), (12, b"ccc"), (13, b"d")]);
        let last = &records[2];
        assert_eq!((last.key(), last.time()), (Some(&b"k"[..]), WallTime(5)));
        assert_eq!(last.headers().collect::<Vec<_>>(), [("unit", &b"C"[..])]);
    }

    #[test]
    fn a_record_outlives_everything_that_it_came_from() {
        let mut encoded = Vec::new();
        RecordRef { key: b"", headers: b"", payload: b"payload" }.append(&mut encoded);
        let record = Record::alone(view(&encoded), 3, 4);
        let clone = record.clone();
        drop(record);
        let thread = std::thread::Builder::new().spawn(move || clone.payload().to_vec()).unwrap();
        assert_eq!(thread.join().unwrap(), b"payload");
    }
}
