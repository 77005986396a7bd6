//! What joins the machine to the application: views and arenas, items, events, the end.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flume::{Sender, TrySendError};
use keyway_client::{Connected, Error, Progress, Role, SessionPlan};
use keyway_fabric::{DomainId, Event as FabricEvent, Fabric, LocalId, Machine, Memory, Now, Time, Transmit};
use keyway_schema::bootstrap::Role as Part;
use keyway_schema::limits::CONTROL_SLOT;
use keyway_schema::message::Start;

use crate::Event;
use crate::events::EventSink;
use crate::machine::{ConsumerMachine, Counters, Fault, LandingMemory, Output};
use crate::record::{Record, Run};
use crate::stats::StatsCell;

/// Receive slots for the broker's messages: twice the most grants that a subscription may hold, so that the broker never
/// waits for credits with a grant.
const RECEIVE_SLOTS: u16 = 128;

/// The most send slots: a consumer answers a grant with one message at most.
const SEND_SLOTS_MAX: u16 = 64;

/// How long a consumer that was dropped takes to say goodbye.
const ABANDON_TIME: Duration = Duration::from_millis(200);

/// How much of a close's deadline is kept for ending the thread.
const END_SHARE: u32 = 4;
const END_TIME_MAX: Duration = Duration::from_millis(50);

/// How often gaps are logged at most.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Items that wait for the application. Each holds landing memory, which is what bounds them in the first place; this
/// bounds the many small ones of message scope.
pub(crate) const ITEMS_MAX: usize = 1024;

/// What the application asks for.
#[derive(Debug)]
pub(crate) enum Command {
    /// Say goodbye to the broker, then end.
    Close { deadline: Duration, reply: Sender<Result<(), Error>> },
    /// Go on elsewhere. Answered with [`Item::Sought`] among the items.
    Seek { ticket: u64, start: Start },
}

/// Something for the application, in the order of the log.
#[derive(Debug)]
pub(crate) enum Item {
    Batches(Run),
    Record(Record),
    /// A gap or a new log; then it goes on.
    Notice(Error),
    /// What comes from here on is from where a seek wanted to be.
    Sought {
        ticket: u64,
        sequence: u64,
    },
}

/// What driver and application share besides the items.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) stats: StatsCell,
    /// The driver could not hand over an item: whoever takes one wakes it.
    stalled: AtomicBool,
    /// What ended the consumer.
    end: Mutex<Option<Error>>,
}

impl Shared {
    /// Whether the driver waits for an item to be taken; it is told once.
    pub(crate) fn take_stall(&self) -> bool {
        // SeqCst, paired with `ConsumerRole::has_room`: either the driver finds the room that was just made, or this finds
        // that it stalled.
        self.stalled.load(Ordering::SeqCst) && self.stalled.swap(false, Ordering::SeqCst)
    }

