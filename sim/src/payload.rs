//! What the simulated applications send: records that say who sent them, and that cannot be mistaken for others.

/// The shortest payload.
pub(crate) const PAYLOAD_MIN: usize = 16;

/// Which record it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Mark {
    /// Who sent it.
    pub(crate) author: u32,
    /// Which of that author's records, from 0.
    pub(crate) number: u64,
}

impl Mark {
    /// The record's payload, of `len` bytes but of no fewer than [`PAYLOAD_MIN`].
    pub(crate) fn payload(self, len: usize) -> Vec<u8> {
        let len = len.max(PAYLOAD_MIN);
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(&self.author.to_le_bytes());
        bytes.extend_from_slice(&(len as u32).to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend((PAYLOAD_MIN..len).map(|at| self.fill(at)));
        bytes
    }

    /// Reads a payload, or `None` if it is not exactly what some author sent.
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let author = u32::from_le_bytes(payload.get(..4)?.try_into().ok()?);
        let len = u32::from_le_bytes(payload.get(4..8)?.try_into().ok()?);
        let number = u64::from_le_bytes(payload.get(8..16)?.try_into().ok()?);
        let mark = Self { author, number };
        let whole = payload.len() == len as usize
            && payload[PAYLOAD_MIN..].iter().enumerate().all(|(at, byte)| *byte == mark.fill(at + PAYLOAD_MIN));
        whole.then_some(mark)
    }

    const fn fill(self, at: usize) -> u8 {
        (self.number.wrapping_mul(31) ^ (at as u64 >> 3)).wrapping_add(self.author as u64) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_read_back_and_a_torn_one_is_not() {
        let mark = Mark { author: 3, number: 70_000 };
        let payload = mark.payload(100);
        assert_eq!(Mark::read(&payload), Some(mark));
        let mut torn = payload.clone();
        torn[99] ^= 1;
        assert_eq!(Mark::read(&torn), None);
        assert_eq!(Mark::read(&payload[..99]), None);
    }
}
