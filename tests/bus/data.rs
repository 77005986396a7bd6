//! What is published: text and bytes that are the same in every run, and different enough that a mix-up shows.

/// A small generator with a seed: what it gives depends on nothing else.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        // A state of zero would stay zero.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Any number (xorshift64*).
    pub(crate) fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }
}

/// About `len` bytes of lines of words, some of them empty or long, the last without a newline.
pub(crate) fn text(seed: u64, len: usize) -> Vec<u8> {
    const WORDS: [&str; 8] = ["window", "key", "epoch", "grant", "segment", "tail", "größe", "鍵"];
    let mut noise = Noise::new(seed);
    let mut text = String::with_capacity(len + 1024);
    while text.len() < len {
        let words = match noise.below(50) {
            0 => 0,
            1 => 200,
            _ => 1 + noise.below(12),
        };
        for _ in 0..words {
            text.push_str(WORDS[noise.below(WORDS.len() as u64) as usize]);
            text.push(if noise.below(9) == 0 { '\t' } else { ' ' });
        }
        text.push_str(&noise.below(1_000_000).to_string());
        text.push('\n');
        if noise.below(40) == 0 {
            text.push('\n');
        }
    }
    text.push_str("the last line has no end");
    text.into_bytes()
}

/// `len` bytes that do not repeat.
pub(crate) fn binary(seed: u64, len: usize) -> Vec<u8> {
    let mut noise = Noise::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&noise.number().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A record's payload that says which one it is: whose, its number, and bytes that follow from both.
pub(crate) fn payload(producer: u64, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + len);
    bytes.extend_from_slice(&producer.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend(binary(producer << 32 ^ number, len));
    bytes
}

/// Whose payload it is and its number.
///
/// # Panics
///
/// If it is not exactly what [`payload`] made.
pub(crate) fn check_payload(bytes: &[u8]) -> (u64, u64) {
    let (producer, rest) = bytes.split_first_chunk().expect("a payload begins with its producer");
    let (number, rest) = rest.split_first_chunk().expect("a payload's number follows");
    let (producer, number) = (u64::from_le_bytes(*producer), u64::from_le_bytes(*number));
    assert!(payload(producer, number, rest.len()) == bytes, "record {number} of producer {producer} is torn or stale");
    (producer, number)
}
