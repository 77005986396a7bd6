//! Records on their way from the application to the driver.
//!
//! A record is encoded once, under a short lock, straight into the open batch. The driver takes batches out whenever it can
//! send one at once; while it cannot, the open batch grows, and when it is full, more queue up behind it. So under light
//! load a record leaves at once, and under heavy load batches are large, without anybody waiting for a timer.
//!
//! The buffer counts every record's bytes from when it is taken until it is answered, and takes no more than its limit. Whoever must wait
//! for room waits in a queue, so that no sender is passed by for ever.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use keyway_client::{Error, Notifier};
use keyway_schema::batch::{BATCH_HEADER_LEN, BatchBuilder};

use crate::completion::{Completion, Pending};
use crate::{ProducerStats, Record, SendError};

/// The most byte buffers that are kept for later batches.
const SPARES_MAX: usize = 16;

/// What the application's threads and the driver share.
#[derive(Debug)]
pub(crate) struct Shared {
    buffer: Mutex<Buffer>,
    /// Set once the driver runs.
    notifier: OnceLock<Notifier>,
    /// Whether a batch may wait for the driver, so that it need not lock an empty buffer each turn. Only a hint: a driver that
    /// misses it is notified.
    stocked: AtomicBool,
}

/// The records that were taken and not answered.
#[derive(Debug)]
pub(crate) struct Buffer {
    open: Option<OpenBatch>,
    full: VecDeque<FullBatch>,
    /// Encoded bytes that were taken and not answered, and how many may be.
    waiting: usize,
    limit: usize,
    /// The length beyond which no record is added to a batch.
    batch_len_max: usize,
    record_max: u32,
    /// Why no record is taken now.
    refusal: Option<Error>,
    room: VecDeque<(u64, Waker)>,
    waiters: u64,
    spares: Vec<Vec<u8>>,
    pub(crate) stats: ProducerStats,
}

#[derive(Debug)]
struct OpenBatch {
    builder: BatchBuilder,
    completion: Arc<Completion>,
}

/// A batch that takes no more records.
#[derive(Debug)]
pub(crate) struct FullBatch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: u32,
    pub(crate) completion: Arc<Completion>,
}

impl Shared {
    pub(crate) fn new(limit: usize) -> Self {
        let buffer = Buffer {
            open: None,
            full: VecDeque::new(),
            waiting: 0,
            limit,
            batch_len_max: 0,
            record_max: 0,
            refusal: None,
            room: VecDeque::new(),
            waiters: 0,
            spares: Vec::new(),
            stats: ProducerStats::default(),
        };
        Self { buffer: Mutex::new(buffer), notifier: OnceLock::new(), stocked: AtomicBool::new(false) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Buffer> {
        // Nothing that can panic runs while a change is half done.
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_notifier(&self, notifier: Notifier) {
        let set = self.notifier.set(notifier);
        debug_assert!(set.is_ok(), "a producer has one driver");
    }

    /// Whether a batch may wait.
    pub(crate) fn is_stocked(&self) -> bool {
        self.stocked.load(Ordering::Acquire)
    }

    /// The next batch for the driver; the open one only if `open_too`.
    pub(crate) fn next(&self, open_too: bool) -> Option<FullBatch> {
        let mut buffer = self.lock();
        let batch = buffer.next(open_too);
        if !buffer.has_open() && buffer.full_len() == 0 {
            // Under the lock: whoever adds a record next says so after this.
            self.stocked.store(false, Ordering::Relaxed);
        }
        batch
    }

    /// A batch was answered: its bytes make room. `committed` is how many records became part of the log.
    pub(crate) fn answered(&self, bytes: Vec<u8>, committed: u32) {
        let encoded = bytes.len() - BATCH_HEADER_LEN;
        let mut buffer = self.lock();
        buffer.waiting -= encoded;
        if committed > 0 {
            buffer.stats.records += u64::from(committed);
            buffer.stats.bytes += encoded as u64;
        }
        buffer.recycle(bytes);
        let next = buffer.next_waiter();
        // Woken without the lock: an executor may poll in the call.
        drop(buffer);
        next.into_iter().for_each(Waker::wake);
    }

    /// Takes no record from now on, or takes them again. Whoever waits for room is told.
    pub(crate) fn refuse(&self, refusal: Option<Error>) {
        let mut buffer = self.lock();
        buffer.refusal = refusal;
        let waiting: Vec<Waker> = buffer.room.iter().map(|(_, waker)| waker.clone()).collect();
        drop(buffer);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// A record was taken.
    fn notify(&self) {
        if let Some(notifier) = self.notifier.get() {
            notifier.notify();
        }
    }

    /// Takes a record now, or gives it back.
    pub(crate) fn try_take(&self, record: Record<'_>) -> Result<Pending, SendError> {
        let mut buffer = self.lock();
        let taken = match buffer.check(&record) {
            Err(error) => Err(error),
            Ok(len) if buffer.room.is_empty() && buffer.fits(len) => Ok(self.push(&mut buffer, &record)),
            Ok(_) => Err(Error::Full { waiting: buffer.waiting, limit: buffer.limit }),
        };
        drop(buffer);
        match taken {
            Ok(pending) => {
                self.notify();
                Ok(pending)
            }
            Err(error) => Err(SendError::untaken(error, record)),
        }
    }

    fn push(&self, buffer: &mut Buffer, record: &Record<'_>) -> Pending {
        // Release, paired with `is_stocked`; the lock orders it with `next`.
        self.stocked.store(true, Ordering::Release);
        buffer.push(record)
    }

    /// Takes a record as soon as there is room.
    pub(crate) fn take<'a>(&'a self, record: Record<'a>) -> Take<'a> {
        Take { shared: self, record: Some(record), waiter: None }
    }
}

/// A record that waits for room. Dropping it gives its place up.
#[derive(Debug)]
pub(crate) struct Take<'a> {
    shared: &'a Shared,
    record: Option<Record<'a>>,
    /// Its place in the queue, once it has one.
    waiter: Option<u64>,
}

impl Future for Take<'_> {
    type Output = Result<Pending, SendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = self.shared;
        let record = self.record.take().expect("a future is not polled again after its end");
        let mut buffer = shared.lock();
        let taken = match buffer.check(&record) {
            Err(error) => Err(error),
            Ok(len) if buffer.is_next(self.waiter) && buffer.fits(len) => Ok(shared.push(&mut buffer, &record)),
            Ok(_) => {
                self.waiter = Some(buffer.wait(self.waiter, context.waker()));
                drop(buffer);
                self.record = Some(record);
                return Poll::Pending;
            }
        };
        let next = self.waiter.take().and_then(|waiter| buffer.leave(waiter));
        drop(buffer);
        next.into_iter().for_each(Waker::wake);
        Poll::Ready(match taken {
            Ok(pending) => {
                shared.notify();
                Ok(pending)
            }
            Err(error) => Err(SendError::untaken(error, record)),
        })
    }
}

impl Drop for Take<'_> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            let next = self.shared.lock().leave(waiter);
            next.into_iter().for_each(Waker::wake);
        }
    }
}

