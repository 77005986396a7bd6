//! What the core counts. Totals only ever grow; the rest says how things stand.

/// Figures of a core, for logs, tests and the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Records committed.
    pub records: u64,
    /// Bytes of batches committed, headers included.
    pub bytes: u64,
    /// Batches committed, fillers left out.
    pub batches: u64,
    /// Fillers committed.
    pub fillers: u64,
    /// Batches that had been committed before and were answered with their first receipt.
    pub duplicates: u64,
    /// Offered batches READ.
    pub offers: u64,
    /// Grants sent.
    pub grants: u64,
    /// Grants that replaced one of the same segment.
    pub rekeys: u64,
    /// Binds posted.
    pub binds: u64,
    /// Unbinds posted.
    pub unbinds: u64,
    /// Wake-ups sent.
    pub wakes: u64,
    /// Times that a subscription was told that the ring had overtaken it.
    pub lapped: u64,
    /// Keys that were not released in time.
    pub revocations_forced: u64,
    /// READs of peers that were refused: each ended its session.
    pub remote_access_violations: u64,
    /// Sessions that ended because their peer broke the protocol.
    pub protocol_errors: u64,
    /// Requests and sessions refused because something was exhausted.
    pub refusals: u64,
    /// Windows allocated.
    pub windows_allocated: u64,
    /// Windows freed.
    pub windows_freed: u64,
    /// Notices dropped because nobody polled them.
    pub notices_dropped: u64,

    /// Sessions now.
    pub sessions: u32,
    /// Topics now.
    pub topics: u32,
    /// Subscriptions now.
    pub subscriptions: u32,
    /// Windows now, bound or not.
    pub windows: u32,
    /// Windows now that are kept unused, since nearly all keys of their index are in quarantine.
    pub windows_parked: u32,
    /// Windows now whose key may open something.
    pub windows_live: u32,
    /// Segments in rings now.
    pub segments_live: u32,
    /// Segments in limbo now.
    pub segments_limbo: u32,
    /// Free segments now.
    pub segments_free: u32,
    /// Producers' batches now that wait for a segment.
    pub batches_waiting: u32,
    /// Key indices now in quarantine.
    pub quarantined_indices: u32,
}
