//! Limits, in one place. A limit on everything: what is longer, more or larger is refused with a typed error.

/// The version of everything that travels. Peers of different versions refuse each other by name.
pub const VERSION: u8 = 1;

/// The longest topic name, in bytes.
pub const TOPIC_NAME_MAX: usize = 249;

/// The longest name that a client gives itself or its subscription, in bytes.
pub const CLIENT_NAME_MAX: usize = 128;

/// The longest text of an error on the wire, in bytes; longer ones are cut with [`error_text`].
pub const ERROR_TEXT_MAX: usize = 400;

/// Every control message but `Publish` fits into a slot of this many bytes, envelope included.
pub const CONTROL_SLOT: u32 = 1024;

/// The fewest receive slots that a side may post. With fewer, two idle sides would answer every `Credit` with a `Credit`.
pub const RECEIVE_SLOTS_MIN: u16 = 4;

/// The broker's receive slots for a producer are this large: what does not fit is offered instead.
pub const PUBLISH_SLOT: u32 = 64 * 1024;

/// The most entries of one `Committed`, so that it fits a control slot.
pub const COMMITS_MAX: usize = 32;

/// The latest receipts of each producer that a topic remembers. A producer has at most so many batches of a topic that are
/// not acknowledged, so that whatever it sends again after a lost session is answered with its first receipt.
pub const RECEIPTS_MAX: usize = 256;

/// The largest record that a broker may be configured to take, in bytes of key, headers and payload: segments and offsets
/// within them are counted in 32 bits.
pub const RECORD_MAX_CEILING: u32 = 1 << 30;

/// The largest record unless configured otherwise.
pub const RECORD_MAX_DEFAULT: u32 = 1 << 20;

/// The longest key, in bytes.
pub const RECORD_KEY_MAX: usize = u16::MAX as usize;

/// The most bytes of headers, encoded.
pub const RECORD_HEADERS_MAX: usize = u16::MAX as usize;

/// The first bytes of a segment, one page: topic, number, tail. Batches begin behind it.
pub const SEGMENT_HEADER: u32 = 4096;

/// The smallest segment.
pub const SEGMENT_MIN: u32 = 64 * 1024;

/// The largest segment: a window binds at most 2 GiB on some devices, and spans count in 32 bits.
pub const SEGMENT_MAX: u32 = 1 << 31;

/// The longest bootstrap message, in bytes.
pub const BOOTSTRAP_MAX: usize = 4096;

/// The longest endpoint address, in bytes.
pub const ENDPOINT_ADDRESS_MAX: usize = 256;

/// The shortest epoch: shorter ones cost more in re-keying than any key is worth.
pub const EPOCH_MIN_US: u32 = 100;

/// The epoch unless configured otherwise.
pub const EPOCH_DEFAULT_US: u32 = 100_000;

/// The grace unless configured otherwise: long enough for a consumer that the scheduler forgot, short enough that a
/// stopped one is noticed.
pub const GRACE_DEFAULT_MS: u32 = 1_000;

/// The most grants that a subscription may hold at once.
pub const DEPTH_MAX: u16 = 64;

/// Grants that a subscription holds at once unless it asks otherwise, in batch and message scope.
pub const DEPTH_DEFAULT: u16 = 32;

/// As much of an error's text as may travel: at most [`ERROR_TEXT_MAX`] bytes, cut between two characters.
pub fn error_text(text: &str) -> &str {
    if text.len() <= ERROR_TEXT_MAX {
        return text;
    }
    let end = (0..=ERROR_TEXT_MAX).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.expect("every text has a boundary at its start")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(error_text("short"), "short");
        assert_eq!(error_text(&"x".repeat(ERROR_TEXT_MAX + 1)).len(), ERROR_TEXT_MAX);
        let wide = format!("x{}", "é".repeat(ERROR_TEXT_MAX));
        assert_eq!(error_text(&wide).len(), ERROR_TEXT_MAX - 1);
    }
}
