//! How a record's sender learns what became of it. One completion serves all records of a batch.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use keyway_client::{Error, wait_for};
use keyway_fabric::WallTime;

/// A committed record: it is in the topic's ring, and consumers can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The record's number in its topic, from 0.
    pub sequence: u64,
    /// When it was committed, by the broker's wall clock. Within a topic it never goes back.
    pub time: WallTime,
}

/// What became of a batch: its first record's receipt, or why none of its records is committed.
pub(crate) type BatchResult = Result<Receipt, Error>;

/// What a batch's records wait for.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// The wakers of whoever waits.
    Waiting(Vec<Waker>),
    Done(BatchResult),
}

impl Default for State {
    fn default() -> Self {
        Self::Waiting(Vec::new())
    }
}

impl Completion {
    /// Tells everybody who waits.
    pub(crate) fn complete(&self, result: BatchResult) {
        // A panic elsewhere while the lock was held leaves a state that is whole: each change is a single assignment.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Waiting(wakers) = std::mem::replace(&mut *state, State::Done(result)) {
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

/// A record that was taken and not answered yet. Ready with its receipt, or with the error that it failed with. Dropping it
/// takes nothing back.
#[derive(Debug)]
#[must_use = "whether the record was committed is only known from here"]
pub struct Pending {
    completion: Arc<Completion>,
    index: u32,
    /// Where its waker is among the batch's.
    waker: Option<usize>,
}

impl Pending {
    pub(crate) fn new(completion: Arc<Completion>, index: u32) -> Self {
        Self { completion, index, waker: None }
    }

    /// Waits on this thread.
    ///
    /// # Errors
    ///
    /// Why the record was not committed.
    pub fn wait(self) -> Result<Receipt, Error> {
        wait_for(self, None).expect("a wait without limit ends with the result")
    }

    /// Waits on this thread for so long at most; `None` if nothing is known by then.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<Receipt, Error>> {
        wait_for(self, Some(timeout))
    }

    /// What became of it, if that is known.
    pub fn try_result(&self) -> Option<Result<Receipt, Error>> {
        match &*self.completion.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Waiting(_) => None,
            State::Done(result) => Some(self.receipt(result)),
        }
    }

    fn receipt(&self, result: &BatchResult) -> Result<Receipt, Error> {
        match result {
            Ok(first) => Ok(Receipt { sequence: first.sequence + u64::from(self.index), ..*first }),
            Err(error) => Err(error.clone()),
        }
    }
}

impl Future for Pending {
    type Output = Result<Receipt, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let completion = Arc::clone(&self.completion);
        let mut state = completion.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            State::Done(result) => Poll::Ready(self.receipt(result)),
            State::Waiting(wakers) => {
                match self.waker {
                    Some(place) => wakers[place].clone_from(context.waker()),
                    None => {
                        self.waker = Some(wakers.len());
                        wakers.push(context.waker().clone());
                    }
                }
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pendings(count: u32) -> (Arc<Completion>, Vec<Pending>) {
        let completion = Arc::new(Completion::default());
        let pendings = (0..count).map(|index| Pending::new(Arc::clone(&completion), index)).collect();
        (completion, pendings)
    }

    #[test]
    fn each_record_of_a_batch_has_its_own_sequence() {
        let (completion, pendings) = pendings(3);
        assert!(pendings[0].try_result().is_none());
        completion.complete(Ok(Receipt { sequence: 40, time: WallTime(7) }));
        let sequences: Vec<u64> = pendings.into_iter().map(|pending| pending.wait().unwrap().sequence).collect();
        assert_eq!(sequences, [40, 41, 42]);
    }

    #[test]
    fn a_thread_that_waits_is_woken() {
        let (completion, mut pendings) = pendings(2);
        assert!(pendings[1].wait_timeout(Duration::from_millis(1)).is_none());
        let last = pendings.pop().unwrap();
        let waiting = std::thread::Builder::new().spawn(move || last.wait()).unwrap();
        completion.complete(Err(Error::Closed { what: "producer", cause: None }));
        assert!(waiting.join().unwrap().is_err());
        assert!(pendings[0].try_result().unwrap().is_err());
    }
}