    /// What ended the consumer, if it did not end in order.
    pub(crate) fn end(&self) -> Option<Error> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_end(&self, error: Error) {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// A consumer's role.
#[derive(Debug)]
pub(crate) struct ConsumerRole {
    machine: ConsumerMachine,
    shared: Arc<Shared>,
    server: String,
    items: Sender<Item>,
    /// Items of a fabric that was left, for which there was no room yet: as many as the machine lets wait.
    left_over: VecDeque<Item>,
    events: EventSink,
    domain: Option<DomainId>,
    landing: Option<LandingMemory>,
    retired: Vec<(LocalId, u32)>,
    published: Counters,
    opened: bool,
    closing: Option<Closing>,
    lag: LagLog,
    end: Option<Option<Error>>,
}

/// A close that is under way.
#[derive(Debug)]
struct Closing {
    until: Time,
    after: Duration,
    reply: Option<Sender<Result<(), Error>>>,
}

/// Gaps that were not logged yet.
#[derive(Debug, Default)]
struct LagLog {
    logged: u64,
    next: Time,
}

impl ConsumerRole {
    pub(crate) fn new(
        machine: ConsumerMachine,
        shared: Arc<Shared>,
        server: String,
        items: Sender<Item>,
        events: EventSink,
    ) -> Self {
        Self {
            machine,
            shared,
            server,
            items,
            left_over: VecDeque::new(),
            events,
            domain: None,
            landing: None,
            retired: Vec::new(),
            published: Counters::default(),
            opened: false,
            closing: None,
            lag: LagLog::default(),
            end: None,
        }
    }

    /// Whether an item can be handed over now. If not, the driver is woken when one is taken.
    fn has_room(&self) -> bool {
        if !self.items.is_full() {
            return true;
        }
        self.shared.stalled.store(true, Ordering::SeqCst);
        !self.items.is_full()
    }

    /// Hands out what the machine has for the application, as far as there is room.
    fn hand_over(&mut self, fabric: &mut dyn Fabric) -> Result<usize, Error> {
        let mut work = 0;
        while !self.left_over.is_empty() && self.has_room() {
            work += 1;
            self.left_over.pop_front().into_iter().for_each(|item| self.send(item));
        }
        while let Some(next) = self.machine.peek_output() {
            let is_item = !matches!(next, Output::Land { .. } | Output::Retired { .. });
            if is_item && !(self.left_over.is_empty() && self.has_room()) {
                break;
            }
            work += 1;
            match self.machine.poll_output().expect("it was just seen") {
                Output::Land { arenas, size } => self.land(arenas, size, fabric)?,
                Output::Retired { local, slot } => self.retired.push((local, slot)),
                output => self.item(output, fabric).into_iter().for_each(|item| self.send(item)),
            }
        }
        Ok(work)
    }

    /// An output as the application gets it, if it is for the application.
    fn item(&mut self, output: Output, fabric: &mut dyn Fabric) -> Option<Item> {
        Some(match output {
            Output::Batches { span, from } => Item::Batches(Run::new(fabric.view(span), from)),
            Output::Record { span, sequence, time } => Item::Record(Record::alone(fabric.view(span), sequence, time)),
            Output::Lagged { from, to } => Item::Notice(Error::Lagged { from, to }),
            Output::Sought { ticket, sequence } => Item::Sought { ticket, sequence },
            Output::Restarted { instance } => Item::Notice(Error::Restarted { instance }),
            Output::Land { .. } | Output::Retired { .. } => return None,
        })
    }

    /// Hands over an item that there is room for.
    fn send(&self, item: Item) {
        match self.items.try_send(item) {
            // Nobody will take it: the consumer is being dropped.
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => unreachable!("this thread alone sends, and it has seen room"),
        }
    }

    /// Makes landing memory in place of what there was. What is viewed of that stays until its views are gone.
    fn land(&mut self, arenas: u32, size: u32, fabric: &mut dyn Fabric) -> Result<(), Error> {
        let failed = Error::fabric("making landing memory");
        self.retired.clear();
        if let Some(old) = self.landing.take() {
            fabric.free_local(old.local).map_err(&failed)?;
            fabric.free_local(old.word).map_err(&failed)?;
        }
        let domain = self.domain.expect("the driver prepares a role before anything else");
        let local = fabric.local(domain, arenas, size).map_err(&failed)?;
        let word = fabric.local(domain, 1, 8).map_err(&failed)?;
        let memory = LandingMemory { local, arenas, size, word };
        self.landing = Some(memory);
        self.machine.landed(memory);
        Ok(())
    }

    /// Gives back the arenas whose records the application has dropped, when they are of use: to be asked for an arena that is still
    /// viewed makes the fabric wake this thread for it.
    fn reclaim(&mut self, fabric: &mut dyn Fabric) -> usize {
        if !self.machine.wants_arenas() {
            return 0;
        }
        let before = self.retired.len();
        let machine = &mut self.machine;
        self.retired.retain(|(local, slot)| {
            let free = fabric.reset(*local, *slot);
            if free {
                machine.arena_free(*local, *slot);
            }
            !free
        });
        before - self.retired.len()
    }

    fn publish(&mut self) {
        let counters = *self.machine.counters();
        if counters != self.published {
            self.published = counters;
            self.shared.stats.store(&counters);
        }
        self.events.hand_over(self.machine.events());
    }

    /// Says how many records were missed, once a second at most.
    fn log_lag(&mut self, now: Now) {
        let lagged = self.published.lagged;
        if lagged > self.lag.logged && self.lag.next <= now.time {
            let topic = &self.machine.config().topic;
            tracing::warn!(%topic, records = lagged - self.lag.logged, "the ring dropped records before they were read");
            self.lag = LagLog { logged: lagged, next: now.time + LOG_INTERVAL };
        }
    }

    fn close(&mut self, now: Now, deadline: Duration, reply: Option<Sender<Result<(), Error>>>) {
        self.machine.leave();
        let kept = END_TIME_MAX.min(deadline / END_SHARE);
        self.closing = Some(Closing { until: now.time + deadline.saturating_sub(kept), after: deadline, reply });
    }

    /// Ends the consumer when it has left, or cannot in time.
    fn closed(&mut self, now: Now) -> usize {
        let Some(closing) = &mut self.closing else { return 0 };
        let left = self.machine.has_left();
        if !left && closing.until > now.time {
            return 0;
        }
        let result = if left {
            Ok(())
        } else {
            let what = format!("saying goodbye to {}", self.server);
            Err(Error::Timeout { what, after: closing.after, last: None })
        };
        if let Some(reply) = closing.reply.take() {
            // Whoever asked may have gone.
            let _ = reply.send(result.clone());
        }
        self.closing = None;
        self.end = Some(result.err());
        1
    }

    fn refusal(&self, code: u16, text: &str) -> Error {
        Error::refused(format!("the subscription to {}", self.machine.config().topic), code, text)
    }

    /// Ends the consumer if the broker has refused it for good.
    fn refused(&mut self) -> usize {
        let Some(refusal) = self.machine.refusal() else { return 0 };
        if self.end.is_some() {
            return 0;
        }
        let error = self.refusal(refusal.code, &refusal.text);
        self.shared.set_end(error.clone());
        self.end = Some(Some(error));
        1
    }
}

impl Machine for ConsumerRole {
    fn handle(&mut self, now: Now, event: FabricEvent, memory: &mut dyn Memory) {
        self.machine.handle(now, event, memory);
    }

    fn handle_timeout(&mut self, now: Now, memory: &mut dyn Memory) {
        self.machine.handle_timeout(now, memory);
    }

    fn timeout(&self) -> Option<Time> {
        let closing = self.closing.as_ref().map(|closing| closing.until);
        self.machine.timeout().into_iter().chain(closing).min()
    }

    fn transmit(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        self.machine.transmit(now, memory)
    }
}

impl Role for ConsumerRole {
    type Command = Command;

    fn plan(&self) -> SessionPlan {
        let config = self.machine.config();
        SessionPlan {
            role: Part::Consumer,
            name: config.name.clone(),
            receive_slots: RECEIVE_SLOTS,
            receive_size: CONTROL_SLOT,
            send_slots_max: SEND_SLOTS_MAX,
            send_size_max: CONTROL_SLOT,
            work_depth: config.work_depth(),
            remote_read: false,
            offers_max: 0,
        }
    }

    fn prepare(&mut self, domain: DomainId, fabric: &mut dyn Fabric) -> Result<(), Error> {
        self.domain = Some(domain);
        self.shared.stats.moved_to(fabric.name());
        Ok(())
    }

    fn leave(&mut self, fabric: &mut dyn Fabric) {
        // What has landed here and was not handed over yet is kept by its views.
        while let Some(output) = self.machine.poll_output() {
            let item = self.item(output, fabric);
            self.left_over.extend(item);
        }
        self.machine.landing_lost();
        self.retired.clear();
        self.domain = None;
        let Some(LandingMemory { local, word, .. }) = self.landing.take() else { return };
        for local in [local, word] {
            if let Err(error) = fabric.free_local(local) {
                tracing::debug!(%local, %error, "landing memory goes with its fabric");
            }
        }
    }

    fn command(&mut self, now: Now, command: Command) {
        match command {
            Command::Close { deadline, reply } => self.close(now, deadline, Some(reply)),
            Command::Seek { ticket, start } => self.machine.seek(ticket, start),
        }
    }

    fn connected(&mut self, now: Now, connected: &Connected, _memory: &mut dyn Memory) {
        self.machine.connected(now, connected.instance, connected.session, connected.channel);
    }

    fn disconnected(&mut self, _now: Now, cause: Error) -> Error {
        self.machine.disconnected();
        match self.machine.last_fault() {
            None => {
                self.machine.events().push(Event::SessionLost { code: None, reason: cause.to_string() });
                cause
            }
            Some(Fault::Refused { code, text }) => self.refusal(*code, text),
            Some(fault) => Error::Lost { server: self.server.clone(), reason: fault.to_string() },
        }
    }

    fn turn(&mut self, now: Now, fabric: &mut dyn Fabric) -> Result<usize, Error> {
        // Before the items: whoever has a record finds it counted.
        self.publish();
        let mut work = self.hand_over(fabric)?;
        work += self.reclaim(fabric);
        self.opened |= self.machine.is_subscribed();
        self.log_lag(now);
        work += self.closed(now);
        work += self.refused();
        Ok(work)
    }

    fn progress(&self) -> Progress {
        match &self.end {
            Some(end) => Progress::Over(end.clone()),
            None if self.opened => Progress::Ready { now: self.machine.is_subscribed() },
            None => Progress::Opening,
        }
    }

    fn fail(&mut self, _now: Now, cause: Error) {
        if let Some(reply) = self.closing.take().and_then(|closing| closing.reply) {
            let _ = reply.send(Err(cause.clone()));
        }
        self.publish();
        self.shared.set_end(cause);
    }

    fn abandon(&mut self, now: Now) {
        if self.closing.is_none() {
            self.close(now, ABANDON_TIME, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use keyway_fabric::LocalSpan;
    use keyway_fabric::soft::{SoftConfig, SoftFabric};
    use keyway_schema::TopicName;
    use keyway_schema::batch::BatchBuilder;
    use keyway_schema::record::RecordRef;

    use super::*;
    use crate::events::events;
    use crate::machine::MachineConfig;

    const ARENA: u32 = 2 << 20;

    fn role(items: Sender<Item>) -> ConsumerRole {
        let machine = ConsumerMachine::new(MachineConfig::new(TopicName::new("t").unwrap()));
        let (sink, _) = events();
        ConsumerRole::new(machine, Arc::new(Shared::default()), "keyway://test:1".into(), items, sink)
    }

    fn fabric() -> SoftFabric {
        SoftFabric::new(SoftConfig::default()).unwrap()
    }

    /// Lands a batch of one record.
    fn land(fabric: &mut SoftFabric, local: LocalId, offset: u32, payload: &[u8]) -> LocalSpan {
        let mut builder = BatchBuilder::default();
        builder.push(RecordRef { key: b"", headers: b"", payload });
        let bytes = builder.finish(1, 1, 1);
        let span = LocalSpan { local, slot: 0, offset, len: bytes.len() as u32 };
        fabric.bytes_mut(span).copy_from_slice(&bytes);
        span
    }

    #[test]
    fn what_was_read_on_a_fabric_that_is_left_is_handed_over_in_order_behind_it() {
        let (items, received) = flume::bounded(1);
        let mut role = role(items);
        let mut former = fabric();
        let empty = former.holdings();
        let domain = former.domain().unwrap();
        role.prepare(domain, &mut former).unwrap();
        let asked = role.machine.wanted(1000).expect("there is no landing memory yet");
        role.machine.put_output(asked);
        role.hand_over(&mut former).unwrap();
        let landing = role.landing.expect("it was made");

        let first = land(&mut former, landing.local, 0, b"first");
        let second = land(&mut former, landing.local, 512, b"second");
        role.machine.put_output(Output::Batches { span: first, from: 0 });
        role.machine.put_output(Output::Lagged { from: 1, to: 5 });
        role.machine.put_output(Output::Batches { span: second, from: 0 });
        role.machine.put_output(Output::Retired { local: landing.local, slot: 0 });
        role.hand_over(&mut former).unwrap();
        role.leave(&mut former);
        former.free_domain(domain).expect("nothing is left in it");
        assert_eq!(former.holdings(), empty);
        drop(former);

        let mut next = fabric();
        let domain = next.domain().unwrap();
        role.prepare(domain, &mut next).unwrap();
        let asked = role.machine.wanted(1000).expect("memory is asked for anew");
        role.machine.put_output(asked);
        let mut seen = Vec::new();
        while seen.len() < 3 {
            role.hand_over(&mut next).unwrap();
            assert_eq!(role.reclaim(&mut next), 0, "no arena of the former fabric is given back");
            seen.push(match received.try_recv().expect("there is room for one at a time") {
                Item::Batches(run) => run.map(|record| record.payload().to_vec()).collect::<Vec<_>>().concat(),
                Item::Notice(error) => error.to_string().into_bytes(),
                other => panic!("{other:?} was not put in"),
            });
        }
        assert_eq!((&seen[0][..], &seen[2][..]), (&b"first"[..], &b"second"[..]));
        assert!(seen[1].starts_with(b"the records 1 to 4 are gone"));
        let landing = role.landing.expect("the new memory did not wait for the application");
        assert_eq!((landing.size, role.shared.stats.load().fabric.as_ref()), (ARENA, "soft"));
    }
}
