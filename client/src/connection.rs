//! A client's connection over its life: attempts, a session, its end, a pause, and the next attempt.
//!
//! This part knows sessions and nothing of what they are for; the driver tells it what the fabric reported and whether the
//! role was content with the session.

#[cfg(test)]
mod tests;

use std::time::Duration;

use keyway_fabric::{DownCause, Event, LinkId, Machine, Memory, Now, Outcome, Time, Transmit, Watch};

use crate::backoff::Backoff;
use crate::bootstrap::{self, Bootstrapper, Polled, Session, Target};
use crate::fabrics::Fabrics;
use crate::{Connected, Error, ErrorKind, SessionPlan};

/// How often a session that is never idle looks after its bootstrap stream; one that sleeps is woken by it.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// How long an endpoint may take to end by itself once the bootstrap stream has ended. The two travel apart, and what the broker said
/// last, a refused READ or the reason for the end, is on the endpoint: closing it at once would throw that away.
const LAST_WORDS: Duration = Duration::from_millis(20);

/// What is said of a device that was never heard while the bootstrap stream to its broker lives on.
const UNHEARD: &str =
    "nothing was ever heard of its device: the RDMA devices may not reach each other (UDP port 4791, MTU, routes)";

/// What has become of the connection.
#[derive(Debug)]
pub(crate) enum Change {
    /// There is a session.
    Connected(Connected),
    /// It is over: its endpoint has gone down.
    Disconnected(Error),
    /// An attempt has failed. Another follows.
    Unreachable(Error),
    /// An attempt goes on once the client has moved to this fabric.
    Moving(String),
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    target: Target,
    attempt_timeout: Duration,
    backoff: Backoff,
    random: fastrand::Rng,
    state: State,
}

#[derive(Debug)]
enum State {
    Pausing {
        until: Time,
    },
    Connecting(Box<Bootstrapper>),
    Up {
        session: Box<Session>,
        check_at: Time,
    },
    /// The bootstrap stream has ended, and the endpoint is listened to for a moment more.
    Ending {
        session: Box<Session>,
        cause: Error,
        until: Time,
    },
    /// The endpoint was closed, and its end is awaited.
    Closing {
        session: Box<Session>,
        cause: Error,
    },
}

/// What the fabric said of the one link that matters.
#[derive(Debug, Default)]
pub(crate) struct LinkReport {
    /// The link.
    link: Option<LinkId>,
    /// Whether it is the role's, which then hears of its events.
    shared: bool,
    up: bool,
    /// Whether anything has come from the peer: a message, or the end of work that only it can bring about.
    heard: bool,
    down: Option<DownCause>,
}

impl LinkReport {
    /// Whether the peer is lost that was never there: a device takes an endpoint for up as soon as it knows the peer's address.
    fn is_unanswered(&self) -> bool {
        self.down == Some(DownCause::PeerLost) && !self.heard
    }
}

impl Connection {
    /// A connection whose first attempt starts at once.
    pub(crate) fn new(target: Target, attempt_timeout: Duration, random: fastrand::Rng) -> Self {
        let state = State::Pausing { until: Time::ZERO };
        Self { target, attempt_timeout, backoff: Backoff::default(), random, state }
    }

