//! What joins the machine to the application: batches in, completions out, flushes and the end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use flume::Sender;
use keyway_client::{Connected, Error, Progress, Role, SessionPlan};
use keyway_fabric::{DomainId, Event, Fabric, Machine, Memory, Now, SharedId, Time, Transmit, WallTime};
use keyway_schema::bootstrap::Role as Part;
use keyway_schema::limits::{CONTROL_SLOT, PUBLISH_SLOT};

use crate::buffer::{FullBatch, Shared};
use crate::completion::{Completion, Receipt};
use crate::flight::Ticket;
use crate::lost::Lost;
use crate::machine::{Limits, OFFERS_MAX, ProducerMachine};
use crate::offer::OfferMemory;

/// Receive slots for the broker's answers: the broker has as many send slots for a producer.
const RECEIVE_SLOTS: u16 = 32;

/// The most send slots. The broker posts 16 receives unless configured otherwise, and there are never more than it posts.
const SEND_SLOTS_MAX: u16 = 64;

/// How much of a close's deadline is kept for ending the thread.
const END_SHARE: u32 = 4;
const END_TIME_MAX: Duration = Duration::from_millis(50);

/// What the application asks for, beside publishing.
#[derive(Debug)]
pub(crate) enum Command {
    /// Answer when everything taken so far is answered.
    Flush { deadline: Duration, reply: Reply },
    /// Take nothing more, then as for `Flush`, then end.
    Close { deadline: Duration, reply: Reply },
}

pub(crate) type Reply = Sender<Result<(), Error>>;

/// A producer's role.
#[derive(Debug)]
pub(crate) struct ProducerRole {
    machine: ProducerMachine,
    shared: Arc<Shared>,
    options: Options,
    domain: Option<DomainId>,
    offer_memory: Option<SharedId>,
    /// The limits that the buffer was told last.
    limits: Option<Limits>,
    entries: VecDeque<Entry>,
    /// Batches given to the machine so far; a batch's serial is its place in this count.
    submitted: u64,
    flushes: Vec<Flush>,
    /// When the open batch was first seen, while it lingers.
    open_since: Option<Time>,
    refused: bool,
    opened: bool,
    lost: Lost,
    last: Option<Error>,
    end: Option<Option<Error>>,
}

/// What the builder has settled.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) name: String,
    pub(crate) topic: String,
    pub(crate) server: String,
    pub(crate) linger: Duration,
    /// The length up to which batches are filled; without it, what fits a slot.
    pub(crate) batch_max: Option<usize>,
}

/// A batch that the machine has.
#[derive(Debug)]
struct Entry {
    ticket: Ticket,
    serial: u64,
    records: u32,
    /// Taken away when it is answered out of order.
    completion: Option<Arc<Completion>>,
}

#[derive(Debug)]
struct Flush {
    up_to: u64,
    until: Time,
    after: Duration,
    closing: bool,
    failed: Option<Error>,
    reply: Reply,
}

impl ProducerRole {
    pub(crate) fn new(machine: ProducerMachine, shared: Arc<Shared>, options: Options) -> Self {
        Self {
            machine,
            shared,
            options,
            domain: None,
            offer_memory: None,
            limits: None,
            entries: VecDeque::new(),
            submitted: 0,
            flushes: Vec::new(),
            open_since: None,
            refused: false,
            opened: false,
            lost: Lost::default(),
            last: None,
            end: None,
        }
    }

    /// Tells the buffer what the topic takes, and whether the broker takes anything.
    fn follow(&mut self) {
        let limits = self.machine.limits();
        if limits != self.limits
            && let Some(limits) = limits
        {
            self.limits = Some(limits);
            self.shared.lock().set_limits(limits.record_max, self.batch_len_max(limits));
        }
        self.opened |= self.machine.is_open();
        let refused = self.machine.is_shutting_down();
        if refused != self.refused && self.end.is_none() && !self.is_closing() {
            self.refused = refused;
            let server = self.options.server.clone();
            self.shared.refuse(refused.then_some(Error::ShuttingDown { server }));
        }
    }

    fn batch_len_max(&self, limits: Limits) -> usize {
        let most = limits.batch_max as usize;
        self.options.batch_max.unwrap_or(limits.publish_max as usize).min(most)
    }

    /// Gives batches to the machine while it would send them at once.
    fn submit(&mut self, now: Now) -> usize {
        let mut work = 0;
        while self.shared.is_stocked() && self.machine.room() {
            let lingered = self.lingered(now);
            let Some(FullBatch { bytes, records, completion }) = self.shared.next(lingered) else { break };
            self.open_since = None;
            let ticket = self.machine.submit(bytes, records);
            self.submitted += 1;
            self.entries.push_back(Entry { ticket, serial: self.submitted, records, completion: Some(completion) });
            work += 1;
        }
        work
    }

    /// Whether the open batch has waited long enough, which without a linger it always has.
    fn lingered(&mut self, now: Now) -> bool {
        if self.options.linger.is_zero() {
            return true;
        }
        if !self.shared.lock().has_open() {
            self.open_since = None;
            return false;
        }
        let since = *self.open_since.get_or_insert(now.time);
        since + self.options.linger <= now.time
    }

