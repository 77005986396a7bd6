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
use keyway_schema::message::Start;

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
    /// The number of the last seek.
    seeks: u64,
    /// Whether that seek is under way: what comes before it is over is passed over.
    is_seeking: bool,
    /// That the broker was started anew, found among what a seek has passed over.
    restarted: Option<Error>,
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
        Self {
            items,
            stream,
            run: None,
            seeks: 0,
            is_seeking: false,
            restarted: None,
            shared,
            events,
            notifier,
            driver: Some(driver),
            ended: false,
        }
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
            if let Some(result) = self.at_hand() {
                return result;
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
        // The clock is asked only by whoever has to wait.
        if let Some(record) = self.try_recv()? {
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
            if let Some(result) = self.at_hand() {
                return result.map(Some);
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

    /// Goes on elsewhere in the topic, in the same session: from `start` on, as a consumer that is made anew would. Returns the
    /// next record's sequence once the broker has confirmed it. What has been read before and not received is passed over, gaps
    /// among it; records that were received stay valid.
    ///
    /// A sequence that the ring has dropped is told as a gap, as for a start. If there is no session, the consumer goes on there in
    /// its next one. If the future is dropped, the consumer goes on there as soon as it can, provided that the future was polled.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`].
    pub async fn seek(&mut self, start: Start) -> Result<u64, Error> {
        let Some(driver) = &self.driver else { return Err(self.closed()) };
        self.seeks += 1;
        let ticket = self.seeks;
        if driver.command_async(Command::Seek { ticket, start }).await.is_err() {
            return Err(self.closed());
        }
        self.seek_begins();
        std::future::poll_fn(|context| {
            loop {
                let Some(item) = ready!(Pin::new(&mut self.stream).poll_next(context)) else {
                    return Poll::Ready(Err(self.closed()));
                };
                if let Some(sequence) = self.pass_over(item) {
                    return Poll::Ready(Ok(sequence));
                }
            }
        })
        .await
    }

    /// Like [`seek`](Self::seek), on this thread.
    ///
    /// # Errors
    ///
    /// As for [`seek`](Self::seek).
    pub fn seek_blocking(&mut self, start: Start) -> Result<u64, Error> {
        self.seek_timeout(start, Duration::MAX)
    }

    /// Like [`seek`](Self::seek), on this thread, for so long at most.
    ///
    /// # Errors
    ///
    /// As for [`seek`](Self::seek); or `Timeout`, and then the consumer goes on there as soon as it can, and gives nothing from
    /// elsewhere any more.
    pub fn seek_timeout(&mut self, start: Start, timeout: Duration) -> Result<u64, Error> {
        let deadline = deadline_after(timeout);
        let Some(driver) = &self.driver else { return Err(self.closed()) };
        self.seeks += 1;
        let ticket = self.seeks;
        if driver.command(Command::Seek { ticket, start }).is_err() {
            return Err(self.closed());
        }
        self.seek_begins();
        loop {
            let item = match deadline {
                Some(deadline) => self.items.recv_deadline(deadline),
                None => self.items.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match item {
                Ok(item) => {
                    if let Some(sequence) = self.pass_over(item) {
                        return Ok(sequence);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Error::Timeout { what: format!("seeking to {start:?}"), after: timeout, last: None });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.closed()),
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

    /// What was taken already and not given out.
    fn at_hand(&mut self) -> Option<Result<Record, Error>> {
        if !self.is_seeking
            && let Some(restarted) = self.restarted.take()
        {
            return Some(Err(restarted));
        }
        self.next_of_run().map(Ok)
    }

    fn next_of_run(&mut self) -> Option<Record> {
        let record = self.run.as_mut()?.next();
        if record.is_none() {
            self.run = None;
        }
        record
    }

    /// The driver has been told to seek.
    fn seek_begins(&mut self) {
        self.is_seeking = true;
        self.run = None;
    }

    /// Takes an item that came while seeking. Returns where the consumer goes on, once it is there.
    fn pass_over(&mut self, item: Item) -> Option<u64> {
        let sought = if let Item::Sought { sequence, .. } = item { Some(sequence) } else { None };
        let passed = self.take(item);
        debug_assert!(passed.is_none(), "nothing is given out while seeking");
        sought.filter(|_| !self.is_seeking)
    }

    /// Takes an item apart; `None` for one without a record.
    fn take(&mut self, item: Item) -> Option<Result<Record, Error>> {
        if self.shared.take_stall() {
            self.notifier.notify();
        }
        match item {
            Item::Sought { ticket, .. } => {
                self.is_seeking &= ticket != self.seeks;
                None
            }
            Item::Notice(error @ Error::Restarted { .. }) if self.is_seeking => {
                self.restarted = Some(error);
                None
            }
            _ if self.is_seeking => None,
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
            if let Some(result) = self.at_hand() {
                return Poll::Ready(result);
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
