//! A session's life, as a table.

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    /// Its endpoint is not connected yet.
    Connecting,
    /// It works.
    Open,
    /// The broker ends it: a last message is on its way, for as long as the linger lasts.
    Ending,
    /// Its endpoint is being closed; only `Down` is still to come.
    Closing,
}

/// What can happen to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LifeEvent {
    /// The endpoint is connected.
    Up,
    /// The broker ends it, and says why.
    End,
    /// The last message has arrived.
    Told,
    /// The time for it is over.
    LingerOver,
    /// The client is gone, or says that it goes, or the endpoint must not be used any more.
    Leave,
}

impl Life {
    /// The state that an event leads to; `None` where it changes nothing.
    pub(super) const fn after(self, event: LifeEvent) -> Option<Self> {
        match (self, event) {
            (Self::Connecting, LifeEvent::Up) => Some(Self::Open),
            (Self::Open, LifeEvent::End) => Some(Self::Ending),
            // Nothing can be told before the endpoint is connected.
            (Self::Connecting, LifeEvent::End | LifeEvent::Leave)
            | (Self::Open, LifeEvent::Leave)
            | (Self::Ending, LifeEvent::Told | LifeEvent::LingerOver | LifeEvent::Leave) => Some(Self::Closing),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_and_event() {
        use Life::*;
        use LifeEvent::*;
        let none = None;
        let table = [
            (Connecting, [Some(Open), Some(Closing), none, none, Some(Closing)]),
            (Open, [none, Some(Ending), none, none, Some(Closing)]),
            (Ending, [none, none, Some(Closing), Some(Closing), Some(Closing)]),
            (Closing, [none, none, none, none, none]),
        ];
        for (state, after) in table {
            for (event, expected) in [Up, End, Told, LingerOver, Leave].into_iter().zip(after) {
                assert_eq!(state.after(event), expected, "{state:?}, {event:?}");
            }
        }
    }
}
