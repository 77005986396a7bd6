//! What a consumer counts.

/// Figures of a machine since it was made. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Records handed out.
    pub records: u64,
    /// Bytes of batches (in message scope: of records) handed out, framing included.
    pub bytes: u64,
    /// Batches handed out; in message scope, none.
    pub batches: u64,
    /// Grants taken in: each had an epoch and a key of its own.
    pub epochs: u64,
    /// Of these, those that replaced the key of the same segment.
    pub rekeys: u64,
    /// READs posted.
    pub reads: u64,
    /// READs that had to be repeated, since what they brought was not valid yet.
    pub rereads: u64,
    /// Releases sent.
    pub releases: u64,
    /// Releases with which the consumer gave up keys that it had no memory to use.
    pub pauses: u64,
    /// Times that the consumer asked to be woken.
    pub arms: u64,
    /// Grants that were out of place and given back unread.
    pub stale_grants: u64,
    /// Gaps told to the application.
    pub gaps: u64,
    /// Records in these gaps.
    pub lagged: u64,
    /// Seeks asked for.
    pub seeks: u64,
    /// Sessions in which a subscription was made.
    pub subscriptions: u64,
    /// Sessions that the consumer ended because the broker broke the protocol or did not answer.
    pub faults: u64,
    /// READs that the broker's fabric refused: zero as long as both sides keep the protocol.
    pub remote_access_errors: u64,
}
