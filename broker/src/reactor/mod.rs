//! The reactor's thread: it owns the fabric and the core, and is the only one that touches either.
//!
//! A turn reads the clocks once, takes in what other threads ask, drives the core, and tells what the core noticed. When
//! nothing was to be done it rests as the settings say. It ends when it was asked to stop and the core has drained, or when
//! the deadline is over.

mod engine;
mod notices;

use std::time::Duration;

use keyway_fabric::{
    EVENTS_A_TURN, Event, Fabric, Holdings, IdleLimits, IdleStrategy, Now, Rest, SystemClock, Time, Watch, drive,
    wait_any,
};

use self::engine::Engine;
use self::notices::NoticeLog;
use crate::core::{CoreConfig, Counters, Notice};
use crate::inbox::{Inbox, Mail, Request};
use crate::settings::Idle;
use crate::{BrokerError, one_line};

/// How long after the deadline of a stop the core may still take to say goodbye, before everything is cut off.
pub(crate) const STOP_MARGIN: Duration = Duration::from_secs(1);

/// The reactor.
pub(crate) struct Reactor {
    fabric: Box<dyn Fabric + Send>,
    engine: Engine,
    config: CoreConfig,
    inbox: Inbox,
    mail: Mail,
    clock: SystemClock,
    idle: IdleStrategy,
    log: NoticeLog,
    events: Vec<Event>,
    /// When it ends at the latest, once it was asked to stop.
    cut_off: Option<Time>,
}

/// How a broker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Whether everything that was committed had been taken over by its readers, and every session had said goodbye,
    /// before the deadline.
    pub drained: bool,
    /// The counters at the end.
    pub counters: Counters,
}

impl Reactor {
    /// A reactor on a fabric in which the pool that `config` names has been made.
    pub(crate) fn new(
        fabric: Box<dyn Fabric + Send>,
        config: CoreConfig,
        inbox: Inbox,
        mail: Mail,
        up_timeout: Duration,
        idle: Idle,
    ) -> Self {
        Self {
            fabric,
            engine: Engine::new(config.clone(), up_timeout),
            config,
            inbox,
            mail,
            clock: SystemClock::start(),
            idle: IdleStrategy::here(match idle {
                Idle::Latency => IdleLimits::LATENCY,
                Idle::Balanced => IdleLimits::BALANCED,
                Idle::Frugal => IdleLimits::FRUGAL,
            }),
            log: NoticeLog::new(),
            events: Vec::with_capacity(EVENTS_A_TURN),
            cut_off: None,
        }
    }

    /// Runs until stopped.
    ///
    /// # Errors
    ///
    /// The fabric and the core no longer agree, and nothing can go on.
    pub(crate) fn run(mut self) -> Result<Stopped, BrokerError> {
        loop {
            let now = self.clock.now();
            let mut work = self.take_mail(now);
            work += drive(&mut self.engine, &mut *self.fabric, now, &mut self.events).map_err(failed)?;
            work += self.tell_notices(now);
            if let Some(cut_off) = self.cut_off {
                let drained = self.engine.core.is_drained();
                if drained || cut_off <= now.time {
                    return Ok(self.end(drained));
                }
            }
            self.rest(work, now)?;
        }
    }

    /// Does what other threads ask. Losses first: they make room for sessions.
    fn take_mail(&mut self, now: Now) -> usize {
        let mut work = 0;
        while let Some(id) = self.mail.next_loss() {
            self.engine.lost(now, id);
            work += 1;
        }
        while let Some(request) = self.mail.next_request() {
            self.answer(now, request);
            work += 1;
        }
        work
    }

    fn answer(&mut self, now: Now, request: Request) {
        let fabric = &mut *self.fabric;
        // Whoever asked may have given up; what it would have got ends with the answer.
        match request {
            Request::Open { opening, reply } => {
                drop(reply.send(self.engine.open(now, fabric, &self.inbox, &opening)));
            }
            Request::Confirm { session, endpoint, reply } => {
                drop(reply.send(self.engine.confirm(fabric, session, &endpoint)));
            }
            Request::Data { token, stream, reply } => reply(self.engine.attach(now, fabric, token, stream)),
            Request::Counters { reply } => drop(reply.try_send(self.engine.core.counters())),
            #[cfg(test)]
            Request::Panic => panic!("asked to by a test"),
            Request::Stop { deadline } => {
                if self.cut_off.is_none() {
                    tracing::info!(?deadline, "stopping");
                    self.engine.core.shut_down(now, deadline);
                    self.cut_off = Some(now.time + deadline + STOP_MARGIN);
                }
            }
        }
    }

    fn tell_notices(&mut self, now: Now) -> usize {
        let mut work = 0;
        while let Some(notice) = self.engine.core.poll_notice() {
            self.log.write(now.time, &notice);
            if let Notice::SessionClosed { id, refusal, .. } = &notice {
                self.engine.closed(*id, refusal.as_ref());
            }
            work += 1;
        }
        work
    }

    /// Rests until there may be something to do.
    fn rest(&mut self, work: usize, now: Now) -> Result<(), BrokerError> {
        let work = work + usize::from(self.fabric.busy()) + self.events.len();
        match self.idle.after(work, now.time) {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep => return self.sleep(now),
        }
        Ok(())
    }

    fn sleep(&mut self, now: Now) -> Result<(), BrokerError> {
        if !self.mail.is_empty() {
            return Ok(());
        }
        self.fabric.arm();
        self.fabric.poll(&mut self.events, EVENTS_A_TURN);
        if !self.events.is_empty() || self.fabric.busy() {
            return Ok(());
        }
        let due = keyway_fabric::Machine::timeout(&self.engine).into_iter().chain(self.cut_off).min();
        let timer = due.map(|due| due.since(now.time));
        let mut watches = [Watch::reading(self.fabric.fd()), Watch::reading(self.mail.fd())];
        wait_any(&mut watches, timer).map_err(|source| BrokerError::System { what: "wait for the fabric", source })?;
        if watches[1].ready {
            // Before the mail is looked at, so that what is posted after the look wakes.
            self.mail.clear_wakes();
        }
        Ok(())
    }

    /// Ends: gives back what the broker itself holds, and reports what is left.
    fn end(mut self, drained: bool) -> Stopped {
        let counters = self.engine.core.counters();
        if !drained {
            tracing::warn!(
                sessions = counters.sessions,
                "the deadline is over; the sessions that are left are cut off"
            );
            return Stopped { drained, counters };
        }
        let freed =
            self.fabric.free_shared(self.config.pool).and_then(|()| self.fabric.free_domain(self.config.domain));
        let holdings = self.fabric.holdings();
        if let Err(error) = freed {
            tracing::warn!(error = one_line(&error), ?holdings, "the broker ends with something still in use");
        } else if holdings != Holdings::default() {
            tracing::warn!(?holdings, "the broker ends and still holds something");
        }
        tracing::info!(records = counters.records, grants = counters.grants, "stopped");
        Stopped { drained, counters }
    }
}

fn failed(error: keyway_fabric::FabricError) -> BrokerError {
    BrokerError::Failed { thread: "keyway-reactor", reason: one_line(&error) }
}
