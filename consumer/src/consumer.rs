//! The handle that applications receive with.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use flume::r#async::RecvStream;
use flume::{Receiver, RecvTimeoutError, TryRecvError};
use futures_core::Stream;
use keyway_client::{AddressError, Driver, Error, Notifier, Server};
use keyway_fabric::{SystemClock, Time};

use crate::events::deadline_after;
use crate::record::{Record, Run};
use crate::role::{Command, Item, Shared};
use crate::{ConsumerBuilder, ConsumerStats, Events};

/// How long dropping a consumer waits for its thread, which says goodbye and ends.
const DROP_TIMEOUT: Duration = Duration::from_millis(300);

/// How long the driver's own word is awaited beyond a deadline.
const ANSWER_SLACK: Duration = Duration::from_millis(5);

/// Receives the records of one topic, in order.
///
/// Every way of receiving gives the same items: a record; or an error that tells of a gap ([`Error::Lagged`], exact) or of a
/// broker that was started anew ([`Error::Restarted`]), after which it goes on; or, last and for ever,
/// [`Error::Closed`] with what ended the consumer. A lost session is no item: the consumer reconnects and goes on at its
/// cursor; [`events`](Self::events) tells of it.
///
/// An application that takes nothing, or keeps what it took, holds landing memory until there is none left. Then the consumer
/// reads nothing and holds no key; the ring may lap it, which is told as a gap. Nothing else grows.
///
/// It works with any executor, and with none.
#[derive(Debug)]
pub struct Consumer {
    items: Receiver<Item>,
    /// The same items, for tasks.
    stream: RecvStream<'static, Item>,
    /// What is left of the item taken last.
    run: Option<Run>,
    shared: Arc<Shared>,
    events: Events,
    notifier: Notifier,
    /// Taken by `close`.
    driver: Option<Driver<Command>>,
    /// The stream has given its last item.
    ended: bool,
}

impl Consumer {
    /// Settings for a consumer of `topic` at `server`, which is an address such as `keyway://127.0.0.1:4480`, or a [`Server`].
    pub fn builder<S>(server: S, topic: impl Into<String>) -> ConsumerBuilder
    where
        S: TryInto<Server>,
        AddressError: From<S::Error>,
    {
        ConsumerBuilder::new(server.try_into().map_err(AddressError::from), topic.into())
    }

    pub(crate) fn new(items: Receiver<Item>, shared: Arc<Shared>, events: Events, driver: Driver<Command>) -> Self {
        let stream = items.clone().into_stream();
        let notifier = driver.notifier().clone();
        Self { items, stream, run: None, shared, events, notifier, driver: Some(driver), ended: false }
    }

    /// Waits for the next record. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// A gap or a restart, after which it goes on; or [`Error::Closed`].
    pub async fn recv(&mut self) -> Result<Record, Error> {
        std::future::poll_fn(|context| self.poll_record(context)).await
    }

    /// Waits for the next record on this thread.
    ///
    /// # Errors
    ///
    /// As for [`recv`](Self::recv).
    pub fn recv_blocking(&mut self) -> Result<Record, Error> {
        loop {
            if let Some(record) = self.next_of_run() {
                return Ok(record);
            }
            let Ok(item) = self.items.recv() else { return Err(self.closed()) };
            if let Some(result) = self.take(item) {
                return result;
            }
        }
    }

