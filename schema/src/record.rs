//! Records: one message each.
//!
//! | byte | field |
//! | --- | --- |
//! | 0 | payload length, u32 |
//! | 4 | key length, u16; zero: no key |
//! | 6 | headers' length, u16 |
//! | 8 | key, headers, payload, then zeros to a multiple of 8 |
//!
//! Headers are pairs of a name (1 to 255 bytes, its length in a u8) and a value (its length in a little-endian u16), one
//! behind the other.

use crate::limits::{RECORD_HEADERS_MAX, RECORD_KEY_MAX};

/// The length of a record's header.
pub const RECORD_HEADER_LEN: usize = 8;

/// A record in somebody's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// The key; empty: none.
    pub key: &'a [u8],
    /// The headers, encoded: see [`headers`].
    pub headers: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

/// Why a record cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Larger than the topic takes.
    #[error("the record has {size} bytes of key, headers and payload, the topic takes at most {max}")]
    TooLarge {
        /// Its size.
        size: usize,
        /// The largest allowed.
        max: u32,
    },
    /// The key is too long.
    #[error("the key has {len} bytes, at most {RECORD_KEY_MAX} are allowed")]
    Key {
        /// Its length.
        len: usize,
    },
    /// The headers are too long.
    #[error("the headers have {len} bytes encoded, at most {RECORD_HEADERS_MAX} are allowed")]
    Headers {
        /// Their length.
        len: usize,
    },
    /// A header's name or value is too long, or the name is empty.
    #[error("a header has a name of {name} and a value of {value} bytes; names have 1 to 255, values at most 65535")]
    Header {
        /// The name's length.
        name: usize,
        /// The value's length.
        value: usize,
    },
}

impl<'a> RecordRef<'a> {
    /// The bytes that a limit on record size counts.
    pub const fn size(&self) -> usize {
        self.key.len() + self.headers.len() + self.payload.len()
    }

    /// The bytes that the record takes in a batch.
    pub const fn encoded_len(&self) -> usize {
        encoded_len(self.size())
    }

    /// Checks the sizes against the format's limits and a topic's.
    ///
    /// # Errors
    ///
    /// Which limit is passed, with both sizes.
    pub const fn check(&self, record_max: u32) -> Result<(), RecordError> {
        if self.key.len() > RECORD_KEY_MAX {
            return Err(RecordError::Key { len: self.key.len() });
        }
        if self.headers.len() > RECORD_HEADERS_MAX {
            return Err(RecordError::Headers { len: self.headers.len() });
        }
        if self.size() > record_max as usize {
            return Err(RecordError::TooLarge { size: self.size(), max: record_max });
        }
        Ok(())
    }

    /// Reads the record that `bytes` begin with, or `None` if they hold no whole record.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<RECORD_HEADER_LEN>()?;
        let payload_len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let key_len = u16::from_le_bytes([head[4], head[5]]) as usize;
        let headers_len = u16::from_le_bytes([head[6], head[7]]) as usize;
        let size = key_len.checked_add(headers_len)?.checked_add(payload_len)?;
        if size > rest.len() || encoded_len(size) > bytes.len() {
            return None;
        }
        let (key, rest) = rest.split_at(key_len);
        let (headers, rest) = rest.split_at(headers_len);
        Some(Self { key, headers, payload: &rest[..payload_len] })
    }

    /// Appends the encoded record.
    ///
    /// # Panics
    ///
    /// If the record does not fit the format: whoever appends one has [checked](Self::check) it.
    pub fn append(&self, to: &mut Vec<u8>) {
        // Not only in debug builds: a length that is cut here would garble every record behind it.
        if let Err(error) = self.check(u32::MAX) {
            panic!("whoever appends a record has checked it, but {error}");
        }
        let start = to.len();
        to.reserve(self.encoded_len());
        to.extend_from_slice(&(self.payload.len() as u32).to_le_bytes());
        to.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        to.extend_from_slice(&(self.headers.len() as u16).to_le_bytes());
        to.extend_from_slice(self.key);
        to.extend_from_slice(self.headers);
        to.extend_from_slice(self.payload);
        to.resize(start + self.encoded_len(), 0);
    }
}

/// The bytes that a record of `size` bytes of key, headers and payload takes in a batch.
pub const fn encoded_len(size: usize) -> usize {
    (RECORD_HEADER_LEN + size).next_multiple_of(8)
}

/// The largest batch, header included, of a topic whose records have at most `record_max` bytes: one such record, or many
/// smaller ones up to the same length.
pub const fn batch_max(record_max: u32) -> u32 {
    (crate::batch::BATCH_HEADER_LEN + encoded_len(record_max as usize)) as u32
}

/// Appends a header to `headers`.
///
/// # Errors
///
/// The name or value does not fit the format, or the headers become too long together.
pub fn append_header(headers: &mut Vec<u8>, name: &str, value: &[u8]) -> Result<(), RecordError> {
    let refused = RecordError::Header { name: name.len(), value: value.len() };
    let name_len = u8::try_from(name.len()).map_err(|_| refused)?;
    let value_len = u16::try_from(value.len()).map_err(|_| refused)?;
    if name_len == 0 {
        return Err(refused);
    }
    let len = headers.len() + 3 + name.len() + value.len();
    if len > RECORD_HEADERS_MAX {
        return Err(RecordError::Headers { len });
    }
    headers.push(name_len);
    headers.extend_from_slice(&value_len.to_le_bytes());
    headers.extend_from_slice(name.as_bytes());
    headers.extend_from_slice(value);
    Ok(())
}

/// The headers of a record, in order, as name and value. It ends early where the bytes are not headers.
pub fn headers(mut encoded: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    let next = move || {
        let (head, rest) = encoded.split_first_chunk::<3>()?;
        let (name, rest) = rest.split_at_checked(head[0] as usize)?;
        let (value, rest) = rest.split_at_checked(u16::from_le_bytes([head[1], head[2]]) as usize)?;
        encoded = rest;
        let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?;
        Some((name, value))
    };
    std::iter::from_fn(next).fuse()
}