    /// Tells what became of batches.
    fn answer(&mut self, now: Now) -> usize {
        let mut work = 0;
        while let Some(outcome) = self.machine.poll_outcome() {
            if work == 0 {
                // Before anybody is told: whoever has a receipt finds it in the figures.
                self.publish_stats();
            }
            work += 1;
            let result =
                outcome.result.map(|(sequence, nanoseconds)| Receipt { sequence, time: WallTime(nanoseconds) });
            let place = self.entries.iter().position(|entry| entry.ticket == outcome.ticket);
            let entry = &mut self.entries[place.expect("every batch of the machine has its entry")];
            let completion = entry.completion.take().expect("a batch is answered once");
            let (serial, records) = (entry.serial, entry.records);
            self.shared.answered(outcome.bytes, if result.is_ok() { records } else { 0 });
            if let Err(error) = &result {
                self.failed(now, serial, records, error, Arc::strong_count(&completion) == 1);
            }
            completion.complete(result);
        }
        while self.entries.front().is_some_and(|entry| entry.completion.is_none()) {
            self.entries.pop_front();
        }
        work
    }

    fn failed(&mut self, now: Now, serial: u64, records: u32, error: &Error, unheld: bool) {
        let covering = self.flushes.iter_mut().filter(|flush| serial <= flush.up_to);
        let mut told = false;
        for flush in covering {
            flush.failed.get_or_insert_with(|| error.clone());
            told = true;
        }
        if unheld {
            self.lost.add(records, error, told);
            self.lost.log(now, &self.options.topic, error);
        }
    }

    fn is_closing(&self) -> bool {
        self.flushes.iter().any(|flush| flush.closing)
    }

    fn flush(&mut self, now: Now, deadline: Duration, closing: bool, reply: Reply) {
        if closing {
            self.shared.refuse(Some(self.closed(None)));
        }
        let mut buffer = self.shared.lock();
        buffer.close_open();
        let up_to = self.submitted + buffer.full_len() as u64;
        drop(buffer);
        let kept = if closing { END_TIME_MAX.min(deadline / END_SHARE) } else { Duration::ZERO };
        let failed = self.lost.take_untold();
        let until = now.time + deadline.saturating_sub(kept);
        self.flushes.push(Flush { up_to, until, after: deadline, closing, failed, reply });
    }

    /// Answers flushes that are done or late.
    fn flushed(&mut self, now: Now) -> usize {
        let answered = self.entries.front().map_or(self.submitted, |entry| entry.serial - 1);
        let mut work = 0;
        let mut place = 0;
        while let Some(flush) = self.flushes.get(place) {
            let done = flush.up_to <= answered;
            let late = flush.until <= now.time;
            if done && flush.closing {
                self.machine.leave();
            }
            if !late && !(done && (!flush.closing || self.machine.has_left())) {
                place += 1;
                continue;
            }
            work += 1;
            let flush = self.flushes.remove(place);
            let result = match flush.failed {
                Some(error) => Err(error),
                None if done => Ok(()),
                None => Err(self.late(&flush)),
            };
            if flush.closing {
                let cause = result.as_ref().err().cloned();
                self.end_all(now, self.closed(cause.clone()));
                self.end = Some(cause);
            }
            // Whoever asked may have gone.
            let _ = flush.reply.send(result);
        }
        work
    }

    fn late(&self, flush: &Flush) -> Error {
        let what = if flush.closing { "closing the producer" } else { "flushing the producer" };
        let waiting = self.shared.lock().waiting();
        Error::Timeout {
            what: format!("{what} of topic {} ({waiting} bytes are not committed)", self.options.topic),
            after: flush.after,
            last: self.last.clone().map(Box::new),
        }
    }

    fn closed(&self, cause: Option<Error>) -> Error {
        Error::Closed { what: "producer", cause: cause.map(Box::new) }
    }

    /// Fails everything that is not answered, and takes nothing more.
    fn end_all(&mut self, now: Now, error: Error) {
        self.machine.abandon(&error);
        self.answer(now);
        self.shared.refuse(Some(error.clone()));
        let mut records = 0;
        while let Some(batch) = self.shared.next(true) {
            self.shared.answered(batch.bytes, 0);
            if Arc::strong_count(&batch.completion) == 1 {
                records += batch.records;
            }
            batch.completion.complete(Err(error.clone()));
        }
        // Nothing untold is left: whoever asks from now on hears of the end.
        self.lost.add(records, &error, true);
        self.lost.log_rest(&self.options.topic, &error);
    }

    fn fail_flushes(&mut self, error: &Error) {
        for flush in self.flushes.drain(..) {
            let _ = flush.reply.send(Err(flush.failed.unwrap_or_else(|| error.clone())));
        }
    }

