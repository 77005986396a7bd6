//! The index space that the keys of regions and windows share.

use std::collections::HashMap;

use crate::{FabricError, Key, SharedId, WindowId};

/// How many indices there are: a key is 24 bits of index over a low byte.
const INDICES: u32 = 1 << 24;

/// What an index stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// A region. Its key opens nothing.
    Region(SharedId),
    /// A window.
    Window(WindowId),
}

/// Gives out indices cyclically from a random start, as devices do, so that one is not soon used again.
pub(super) struct Keys {
    holders: HashMap<u32, Holder>,
    next: u32,
}

impl Keys {
    pub(super) fn new() -> Result<Self, FabricError> {
        let mut start = [0; 4];
        super::random(&mut start)?;
        Ok(Self { holders: HashMap::new(), next: u32::from_le_bytes(start) % INDICES })
    }

    /// A key with a fresh index and a random low byte. [`hold`](Self::hold) says for whom.
    pub(super) fn fresh(&mut self) -> Result<Key, FabricError> {
        if self.holders.len() as u32 >= INDICES - 1 {
            return Err(FabricError::Exhausted { what: "key indices", limit: u64::from(INDICES) - 1 });
        }
        // Index 0 is left out: a key of zero is too likely to be somebody's uninitialized one.
        while self.next == 0 || self.holders.contains_key(&self.next) {
            self.next = (self.next + 1) % INDICES;
        }
        let mut low = [0];
        super::random(&mut low)?;
        let key = Key((self.next << 8) | u32::from(low[0]));
        self.next = (self.next + 1) % INDICES;
        Ok(key)
    }

    /// Enters whom a fresh key's index stands for.
    pub(super) fn hold(&mut self, key: Key, holder: Holder) {
        let before = self.holders.insert(key.index(), holder);
        assert_eq!(before, None, "the index of a fresh key is in nobody's use");
    }

    /// Gives an index back.
    pub(super) fn release(&mut self, key: Key) {
        self.holders.remove(&key.index());
    }

    /// Whose key this is, or was.
    pub(super) fn holder(&self, key: Key) -> Option<Holder> {
        self.holders.get(&key.index()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_in_use_is_skipped_and_a_free_one_is_not_soon_used_again() {
        let mut keys = Keys::new().unwrap();
        keys.next = INDICES - 2;
        let holder = Holder::Window(WindowId { index: 0, generation: 0 });
        keys.hold(Key((INDICES - 1) << 8), holder);
        let first = keys.fresh().unwrap();
        assert_eq!(first.index(), INDICES - 2);
        keys.hold(first, holder);
        keys.release(first);
        assert_eq!(keys.fresh().unwrap().index(), 1, "past the one in use and past zero");
        assert_eq!(keys.holder(first), None);
    }
}