impl Buffer {
    /// The length that a record takes, if it may be sent at all.
    fn check(&self, record: &Record<'_>) -> Result<usize, Error> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        record.check(self.record_max)?;
        Ok(record.as_ref().encoded_len())
    }

    /// Whether there is room. A record that is larger than the whole buffer has it when nothing else waits.
    fn fits(&self, len: usize) -> bool {
        self.waiting == 0 || self.waiting + len <= self.limit
    }

    fn is_next(&self, waiter: Option<u64>) -> bool {
        self.room.front().is_none_or(|(first, _)| Some(*first) == waiter)
    }

    fn wait(&mut self, waiter: Option<u64>, waker: &Waker) -> u64 {
        let entry = waiter.and_then(|waiter| self.room.iter_mut().find(|(other, _)| *other == waiter));
        if let Some((waiter, known)) = entry {
            known.clone_from(waker);
            return *waiter;
        }
        self.waiters += 1;
        self.room.push_back((self.waiters, waker.clone()));
        self.waiters
    }

    /// A waiter is served or has given up. Returns the next one, which may have room.
    #[must_use = "the next in turn must be woken, once the buffer is unlocked"]
    fn leave(&mut self, waiter: u64) -> Option<Waker> {
        if let Some(place) = self.room.iter().position(|(other, _)| *other == waiter) {
            self.room.remove(place);
        }
        self.next_waiter()
    }

    fn next_waiter(&self) -> Option<Waker> {
        self.room.front().map(|(_, waker)| waker.clone())
    }

    fn push(&mut self, record: &Record<'_>) -> Pending {
        let record = record.as_ref();
        let len = record.encoded_len();
        if self.open.as_ref().is_some_and(|open| open.builder.len() + len > self.batch_len_max) {
            self.close_open();
        }
        let spares = &mut self.spares;
        let open = self.open.get_or_insert_with(|| OpenBatch {
            builder: BatchBuilder::new(spares.pop().unwrap_or_default()),
            completion: Arc::default(),
        });
        let index = open.builder.records();
        open.builder.push(record);
        self.waiting += len;
        Pending::new(Arc::clone(&open.completion), index)
    }

    /// Lets the open batch go as it is.
    pub(crate) fn close_open(&mut self) {
        if let Some(OpenBatch { builder, completion }) = self.open.take() {
            let (bytes, records) = builder.into_unsealed();
            self.full.push_back(FullBatch { bytes, records, completion });
        }
    }

    /// Whether an open batch waits, to be sent after the linger.
    pub(crate) fn has_open(&self) -> bool {
        self.open.is_some()
    }

    /// How many batches wait, apart from the open one.
    pub(crate) fn full_len(&self) -> usize {
        self.full.len()
    }

    fn next(&mut self, open_too: bool) -> Option<FullBatch> {
        if self.full.is_empty() && open_too {
            self.close_open();
        }
        self.full.pop_front()
    }

    /// Keeps a batch's bytes for another one.
    fn recycle(&mut self, bytes: Vec<u8>) {
        // A buffer that one large record needed is not kept: it would hold its size for ever.
        if self.spares.len() < SPARES_MAX && bytes.capacity() <= 2 * self.batch_len_max {
            self.spares.push(bytes);
        }
    }

