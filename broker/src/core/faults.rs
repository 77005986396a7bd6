//! Deliberate faults: each breaks one promise, so that the simulator's checkers can be seen to notice.
//!
//! They can be set only with the cargo feature `faults`; without it [`Faults::NONE`] is in force and every `if` is compiled away.

/// Which promises to break.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A dropped segment is free at once, whatever windows cover it. Breaks I3, and I1 for what is written there next.
    pub recycle_under_window: bool,
    /// No key is put into quarantine, and no window is replaced before its low byte comes round. Breaks I4.
    pub skip_quarantine: bool,
    /// A superseded window is unbound at once instead of at its release. Breaks I7.
    pub unbind_before_release: bool,
    /// The tail is stored before the batch is copied (and the copy is left out). Breaks I8 and I5.
    pub tail_before_copy: bool,
    /// A batch that was sent again is appended again. Breaks I5 (duplicates).
    pub skip_dedup: bool,
    /// A lapped consumer is not told. Breaks I5 (an untold gap).
    pub lose_lagged: bool,
    /// Nothing happens at a key's deadline. Breaks I6.
    pub ignore_deadline: bool,
    /// A window is not freed when its session ends. Breaks I9.
    pub leak_windows: bool,
    /// A subscription gets one grant more than its depth. Breaks I2.
    pub exceed_depth: bool,
    /// An armed consumer is not woken. Breaks I5's liveness: it never sees what came after.
    pub lose_wake: bool,
}

impl Faults {
    /// No fault.
    pub const NONE: Self = Self {
        recycle_under_window: false,
        skip_quarantine: false,
        unbind_before_release: false,
        tail_before_copy: false,
        skip_dedup: false,
        lose_lagged: false,
        ignore_deadline: false,
        leak_windows: false,
        exceed_depth: false,
        lose_wake: false,
    };
}
