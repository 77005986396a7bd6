//! The processes that `keyway bench` starts, seen from inside.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::io::{self, BufRead};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use keyway::{
    Broker, Consumer, ConsumerStats, Error, FabricChoice, NoSuchFabric, Overflow, Producer, Start, TopicSettings,
    one_line,
};

use super::wire::{BrokerTask, ConsumerTask, Order, ProducerTask, Received, Task, Word, tell};
use crate::failure::Failure;

/// Orders that wait for a process. There are a few a second; the next one waits in the pipe.
const ORDERS_MAX: usize = 16;

/// What takes longer has gone wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a consumer looks for records before it looks for orders.
const LOOK: Duration = Duration::from_millis(10);

/// How often the clock is asked, in bytes received: often enough for every size, seldom enough to cost nothing.
const CLOCK_BYTES: usize = 256 << 10;

/// Does what the first line of standard input says. Ends when standard input does.
pub(crate) fn part() -> Result<(), Failure> {
    let mut lines = io::stdin().lock().lines();
    let read = |source| Failure::Read { source };
    let Some(first) = lines.next() else { return Ok(()) };
    let task: Task = serde_json::from_str(&first.map_err(read)?).map_err(|error| read(error.into()))?;
    drop(lines);
    let orders = orders()?;
    let done = match task {
        Task::Broker(task) => serve(&task, &orders),
        Task::Producer(task) => produce(&task, &orders),
        Task::Consumer(task) => consume(&task, &orders),
    };
    // The parent says it, in one line with what it was doing.
    done.or_else(|failed| say(&Word::Failed(failed)))
}

/// Reads the orders on a thread of its own.
fn orders() -> Result<Receiver<Order>, Failure> {
    let (send, orders) = sync_channel(ORDERS_MAX);
    let read = move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str(&line) else { return };
            if send.send(order).is_err() {
                return;
            }
        }
    };
    let spawned = std::thread::Builder::new().name("bench-orders".into()).spawn(read);
    spawned.map_err(|source| Failure::Thread { source })?;
    Ok(orders)
}

fn say(word: &Word) -> Result<(), Failure> {
    tell(io::stdout().lock(), word).map_err(|source| Failure::Write { source })
}

/// Says something, and gives up if nobody listens.
fn report(word: &Word) -> Result<(), String> {
    say(word).map_err(|failure| failure.to_string())
}

fn fabric(name: &str) -> Result<FabricChoice, String> {
    name.parse().map_err(|error: NoSuchFabric| error.to_string())
}

fn serve(task: &BrokerTask, orders: &Receiver<Order>) -> Result<(), String> {
    let fabric = fabric(&task.fabric)?;
    let broker = Broker::builder()
        .unix(&task.socket)
        .fabric(fabric)
        .segment_size(task.segment_size)
        // The ring, and a segment to go on with.
        .pool_size(task.segment_size * (u64::from(task.segments) + 1))
        .topic_segments(task.segments)
        .record_max(task.record_max)
        .start()
        .map_err(|error| one_line(&error))?;
    report(&Word::Ready)?;
    // It is told nothing more: this waits for the end of the lines.
    let _ = orders.recv();
    broker.stop(PATIENCE).map(drop).map_err(|error| one_line(&error))
}

fn produce(task: &ProducerTask, orders: &Receiver<Order>) -> Result<(), String> {
    let settings = TopicSettings { segments: 0, record_max: 0, overflow: Overflow::DropOldest };
    let mut builder = Producer::builder(task.server.as_str(), &task.topic)
        .name("bench")
        .fabric(fabric(&task.fabric)?)
        .settings(settings);
    if let Some(batch) = task.batch {
        builder = builder.batch_max(batch);
    }
    let producer = builder.connect().map_err(|error| error.to_string())?;
    report(&Word::Ready)?;
    let payload: Vec<u8> = (b'a'..=b'z').cycle().take(task.size).collect();
    let mut allowed = 0;
    let mut sent = 0;
    let mut last = None;
    loop {
        if last == Some(sent) {
            break;
        }
        let order = if sent == allowed { orders.recv().map_err(TryRecvError::from) } else { orders.try_recv() };
        match order {
            Ok(Order::Publish(records)) => allowed = allowed.max(records),
            Ok(Order::Fill(records)) => {
                allowed = records;
                last = Some(records);
            }
            Ok(Order::Stop) => break,
            Ok(other) => return Err(format!("a producer was told {other:?}")),
            Err(TryRecvError::Empty) => {}
            // The parent is gone, and nobody wants to know how it ends.
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        // Orders need not be looked for with every record.
        let burst = (CLOCK_BYTES / task.size.max(1)).max(1) as u64;
        for _ in 0..burst.min(allowed - sent) {
            // What became of it is told by `close`, for all of them at once.
            drop(producer.enqueue(&payload).map_err(|error| error.to_string())?);
            sent += 1;
        }
    }
    producer.close(PATIENCE).map_err(|error| format!("not everything that was published is committed: {error}"))?;
    report(&Word::Published { records: sent })
}

fn consume(task: &ConsumerTask, orders: &Receiver<Order>) -> Result<(), String> {
    let mut builder = Consumer::builder(task.server.as_str(), &task.topic)
        .name("bench")
        .fabric(fabric(&task.fabric)?)
        .start(Start::Earliest)
        .scope(task.scope.into())
        .epoch(task.epoch);
    if let Some(landing) = task.landing {
        builder = builder.landing(landing);
    }
    if let Some(reads) = task.reads {
        builder = builder.reads(reads);
    }
    let consumer = builder.connect().map_err(|error| error.to_string())?;
    report(&Word::Ready)?;
    let mut reception = Reception { task, consumer, count: Count::default(), told: 0, next_tick: Instant::now() };
    let received = match orders.recv() {
        Ok(Order::Pull { seconds, end }) => reception.pull(Duration::from_secs_f64(seconds), end)?,
        Ok(Order::Follow) => reception.follow(orders)?,
        Ok(other) => return Err(format!("a consumer was told {other:?}")),
        Err(_) => return Ok(()),
    };
    // Whatever it says of the end, the figures are complete.
    let _ = reception.consumer.close(PATIENCE);
    report(&Word::Received(received))
}

struct Reception<'a> {
    task: &'a ConsumerTask,
    consumer: Consumer,
    count: Count,
    /// Records that the parent has heard of.
    told: u64,
    next_tick: Instant,
}

