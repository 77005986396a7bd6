//! What an endpoint makes of the peer's bytes.
//!
//! The peer is not trusted: every frame is checked against what this side has asked for and offered, nothing is allocated on
//! its word beyond fixed limits, and whatever makes no sense is a [`Fault`]. When a read begins inside a payload, the payload
//! goes straight to where it belongs; what follows in the receive buffer is copied.

use super::completion::{Completion, Completions, Release};
use super::endpoint::{Endpoint, Expect, Fault, Phase, Request, Surroundings};
use super::frame::{FRAGMENT_MAX, Frame, HEADER, READS_MAX, Refusal, VERSION};
use super::send_queue::Landing;
use super::sys::Scatter;
use super::transport::Moved;
use crate::{Event, LocalSpan, WorkError};

/// How much of the receive buffer is used while large READs are on the way: room for some small frames, so that most of a
/// payload is read by the next call, straight into its place.
const SMALL_BUFFER: usize = 4 * 1024;

/// How many bytes are taken from one peer before others have their turn.
const BYTES_A_TURN: usize = 1024 * 1024;

impl Endpoint {
    /// Takes in what has come, within a turn's share; tells whether that was anything.
    pub(super) fn take_in(&mut self, around: &mut Surroundings<'_>) -> Result<bool, Fault> {
        let Surroundings { completions, buffer, .. } = around;
        let mut turn = 0;
        while turn < BYTES_A_TURN {
            let size = if self.send.expects_large() { SMALL_BUFFER.min(buffer.len()) } else { buffer.len() };
            let buffer = &mut buffer[..size];
            let left = self.payload_left();
            let room = left + buffer.len();
            let count = match self.read(buffer) {
                Moved::Bytes(count) => count,
                Moved::Blocked => break,
                Moved::Ended => return Err(Fault::Lost),
            };
            let direct = count.min(left);
            if direct > 0 {
                self.advance_payload(direct, completions);
            }
            self.consume(&buffer[..count - direct], completions)?;
            turn += count;
            // A short read means that the stream is empty; asking again would only cost a call.
            if count < room {
                break;
            }
        }
        self.send.retire(self.link, completions);
        Ok(turn > 0)
    }

    /// How much of a payload is still to come.
    fn payload_left(&self) -> usize {
        match &self.expect {
            Expect::Header => 0,
            Expect::Message { filled, len, .. } => (*len - *filled) as usize,
            Expect::Data { left } => *left as usize,
        }
    }

    /// One read: the rest of the payload under way, then the receive buffer.
    fn read(&mut self, buffer: &mut [u8]) -> Moved {
        let Some(transport) = &mut self.transport else { return Moved::Blocked };
        let mut scatter = Scatter::new();
        match &mut self.expect {
            Expect::Header => {}
            Expect::Message { receive, filled, len } => {
                scatter.bytes(&mut receive.slot.claim.bytes_mut()[*filled as usize..*len as usize]);
            }
            Expect::Data { left } => {
                let left = *left as usize;
                let (into, landed) = self.send.landing().expect("data is only expected while a READ is outstanding");
                match into {
                    Landing::Local(into) => {
                        let landed = *landed as usize;
                        scatter.bytes(&mut into.claim.bytes_mut()[landed..landed + left]);
                    }
                    Landing::Shared { memory, offset } => {
                        scatter.shared(memory, *offset + u64::from(*landed), left);
                    }
                }
            }
        }
        scatter.bytes(buffer);
        transport.read(&mut scatter)
    }

    /// Takes in bytes that were read into the receive buffer.
    fn consume(&mut self, mut bytes: &[u8], completions: &mut Completions) -> Result<(), Fault> {
        while !bytes.is_empty() {
            if matches!(self.expect, Expect::Header) {
                let count = (HEADER - self.partial_len).min(bytes.len());
                let (head, rest) = bytes.split_at(count);
                self.partial[self.partial_len..self.partial_len + count].copy_from_slice(head);
                self.partial_len += count;
                bytes = rest;
                if self.partial_len == HEADER {
                    self.partial_len = 0;
                    let frame = Frame::decode(&self.partial).ok_or(Fault::Protocol)?;
                    self.accept(frame, completions)?;
                }
            } else {
                let (payload, rest) = bytes.split_at(self.payload_left().min(bytes.len()));
                self.store_payload(payload);
                self.advance_payload(payload.len(), completions);
                bytes = rest;
            }
        }
        Ok(())
    }

