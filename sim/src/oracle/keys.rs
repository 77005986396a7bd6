//! Keys: when each was issued, what it opened, and when it died (I1, I2, I4, I6).

use std::collections::BTreeMap;
use std::time::Duration;

use keyway_fabric::{Key, LinkId, SharedSpan, Time, WindowId};
use keyway_schema::message::{Grant, Subscribed};

use super::{BoundWindow, Invariant, LogBook, Verdict, broken};

/// How long a window that a bind or unbind is outstanding for may stay bound past its key's deadline: its endpoint was
/// closed on the spot, and the flush must be polled before the window can be freed.
const FLUSH: Duration = Duration::from_millis(20);

/// A subscription, as its `Subscribed` said.
#[derive(Clone, Copy, Debug)]
struct Terms {
    depth: u16,
    /// The epoch interval plus the grace.
    life: Duration,
}

/// A key that was issued.
#[derive(Clone, Debug)]
struct Issue {
    link: LinkId,
    subscription: u32,
    epoch: u64,
    address: u64,
    len: u64,
    deadline: Time,
    /// The owner of the segment when it was issued: instance, topic, number.
    owner: Option<(u64, u32, u64)>,
    died: Option<Time>,
}

/// The world's own record of every key of one broker instance.
#[derive(Debug, Default)]
pub(crate) struct KeyBook {
    quarantine: Duration,
    bounds_enforced: bool,
    base: u64,
    terms: BTreeMap<(LinkId, u32), Terms>,
    issued: BTreeMap<Key, Issue>,
    bound: BTreeMap<Key, BoundWindow>,
    pub(crate) grants: u64,
    pub(crate) reads: u64,
}

impl KeyBook {
    pub(crate) fn new(quarantine: Duration, bounds_enforced: bool, base: u64) -> Self {
        Self { quarantine, bounds_enforced, base, ..Self::default() }
    }

    pub(crate) fn subscribed(&mut self, link: LinkId, subscribed: &Subscribed) {
        let interval = Duration::from_micros(u64::from(subscribed.epoch.interval_us));
        let life = interval + Duration::from_millis(u64::from(subscribed.epoch.grace_ms));
        self.terms.insert((link, subscribed.subscription), Terms { depth: subscribed.depth, life });
    }

    /// The broker posted a grant.
    pub(crate) fn granted(&mut self, now: Time, link: LinkId, grant: &Grant, log: &LogBook) -> Verdict {
        self.grants += 1;
        let key = Key(grant.key);
        let Some(terms) = self.terms.get(&(link, grant.subscription)).copied() else {
            return broken(Invariant::I1, format!("{grant:?} is for a subscription that was never confirmed"));
        };
        if let Some(before) = self.issued.get(&key) {
            let free_at = before.died.map(|died| died + self.quarantine);
            if free_at.is_none_or(|free_at| now < free_at) {
                let text = format!(
                    "{key} is issued for epoch {} of {link}, and was issued for epoch {} of {} before, dead since {:?}; \
                     the quarantine is {:?}",
                    grant.epoch, before.epoch, before.link, before.died, self.quarantine
                );
                return broken(Invariant::I4, text);
            }
        }
        let deadline = now + terms.life;
        let owner = log.owner_at(grant.address.wrapping_sub(self.base));
        let (link, subscription, epoch) = (link, grant.subscription, grant.epoch);
        let (address, len) = (grant.address, u64::from(grant.len));
        let issue = Issue { link, subscription, epoch, address, len, deadline, owner, died: None };
        self.issued.insert(key, issue);
        Ok(())
    }

