//! What the guest tells the runner: one stream of frames, so that nothing that the command wrote can come after its status.
//!
//! A frame is a tag, a length (u32, little-endian) and so many bytes. The other way goes one line, the job; then the runner
//! closes its end once it has everything, and the guest switches itself off.

use std::io::{self, Read, Write};

/// No frame is longer: whoever sends reads so much at a time.
pub(super) const LEN_MAX: usize = 64 * 1024;

/// One thing that the guest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// Devices are there; send the job.
    Ready,
    /// Bytes of the command's standard output.
    Output(Vec<u8>),
    /// Bytes of its standard error.
    Error(Vec<u8>),
    /// It ended with this status, as a shell gives it.
    Exit(u8),
    /// The command could not be run.
    Failed(String),
}

impl Frame {
    /// Writes it in one go, so that frames of several threads do not mix.
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let (tag, bytes): (u8, &[u8]) = match self {
            Self::Ready => (0, &[]),
            Self::Output(bytes) => (1, bytes),
            Self::Error(bytes) => (2, bytes),
            Self::Exit(status) => (3, std::slice::from_ref(status)),
            Self::Failed(why) => (4, why.as_bytes()),
        };
        let len = u32::try_from(bytes.len()).expect("a frame has at most 64 KiB");
        let mut frame = vec![tag];
        frame.extend_from_slice(&len.to_le_bytes());
        frame.extend_from_slice(bytes);
        to.write_all(&frame)
    }

    /// Reads the next one; none when the stream ends between two.
    pub(super) fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut tag = [0];
        if from.read(&mut tag)? == 0 {
            return Ok(None);
        }
        let mut len = [0; 4];
        from.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > LEN_MAX {
            return Err(invalid(format!("a frame of {len} bytes, where {LEN_MAX} are allowed")));
        }
        let mut bytes = vec![0; len];
        from.read_exact(&mut bytes)?;
        match (tag[0], bytes) {
            (0, _) => Ok(Some(Self::Ready)),
            (1, bytes) => Ok(Some(Self::Output(bytes))),
            (2, bytes) => Ok(Some(Self::Error(bytes))),
            (3, bytes) if bytes.len() == 1 => Ok(Some(Self::Exit(bytes[0]))),
            (4, bytes) => Ok(Some(Self::Failed(String::from_utf8_lossy(&bytes).into_owned()))),
            (tag, bytes) => Err(invalid(format!("a frame with tag {tag} and {} bytes", bytes.len()))),
        }
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_as_they_were_written() {
        let sent = [
            Frame::Ready,
            Frame::Output(b"bytes \0 and\nlines".to_vec()),
            Frame::Error(vec![0xff; LEN_MAX]),
            Frame::Output(Vec::new()),
            Frame::Failed("no such program".into()),
            Frame::Exit(101),
        ];
        let mut stream = Vec::new();
        for frame in &sent {
            frame.write(&mut stream).expect("memory takes everything");
        }
        let mut from = stream.as_slice();
        for frame in &sent {
            assert_eq!(Frame::read(&mut from).expect("the stream is well-formed").as_ref(), Some(frame));
        }
        assert_eq!(Frame::read(&mut from).expect("the stream ends between two frames"), None);
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_is_an_error() {
        let mut stream = Vec::new();
        Frame::Output(b"cut".to_vec()).write(&mut stream).expect("memory takes everything");
        let error = Frame::read(&mut &stream[..stream.len() - 1]).expect_err("a byte is missing");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for stream in [&[9, 0, 0, 0, 0][..], &[3, 0, 0, 0, 0], &[1, 0xff, 0xff, 0xff, 0xff]] {
            let error = Frame::read(&mut &stream[..]).expect_err("this is no frame");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{stream:?}");
        }
    }
}