    /// Goes on as far as it gets. Called once a turn.
    pub(crate) fn turn(
        &mut self,
        now: Now,
        plan: impl FnOnce() -> SessionPlan,
        report: &mut LinkReport,
        fabrics: &mut Fabrics,
    ) -> Option<Change> {
        match &mut self.state {
            State::Pausing { until } if now.time < *until => None,
            State::Pausing { .. } => match Bootstrapper::start(&self.target, now, self.attempt_timeout) {
                Ok(attempt) => {
                    self.state = State::Connecting(Box::new(attempt));
                    self.connect(now, plan(), report, fabrics)
                }
                Err(error) => Some(self.failed(now, error)),
            },
            State::Connecting(_) => self.connect(now, plan(), report, fabrics),
            State::Up { .. } | State::Ending { .. } if report.down.is_some() => {
                let down = report.down.map(|cause| cause.to_string()).unwrap_or_default();
                let cause = match &self.state {
                    // The broker's own reason says more than the end that it led to.
                    State::Ending { cause, .. } if matches!(cause.kind(), ErrorKind::Refused(_)) => cause.clone(),
                    State::Up { .. } if report.is_unanswered() && fabrics.is_device() => {
                        bootstrap::lost(&self.target.server, format!("{down}; {UNHEARD}"))
                    }
                    _ => bootstrap::lost(&self.target.server, down),
                };
                self.close(cause, now, report, fabrics)
            }
            State::Up { check_at, .. } if now.time < *check_at => None,
            State::Up { session, check_at } => {
                *check_at = now.time + CHECK_INTERVAL;
                if let Err(cause) = session.check(&self.target.server) {
                    let until = now.time + LAST_WORDS;
                    let session = self.take_session();
                    self.state = State::Ending { session, cause, until };
                }
                None
            }
            State::Ending { until, .. } if now.time < *until => None,
            State::Ending { cause, .. } => {
                let cause = cause.clone();
                self.close(cause, now, report, fabrics)
            }
            State::Closing { .. } => self.closed(now, report, fabrics),
        }
    }

    fn connect(
        &mut self,
        now: Now,
        plan: SessionPlan,
        report: &mut LinkReport,
        fabrics: &mut Fabrics,
    ) -> Option<Change> {
        let State::Connecting(attempt) = &mut self.state else { unreachable!("only an attempt is continued") };
        let polled = match report.down.take() {
            Some(cause) => {
                attempt.abort(fabrics.fabric());
                Err(bootstrap::lost(&self.target.server, format!("{cause} while connecting")))
            }
            None => attempt.poll(&self.target, &plan, now, report.up, fabrics),
        };
        match polled {
            Ok(Polled::Pending) => {
                report.link = attempt.link();
                None
            }
            Ok(Polled::Move(fabric)) => Some(Change::Moving(fabric)),
            Ok(Polled::Done(session)) => {
                let connected = session.connected.clone();
                report.shared = true;
                self.state = State::Up { session, check_at: now.time + CHECK_INTERVAL };
                Some(Change::Connected(connected))
            }
            Err(error) => {
                *report = LinkReport::default();
                fabrics.fabric().submit();
                Some(self.failed(now, error))
            }
        }
    }

    /// Closes the session because of `cause`.
    fn close(&mut self, cause: Error, now: Now, report: &mut LinkReport, fabrics: &mut Fabrics) -> Option<Change> {
        let session = self.take_session();
        let fabric = fabrics.fabric();
        fabric.close(session.connected.channel.link);
        fabric.submit();
        self.state = State::Closing { session, cause };
        self.closed(now, report, fabrics)
    }

    /// Takes the session out of the state, which the caller replaces.
    fn take_session(&mut self) -> Box<Session> {
        match std::mem::replace(&mut self.state, State::Pausing { until: Time::ZERO }) {
            State::Up { session, .. } | State::Ending { session, .. } => session,
            State::Pausing { .. } | State::Connecting(_) | State::Closing { .. } => {
                unreachable!("a session is only taken where there is one")
            }
        }
    }

    /// Whether the closed endpoint has ended.
    fn closed(&mut self, now: Now, report: &mut LinkReport, fabrics: &mut Fabrics) -> Option<Change> {
        report.down?;
        let State::Closing { session, cause } = &self.state else { unreachable!("only an end is awaited") };
        bootstrap::free(fabrics.fabric(), &session.connected.channel);
        *report = LinkReport::default();
        let cause = cause.clone();
        self.pause(now);
        Some(Change::Disconnected(cause))
    }

    /// Gives up the attempt, which cannot go on because of `cause`.
    pub(crate) fn give_up(&mut self, now: Now, cause: Error, report: &mut LinkReport, fabrics: &mut Fabrics) -> Change {
        if let State::Connecting(attempt) = &mut self.state {
            attempt.abort(fabrics.fabric());
        }
        *report = LinkReport::default();
        self.failed(now, cause)
    }

    fn failed(&mut self, now: Now, error: Error) -> Change {
        self.pause(now);
        Change::Unreachable(error)
    }

    fn pause(&mut self, now: Now) {
        let pause = self.backoff.failed(self.random.u32(..));
        self.state = State::Pausing { until: now.time + pause };
    }

