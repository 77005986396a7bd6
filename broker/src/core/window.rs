//! A window's life, as a table: which event leads from which state to which.
//!
//! The table knows no time and no memory. Whoever holds a window asks it before anything is done, so that no bind is ever
//! posted for a window whose last bind or unbind is outstanding, and no key is taken from a consumer that may still use it
//! (deadlines apart: those free the window, whatever its state).

/// Where a window is in its life. `bound` says whether its bind has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Unbound: a spare.
    Idle,
    /// Its bind is posted, and its grant behind it.
    Binding,
    /// Bound and current.
    Live,
    /// Superseded or revoked: the consumer must release it.
    Superseded {
        /// Whether the bind has completed.
        bound: bool,
    },
    /// Released: nobody uses its key any more.
    Released {
        /// Whether the bind has completed.
        bound: bool,
    },
    /// Its unbind is posted.
    Unbinding,
}

/// What can happen to a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A bind is posted.
    Bind,
    /// The bind has completed.
    Bound,
    /// Another grant takes its place, or it is revoked.
    Supersede,
    /// The consumer has released it, or never got it.
    Release,
    /// An unbind is posted.
    Unbind,
    /// The unbind has completed.
    Unbound,
}

impl State {
    /// The state that `event` leads to, or `None` where it cannot or must not happen.
    pub const fn after(self, event: Event) -> Option<Self> {
        Some(match (self, event) {
            (Self::Idle, Event::Bind) => Self::Binding,
            (Self::Binding, Event::Bound) => Self::Live,
            (Self::Binding, Event::Supersede) => Self::Superseded { bound: false },
            (Self::Binding, Event::Release) => Self::Released { bound: false },
            (Self::Live, Event::Supersede) => Self::Superseded { bound: true },
            (Self::Live, Event::Release) => Self::Released { bound: true },
            (Self::Superseded { bound: false }, Event::Bound) => Self::Superseded { bound: true },
            (Self::Superseded { bound }, Event::Supersede) => Self::Superseded { bound },
            (Self::Superseded { bound }, Event::Release) => Self::Released { bound },
            (Self::Released { bound: false }, Event::Bound) => Self::Released { bound: true },
            // An unbind of a spare only moves its key on.
            (Self::Idle | Self::Released { bound: true }, Event::Unbind) => Self::Unbinding,
            (Self::Unbinding, Event::Unbound) => Self::Idle,
            _ => return None,
        })
    }

    /// Whether a bind or unbind is outstanding: until it completes, nothing else can be posted for the window.
    pub const fn is_busy(self) -> bool {
        matches!(
            self,
            Self::Binding | Self::Superseded { bound: false } | Self::Released { bound: false } | Self::Unbinding
        )
    }

    /// Whether the consumer may begin READs under its key.
    pub const fn is_current(self) -> bool {
        matches!(self, Self::Binding | Self::Live)
    }
}