    /// Gets the memory that the next batch must be offered from.
    fn lend(&mut self, fabric: &mut dyn Fabric) -> usize {
        let Some((slots, slot_len)) = self.machine.offer_memory_wanted() else { return 0 };
        let domain = self.domain.expect("a role is prepared before it is driven");
        match fabric.shared(domain, u64::from(slots) * slot_len) {
            Ok(shared) => {
                self.machine.lend(OfferMemory { shared, slots, slot_len });
                self.free_offer_memory(fabric);
                self.offer_memory = Some(shared);
            }
            Err(error) => self.machine.lend_nothing(Error::fabric("making memory for a large batch")(error)),
        }
        1
    }

    fn free_offer_memory(&mut self, fabric: &mut dyn Fabric) {
        if let Some(shared) = self.offer_memory.take()
            && let Err(error) = fabric.free_shared(shared)
        {
            // Its windows are freed in the next turn; the memory then goes with the fabric.
            tracing::debug!(%error, "the former offer memory is still lent");
        }
    }

    fn publish_stats(&mut self) {
        let counts = self.machine.counts();
        let in_flight = self.machine.in_flight() as u64;
        let stats = &mut self.shared.lock().stats;
        stats.batches = counts.batches;
        stats.offers = counts.offers;
        stats.retries = counts.retries;
        stats.reconnects = counts.reconnects;
        stats.batches_in_flight = in_flight;
    }
}

impl Role for ProducerRole {
    type Command = Command;

    fn plan(&self) -> SessionPlan {
        SessionPlan {
            role: Part::Producer,
            name: self.options.name.clone(),
            receive_slots: RECEIVE_SLOTS,
            receive_size: CONTROL_SLOT,
            send_slots_max: SEND_SLOTS_MAX,
            send_size_max: PUBLISH_SLOT,
            // One bind or unbind of each window.
            work_depth: OFFERS_MAX.into(),
            remote_read: true,
            offers_max: OFFERS_MAX,
        }
    }

    fn prepare(&mut self, domain: DomainId, fabric: &mut dyn Fabric) -> Result<(), Error> {
        self.domain = Some(domain);
        self.shared.lock().stats.fabric = fabric.name().into();
        Ok(())
    }

    fn leave(&mut self, fabric: &mut dyn Fabric) {
        self.machine.memory_lost();
        self.free_offer_memory(fabric);
        self.domain = None;
    }

    fn command(&mut self, now: Now, command: Command) {
        match command {
            Command::Flush { deadline, reply } => self.flush(now, deadline, false, reply),
            Command::Close { deadline, reply } => self.flush(now, deadline, true, reply),
        }
    }

    fn connected(&mut self, _now: Now, connected: &Connected, _memory: &mut dyn Memory) {
        self.machine.connected(connected);
    }

    fn disconnected(&mut self, _now: Now, cause: Error) -> Error {
        let cause = self.machine.session_over(cause);
        self.last = Some(cause.clone());
        cause
    }

    fn unreachable(&mut self, _now: Now, cause: &Error) {
        self.last = Some(cause.clone());
    }

    fn turn(&mut self, now: Now, fabric: &mut dyn Fabric) -> Result<usize, Error> {
        let mut work = self.answer(now);
        self.follow();
        if let Some(fatal) = self.machine.fatal().cloned()
            && self.end.is_none()
        {
            self.fail(now, fatal);
            return Ok(1);
        }
        work += self.submit(now);
        work += self.lend(fabric);
        work += self.flushed(now);
        if work > 0 {
            self.publish_stats();
        }
        Ok(work)
    }

    fn progress(&self) -> Progress {
        match &self.end {
            Some(end) => Progress::Over(end.clone()),
            None if self.opened => Progress::Ready { now: self.machine.is_open() },
            None => Progress::Opening,
        }
    }

    fn fail(&mut self, now: Now, cause: Error) {
        self.end_all(now, self.closed(Some(cause.clone())));
        self.fail_flushes(&cause);
        self.end = Some(Some(cause));
    }

    fn abandon(&mut self, now: Now) {
        let closed = self.closed(None);
        self.end_all(now, closed.clone());
        self.fail_flushes(&closed);
        self.end = Some(Some(closed));
    }
}

impl Machine for ProducerRole {
    fn handle(&mut self, now: Now, event: Event, memory: &mut dyn Memory) {
        self.machine.handle(now, event, memory);
    }

    fn handle_timeout(&mut self, now: Now, memory: &mut dyn Memory) {
        self.machine.handle_timeout(now, memory);
    }

    fn timeout(&self) -> Option<Time> {
        let flush = self.flushes.iter().map(|flush| flush.until).min();
        let linger = self.open_since.filter(|_| self.machine.room()).map(|since| since + self.options.linger);
        [self.machine.timeout(), flush, linger].into_iter().flatten().min()
    }

    fn transmit(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        self.machine.transmit(now, memory)
    }
}

impl Drop for ProducerRole {
    fn drop(&mut self) {
        // A panic of the driver must not leave anybody waiting for ever.
        if self.end.is_none() {
            let error = Error::Internal { what: "the producer's driver has panicked".into() };
            for entry in self.entries.drain(..) {
                if let Some(completion) = entry.completion {
                    completion.complete(Err(error.clone()));
                }
            }
            self.end_all(Now::default(), self.closed(Some(error)));
        }
    }
}
