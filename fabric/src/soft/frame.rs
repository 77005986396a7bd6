//! The frames that two software endpoints exchange.
//!
//! Every frame is a header of [`HEADER`] bytes, little-endian; `Send` and `Data` are followed by as many payload bytes as
//! they say. There are no numbers to match a response with its request: the stream is ordered, READs are answered in the
//! order in which they were asked, and acknowledgements count.
//!
//! ```text
//! byte  0      1      2..4      4..8     8..16      16..20   20..24
//!       kind   code   version   length   address    key      0
//!       Hello         version   magic    the sender's token (16 bytes)
//!       Send                    length
//!       Ack                              received (messages since the start)
//!       Read                    length   address    key
//!       Data                    length
//!       Refuse code
//! ```
//!
//! Fields that a kind does not use are zero; a frame that breaks this is a protocol error, so that they stay free to use.

use super::address::{TOKEN_LEN, Token};
use crate::Key;

/// The length of every frame's header.
pub(super) const HEADER: usize = 24;

/// The version of this protocol. Both sides must speak the same one.
pub(super) const VERSION: u16 = 1;

/// The most payload bytes of one READ response frame. Each is checked against the key when it is produced, so this bounds how
/// much leaves the memory under one check, and what must be set aside when the stream takes only a part.
pub(super) const FRAGMENT_MAX: u32 = 64 * 1024;

/// The most READs that an endpoint has asked and not yet got; more wait in its send queue. A peer that exceeds it is
/// broken. Bounds what a responder must remember; 128 of 64 KiB are 8 MiB on the way, more than any stream holds.
pub(super) const READS_MAX: usize = 128;

/// A `Hello` carries this where other frames carry a length.
const HELLO_MAGIC: u32 = u32::from_le_bytes(*b"kwyf");

const HELLO: u8 = 1;
const SEND: u8 = 2;
const ACK: u8 = 3;
const READ: u8 = 4;
const DATA: u8 = 5;
const REFUSE: u8 = 6;

/// Why the peer's oldest outstanding operation of a kind is refused. It is the last frame of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The oldest READ: its key does not open its range.
    Access,
    /// The oldest SEND: no receive was posted.
    NotReady,
    /// The oldest SEND: longer than the receive slot that it met.
    TooLong,
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// The first frame of each side: who speaks, and which protocol.
    Hello { version: u16, token: Token },
    /// A message; `len` bytes follow.
    Send { len: u32 },
    /// How many messages have reached receive slots since the start.
    Ack { received: u64 },
    /// Asks for memory.
    Read { address: u64, len: u32, key: Key },
    /// The next part of the oldest READ's response; `len` bytes follow.
    Data { len: u32 },
    /// The peer's operation is refused.
    Refuse(Refusal),
}

impl Frame {
    pub(super) fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut length = 0_u32;
        match self {
            Self::Hello { version, token } => {
                bytes[0] = HELLO;
                bytes[2..4].copy_from_slice(&version.to_le_bytes());
                length = HELLO_MAGIC;
                bytes[8..].copy_from_slice(&token.0);
            }
            Self::Send { len } => {
                bytes[0] = SEND;
                length = len;
            }
            Self::Ack { received } => {
                bytes[0] = ACK;
                bytes[8..16].copy_from_slice(&received.to_le_bytes());
            }
            Self::Read { address, len, key } => {
                bytes[0] = READ;
                length = len;
                bytes[8..16].copy_from_slice(&address.to_le_bytes());
                bytes[16..20].copy_from_slice(&key.0.to_le_bytes());
            }
            Self::Data { len } => {
                bytes[0] = DATA;
                length = len;
            }
            Self::Refuse(refusal) => {
                bytes[0] = REFUSE;
                bytes[1] = match refusal {
                    Refusal::Access => 1,
                    Refusal::NotReady => 2,
                    Refusal::TooLong => 3,
                };
            }
        }
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// The frame that a header stands for, or `None` if it makes no sense.
    pub(super) fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let half = u16::from_le_bytes([bytes[2], bytes[3]]);
        let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let mut wide = [0; 8];
        wide.copy_from_slice(&bytes[8..16]);
        let wide = u64::from_le_bytes(wide);
        let key = Key(u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]));
        let frame = match bytes[0] {
            HELLO if length == HELLO_MAGIC => {
                let mut token = [0; TOKEN_LEN];
                token.copy_from_slice(&bytes[8..]);
                Self::Hello { version: half, token: Token(token) }
            }
            SEND => Self::Send { len: length },
            ACK => Self::Ack { received: wide },
            READ => Self::Read { address: wide, len: length, key },
            DATA => Self::Data { len: length },
            REFUSE => Self::Refuse(match bytes[1] {
                1 => Refusal::Access,
                2 => Refusal::NotReady,
                3 => Refusal::TooLong,
                _ => return None,
            }),
            _ => return None,
        };
        // Canonical or nothing: this is what keeps unused fields zero.
        (frame.encode() == *bytes).then_some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: [Frame; 8] = [
        Frame::Hello { version: VERSION, token: Token([9; TOKEN_LEN]) },
        Frame::Send { len: 17 },
        Frame::Ack { received: u64::MAX },
        Frame::Read { address: 0x1234_5678_9abc_def0, len: u32::MAX, key: Key(0xdead_beef) },
        Frame::Data { len: FRAGMENT_MAX },
        Frame::Refuse(Refusal::Access),
        Frame::Refuse(Refusal::NotReady),
        Frame::Refuse(Refusal::TooLong),
    ];

    #[test]
    fn frames_survive_the_wire() {
        for frame in FRAMES {
            assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        }
    }

    #[test]
    fn a_frame_with_bytes_where_none_belong_is_refused() {
        for frame in [Frame::Send { len: 1 }, Frame::Data { len: 1 }, Frame::Refuse(Refusal::Access)] {
            for place in [1, 2, 8, 16, 23] {
                let mut bytes = frame.encode();
                bytes[place] ^= 0x80;
                assert_eq!(Frame::decode(&bytes), None, "{frame:?} with a bit set in byte {place}");
            }
        }
        assert_eq!(Frame::decode(&[0; HEADER]), None);
        assert_eq!(Frame::decode(&[0xff; HEADER]), None);
    }
}