    /// The topic is open, and takes this much.
    pub(crate) fn set_limits(&mut self, record_max: u32, batch_len_max: usize) {
        self.record_max = record_max;
        self.batch_len_max = batch_len_max;
    }

    /// Encoded bytes that were taken and not answered.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Why no record is taken now, if none is.
    pub(crate) fn refusal(&self) -> Option<Error> {
        self.refusal.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keyway_client::{ErrorKind, wait_for};
    use std::time::Duration;

    const ROOM: usize = 100;

    fn shared() -> Shared {
        let shared = Shared::new(ROOM);
        shared.lock().set_limits(1000, BATCH_HEADER_LEN + 48);
        shared
    }

    /// Takes `count` records of 8 bytes, 16 encoded.
    fn fill(shared: &Shared, count: usize) {
        for _ in 0..count {
            drop(shared.try_take(Record::new("12345678")).unwrap());
        }
    }

    fn answer_one(shared: &Shared) -> u32 {
        let batch = shared.next(true).expect("a batch waits");
        shared.answered(batch.bytes, batch.records);
        batch.records
    }

    #[test]
    fn records_share_a_batch_until_it_is_full() {
        let shared = shared();
        fill(&shared, 5);
        let mut buffer = shared.lock();
        assert_eq!(buffer.next(false).unwrap().records, 3);
        assert!(buffer.next(false).is_none(), "the open batch lingers");
        assert_eq!(buffer.next(true).unwrap().records, 2);
        assert!(buffer.next(true).is_none());
    }

    #[test]
    fn a_full_buffer_gives_the_record_back() {
        let shared = shared();
        fill(&shared, 6);
        let error = shared.try_take(Record::new("the seventh").key("k")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert_eq!(error.into_record(), Some(Record::new("the seventh").key("k").into_owned()));
        assert_eq!(answer_one(&shared), 3);
        fill(&shared, 3);
    }

    #[test]
    fn a_record_that_is_larger_than_the_buffer_passes_alone() {
        let shared = shared();
        let large = vec![0; 500];
        drop(shared.try_take(Record::new(&large)).unwrap());
        assert_eq!(shared.try_take(Record::new("x")).unwrap_err().kind(), ErrorKind::Full);
        answer_one(&shared);
        fill(&shared, 1);
        assert_eq!(shared.try_take(Record::new(&large)).unwrap_err().kind(), ErrorKind::Full);
    }

    #[test]
    fn a_record_that_is_too_large_is_refused_and_the_next_passes() {
        let shared = shared();
        let error = shared.try_take(Record::new(vec![0; 1001])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RecordTooLarge);
        assert!(error.to_string().contains("1001") && error.to_string().contains("1000"), "{error}");
        drop(shared.try_take(Record::new(vec![0; 1000])).unwrap());
    }

    #[test]
    fn senders_that_wait_for_room_are_served_in_order() {
        let shared = shared();
        fill(&shared, 6);
        let mut first = Box::pin(shared.take(Record::new(vec![0; 80])));
        let mut second = Box::pin(shared.take(Record::new("s")));
        let poll = |take: &mut Pin<Box<Take<'_>>>| wait_for(take.as_mut(), Some(Duration::ZERO));
        assert!(poll(&mut first).is_none() && poll(&mut second).is_none());
        answer_one(&shared);
        assert!(poll(&mut second).is_none(), "there is room for the second, and the first is before it");
        assert_eq!(shared.try_take(Record::new("t")).unwrap_err().kind(), ErrorKind::Full, "nobody jumps the queue");
        answer_one(&shared);
        assert!(poll(&mut first).unwrap().is_ok());
        answer_one(&shared);
        assert!(poll(&mut second).unwrap().is_ok());
    }

    #[test]
    fn a_sender_that_gives_up_leaves_its_place_to_the_next() {
        let shared = shared();
        fill(&shared, 6);
        let mut first = Box::pin(shared.take(Record::new(vec![0; 80])));
        let mut second = Box::pin(shared.take(Record::new("s")));
        assert!(wait_for(first.as_mut(), Some(Duration::ZERO)).is_none());
        assert!(wait_for(second.as_mut(), Some(Duration::ZERO)).is_none());
        answer_one(&shared);
        drop(first);
        assert!(wait_for(second, None).unwrap().is_ok(), "it was woken, or this would wait for ever");
    }

    #[test]
    fn a_refusal_reaches_senders_that_wait() {
        let shared = shared();
        fill(&shared, 6);
        let mut waiting = Box::pin(shared.take(Record::new("w")));
        assert!(wait_for(waiting.as_mut(), Some(Duration::ZERO)).is_none());
        shared.refuse(Some(Error::ShuttingDown { server: "s".into() }));
        let error = wait_for(waiting, None).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ShuttingDown);
        assert_eq!(error.into_record(), Some(Record::new("w").into_owned()));
        shared.refuse(None);
        answer_one(&shared);
        fill(&shared, 1);
    }
}