    /// The role was content with the session: the next failure is a first one.
    pub(crate) fn proved(&mut self) {
        self.backoff.succeeded();
    }

    /// Ends the session because of `cause`; `Disconnected` follows when its endpoint is down.
    pub(crate) fn end_session(
        &mut self,
        now: Now,
        cause: Error,
        report: &mut LinkReport,
        fabrics: &mut Fabrics,
    ) -> Option<Change> {
        match self.state {
            State::Up { .. } | State::Ending { .. } => self.close(cause, now, report, fabrics),
            State::Pausing { .. } | State::Connecting(_) | State::Closing { .. } => None,
        }
    }

    /// Ends it for good. Returns whether an endpoint's end has yet to be polled.
    pub(crate) fn end(&mut self, now: Now, report: &mut LinkReport, fabrics: &mut Fabrics) -> bool {
        let end = Error::Closed { what: "connection", cause: None };
        if let State::Connecting(attempt) = &mut self.state {
            let pending = attempt.link().is_some();
            attempt.abort(fabrics.fabric());
            fabrics.fabric().submit();
            self.state = State::Pausing { until: Time::NEVER };
            return pending;
        }
        self.end_session(now, end, report, fabrics);
        matches!(self.state, State::Closing { .. })
    }

    /// Whether the end that [`end`](Self::end) began is complete.
    pub(crate) fn turn_end(&mut self, now: Now, report: &mut LinkReport, fabrics: &mut Fabrics) -> bool {
        match self.state {
            State::Closing { .. } => self.closed(now, report, fabrics).is_some(),
            _ => report.down.is_some(),
        }
    }

    /// When the next turn is due without anything happening.
    pub(crate) fn timeout(&self) -> Option<Time> {
        match &self.state {
            State::Pausing { until } => Some(*until),
            State::Connecting(attempt) => Some(attempt.deadline()),
            State::Ending { until, .. } => Some(*until),
            // The descriptor wakes the driver when something happens to the bootstrap stream.
            State::Up { .. } | State::Closing { .. } => None,
        }
    }

    /// What to sleep on, beside the fabric.
    pub(crate) fn watches(&self, to: &mut Vec<Watch>) {
        match &self.state {
            State::Connecting(attempt) => attempt.watches(to),
            State::Up { session, .. } => session.watches(to),
            // An ended stream would be readable for ever.
            State::Pausing { .. } | State::Ending { .. } | State::Closing { .. } => {}
        }
    }

    /// Something happened to what was slept on: looks at it in the next turn.
    pub(crate) fn woken(&mut self) {
        if let State::Up { check_at, .. } = &mut self.state {
            *check_at = Time::ZERO;
        }
    }
}

/// A role's machine, with the connection listening: it is told what concerns its session, and nothing of attempts.
pub(crate) struct Attended<'a, R> {
    pub(crate) role: &'a mut R,
    pub(crate) report: &'a mut LinkReport,
}

impl<R: Machine> Machine for Attended<'_, R> {
    fn handle(&mut self, now: Now, event: Event, memory: &mut dyn Memory) {
        let link = match &event {
            Event::Up { link } | Event::Message { link, .. } | Event::Done { link, .. } => *link,
            Event::Down { link, .. } => *link,
            Event::Allocated { .. } => return self.role.handle(now, event, memory),
        };
        // The flushes of an attempt that was given up come late, and concern nobody.
        if self.report.link != Some(link) {
            return;
        }
        self.report.heard |= matches!(event, Event::Message { .. } | Event::Done { result: Ok(Outcome::Finished), .. });
        match event {
            Event::Up { .. } => self.report.up = true,
            Event::Down { cause, .. } => {
                self.report.down = Some(cause);
                if self.report.shared {
                    self.role.handle(now, event, memory);
                }
            }
            event if self.report.shared => self.role.handle(now, event, memory),
            _ => {}
        }
    }

    fn handle_timeout(&mut self, now: Now, memory: &mut dyn Memory) {
        self.role.handle_timeout(now, memory);
    }

    fn timeout(&self) -> Option<Time> {
        self.role.timeout()
    }

    fn transmit(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        self.role.transmit(now, memory)
    }
}
