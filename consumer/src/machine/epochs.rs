//! The grants that are held, and when their epochs may be released.
//!
//! A grant is *wanted* until it is superseded, revoked or finished with. No READ is posted under one that is not. An epoch is
//! released, with all before it, once none of them is wanted and no READ under them is outstanding.

use std::collections::VecDeque;

use keyway_fabric::{Key, RemoteSpan, Time};
use keyway_schema::limits::DEPTH_MAX;

use super::fault::Fault;

/// What a `Grant` said, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) epoch: u64,
    pub(super) supersedes: u64,
    /// The log offset of its first byte.
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) address: u64,
    pub(super) key: Key,
    /// The first record of the segment, or the first that is granted.
    pub(super) sequence: u64,
    pub(super) records: u32,
    pub(super) time: u64,
    pub(super) crc: u32,
    /// When it arrived.
    pub(super) at: Time,
    /// When no READ may begin under it any more, whatever the broker says or does not say.
    pub(super) until: Time,
}

impl Grant {
    /// The log offset behind its last byte.
    pub(super) const fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    /// The sequence behind its last record. That it does not overflow was checked when the grant arrived.
    pub(super) const fn end_sequence(&self) -> u64 {
        self.sequence + self.records as u64
    }

    /// What to READ for `len` bytes at a log offset within the grant.
    pub(super) fn remote(&self, offset: u64, len: u32) -> RemoteSpan {
        let within = offset >= self.offset && offset + u64::from(len) <= self.end();
        assert!(within, "{len} bytes at {offset} are not within the grant of epoch {}", self.epoch);
        RemoteSpan { address: self.address + (offset - self.offset), len, key: self.key }
    }
}

/// A grant that was not released yet.
#[derive(Clone, Copy, Debug)]
struct Held {
    grant: Grant,
    /// READs that are outstanding under it.
    reads: u32,
    /// Nothing will be read under it any more.
    finished: bool,
}

/// The grants of a subscription, oldest first.
#[derive(Clone, Debug)]
pub(super) struct Epochs {
    held: VecDeque<Held>,
    depth: u16,
    newest: u64,
    /// No READ may be posted under an epoch up to this one: the newest that was superseded or revoked.
    dead: u64,
    released: u64,
}

impl Epochs {
    /// No grants yet, and at most `depth` at once.
    pub(super) fn new(depth: u16) -> Self {
        debug_assert!((1..=DEPTH_MAX).contains(&depth), "the depth is checked before: {depth}");
        Self { held: VecDeque::with_capacity(depth as usize + 1), depth, newest: 0, dead: 0, released: 0 }
    }

    /// Takes in a new grant.
    pub(super) fn admit(&mut self, grant: Grant) -> Result<(), Fault> {
        let epoch = grant.epoch;
        let impossible = |what, value, expected: String| Err(Fault::Grant { epoch, what, value, expected });
        if Some(epoch) != self.newest.checked_add(1) {
            return impossible("the epoch", epoch, format!("the one behind {}", self.newest));
        }
        if grant.supersedes >= epoch {
            return impossible("the superseded epoch", grant.supersedes, "an earlier one".into());
        }
        if let Some(old) = self.held.iter().find(|held| held.grant.epoch == grant.supersedes)
            && old.grant.offset != grant.offset
        {
            return impossible("the offset", grant.offset, format!("the superseded grant's {}", old.grant.offset));
        }
        if self.held.len() >= usize::from(self.depth) {
            return impossible(
                "the number of grants held",
                self.held.len() as u64 + 1,
                format!("at most {}", self.depth),
            );
        }
        self.newest = epoch;
        self.dead = self.dead.max(grant.supersedes);
        self.held.push_back(Held { grant, reads: 0, finished: false });
        Ok(())
    }

    /// The epochs up to this one may not be used any more.
    pub(super) fn revoke(&mut self, epoch: u64) -> Result<(), Fault> {
        if epoch > self.newest {
            return Err(Fault::Revoked { epoch, newest: self.newest });
        }
        self.dead = self.dead.max(epoch);
        Ok(())
    }

    /// The newest grant that covers a log offset and may be used.
    pub(super) fn covering(&self, offset: u64, now: Time) -> Option<&Grant> {
        let covers = |held: &&Held| held.grant.offset <= offset && offset < held.grant.end() && now < held.grant.until;
        self.held.iter().rev().find(|held| self.is_wanted(held) && covers(held)).map(|held| &held.grant)
    }

    /// The grants that may be used, oldest first.
    pub(super) fn usable(&self) -> impl Iterator<Item = &Grant> {
        self.held.iter().filter(|held| self.is_wanted(held)).map(|held| &held.grant)
    }

    fn is_wanted(&self, held: &Held) -> bool {
        held.grant.epoch > self.dead && !held.finished
    }

    /// A READ was posted under this epoch.
    pub(super) fn read_posted(&mut self, epoch: u64) {
        self.find(epoch).expect("READs are posted under grants that are held").reads += 1;
    }

    /// A READ under this epoch is over.
    pub(super) fn read_done(&mut self, epoch: u64) {
        let held = self.find(epoch).expect("a grant is held while READs under it are outstanding");
        held.reads -= 1;
    }

