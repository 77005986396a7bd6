//! What is published: a payload, with a key and headers if wanted.

use std::borrow::Cow;

use keyway_schema::record::{RecordError, RecordRef, append_header};

/// Bytes that are borrowed or owned: what keys, header values and payloads are given as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes<'a>(Cow<'a, [u8]>);

impl Bytes<'_> {
    fn into_owned(self) -> Bytes<'static> {
        Bytes(Cow::Owned(self.0.into_owned()))
    }
}

macro_rules! bytes_from {
    ($($type:ty, $value:ident => $bytes:expr;)*) => { $(
        impl<'a> From<$type> for Bytes<'a> {
            fn from($value: $type) -> Self {
                Self($bytes)
            }
        }

        impl<'a> From<$type> for Record<'a> {
            fn from(payload: $type) -> Self {
                Self::new(payload)
            }
        }
    )* };
}

bytes_from! {
    &'a [u8], value => Cow::Borrowed(value);
    &'a Vec<u8>, value => Cow::Borrowed(value);
    &'a str, value => Cow::Borrowed(value.as_bytes());
    &'a String, value => Cow::Borrowed(value.as_bytes());
    Vec<u8>, value => Cow::Owned(value);
    String, value => Cow::Owned(value.into_bytes());
}

impl<'a, const N: usize> From<&'a [u8; N]> for Bytes<'a> {
    fn from(value: &'a [u8; N]) -> Self {
        Self(Cow::Borrowed(value))
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Record<'a> {
    fn from(payload: &'a [u8; N]) -> Self {
        Self::new(payload)
    }
}

/// A record to be published. It borrows what it is given, or owns it; sending copies it once, into the batch.
///
/// ```
/// # use keyway_producer::Record;
/// let record = Record::new("21.5").key("plant-7/line-2").header("unit", "°C");
/// assert_eq!(record.size(), 4 + 14 + 3 + 4 + 3);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record<'a> {
    key: Bytes<'a>,
    headers: Vec<u8>,
    payload: Bytes<'a>,
    /// The first header that does not fit the format. It is reported when the record is sent.
    invalid: Option<RecordError>,
}

impl<'a> Record<'a> {
    /// A record without key and headers.
    pub fn new(payload: impl Into<Bytes<'a>>) -> Self {
        Self { payload: payload.into(), ..Self::default() }
    }

    /// The same with a key. An empty one is none.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes<'a>>) -> Self {
        self.key = key.into();
        self
    }

    /// The same with one more header: a name of 1 to 255 bytes and a value of 65,535 at most. One that does not fit is an
    /// error when the record is sent.
    #[must_use]
    pub fn header<'b>(mut self, name: &str, value: impl Into<Bytes<'b>>) -> Self {
        if let Err(error) = append_header(&mut self.headers, name, &value.into().0) {
            self.invalid.get_or_insert(error);
        }
        self
    }

    /// The bytes that a topic's limit counts: key, headers as encoded, and payload.
    pub fn size(&self) -> usize {
        self.as_ref().size()
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload.0
    }

    /// The same, borrowing nothing.
    pub fn into_owned(self) -> Record<'static> {
        Record {
            key: self.key.into_owned(),
            headers: self.headers,
            payload: self.payload.into_owned(),
            invalid: self.invalid,
        }
    }

    pub(crate) fn as_ref(&self) -> RecordRef<'_> {
        RecordRef { key: &self.key.0, headers: &self.headers, payload: &self.payload.0 }
    }

    /// Checks it against the format and the topic.
    pub(crate) fn check(&self, record_max: u32) -> Result<(), RecordError> {
        self.invalid.map_or(Ok(()), Err)?;
        self.as_ref().check(record_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keyway_schema::record::headers;

    #[test]
    fn a_record_is_made_of_whatever_holds_bytes() {
        let expected = Record::new(b"text".as_slice());
        for record in [Record::from("text"), Record::from(&b"text"[..]), Record::from(b"text")] {
            assert_eq!(record, expected);
        }
        assert_eq!(Record::from(String::from("text")), expected);
        assert_eq!(Record::from(b"text".to_vec()).into_owned(), expected);
    }

    #[test]
    fn headers_are_kept_in_order() {
        let record = Record::new("").header("a", "1").header("b", &[2_u8; 2]);
        let read: Vec<(&str, &[u8])> = headers(record.as_ref().headers).collect();
        assert_eq!(read, [("a", &b"1"[..]), ("b", &[2, 2][..])]);
    }

    #[test]
    fn a_header_that_does_not_fit_is_told_when_the_record_is_checked() {
        let record = Record::new("x").header("", "1").header("fine", "1");
        assert_eq!(record.check(10), Err(RecordError::Header { name: 0, value: 1 }));
        assert!(Record::new("x").header("n", "1").check(6).is_ok());
        assert_eq!(Record::new("x").header("n", "1").check(5), Err(RecordError::TooLarge { size: 6, max: 5 }));
    }
}
