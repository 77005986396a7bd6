//! A consumer's session with a broker: the channel, and how far the subscription has come.

use std::time::Duration;

use keyway_channel::{Channel, ChannelConfig, Post, Received};
use keyway_fabric::{LinkId, LocalSpan, Memory, Now, Op, Outcome, Target, Time, Transmit, Work, WorkError};
use keyway_schema::message::{ArchivedFailed, ArchivedSubscribed, Goodbye, Subscribe, Unsubscribe};
use keyway_schema::{ToBroker, ToClientRef};

use super::MachineConfig;
use super::fault::Fault;
use super::flights::Flights;
use super::output::Output;
use super::parts::Lasting;
use super::segment::CHUNK;
use super::subscription::{Subscription, tell_gap};
use crate::events::Event;

/// One session.
#[derive(Clone, Debug)]
pub(super) struct Session {
    id: u64,
    channel: Channel,
    state: State,
    /// The subscription that was ended last: what the broker has said of it may still be on its way.
    ended: Option<u32>,
    /// Whether the session is counted among those with a subscription.
    is_counted: bool,
    end: End,
}

#[derive(Clone, Debug)]
enum State {
    /// `Subscribe` was not sent yet, for want of room.
    SendSubscribe {
        deadline: Time,
    },
    ExpectSubscribed {
        request: u32,
        deadline: Time,
        /// The consumer wants to be elsewhere meanwhile.
        is_stale: bool,
    },
    Subscribed(Box<Subscription>),
    /// The subscription is to be ended and another one asked for, once its last READ is over. What is read or said under it
    /// counts no more.
    GivenUp {
        subscription: u32,
        flights: Flights,
    },
    /// `Unsubscribe` was sent.
    SayGoodbye,
    /// `Goodbye` was sent.
    Left,
}

/// How far the session's end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Not,
    /// It failed: the link is to be closed.
    Due,
    /// The link is being closed.
    Closing,
}

impl Session {
    pub(super) fn new(id: u64, channel: ChannelConfig, deadline: Time) -> Self {
        let state = State::SendSubscribe { deadline };
        Self { id, channel: Channel::new(channel), state, ended: None, is_counted: false, end: End::Not }
    }

    pub(super) const fn link(&self) -> LinkId {
        self.channel.link()
    }

    pub(super) const fn is_subscribed(&self) -> bool {
        matches!(self.state, State::Subscribed(_))
    }

    /// The consumer wants to go on elsewhere.
    pub(super) fn give_up_subscription(&mut self) {
        match &mut self.state {
            State::ExpectSubscribed { is_stale, .. } => *is_stale = true,
            State::Subscribed(subscription) => {
                let (subscription, flights) = subscription.give_up();
                self.state = State::GivenUp { subscription, flights };
            }
            State::SendSubscribe { .. } | State::GivenUp { .. } | State::SayGoodbye | State::Left => {}
        }
    }

    /// The session is to be closed. Returns whether that is news.
    pub(super) fn end(&mut self) -> bool {
        let news = self.end == End::Not;
        if news {
            self.end = End::Due;
        }
        news
    }

    /// A message has arrived.
    pub(super) fn message(
        &mut self,
        now: Now,
        op: Op,
        span: LocalSpan,
        config: &MachineConfig,
        lasting: &mut Lasting,
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        if self.end != End::Not {
            return Ok(());
        }
        let Received { message, .. } = self.channel.receive::<ToClientRef<'_>>(memory, span)?;
        self.channel.repost(op);
        let kind = message.name();
        match (&mut self.state, message) {
            (_, ToClientRef::Credit(_)) | (State::SayGoodbye | State::Left, _) => Ok(()),
            (_, ToClientRef::Failed(failed)) => Err(self.failed(failed)),
            (_, ToClientRef::ShuttingDown(told)) => {
                let deadline = Duration::from_millis(told.deadline_ms.to_native().into());
                lasting.events.push(Event::ShuttingDown { deadline });
                Ok(())
            }
            (State::ExpectSubscribed { request, is_stale, .. }, ToClientRef::Subscribed(told)) => {
                if told.request.to_native() != *request {
                    return Err(Fault::Unexpected { kind, when: "for another request" });
                }
                if *is_stale {
                    let subscription = told.subscription.to_native();
                    self.state = State::GivenUp { subscription, flights: Flights::default() };
                    return Ok(());
                }
                self.subscribed(told, config, lasting)
            }
            (State::GivenUp { subscription, .. }, message) if subject(&message) == Some(*subscription) => Ok(()),
            (State::Subscribed(subscription), message) => {
                match message {
                    ToClientRef::Grant(told) => subscription.granted(now, told, lasting)?,
                    ToClientRef::Wake(told) => subscription.woken(told)?,
                    ToClientRef::Lagged(told) => subscription.lagged(told)?,
                    ToClientRef::Revoked(told) => subscription.revoked(told)?,
                    _ => return Err(Fault::Unexpected { kind, when: "in a subscription" }),
                }
                subscription.settle(now, lasting)
            }
            (_, message) if self.ended.is_some() && subject(&message) == self.ended => Ok(()),
            _ => Err(Fault::Unexpected { kind, when: "before the subscription is confirmed" }),
        }
    }