    /// Nothing more will be read under this epoch.
    pub(super) fn finish(&mut self, epoch: u64) {
        if let Some(held) = self.find(epoch) {
            held.finished = true;
        }
    }

    /// Nothing more will be read of what is before this log offset.
    pub(super) fn finish_before(&mut self, offset: u64) {
        for held in self.held.iter_mut().filter(|held| held.grant.end() <= offset) {
            held.finished = true;
        }
    }

    /// Whether READs may be posted under this epoch.
    pub(super) fn is_usable(&self, epoch: u64) -> bool {
        self.held.iter().any(|held| held.grant.epoch == epoch && self.is_wanted(held))
    }

    /// Nothing more will be read under any epoch granted so far.
    pub(super) fn finish_all(&mut self) {
        self.dead = self.newest;
    }

    fn find(&mut self, epoch: u64) -> Option<&mut Held> {
        self.held.iter_mut().find(|held| held.grant.epoch == epoch)
    }

    /// How many epochs could be released now.
    pub(super) fn releasable(&self) -> usize {
        self.held.iter().take_while(|held| !self.is_wanted(held) && held.reads == 0).count()
    }

    /// Gives up every epoch that can be released, and returns the newest of them.
    pub(super) fn release(&mut self) -> Option<u64> {
        let count = self.releasable();
        let last = self.held.drain(..count).next_back()?;
        self.released = last.grant.epoch;
        Some(self.released)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(epoch: u64, supersedes: u64, offset: u64) -> Grant {
        Grant {
            epoch,
            supersedes,
            offset,
            len: 1000,
            address: 0x1000,
            key: Key(epoch as u32),
            sequence: 0,
            records: 0,
            time: 0,
            crc: 0,
            at: Time::ZERO,
            until: Time::NEVER,
        }
    }

    fn with(grants: &[(u64, u64, u64)]) -> Epochs {
        let mut epochs = Epochs::new(4);
        for &(epoch, supersedes, offset) in grants {
            epochs.admit(grant(epoch, supersedes, offset)).unwrap();
        }
        epochs
    }

    #[test]
    fn a_superseded_epoch_is_released_when_its_last_read_is_over() {
        let mut epochs = with(&[(1, 0, 0)]);
        epochs.read_posted(1);
        epochs.admit(grant(2, 1, 0)).unwrap();
        assert_eq!(epochs.covering(10, Time::ZERO).unwrap().epoch, 2);
        assert_eq!(epochs.release(), None);
        epochs.read_done(1);
        assert_eq!(epochs.release(), Some(1));
        assert_eq!(epochs.release(), None);
    }

    #[test]
    fn a_wanted_epoch_holds_back_those_behind_it() {
        let mut epochs = with(&[(1, 0, 0), (2, 0, 1000), (3, 0, 2000)]);
        epochs.finish(2);
        assert_eq!(epochs.releasable(), 0);
        epochs.finish(1);
        assert_eq!(epochs.release(), Some(2));
        assert!(epochs.is_usable(3) && !epochs.is_usable(2));
    }

    #[test]
    fn superseding_one_epoch_makes_all_before_it_unusable() {
        let epochs = with(&[(1, 0, 0), (2, 0, 1000), (3, 2, 1000)]);
        assert!(epochs.covering(10, Time::ZERO).is_none());
        assert_eq!(epochs.covering(1010, Time::ZERO).unwrap().epoch, 3);
    }

    #[test]
    fn a_revocation_covers_every_epoch_up_to_the_one_named() {
        let mut epochs = with(&[(1, 0, 0), (2, 0, 1000)]);
        epochs.revoke(1).unwrap();
        assert!(epochs.covering(0, Time::ZERO).is_none() && epochs.covering(1000, Time::ZERO).is_some());
        assert_eq!(epochs.revoke(3), Err(Fault::Revoked { epoch: 3, newest: 2 }));
    }

    #[test]
    fn grants_out_of_order_or_beyond_the_depth_are_refused() {
        let mut epochs = with(&[(1, 0, 0)]);
        assert!(matches!(epochs.admit(grant(3, 0, 0)), Err(Fault::Grant { value: 3, .. })));
        assert!(matches!(epochs.admit(grant(1, 0, 0)), Err(Fault::Grant { value: 1, .. })));
        assert!(matches!(epochs.admit(grant(2, 2, 0)), Err(Fault::Grant { what: "the superseded epoch", .. })));
        assert!(matches!(epochs.admit(grant(2, 1, 8)), Err(Fault::Grant { what: "the offset", .. })));
        for epoch in 2..=4 {
            epochs.admit(grant(epoch, 0, 0)).unwrap();
        }
        assert!(matches!(epochs.admit(grant(5, 0, 0)), Err(Fault::Grant { .. })));
    }

    #[test]
    fn a_segment_that_was_read_to_its_end_is_given_up() {
        let mut epochs = with(&[(1, 0, 0), (2, 0, 1000)]);
        epochs.finish_before(1000);
        assert_eq!(epochs.release(), Some(1));
        assert!(epochs.covering(1000, Time::ZERO).is_some());
    }

    #[test]
    #[should_panic(expected = "not within the grant")]
    fn nothing_outside_a_grant_is_read() {
        grant(1, 0, 1000).remote(1990, 11);
    }
}