    /// Waits for the next record on this thread, for so long at most. `None`: there was none in that time.
    ///
    /// # Errors
    ///
    /// As for [`recv`](Self::recv).
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<Record>, Error> {
        if let Some(record) = self.next_of_run() {
            return Ok(Some(record));
        }
        let Some(deadline) = deadline_after(timeout) else { return self.recv_blocking().map(Some) };
        loop {
            match self.items.recv_deadline(deadline) {
                Ok(item) => {
                    if let Some(result) = self.take(item) {
                        return result.map(Some);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(self.closed()),
            }
        }
    }

    /// The next record, if it is here already.
    ///
    /// # Errors
    ///
    /// As for [`recv`](Self::recv).
    pub fn try_recv(&mut self) -> Result<Option<Record>, Error> {
        loop {
            if let Some(record) = self.next_of_run() {
                return Ok(Some(record));
            }
            match self.items.try_recv() {
                Ok(item) => {
                    if let Some(result) = self.take(item) {
                        return result.map(Some);
                    }
                }
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => return Err(self.closed()),
            }
        }
    }

    /// What happens besides records. Nobody has to take these events: they do not pile up.
    pub fn events(&self) -> Events {
        self.events.clone()
    }

    /// What it has done.
    pub fn stats(&self) -> ConsumerStats {
        self.shared.stats.load()
    }

    /// Gives up the keys, says goodbye to the broker and ends the consumer's thread, in so long at most. Records that were
    /// received stay valid.
    ///
    /// # Errors
    ///
    /// `Timeout`, or what ended the consumer before. It is closed whatever happens.
    pub fn close(mut self, deadline: Duration) -> Result<(), Error> {
        let clock = SystemClock::start();
        let (reply, answer) = flume::bounded(1);
        let Some(driver) = self.driver.take() else { return Ok(()) };
        if driver.command(Command::Close { deadline, reply }).is_err() {
            return self.end();
        }
        let result = match answer.recv_timeout(deadline.saturating_add(ANSWER_SLACK)) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                Err(Error::Timeout { what: "closing the consumer".into(), after: deadline, last: None })
            }
            Err(RecvTimeoutError::Disconnected) => self.end(),
        };
        driver.abandon(deadline.saturating_sub(clock.now().time.since(Time::ZERO)));
        result
    }

    /// Like [`close`](Self::close), without holding a thread.
    ///
    /// # Errors
    ///
    /// As for [`close`](Self::close).
    pub async fn close_async(mut self, deadline: Duration) -> Result<(), Error> {
        let (reply, answer) = flume::bounded(1);
        let Some(driver) = self.driver.take() else { return Ok(()) };
        if driver.command_async(Command::Close { deadline, reply }).await.is_err() {
            return self.end();
        }
        let result = match answer.recv_async().await {
            Ok(result) => result,
            Err(_) => self.end(),
        };
        driver.join_async().await;
        result
    }

    fn end(&self) -> Result<(), Error> {
        self.shared.end().map_or(Ok(()), Err)
    }

    fn closed(&self) -> Error {
        Error::Closed { what: "consumer", cause: self.shared.end().map(Box::new) }
    }

    fn next_of_run(&mut self) -> Option<Record> {
        let record = self.run.as_mut()?.next();
        if record.is_none() {
            self.run = None;
        }
        record
    }

    /// Takes an item apart; `None` for one without a record.
    fn take(&mut self, item: Item) -> Option<Result<Record, Error>> {
        if self.shared.take_stall() {
            self.notifier.notify();
        }
        match item {
            Item::Batches(run) => {
                self.run = Some(run);
                self.next_of_run().map(Ok)
            }
            Item::Record(record) => Some(Ok(record)),
            Item::Notice(error) => Some(Err(error)),
        }
    }

    fn poll_record(&mut self, context: &mut Context<'_>) -> Poll<Result<Record, Error>> {
        loop {
            if let Some(record) = self.next_of_run() {
                return Poll::Ready(Ok(record));
            }
            let Some(item) = ready!(Pin::new(&mut self.stream).poll_next(context)) else {
                return Poll::Ready(Err(self.closed()));
            };
            if let Some(result) = self.take(item) {
                return Poll::Ready(result);
            }
        }
    }
}

impl Stream for Consumer {
    type Item = Result<Record, Error>;

    /// The stream ends behind `Closed`, or without it if the consumer ended in order.
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let result = ready!(self.poll_record(context));
        if let Err(Error::Closed { cause, .. }) = &result {
            self.ended = true;
            if cause.is_none() {
                return Poll::Ready(None);
            }
        }
        Poll::Ready(Some(result))
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.abandon(DROP_TIMEOUT);
        }
    }
}
