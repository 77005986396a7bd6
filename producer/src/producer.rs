//! The handle that applications publish with.

use std::sync::Arc;
use std::time::Duration;

use keyway_client::{AddressError, Driver, Error, Server, WAIT_MAX, wait_for};

use crate::buffer::Shared;
use crate::completion::{Pending, Receipt};
use crate::role::{Command, Reply};
use crate::{ProducerBuilder, Record, SendError};

/// How long dropping a producer waits for its thread, which has nothing left to do but to end.
const DROP_TIMEOUT: Duration = Duration::from_millis(250);

/// Publishes to one topic.
///
/// Records go out in batches, in the order in which they were taken; a receipt says that a record is committed to the topic's
/// ring. The producer reconnects by itself, and sends again what was not answered; the broker tells from the batches' numbers
/// what it has already, so nothing is committed twice.
///
/// It may be used from many threads and tasks at once, with any executor or none.
///
/// Close it when done: [`close`](Self::close) delivers what was taken. A producer that is dropped delivers nothing more:
/// what is not committed fails, and is logged as an error where nobody holds its [`Pending`].
#[derive(Debug)]
pub struct Producer {
    shared: Arc<Shared>,
    /// Taken by `close`.
    driver: Option<Driver<Command>>,
}

/// What a producer has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProducerStats {
    /// Records committed.
    pub records: u64,
    /// Their bytes, as encoded in batches.
    pub bytes: u64,
    /// Batches committed.
    pub batches: u64,
    /// Batches that were offered through a window, being too large for a slot.
    pub offers: u64,
    /// Batches sent again after a session was lost.
    pub retries: u64,
    /// Sessions after the first.
    pub reconnects: u64,
    /// Batches sent, or about to be, and not answered.
    pub batches_in_flight: u64,
    /// Encoded bytes that were taken and are not answered.
    pub bytes_waiting: u64,
    /// The fabric that it publishes through, such as `soft` or `verbs:mlx5_0`; empty before the first session.
    pub fabric: Arc<str>,
}

impl Producer {
    /// Settings for a producer of `topic` at `server`, which is an address such as `keyway://127.0.0.1:4480`, or a [`Server`].
    pub fn builder<S>(server: S, topic: impl Into<String>) -> ProducerBuilder
    where
        S: TryInto<Server>,
        AddressError: From<S::Error>,
    {
        ProducerBuilder::new(server.try_into().map_err(AddressError::from), topic.into())
    }

    pub(crate) fn new(shared: Arc<Shared>, driver: Driver<Command>) -> Self {
        Self { shared, driver: Some(driver) }
    }

    /// Publishes a record and waits until it is committed. While the buffer is full it waits for room, in turn.
    ///
    /// Dropping the future before the record was taken sends nothing; after that, the record goes its way.
    ///
    /// # Errors
    ///
    /// Why it is not committed. The error holds the record if it was never taken.
    pub async fn send(&self, record: impl Into<Record<'_>>) -> Result<Receipt, SendError> {
        let pending = self.shared.take(record.into()).await?;
        pending.await.map_err(SendError::taken)
    }

    /// Takes a record to be published, waiting for room if need be. What becomes of it is told by the [`Pending`].
    ///
    /// # Errors
    ///
    /// The record is too large or malformed, or the producer is closed or its broker about to stop. The error holds it.
    pub async fn enqueue_async(&self, record: impl Into<Record<'_>>) -> Result<Pending, SendError> {
        self.shared.take(record.into()).await
    }