    /// Acts on a frame's header.
    fn accept(&mut self, frame: Frame, completions: &mut Completions) -> Result<(), Fault> {
        match (self.phase, frame) {
            (Phase::ExpectHello, Frame::Hello { version, token }) => {
                if version != VERSION {
                    tracing::warn!(link = %self.link, theirs = version, ours = VERSION, "the peer speaks another protocol");
                    return Err(Fault::Protocol);
                }
                if self.peer != Some(token) {
                    tracing::warn!(link = %self.link, "the stream leads to another endpoint than the one connected to");
                    return Err(Fault::Protocol);
                }
                self.phase = Phase::Up;
                let event = Event::Up { link: self.link };
                completions.push_back(Completion { event, release: Release::Nothing });
                Ok(())
            }
            (Phase::Up, Frame::Send { len }) => {
                let slot = self.receives.front().ok_or(Fault::NoSlot(Refusal::NotReady))?;
                if len > slot.into.len {
                    return Err(Fault::NoSlot(Refusal::TooLong));
                }
                let receive = self.receives.pop_front().expect("there was one at the front");
                self.expect = Expect::Message { receive, filled: 0, len };
                if len == 0 {
                    self.advance_payload(0, completions);
                }
                Ok(())
            }
            (Phase::Up, Frame::Ack { received }) => {
                let more = received.checked_sub(self.arrived).ok_or(Fault::Protocol)?;
                let more = usize::try_from(more).map_err(|_| Fault::Protocol)?;
                if more > self.send.unacknowledged() {
                    return Err(Fault::Protocol);
                }
                self.arrived = received;
                self.send.acknowledge(more);
                Ok(())
            }
            (Phase::Up, Frame::Read { address, len, key }) => {
                if self.requests.len() >= READS_MAX {
                    return Err(Fault::Protocol);
                }
                self.requests.push_back(Request { address, len, key, done: 0 });
                Ok(())
            }
            (Phase::Up, Frame::Data { len }) => {
                let missing = self.send.missing().ok_or(Fault::Protocol)?;
                // Only the response to an empty READ is empty.
                if len > missing || len > FRAGMENT_MAX || (len == 0) != (missing == 0) {
                    return Err(Fault::Protocol);
                }
                self.expect = Expect::Data { left: len };
                if len == 0 {
                    self.advance_payload(0, completions);
                }
                Ok(())
            }
            (Phase::Up, Frame::Refuse(refusal)) => Err(self.refused(refusal)),
            _ => Err(Fault::Protocol),
        }
    }

    /// Which of the own entries a refusal is about.
    fn refused(&self, refusal: Refusal) -> Fault {
        let (number, error) = match refusal {
            Refusal::Access => (self.send.oldest_read(), WorkError::RemoteAccess),
            Refusal::NotReady => (self.send.oldest_send(), WorkError::ReceiverNotReady),
            Refusal::TooLong => (self.send.oldest_send(), WorkError::TooLong),
        };
        number.map_or(Fault::Protocol, |number| Fault::Refused { number, error })
    }

    /// Copies a part of the payload under way to where it belongs.
    fn store_payload(&mut self, payload: &[u8]) {
        match &mut self.expect {
            Expect::Header => {}
            Expect::Message { receive, filled, .. } => {
                let start = *filled as usize;
                receive.slot.claim.bytes_mut()[start..start + payload.len()].copy_from_slice(payload);
            }
            Expect::Data { .. } => {
                let (into, landed) = self.send.landing().expect("data is only expected while a READ is outstanding");
                match into {
                    Landing::Local(into) => {
                        let start = *landed as usize;
                        into.claim.bytes_mut()[start..start + payload.len()].copy_from_slice(payload);
                    }
                    Landing::Shared { memory, offset } => memory.write(*offset + u64::from(*landed), payload),
                }
            }
        }
    }

    /// `count` bytes of the payload under way are where they belong; ends it if they were the last.
    fn advance_payload(&mut self, count: usize, completions: &mut Completions) {
        let count = count as u32;
        match &mut self.expect {
            Expect::Header => {}
            Expect::Message { filled, len, .. } => {
                *filled += count;
                if filled == len {
                    self.finish_message(completions);
                }
            }
            Expect::Data { left } => {
                *left -= count;
                if *left == 0 {
                    self.expect = Expect::Header;
                }
                self.send.land(count);
            }
        }
    }

    /// The message under way is whole.
    fn finish_message(&mut self, completions: &mut Completions) {
        let Expect::Message { receive, len, .. } = std::mem::replace(&mut self.expect, Expect::Header) else { return };
        self.received += 1;
        let span = LocalSpan { len, ..receive.into };
        let event = Event::Message { link: self.link, op: receive.op, span };
        completions.push_back(Completion { event, release: Release::Receive(receive.slot) });
    }
}