    pub(crate) fn bound(&mut self, now: Time, window: WindowId, key: Key, span: SharedSpan) -> Verdict {
        self.bound.insert(key, BoundWindow { window, since: now, offset: span.offset, len: span.len });
        let Some(issue) = self.issued.get(&key).filter(|issue| issue.died.is_none()) else { return Ok(()) };
        let of = (issue.link, issue.subscription);
        let live = self.bound.keys().filter_map(|key| self.issued.get(key));
        let live = live.filter(|issue| issue.died.is_none() && (issue.link, issue.subscription) == of).count();
        let depth = self.terms.get(&of).map_or(0, |terms| terms.depth);
        if live > usize::from(depth) {
            return broken(Invariant::I2, format!("{of:?} has {live} live windows, its depth is {depth}"));
        }
        if address_mismatch(issue, self.base, span) {
            return broken(Invariant::I1, format!("{key} was granted for {issue:?} and opens {span:?}"));
        }
        Ok(())
    }

    pub(crate) fn ended(&mut self, now: Time, key: Key) {
        self.bound.remove(&key);
        if let Some(issue) = self.issued.get_mut(&key) {
            issue.died = Some(now);
        }
    }

    /// A grant has arrived: its binding must be in force, or over already.
    pub(crate) fn arrived(&self, grant: &Grant) -> Verdict {
        let key = Key(grant.key);
        let dead = self.issued.get(&key).is_some_and(|issue| issue.died.is_some());
        if dead || self.bound.contains_key(&key) {
            return Ok(());
        }
        broken(Invariant::I7, format!("{grant:?} has arrived before its window was bound"))
    }

    /// A fragment of a READ of the pool succeeded.
    pub(crate) fn read(&mut self, key: Key, span: SharedSpan, log: &LogBook) -> Verdict {
        self.reads += 1;
        let Some(issue) = self.issued.get(&key).filter(|issue| issue.died.is_none()) else {
            return broken(
                Invariant::I1,
                format!("a READ of {span:?} under {key} succeeded, and no live grant has that key"),
            );
        };
        let address = self.base + span.offset;
        let within = address >= issue.address && address + span.len <= issue.address + issue.len;
        if !within && self.bounds_enforced {
            return broken(Invariant::I1, format!("a READ of {span:?} under {key} succeeded outside {issue:?}"));
        }
        if within && log.owner_at(span.offset) != issue.owner {
            let owner = log.owner_at(span.offset);
            return broken(
                Invariant::I1,
                format!("a READ under {issue:?} succeeded, and the segment is {owner:?} by now"),
            );
        }
        Ok(())
    }

    /// Called after a turn of the broker: what is over its deadline must be dead.
    pub(crate) fn turned(&self, now: Time, is_busy: impl Fn(WindowId) -> bool) -> Verdict {
        for (key, bound) in &self.bound {
            let deadline = self.issued.get(key).filter(|issue| issue.died.is_none()).map(|issue| issue.deadline);
            // A window that was bound and not granted is judged as if it had been granted with the longest terms.
            let longest = self.terms.values().map(|terms| terms.life).max().unwrap_or_default();
            let deadline = deadline.unwrap_or(bound.since + longest);
            let allowed = if is_busy(bound.window) { deadline + FLUSH } else { deadline };
            if now >= allowed {
                let text = format!("{key} of {bound:?} is in force at {now:?}, its deadline was {deadline:?}");
                return broken(Invariant::I6, text);
            }
        }
        Ok(())
    }

    /// The windows that cover a range of the pool.
    pub(crate) fn covering(&self, from: u64, to: u64) -> impl Iterator<Item = (Key, BoundWindow)> + '_ {
        let overlaps = move |bound: &BoundWindow| bound.offset < to && from < bound.offset + bound.len;
        self.bound.iter().filter(move |(_, bound)| overlaps(bound)).map(|(key, bound)| (*key, *bound))
    }

    pub(crate) fn bound_windows(&self) -> impl Iterator<Item = (Key, BoundWindow)> + '_ {
        self.covering(0, u64::MAX)
    }
}

fn address_mismatch(issue: &Issue, base: u64, span: SharedSpan) -> bool {
    issue.address != base + span.offset || issue.len != span.len
}