    /// Like [`enqueue_async`](Self::enqueue_async), waiting on this thread.
    ///
    /// # Errors
    ///
    /// As for [`enqueue_async`](Self::enqueue_async).
    pub fn enqueue<'a>(&'a self, record: impl Into<Record<'a>>) -> Result<Pending, SendError> {
        wait_for(self.shared.take(record.into()), None).expect("a wait without limit ends with the result")
    }

    /// Takes a record to be published if there is room at once.
    ///
    /// # Errors
    ///
    /// As for [`enqueue_async`](Self::enqueue_async), or `Full`. The error holds the record.
    pub fn try_send<'a>(&self, record: impl Into<Record<'a>>) -> Result<Pending, SendError> {
        self.shared.try_take(record.into())
    }

    /// Waits until everything taken before is answered, for so long at most.
    ///
    /// # Errors
    ///
    /// `Timeout`; or the first error that a record failed with, among those covered and those before them that nobody waited
    /// for.
    pub fn flush(&self, deadline: Duration) -> Result<(), Error> {
        self.ask(|reply| Command::Flush { deadline, reply }, "flushing the producer", deadline)
    }

    /// Like [`flush`](Self::flush), without holding a thread.
    ///
    /// # Errors
    ///
    /// As for [`flush`](Self::flush).
    pub async fn flush_async(&self, deadline: Duration) -> Result<(), Error> {
        self.ask_async(|reply| Command::Flush { deadline, reply }).await
    }

    /// Delivers everything taken, says goodbye to the broker and ends the producer's thread, in so long at most.
    ///
    /// # Errors
    ///
    /// As for [`flush`](Self::flush). The producer is closed whatever happens; what was not delivered by then has failed.
    pub fn close(mut self, deadline: Duration) -> Result<(), Error> {
        let clock = keyway_fabric::SystemClock::start();
        let result = self.ask(|reply| Command::Close { deadline, reply }, "closing the producer", deadline);
        if let Some(driver) = self.driver.take() {
            driver.abandon(deadline.saturating_sub(clock.now().time.since(keyway_fabric::Time::ZERO)));
        }
        result
    }

    /// Like [`close`](Self::close), without holding a thread.
    ///
    /// # Errors
    ///
    /// As for [`close`](Self::close).
    pub async fn close_async(mut self, deadline: Duration) -> Result<(), Error> {
        let result = self.ask_async(|reply| Command::Close { deadline, reply }).await;
        if let Some(driver) = self.driver.take() {
            driver.join_async().await;
        }
        result
    }

    /// What it has done.
    pub fn stats(&self) -> ProducerStats {
        let buffer = self.shared.lock();
        ProducerStats { bytes_waiting: buffer.waiting() as u64, ..buffer.stats.clone() }
    }

    fn driver(&self) -> &Driver<Command> {
        self.driver.as_ref().expect("only close takes the driver, and it takes the producer too")
    }

    fn ask(&self, command: impl FnOnce(Reply) -> Command, what: &'static str, deadline: Duration) -> Result<(), Error> {
        let (reply, answer) = flume::bounded(1);
        self.driver().command(command(reply))?;
        match answer.recv_timeout(deadline.min(WAIT_MAX)) {
            Ok(result) => result,
            // The driver keeps the same deadline, and may be a moment behind: it knows what went wrong meanwhile.
            Err(flume::RecvTimeoutError::Timeout) => match answer.recv_timeout(ANSWER_SLACK) {
                Ok(result) => result,
                Err(_) => Err(Error::Timeout { what: what.into(), after: deadline, last: None }),
            },
            Err(flume::RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    async fn ask_async(&self, command: impl FnOnce(Reply) -> Command) -> Result<(), Error> {
        let (reply, answer) = flume::bounded(1);
        self.driver().command_async(command(reply)).await?;
        answer.recv_async().await.unwrap_or_else(|_| Err(self.ended()))
    }

    /// Why the driver has ended.
    fn ended(&self) -> Error {
        let refusal = self.shared.lock().refusal();
        refusal.unwrap_or(Error::Closed { what: "producer", cause: None })
    }
}

/// How long the driver's own word is awaited beyond a deadline.
const ANSWER_SLACK: Duration = Duration::from_millis(5);

impl Drop for Producer {
    fn drop(&mut self) {
        // The thread fails what is left, and must have done so before the process can end.
        if let Some(driver) = self.driver.take() {
            driver.abandon(DROP_TIMEOUT);
        }
    }
}
