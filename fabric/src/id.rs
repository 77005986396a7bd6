//! Ids of what a fabric owns, and keys.
//!
//! Outside a backend everything is a `Copy` id, so that a state machine holds no resource and can be cloned, printed and
//! compared. An id carries a generation: one that outlived its object names nothing, never a newer object in the same place.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name {
            /// The place in the fabric's table.
            pub index: u32,
            /// How often that place had been used before.
            pub generation: u32,
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}.{}"), self.index, self.generation)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }

        impl crate::table::Id for $name {
            fn new(index: u32, generation: u32) -> Self {
                Self { index, generation }
            }
            fn parts(self) -> (u32, u32) {
                (self.index, self.generation)
            }
        }
    };
}

id!(
    /// A protection domain: a key of one domain opens nothing to the endpoints of another.
    DomainId, "domain"
);
id!(
    /// Local memory: staging and landing slots that no peer can ever be lent.
    LocalId, "local"
);
id!(
    /// Shared memory: may be lent to peers through windows, and is never seen through a Rust reference.
    SharedId, "shared"
);
id!(
    /// A type-1 memory window.
    WindowId, "window"
);
id!(
    /// One end of a connection: an endpoint (a queue pair).
    LinkId, "link"
);

/// The rkey of a window's current binding: a 24-bit index, which stays with the window, over a low byte, which every bind
/// and every unbind moves on by one, wrapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u32);

impl Key {
    /// The part that stays with the window.
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The part that every bind moves on.
    pub const fn low(self) -> u8 {
        self.0 as u8
    }

    /// The key that the next bind or unbind of the same window will yield.
    pub const fn next(self) -> Self {
        Self((self.0 & !0xff) | self.low().wrapping_add(1) as u32)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {:#010x}", self.0)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// A tag that whoever posts a piece of work chooses, and gets back with its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Op(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_index_and_wraps_its_low_byte() {
        assert_eq!(Key(0x0001_02fe).next(), Key(0x0001_02ff));
        assert_eq!(Key(0x0001_02ff).next(), Key(0x0001_0200));
        assert_eq!(Key(u32::MAX).next(), Key(0xffff_ff00));
        assert_eq!(Key(0x0001_02ff).index(), 0x102);
    }

    #[test]
    fn a_key_comes_round_after_256_steps() {
        let first = Key(0xabcd_ef37);
        let mut key = first;
        for step in 1..=256 {
            key = key.next();
            assert_eq!(key == first, step == 256);
        }
    }
}
