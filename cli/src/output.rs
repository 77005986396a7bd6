//! Writing received records: payload and newline, or the very bytes that were published.

use std::io::{self, BufWriter, Write};

use crate::source::LINE_END;

/// Enough that writing costs few system calls a megabyte.
const BUFFER: usize = 256 * 1024;

/// How a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The payload and a newline.
    Lines,
    /// The payload, and what was cut off when it was read from a text file.
    Raw,
    /// Not at all.
    Nothing,
}

/// Where records go.
pub(crate) struct Output<W: Write> {
    writer: BufWriter<W>,
    form: Form,
}

impl<W: Write> Output<W> {
    pub(crate) fn new(to: W, form: Form) -> Self {
        Self { writer: BufWriter::with_capacity(BUFFER, to), form }
    }

    /// Writes one record.
    pub(crate) fn write<'h>(
        &mut self,
        payload: &[u8],
        mut headers: impl Iterator<Item = (&'h str, &'h [u8])>,
    ) -> io::Result<()> {
        match self.form {
            Form::Nothing => Ok(()),
            Form::Lines => {
                self.writer.write_all(payload)?;
                self.writer.write_all(b"\n")
            }
            Form::Raw => {
                self.writer.write_all(payload)?;
                match headers.find(|(name, _)| *name == LINE_END) {
                    Some((_, line_end)) => self.writer.write_all(line_end),
                    None => Ok(()),
                }
            }
        }
    }

    /// Writes out what is buffered: before waiting, so that nobody waits for a record that has arrived.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(form: Form) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut output = Output::new(&mut bytes, form);
        output.write(b"one", [("other", &b"x"[..]), (LINE_END, b"\n")].into_iter()).unwrap();
        output.write(b"\xff\0", std::iter::empty()).unwrap();
        output.flush().unwrap();
        drop(output);
        bytes
    }

    #[test]
    fn raw_writes_back_what_was_cut_off_and_nothing_else() {
        assert_eq!(written(Form::Raw), b"one\n\xff\0");
    }

    #[test]
    fn lines_end_every_record() {
        assert_eq!(written(Form::Lines), b"one\n\xff\0\n");
    }

    #[test]
    fn nothing_writes_nothing() {
        assert_eq!(written(Form::Nothing), b"");
    }
}
