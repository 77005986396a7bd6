//! What happens to a consumer besides records: typed events, for applications that want to know.
//!
//! Nobody has to take them, so they must not pile up: of every kind at most one waits, and a later one of the same kind
//! is joined to it. None is lost when the application is slow; only how often it happened is told together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use keyway_schema::Code;

/// Something that happened to a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Records were dropped by the ring before they were read. The same gaps are errors in the record stream, one by one.
    Lagged {
        /// The first record of the first gap.
        from: u64,
        /// The record behind the last gap.
        to: u64,
        /// How many records are gone, in all gaps together.
        records: u64,
    },
    /// The broker was started anew; so was the log.
    Restarted {
        /// Its instance.
        instance: u64,
    },
    /// A key was replaced.
    Rekeyed {
        /// The newest epoch.
        epoch: u64,
    },
    /// The session is over. The consumer connects again and goes on at its cursor.
    SessionLost {
        /// The broker's or the consumer's reason, if one was given: `GraceOver` for a key that was not released in time.
        code: Option<Code>,
        /// In words.
        reason: String,
    },
    /// There is a session again.
    Reconnected {
        /// Its id, as the broker's logs name it.
        session: u64,
        /// The record at which reading goes on.
        sequence: u64,
    },
    /// The broker is about to stop. What is committed can be read for so long.
    ShuttingDown {
        /// How long from when the broker said it.
        deadline: Duration,
    },
}

/// Events that wait to be taken, one of a kind at most, in the order of their latest occurrence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coalesced {
    waiting: Vec<Event>,
}

impl Coalesced {
    /// Adds an event, joined with one of its kind that waits.
    pub(crate) fn push(&mut self, mut event: Event) {
        let kind = std::mem::discriminant(&event);
        if let Some(place) = self.waiting.iter().position(|other| std::mem::discriminant(other) == kind) {
            let before = self.waiting.remove(place);
            if let (Event::Lagged { from, records, .. }, Event::Lagged { from: first, records: earlier, .. }) =
                (&mut event, before)
            {
                *from = first;
                *records = records.saturating_add(earlier);
            }
        }
        self.waiting.push(event);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds all of another's events, and leaves it empty.
    pub(crate) fn append(&mut self, other: &mut Self) {
        other.waiting.drain(..).for_each(|event| self.push(event));
    }

    fn take(&mut self) -> Option<Event> {
        if self.is_empty() { None } else { Some(self.waiting.remove(0)) }
    }
}

/// Where a consumer's events can be taken. Clones take from the same events.
#[derive(Clone, Debug)]
pub struct Events {
    waiting: Arc<Mutex<Coalesced>>,
    /// Holds a token while there may be something to take.
    signal: flume::Receiver<()>,
}

/// Where the driver puts them.
#[derive(Debug)]
pub(crate) struct EventSink {
    waiting: Arc<Mutex<Coalesced>>,
    signal: flume::Sender<()>,
}

/// An empty pair.
pub(crate) fn events() -> (EventSink, Events) {
    let waiting = Arc::new(Mutex::new(Coalesced::default()));
    let (sender, signal) = flume::bounded(1);
    (EventSink { waiting: Arc::clone(&waiting), signal: sender }, Events { waiting, signal })
}

impl EventSink {
    /// Hands over all events that wait in `events`.
    pub(crate) fn hand_over(&self, events: &mut Coalesced) {
        if !events.is_empty() {
            locked(&self.waiting).append(events);
            // It fails when the token is there already, or nobody listens.
            let _ = self.signal.try_send(());
        }
    }
}

impl Events {
    /// The next event, if one waits.
    pub fn try_recv(&self) -> Option<Event> {
        locked(&self.waiting).take()
    }

    /// Waits for the next event; `None` once the consumer has ended and all events are taken.
    pub async fn recv(&self) -> Option<Event> {
        loop {
            if let Some(event) = self.try_recv() {
                return Some(event);
            }
            if self.signal.recv_async().await.is_err() {
                return self.try_recv();
            }
        }
    }

    /// Waits for the next event on this thread; `None` once the consumer has ended and all events are taken.
    pub fn recv_blocking(&self) -> Option<Event> {
        loop {
            if let Some(event) = self.try_recv() {
                return Some(event);
            }
            if self.signal.recv().is_err() {
                return self.try_recv();
            }
        }
    }

    /// Waits for the next event on this thread, for so long at most.
    pub fn recv_timeout(&self, timeout: Duration) -> Option<Event> {
        let deadline = deadline_after(timeout);
        loop {
            if let Some(event) = self.try_recv() {
                return Some(event);
            }
            let over = match deadline {
                Some(deadline) => self.signal.recv_deadline(deadline).is_err(),
                None => self.signal.recv().is_err(),
            };
            if over {
                return self.try_recv();
            }
        }
    }
}

/// The deadline of an application's waiting call; `None`: later than the clock can say.
#[allow(clippy::disallowed_methods, reason = "a caller's timeout begins when it calls, on its own thread")]
pub(crate) fn deadline_after(timeout: Duration) -> Option<std::time::Instant> {
    std::time::Instant::now().checked_add(timeout)
}

/// The events, even if a thread panicked over them: they are whole between any two statements.
fn locked(waiting: &Mutex<Coalesced>) -> MutexGuard<'_, Coalesced> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_nobody_takes_are_joined_and_none_is_lost() {
        let (sink, events) = events();
        for round in 0..1000_u64 {
            let mut new = Coalesced::default();
            new.push(Event::Lagged { from: round * 10, to: round * 10 + 4, records: 4 });
            new.push(Event::Rekeyed { epoch: round });
            sink.hand_over(&mut new);
        }
        assert_eq!(events.try_recv(), Some(Event::Lagged { from: 0, to: 9994, records: 4000 }));
        assert_eq!(events.recv_blocking(), Some(Event::Rekeyed { epoch: 999 }));
        assert_eq!(events.try_recv(), None);
        assert_eq!(events.recv_timeout(Duration::from_millis(1)), None);
        drop(sink);
        assert_eq!(events.recv_blocking(), None);
    }

    #[test]
    fn an_event_is_still_taken_after_the_consumer_has_ended() {
        let (sink, events) = events();
        let mut new = Coalesced::default();
        new.push(Event::ShuttingDown { deadline: Duration::from_secs(1) });
        sink.hand_over(&mut new);
        drop(sink);
        assert_eq!(events.recv_blocking(), Some(Event::ShuttingDown { deadline: Duration::from_secs(1) }));
        assert_eq!(events.recv_blocking(), None);
    }
}
