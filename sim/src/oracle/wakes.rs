//! Wake-ups: a consumer that waits for records hears of them soon (Progress).
//!
//! A lost wake-up heals by itself when the epoch ends, so the end of a run does not show it; its delay does.

use std::collections::BTreeMap;
use std::time::Duration;

use keyway_fabric::{LinkId, Time};

use super::{Invariant, LogBook, Verdict, broken};
use crate::NodeId;

/// How long a record may be committed before a consumer that waits for it is told: several of the longest ways.
const PROMPT: Duration = Duration::from_millis(15);

/// A subscription that waits.
#[derive(Clone, Copy, Debug)]
struct Armed {
    consumer: NodeId,
    sequence: u64,
    /// Since when there has been something for it.
    due_since: Option<Time>,
}

/// Who waits, in one broker instance.
#[derive(Debug, Default)]
pub(crate) struct WakeBook {
    topics: BTreeMap<(LinkId, u32), u32>,
    armed: BTreeMap<(LinkId, u32), Armed>,
}

impl WakeBook {
    pub(crate) fn subscribed(&mut self, link: LinkId, subscription: u32, topic: u32) {
        self.topics.insert((link, subscription), topic);
    }

    /// An `Arm` has reached the broker.
    pub(crate) fn armed(&mut self, link: LinkId, subscription: u32, consumer: NodeId, sequence: u64) {
        self.armed.insert((link, subscription), Armed { consumer, sequence, due_since: None });
    }

    /// The broker has told it something, or it waits no more.
    pub(crate) fn told(&mut self, link: LinkId, subscription: u32) {
        self.armed.remove(&(link, subscription));
    }

    /// A session is over or about to be.
    pub(crate) fn ended(&mut self, link: LinkId) {
        self.armed.retain(|(other, _), _| *other != link);
    }

    /// Called after a turn of the broker. Only those that `judged` says are undisturbed are looked at.
    pub(crate) fn turned(
        &mut self,
        now: Time,
        instance: u64,
        log: &LogBook,
        judged: impl Fn(LinkId, NodeId) -> bool,
    ) -> Verdict {
        for ((link, subscription), armed) in &mut self.armed {
            let Some(topic) = self.topics.get(&(*link, *subscription)) else { continue };
            if log.log(instance, *topic).records.len() as u64 <= armed.sequence || !judged(*link, armed.consumer) {
                armed.due_since = None;
                continue;
            }
            let since = *armed.due_since.get_or_insert(now);
            if now.since(since) > PROMPT {
                let text =
                    format!("subscription {subscription} of {link} waits for {} since {since:?}", armed.sequence);
                return broken(Invariant::Progress, text);
            }
        }
        Ok(())
    }
}