    fn failed(&self, failed: &ArchivedFailed) -> Fault {
        let (code, text) = (failed.code.to_native(), failed.text.to_string());
        if failed.request.to_native() == 0 { Fault::Ended { code, text } } else { Fault::Refused { code, text } }
    }

    fn subscribed(
        &mut self,
        told: &ArchivedSubscribed,
        config: &MachineConfig,
        lasting: &mut Lasting,
    ) -> Result<(), Fault> {
        let reads = usize::from(config.reads.max(1));
        let subscription = Subscription::new(told, config.scope, reads, CHUNK)?;
        let sequence = told.sequence.to_native();
        if let Some(seek) = lasting.seek.take() {
            lasting.outputs.push(Output::Sought { ticket: seek.ticket, sequence });
            lasting.outputs.extend(seek.restarted.map(|instance| Output::Restarted { instance }));
        }
        if let Some(gap) = lasting.cursor.place(sequence) {
            tell_gap(lasting, gap);
        }
        if let Some(land) = lasting.landing.want(told.batch_max.to_native()) {
            lasting.outputs.push(land);
        }
        if !std::mem::replace(&mut self.is_counted, true) {
            if lasting.counters.subscriptions > 0 {
                lasting.events.push(Event::Reconnected { session: self.id, sequence });
            }
            lasting.counters.subscriptions += 1;
        }
        self.state = State::Subscribed(Box::new(subscription));
        Ok(())
    }

    /// A piece of work is over.
    pub(super) fn done(
        &mut self,
        now: Now,
        op: Op,
        result: Result<Outcome, WorkError>,
        lasting: &mut Lasting,
        memory: &mut dyn Memory,
    ) -> Result<(), Fault> {
        // The endpoint has ended, for a reason that is known or that its `Down` will bring.
        let is_over = matches!(result, Err(WorkError::Flushed | WorkError::Disconnected));
        if self.end != End::Not || is_over {
            return Ok(());
        }
        if self.channel.done(op) {
            return result.map(drop).map_err(|error| Fault::Work { what: "SEND", error });
        }
        match &mut self.state {
            State::Subscribed(subscription) => subscription.done(now, op, result, lasting, memory).map(drop),
            State::GivenUp { flights, .. } => {
                flights.done(op);
                while flights.next_done().is_some() {}
                result.map(drop).map_err(|error| Fault::Work { what: "READ", error })
            }
            _ => Ok(()),
        }
    }

