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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_and_event() {
        use Event::{Bind, Bound, Release, Supersede, Unbind, Unbound};
        use State::{Binding, Idle, Live, Unbinding};
        let superseded = |bound| Some(State::Superseded { bound });
        let released = |bound| Some(State::Released { bound });
        let none = None;
        let events = [Bind, Bound, Supersede, Release, Unbind, Unbound];
        let table = [
            (Idle, [Some(Binding), none, none, none, Some(Unbinding), none]),
            (Binding, [none, Some(Live), superseded(false), released(false), none, none]),
            (Live, [none, none, superseded(true), released(true), none, none]),
            (
                State::Superseded { bound: false },
                [none, superseded(true), superseded(false), released(false), none, none],
            ),
            (State::Superseded { bound: true }, [none, none, superseded(true), released(true), none, none]),
            (State::Released { bound: false }, [none, released(true), none, none, none, none]),
            (State::Released { bound: true }, [none, none, none, none, Some(Unbinding), none]),
            (Unbinding, [none, none, none, none, none, Some(Idle)]),
        ];
        for (state, after) in table {
            for (event, expected) in events.into_iter().zip(after) {
                assert_eq!(state.after(event), expected, "{state:?}, {event:?}");
            }
        }
    }

    #[test]
    fn nothing_is_posted_for_a_busy_window_and_no_key_is_taken_before_its_release() {
        let states = [
            State::Idle,
            State::Binding,
            State::Live,
            State::Superseded { bound: false },
            State::Superseded { bound: true },
            State::Released { bound: false },
            State::Released { bound: true },
            State::Unbinding,
        ];
        for state in states {
            let can_be_posted = state.after(Event::Bind).is_some() || state.after(Event::Unbind).is_some();
            assert!(!(can_be_posted && state.is_busy()), "{state:?}");
            let is_in_use = state.is_current() || matches!(state, State::Superseded { .. });
            assert!(!(can_be_posted && is_in_use), "{state:?}");
        }
    }
}
