//! Numeric error codes: what the broker says when it refuses or ends something.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])+ $name:ident = $number:literal, $retry:literal, $text:literal;)*) => {
        /// Why the broker refused a request, took a grant away or ended a session. The numbers never change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$doc])+ $name = $number,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code of a number, if there is one.
            pub const fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Whether the same request may succeed later, unchanged.
            pub const fn is_retryable(self) -> bool {
                match self {
                    $(Self::$name => $retry,)*
                }
            }

            /// What it means.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

codes! {
    /// Sender and receiver speak different versions.
    Version = 1, false, "the two sides speak different protocol versions";
    /// A message was truncated, garbled, or out of place.
    Protocol = 2, false, "a message was malformed or out of place";
    /// A message of an earlier session arrived.
    Generation = 3, false, "a message of an older session generation arrived";
    /// No fabric that both sides speak.
    Fabric = 4, false, "the two sides have no fabric in common";
    /// No session left.
    SessionsExhausted = 5, true, "the broker has no session left";
    /// No window left.
    WindowsExhausted = 6, true, "the broker has no memory window left";
    /// No segment left in the pool.
    PoolExhausted = 7, true, "the broker's pool has no segment left";
    /// No topic left.
    TopicsExhausted = 8, true, "the broker has no topic left";
    /// No subscription left in the session.
    SubscriptionsExhausted = 9, true, "the session has no subscription left";
    /// Not a topic name.
    Name = 10, false, "not a valid topic name";
    /// The topic does not exist and may not be created.
    TopicUnknown = 11, false, "the topic does not exist";
    /// Settings outside the broker's limits.
    Settings = 12, false, "the settings are outside the broker's limits";
    /// The batch is too large.
    BatchTooLarge = 13, false, "the batch is larger than the topic takes";
    /// The batch does not add up: CRC, lengths, count.
    BatchInvalid = 14, false, "the batch is malformed or its checksum is wrong";
    /// A batch number was left out.
    BatchOrder = 15, false, "the producer's batch numbers have a gap";
    /// The consumer did not release a key in time.
    GraceOver = 16, true, "the consumer did not release its key in time";
    /// The peer used a key that does not open what it READ.
    KeyViolation = 17, true, "a READ used a dead key or left its range";
    /// An offer was not served in time.
    OfferTimeout = 18, true, "the producer's offered batch could not be read in time";
    /// The broker stops.
    ShuttingDown = 19, true, "the broker is shutting down";
    /// The peer did not answer in time.
    Timeout = 20, true, "the other side did not answer in time";
    /// An operator closed it.
    Evicted = 21, false, "closed by the operator";
    /// The topic has been removed.
    TopicRemoved = 22, false, "the topic was removed";
    /// The subscription is unknown in this session.
    SubscriptionUnknown = 23, false, "no such subscription in this session";
    /// The broker failed inside.
    Internal = 24, true, "the broker failed inside";
}

impl Code {
    /// The number that travels.
    pub const fn number(self) -> u16 {
        self as u16
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_wire_and_no_number_is_used_twice() {
        for (place, code) in Code::ALL.iter().enumerate() {
            assert_eq!(Code::from_number(code.number()), Some(*code));
            assert!(Code::ALL[..place].iter().all(|other| other.number() != code.number()));
        }
        assert_eq!(Code::from_number(0), None);
        assert_eq!(Code::from_number(u16::MAX), None);
    }
}