    /// When something is due.
    pub(super) fn timeout(&self) -> Option<Time> {
        match &self.state {
            _ if self.end != End::Not => None,
            State::SendSubscribe { deadline } | State::ExpectSubscribed { deadline, .. } => Some(*deadline),
            State::Subscribed(subscription) => subscription.timeout(),
            // A READ ends, or its endpoint does.
            State::GivenUp { .. } | State::SayGoodbye | State::Left => None,
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Now, subscribe_timeout: Duration) -> Result<(), Fault> {
        match &mut self.state {
            State::SendSubscribe { deadline } | State::ExpectSubscribed { deadline, .. } if *deadline <= now.time => {
                let after_ms = u64::try_from(subscribe_timeout.as_millis()).unwrap_or(u64::MAX);
                Err(Fault::SubscribeTimeout { after_ms })
            }
            State::Subscribed(subscription) => {
                subscription.handle_timeout(now);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The next thing to post: messages first, since they give keys back, then READs.
    pub(super) fn transmit(
        &mut self,
        now: Now,
        config: &MachineConfig,
        leaving: bool,
        lasting: &mut Lasting,
        memory: &mut dyn Memory,
    ) -> Result<Option<Transmit>, Fault> {
        let link = self.link();
        match self.end {
            End::Not => {}
            End::Due => {
                self.end = End::Closing;
                return Ok(Some(Transmit::Close { link }));
            }
            End::Closing => return Ok(None),
        }
        while self.channel.room() > 0
            && let Some(message) = self.next_message(now, config, leaving, lasting)
        {
            // A topic name and a client name of the longest kind fit a control slot with room to spare.
            self.channel.send(memory, &message).expect("every control message fits a control slot");
        }
        if let Some(Post { op, work }) = self.channel.transmit::<ToBroker>(memory) {
            return Ok(Some(Transmit::Post { link, op, work }));
        }
        if matches!(self.state, State::Left) {
            if !self.channel.is_drained() {
                return Ok(None);
            }
            self.end = End::Closing;
            return Ok(Some(Transmit::Close { link }));
        }
        match &mut self.state {
            State::Subscribed(subscription) if !leaving => {
                let read = subscription.next_read(now, lasting)?;
                Ok(read.map(|(op, plan)| {
                    let work = Work::Read { from: plan.from, into: Target::Local(plan.into) };
                    Transmit::Post { link, op, work }
                }))
            }
            _ => Ok(None),
        }
    }

    /// The next message to the broker.
    fn next_message(
        &mut self,
        now: Now,
        config: &MachineConfig,
        leaving: bool,
        lasting: &mut Lasting,
    ) -> Option<ToBroker> {
        match &mut self.state {
            State::Subscribed(subscription) if leaving => {
                // Both at once: one message says that no READ is outstanding, the other that none will be.
                if !subscription.is_quiet() || self.channel.room() < 2 {
                    return None;
                }
                let subscription = subscription.id();
                self.state = State::SayGoodbye;
                Some(Unsubscribe { subscription }.into())
            }
            State::GivenUp { subscription, flights } => {
                if !flights.is_empty() || self.channel.room() < 2 {
                    return None;
                }
                let subscription = *subscription;
                lasting.landing.rewind();
                self.ended = Some(subscription);
                let deadline = now.time + config.subscribe_timeout;
                self.state = if leaving { State::SayGoodbye } else { State::SendSubscribe { deadline } };
                Some(Unsubscribe { subscription }.into())
            }
            State::SendSubscribe { .. } | State::ExpectSubscribed { .. } | State::SayGoodbye if leaving => {
                self.state = State::Left;
                Some(Goodbye {}.into())
            }
            State::SendSubscribe { deadline } => {
                lasting.requests += 1;
                let request = lasting.requests;
                self.state = State::ExpectSubscribed { request, deadline: *deadline, is_stale: false };
                Some(subscribe(request, config, lasting).into())
            }
            State::Subscribed(subscription) => subscription.answer(now, lasting),
            State::ExpectSubscribed { .. } | State::SayGoodbye | State::Left => None,
        }
    }
}

/// The subscription that a message is about, if it is about one that there was.
fn subject(message: &ToClientRef<'_>) -> Option<u32> {
    let subscription = match message {
        ToClientRef::Grant(told) => told.subscription,
        ToClientRef::Wake(told) => told.subscription,
        ToClientRef::Lagged(told) => told.subscription,
        ToClientRef::Revoked(told) => told.subscription,
        _ => return None,
    };
    Some(subscription.to_native())
}

fn subscribe(request: u32, config: &MachineConfig, lasting: &Lasting) -> Subscribe {
    Subscribe {
        request,
        topic: config.topic.to_string(),
        name: config.name.clone(),
        start: lasting.cursor.start(),
        scope: config.scope,
        epoch: config.epoch,
        depth: config.depth,
        grant_bytes: CHUNK,
    }
}
