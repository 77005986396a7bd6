//! What a consumer has done, as figures that any thread may read at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::machine::Counters;

macro_rules! stats {
    ($($(#[$doc:meta])+ $name:ident = $source:expr;)*) => {
        /// What a consumer has done. The figures only grow; each is exact, but two of them may be a moment apart.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct ConsumerStats {
            $($(#[$doc])+ pub $name: u64,)*
            /// The fabric that it reads through, such as `soft` or `verbs:mlx5_0`; empty before the first session.
            pub fabric: Arc<str>,
        }

        /// The figures where the driver puts them.
        #[derive(Debug, Default)]
        pub(crate) struct StatsCell {
            $($name: AtomicU64,)*
            fabric: Mutex<Arc<str>>,
        }

        impl StatsCell {
            pub(crate) fn store(&self, counters: &Counters) {
                // Relaxed: each figure stands for itself, and orders nothing.
                $(self.$name.store($source(counters), Ordering::Relaxed);)*
            }

            pub(crate) fn load(&self) -> ConsumerStats {
                let fabric = Arc::clone(&self.fabric.lock().unwrap_or_else(PoisonError::into_inner));
                ConsumerStats { $($name: self.$name.load(Ordering::Relaxed),)* fabric }
            }

            pub(crate) fn moved_to(&self, fabric: &str) {
                *self.fabric.lock().unwrap_or_else(PoisonError::into_inner) = fabric.into();
            }
        }
    };
}

stats! {
    /// Records handed to the application's side; those that a seek has passed over there are among them.
    records = |counters: &Counters| counters.records;
    /// Their bytes, as encoded.
    bytes = |counters: &Counters| counters.bytes;
    /// Grants: each had an epoch and a key of its own.
    epochs = |counters: &Counters| counters.epochs;
    /// Grants that replaced the key of a segment that was being read.
    rekeys = |counters: &Counters| counters.rekeys;
    /// READs.
    reads = |counters: &Counters| counters.reads;
    /// READs that were repeated, since what they brought was not valid yet.
    rereads = |counters: &Counters| counters.rereads;
    /// Times that keys were given up because the application held all landing memory.
    pauses = |counters: &Counters| counters.pauses;
    /// Times that the consumer had read everything and asked to be woken.
    arms = |counters: &Counters| counters.arms;
    /// Gaps.
    gaps = |counters: &Counters| counters.gaps;
    /// Records in these gaps.
    lagged = |counters: &Counters| counters.lagged;
    /// Seeks.
    seeks = |counters: &Counters| counters.seeks;
    /// Sessions with a subscription after the first.
    reconnects = |counters: &Counters| counters.subscriptions.saturating_sub(1);
    /// Sessions that the consumer ended because the broker broke the protocol or did not answer.
    faults = |counters: &Counters| counters.faults;
    /// READs that the broker's fabric refused: zero as long as both sides keep the protocol.
    remote_access_errors = |counters: &Counters| counters.remote_access_errors;
}
