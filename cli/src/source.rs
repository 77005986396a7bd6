//! Where the records to publish come from: lines, chunks, or made up.
//!
//! A line becomes a record without its newline, and a header, [`LINE_END`], keeps what was cut off. A subscriber writes it back, so
//! a text file comes out byte for byte, whether its last line ends in a newline or not.

use std::io::{self, BufRead, Read, Write};

use keyway_schema::limits::RECORD_MAX_CEILING;

use crate::input::Input;

/// The header that holds what ended a line and is not part of its record.
pub(crate) const LINE_END: &str = "eol";

/// A record's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub(crate) payload: &'a [u8],
    /// What followed the payload in the input and goes into the header [`LINE_END`]; empty: no header.
    pub(crate) line_end: &'static [u8],
}

/// Why there is no next record.
#[derive(Debug)]
pub(crate) enum SourceError {
    Read(io::Error),
    /// No newline within this many bytes.
    LineTooLong(usize),
}

/// A source of records.
#[derive(Debug)]
pub(crate) enum Source {
    Lines { input: Input, buffer: Vec<u8> },
    Chunks { input: Input, buffer: Vec<u8>, size: usize },
    Generated { next: u64, count: u64, buffer: Vec<u8> },
}

impl Source {
    /// One record a line.
    pub(crate) const fn lines(input: Input) -> Self {
        Self::Lines { input, buffer: Vec::new() }
    }

    /// Records of `size` bytes each; the last may be shorter.
    pub(crate) const fn chunks(input: Input, size: usize) -> Self {
        Self::Chunks { input, buffer: Vec::new(), size }
    }

    /// `count` records of `size` bytes: each begins with its number, as far as that fits.
    pub(crate) fn generated(count: u64, size: usize) -> Self {
        Self::Generated { next: 0, count, buffer: (b'a'..=b'z').cycle().take(size).collect() }
    }

    /// The next record, or `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Piece<'_>>, SourceError> {
        match self {
            Self::Lines { input, buffer } => next_line(input, buffer),
            Self::Chunks { input, buffer, size } => next_chunk(input, buffer, *size),
            Self::Generated { next, count, buffer } => Ok(generate(next, *count, buffer)),
        }
    }
}

fn next_line<'a>(input: &mut Input, buffer: &'a mut Vec<u8>) -> Result<Option<Piece<'a>>, SourceError> {
    const MAX: u64 = RECORD_MAX_CEILING as u64;
    buffer.clear();
    input.take(MAX + 1).read_until(b'\n', buffer).map_err(SourceError::Read)?;
    let line_end: &[u8] = if buffer.pop_if(|last| *last == b'\n').is_some() { b"\n" } else { b"" };
    if buffer.len() as u64 > MAX {
        return Err(SourceError::LineTooLong(RECORD_MAX_CEILING as usize));
    }
    let piece = Piece { payload: buffer, line_end };
    Ok((piece.payload.len() + piece.line_end.len() > 0).then_some(piece))
}

fn next_chunk<'a>(input: &mut Input, buffer: &'a mut Vec<u8>, size: usize) -> Result<Option<Piece<'a>>, SourceError> {
    buffer.clear();
    input.take(size as u64).read_to_end(buffer).map_err(SourceError::Read)?;
    Ok((!buffer.is_empty()).then_some(Piece { payload: buffer, line_end: b"" }))
}

fn generate<'a>(next: &mut u64, count: u64, buffer: &'a mut [u8]) -> Option<Piece<'a>> {
    if *next == count {
        return None;
    }
    // A number that does not fit is cut off, which is all that can fail here.
    let _ = write!(&mut buffer[..], "{next} ");
    *next += 1;
    Some(Piece { payload: buffer, line_end: b"" })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A payload and its line end.
    type Owned = (Vec<u8>, &'static [u8]);

    /// Everything that a source gives, and the input put together again from it.
    fn drain(mut source: Source) -> (Vec<Owned>, Vec<u8>) {
        let mut pieces = Vec::new();
        let mut whole = Vec::new();
        while let Some(Piece { payload, line_end }) = source.next().unwrap() {
            whole.extend_from_slice(payload);
            whole.extend_from_slice(line_end);
            pieces.push((payload.to_vec(), line_end));
        }
        (pieces, whole)
    }

    #[test]
    fn a_line_loses_its_newline_and_remembers_that_it_had_one() {
        let (pieces, whole) = drain(Source::lines(Input::of(&[b"one\n\ntw", b"o\r\nthree"])));
        let expected: &[(&[u8], &[u8])] = &[(b"one", b"\n"), (b"", b"\n"), (b"two\r", b"\n"), (b"three", b"")];
        assert!(pieces.iter().map(|(payload, end)| (payload.as_slice(), *end)).eq(expected.iter().copied()));
        assert_eq!(whole, b"one\n\ntwo\r\nthree");
    }

    #[test]
    fn any_bytes_cut_anywhere_come_out_whole() {
        let bytes: Vec<u8> = (0..=u8::MAX).chain(b"\n\n\xff\n".iter().copied()).collect();
        for cut in 0..=bytes.len() {
            let pieces = [&bytes[..cut], &bytes[cut..]];
            assert_eq!(drain(Source::lines(Input::of(&pieces))).1, bytes, "lines, cut at {cut}");
            assert_eq!(drain(Source::chunks(Input::of(&pieces), 7)).1, bytes, "chunks, cut at {cut}");
        }
    }

    #[test]
    fn chunks_are_full_but_for_the_last() {
        let (pieces, _) = drain(Source::chunks(Input::of(&[b"abcd", b"e", b"fgh"]), 3));
        let sizes: Vec<_> = pieces.iter().map(|(payload, _)| payload.len()).collect();
        assert_eq!(sizes, [3, 3, 2]);
    }

    #[test]
    fn nothing_in_makes_nothing_out() {
        assert!(drain(Source::lines(Input::of(&[]))).0.is_empty());
        assert!(drain(Source::chunks(Input::of(&[]), 3)).0.is_empty());
        assert!(drain(Source::generated(0, 8)).0.is_empty());
    }

    #[test]
    fn generated_records_have_the_size_asked_for_and_begin_with_their_number() {
        let (pieces, _) = drain(Source::generated(12, 4));
        assert_eq!(pieces.len(), 12);
        assert!(pieces.iter().all(|(payload, _)| payload.len() == 4));
        assert!(pieces[11].0.starts_with(b"11 "));
        assert_eq!(drain(Source::generated(3, 0)).0.len(), 3);
    }
}