/// What has come so far.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    records: u64,
    bytes: u64,
    lost: u64,
    passes: u64,
    /// Bytes since the clock was asked.
    unclocked: usize,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Reception<'_> {
    /// READs the whole topic, up to the record `end`, over and over.
    fn pull(&mut self, time: Duration, end: u64) -> Result<Received, String> {
        let before = self.consumer.stats();
        'passes: loop {
            let mut next = self.consumer.seek_timeout(Start::Earliest, PATIENCE).map_err(|error| error.to_string())?;
            if next >= end {
                return Err(format!("there is nothing to read before record {end}"));
            }
            self.count.passes += 1;
            while next < end {
                next = self.take(PATIENCE, next)?.ok_or_else(|| format!("record {next} has not come"))?;
                if self.is_clock_due() && self.tick()? >= time {
                    break 'passes;
                }
            }
        }
        Ok(self.received(&before))
    }

    /// Receives what is published until it is told to stop, and tells how far it is.
    fn follow(&mut self, orders: &Receiver<Order>) -> Result<Received, String> {
        let mut next = 0;
        loop {
            let behind = self.take(LOOK, next)?;
            next = behind.unwrap_or(next);
            if behind.is_some() && !self.is_clock_due() {
                continue;
            }
            match orders.try_recv() {
                Ok(Order::Stop) => return Ok(self.received(&ConsumerStats::default())),
                Ok(other) => return Err(format!("a consumer was told {other:?}")),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Err("the measurement was given up".into()),
            }
            if behind.is_some() {
                self.tick()?;
                if self.count.records < self.told + self.task.stride {
                    continue;
                }
            }
            // Whoever waits may be all that the producers wait for.
            if self.count.records > self.told {
                self.tell()?;
            }
        }
    }

    /// Takes one record, the next of which is expected to be `next`. Returns the one behind it, or behind a gap.
    fn take(&mut self, patience: Duration, next: u64) -> Result<Option<u64>, String> {
        let record = match self.consumer.recv_timeout(patience) {
            Ok(None) => return Ok(None),
            Ok(Some(record)) => record,
            Err(Error::Lagged { from, to }) => {
                self.count.lost += to - from;
                return Ok(Some(to));
            }
            Err(error) => return Err(error.to_string()),
        };
        let (sequence, len) = (record.sequence(), record.payload().len());
        if sequence != next || len != self.task.size {
            return Err(format!("record {sequence} of {len} bytes has come where record {next} was expected"));
        }
        let count = &mut self.count;
        count.records += 1;
        count.bytes += len as u64;
        count.unclocked += len.max(1);
        if count.first.is_none() {
            count.first = Some(Instant::now());
        }
        Ok(Some(sequence + 1))
    }

    fn is_clock_due(&self) -> bool {
        self.count.unclocked >= CLOCK_BYTES
    }

    /// Looks at the clock. Returns the time since the first record.
    fn tick(&mut self) -> Result<Duration, String> {
        let now = Instant::now();
        if self.count.unclocked > 0 {
            self.count.last = Some(now);
            self.count.unclocked = 0;
        }
        if now >= self.next_tick {
            self.next_tick = now + self.task.tick;
            self.tell()?;
        }
        Ok(self.count.first.map_or(Duration::ZERO, |first| now - first))
    }

    fn tell(&mut self) -> Result<(), String> {
        self.told = self.count.records;
        report(&Word::At { records: self.count.records, bytes: self.count.bytes })
    }

    fn received(&mut self, before: &ConsumerStats) -> Received {
        if self.count.unclocked > 0 {
            self.count.last = Some(Instant::now());
        }
        let count = self.count;
        let stats = self.consumer.stats();
        let took = count.first.zip(count.last).map_or(Duration::ZERO, |(first, last)| last - first);
        Received {
            records: count.records,
            bytes: count.bytes,
            seconds: took.as_secs_f64(),
            lost: count.lost,
            passes: count.passes,
            epochs: stats.epochs - before.epochs,
            rekeys: stats.rekeys - before.rekeys,
            reads: stats.reads - before.reads,
            rereads: stats.rereads - before.rereads,
            encoded: stats.bytes - before.bytes,
            reconnects: stats.reconnects,
            remote_access_errors: stats.remote_access_errors,
        }
    }
}
