//! A session: one client's endpoint, its channel, what it opened, what it is to be told.
//!
//! What comes in is handled in [`requests`](super::requests) and [`publish`](super::publish), what goes out in
//! [`transmit`](super::transmit).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use keyway_channel::Channel;
use keyway_fabric::{DownCause, Memory, Now, Op, Outcome, RemoteSpan, SharedSpan, Time, Transmit, WorkError};
use keyway_schema::bootstrap::Role;
use keyway_schema::message::Commit;
use keyway_schema::{Code, ToClient};

use super::hub::Hub;
use super::life::{Life, LifeEvent};
use super::notice::{Notice, Refusal, SessionId};
use super::slab::Place;
use super::stock::Stock;
use super::subscription::{Draft, Subscription};
use super::timers::Timer;
use super::window::{Event, State};

/// Answers and commits that wait to be sent at most, before a session's messages are handled no more: its receive slots are then
/// not posted again, so that a client that takes no answers gets to ask no questions.
const BACKLOG_MAX: usize = 128;

/// One client's connection.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) me: Place,
    pub(super) id: SessionId,
    pub(super) role: Role,
    pub(super) name: String,
    pub(super) channel: Channel,
    pub(super) life: Life,
    /// Why the broker ends it, and whether that was sent.
    pub(super) refusal: Option<Refusal>,
    pub(super) is_told: bool,
    /// Until when it may linger.
    lingers_until: Option<Time>,
    /// Once it has been told that the broker stops: until when something of it may still be on its way.
    pub(super) hears_until: Option<Time>,
    /// Answers to be sent, in order.
    pub(super) replies: VecDeque<ToClient>,
    /// Commits to be told, in order.
    pub(super) commits: VecDeque<(u32, Commit)>,
    /// Empty; the memory of the next message of commits.
    pub(super) receipts: Vec<Commit>,
    /// Receives that are not posted again while the backlog is long.
    held: VecDeque<Op>,
    /// The topics that it publishes to, and as whom.
    pub(super) opened: HashMap<u32, u64>,
    /// Batches in topics' queues that wait for a segment.
    pub(super) waiting: u32,
    /// Offers being READ, in the order in which the READs are posted.
    pub(super) reads: VecDeque<Read>,
    pub(super) subscriptions: BTreeMap<u32, Subscription>,
    pub(super) next_subscription: u32,
    pub(super) stock: Stock,
    /// A grant whose bind has just been posted.
    pub(super) granting: Option<Draft>,
    /// Subscriptions to look after.
    pub(super) due: VecDeque<u32>,
    /// Whether it stands in the core's queue.
    pub(super) is_ready: bool,
    timer: Option<Time>,
}

/// An offered batch being READ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) topic: u32,
    pub(super) ticket: u64,
    pub(super) number: u64,
    pub(super) from: RemoteSpan,
    pub(super) into: SharedSpan,
    pub(super) deadline: Time,
    pub(super) is_posted: bool,
    pub(super) is_given_up: bool,
}

impl Session {
    pub(super) fn new(id: SessionId, role: Role, name: &str, channel: Channel) -> Self {
        Self {
            me: Place { index: 0, generation: 0 },
            id,
            role,
            name: name.to_owned(),
            channel,
            life: Life::Connecting,
            refusal: None,
            is_told: false,
            lingers_until: None,
            hears_until: None,
            replies: VecDeque::new(),
            commits: VecDeque::new(),
            receipts: Vec::new(),
            held: VecDeque::new(),
            opened: HashMap::new(),
            waiting: 0,
            reads: VecDeque::new(),
            subscriptions: BTreeMap::new(),
            next_subscription: 1,
            stock: Stock::default(),
            granting: None,
            due: VecDeque::new(),
            is_ready: false,
            timer: None,
        }
    }

    // ---------------------------------------------------------------------------------------------------- its life

    /// Takes an event of its life; closes the endpoint where it leads there.
    pub(super) fn live(&mut self, event: LifeEvent, hub: &mut Hub) {
        let Some(life) = self.life.after(event) else { return };
        self.life = life;
        if life == Life::Closing {
            hub.chores.push_back(Transmit::Close { link: self.channel.link() });
        }
    }

    /// Ends it, saying why.
    pub(super) fn end(&mut self, refusal: Refusal, now: Now, hub: &mut Hub) {
        if !matches!(self.life, Life::Connecting | Life::Open) {
            return;
        }
        if matches!(refusal.code, Code::Protocol | Code::Version | Code::Generation | Code::SubscriptionUnknown) {
            hub.counters.protocol_errors += 1;
        }
        // An offer's place in the log is blocked until the endpoint is closed: others wait for it.
        let linger = if self.reads.is_empty() { hub.config.linger } else { offer_linger(hub) };
        self.refusal = Some(refusal);
        self.lingers_until = Some(now.time + linger);
        self.granting = None;
        self.live(LifeEvent::End, hub);
        self.set_timer(now.time, hub);
    }

    /// Its endpoint is gone: gives back everything that it had.
    pub(super) fn dissolve(mut self, cause: DownCause, now: Now, hub: &mut Hub, memory: &mut dyn Memory) {
        hub.timers.set(Timer::Session(self.me), &mut self.timer, None);
        for read in std::mem::take(&mut self.reads) {
            let _ = hub.read_ended(read.topic, read.ticket, false, now, memory);
        }
        let mut topics: Vec<_> = self.opened.iter().map(|(topic, producer)| (*topic, *producer)).collect();
        topics.sort_unstable();
        for (topic, producer) in topics {
            hub.forget_waiting(topic, self.me);
            if let Some(topic) = hub.topic_mut(topic)
                && topic.publishers.get(&producer) == Some(&self.me)
            {
                topic.publishers.remove(&producer);
            }
        }
        for subscription in self.subscriptions.values_mut() {
            let timer = Timer::Subscription(self.me, subscription.me.subscription);
            hub.timers.set(timer, &mut subscription.timer, None);
            if let Some(topic) = hub.topic_mut(subscription.topic) {
                topic.listeners.remove(subscription.me);
            }
        }
        self.stock.free_all(hub, now.time);
        let config = self.channel.config();
        hub.chores.push_back(Transmit::FreeLocal { local: config.receive });
        hub.chores.push_back(Transmit::FreeLocal { local: config.send });
        if cause == DownCause::PeerViolation {
            hub.counters.remote_access_violations += 1;
            hub.notices.push(Notice::KeyViolation { id: self.id });
        }
        let (id, role, name, refusal) = (self.id, self.role, self.name, self.refusal);
        hub.notices.push(Notice::SessionClosed { id, role, name, refusal, cause });
    }

    // ------------------------------------------------------------------------------------------------------- times

    /// Sets its timer to the soonest of its times. One that is due already goes off in this very turn, and is set again then.
    pub(super) fn set_timer(&mut self, now: Time, hub: &mut Hub) {
        if self.timer.is_some_and(|at| at <= now) {
            return;
        }
        let linger = self.lingers_until.filter(|_| self.life == Life::Ending);
        let offer = self.reads.iter().find(|read| !read.is_given_up).map(|read| read.deadline);
        let offer = offer.filter(|_| matches!(self.life, Life::Open | Life::Ending));
        let silence = self.hears_until.filter(|_| self.life == Life::Open);
        let wanted = [linger, offer, silence].into_iter().flatten().filter(|at| *at > now).min();
        hub.timers.set(Timer::Session(self.me), &mut self.timer, wanted);
    }

    /// Does what is due for the session as a whole.
    pub(super) fn time_out(&mut self, now: Now, hub: &mut Hub) {
        self.timer = None;
        if self.life == Life::Ending && self.lingers_until.is_some_and(|until| until <= now.time) {
            self.live(LifeEvent::LingerOver, hub);
        }
        let mut overdue = None;
        for read in self.reads.iter_mut().filter(|read| !read.is_given_up && read.deadline <= now.time) {
            read.is_given_up = true;
            if !hub.give_up(read.topic, read.ticket) {
                continue;
            }
            let (topic, number, code) = (read.topic, read.number, Code::OfferTimeout);
            hub.notices.push(Notice::OfferFailed { id: self.id, topic, number, code });
            overdue.get_or_insert(number);
        }
        if let Some(number) = overdue {
            let timeout = hub.config.offer_timeout;
            let text = format!("the offered batch {number} was not READ within {timeout:?}; send it again");
            self.end(Refusal::new(Code::OfferTimeout, text), now, hub);
        }
        self.set_timer(now.time, hub);
    }

    /// Does what is due for a subscription: frees the windows of keys that are past their deadlines.
    pub(super) fn time_out_subscription(&mut self, number: u32, now: Now, hub: &mut Hub) {
        let Some(subscription) = self.subscriptions.get_mut(&number) else { return };
        subscription.timer = None;
        let mut forced = None;
        let mut is_stuck = false;
        let mut place = 0;
        while let Some(held) = subscription.grants.get(place).copied() {
            let window = hub.windows.get(held.window);
            let deadline = window.grant.map_or(Time::NEVER, |grant| grant.deadline);
            if deadline > now.time || hub.faults.ignore_deadline {
                break;
            }
            if !matches!(window.state, State::Released { .. } | State::Unbinding) {
                forced = Some(held.epoch);
            }
            if window.state.is_busy() {
                // A bind or unbind that did not complete for so long never will while the endpoint lives. Closing it
                // completes it as flushed, and the window is freed then.
                is_stuck = true;
                place += 1;
                continue;
            }
            subscription.grants.remove(place);
            self.stock.free(held.window, hub, now.time);
        }
        self.set_subscription_timer(number, now.time, hub);
        if let Some(epoch) = forced {
            hub.counters.revocations_forced += 1;
            hub.notices.push(Notice::ForcedRevocation { id: self.id, subscription: number, epoch });
            let text = format!("epoch {epoch} of subscription {number} was not released within its interval and grace");
            self.end(Refusal::new(Code::GraceOver, text), now, hub);
        }
        if is_stuck {
            let text = format!("the endpoint has not moved for the life of a key of subscription {number}");
            self.end(Refusal::new(Code::Timeout, text), now, hub);
            self.live(LifeEvent::Leave, hub);
        }
        if self.life == Life::Open {
            self.needs_care(number);
        }
    }

    /// Sets a subscription's timer to the soonest of its times. One that is due already goes off in this very turn, and is
    /// set again then.
    pub(super) fn set_subscription_timer(&mut self, number: u32, now: Time, hub: &mut Hub) {
        let Some(subscription) = self.subscriptions.get_mut(&number) else { return };
        if subscription.timer.is_some_and(|at| at <= now) {
            return;
        }
        let wanted = subscription.wanted_time(now, hub);
        hub.timers.set(Timer::Subscription(self.me, number), &mut subscription.timer, wanted);
    }

    /// While the broker stops: something was told or heard, so more may be on its way.
    pub(super) fn listens_on(&mut self, now: Time, hub: &mut Hub) {
        self.hears_until = Some(now + hub.config.linger);
        self.set_timer(now, hub);
    }

    // ------------------------------------------------------------------------------------------------- bookkeeping

    /// A subscription is to be looked after.
    pub(super) fn needs_care(&mut self, number: u32) {
        if let Some(subscription) = self.subscriptions.get_mut(&number)
            && !std::mem::replace(&mut subscription.is_due, true)
        {
            self.due.push_back(number);
        }
    }

    /// Posts a receive slot again, or keeps it while the backlog is long.
    pub(super) fn repost(&mut self, op: Op) {
        if self.has_backlog() {
            self.held.push_back(op);
        } else {
            self.channel.repost(op);
        }
    }

    fn has_backlog(&self) -> bool {
        self.replies.len() + self.commits.len() >= BACKLOG_MAX
    }

    /// Posts what was kept, once the backlog is short again.
    pub(super) fn repost_held(&mut self) {
        while !self.held.is_empty() && !self.has_backlog() {
            self.held.pop_front().into_iter().for_each(|op| self.channel.repost(op));
        }
    }

    /// Takes in the end of a bind or unbind of one of its windows.
    pub(super) fn window_done(&mut self, place: Place, result: Result<Outcome, WorkError>, now: Now, hub: &mut Hub) {
        self.stock.ended();
        let window = hub.windows.get_mut(place);
        let owner = window.grant.map(|grant| grant.subscription);
        match result {
            Ok(Outcome::Unbound) => {
                let is_expected = window.take(Event::Unbound);
                assert!(is_expected, "{:?} was unbound in state {:?}", window.id, window.state);
                if let Some(grant) = window.grant.take() {
                    hub.uncover(grant.segment);
                    if grant.is_issued && !hub.faults.skip_quarantine {
                        hub.quarantine.insert(grant.key, now.time);
                    }
                }
                self.stock.unbound(place, hub, now.time);
            }
            Ok(_) => {
                let is_expected = window.take(Event::Bound);
                assert!(is_expected, "{:?} was bound in state {:?}", window.id, window.state);
                if window.state == (State::Released { bound: true }) {
                    self.stock.unbind_later(place);
                }
                return;
            }
            // The endpoint is in the error state: its `Down` follows.
            Err(_) => self.stock.free(place, hub, now.time),
        }
        let Some(number) = owner else { return };
        self.needs_care(number);
        if let Some(subscription) = self.subscriptions.get_mut(&number) {
            subscription.forget(place);
            if subscription.is_ended && subscription.grants.is_empty() {
                self.forget_subscription(number, now.time, hub);
            }
        }
    }

    /// Forgets a subscription that has ended and holds no window.
    pub(super) fn forget_subscription(&mut self, number: u32, now: Time, hub: &mut Hub) {
        let Some(mut subscription) = self.subscriptions.remove(&number) else { return };
        hub.timers.set(Timer::Subscription(self.me, number), &mut subscription.timer, None);
        self.stock.unreserve(subscription.depth, hub, now);
    }

    /// Whether the broker is to end it now that it stops: nothing would be lost.
    pub(super) fn is_drained(&self, now: Time, hub: &Hub) -> bool {
        let caught_up = |subscription: &Subscription| {
            let topic = hub.known(subscription.topic);
            subscription.is_ended
                || (subscription.sequence >= topic.log.next_sequence()
                    && topic.reservations.is_empty()
                    && topic.waiting.is_empty())
        };
        let is_idle = self.hears_until.is_some_and(|until| until <= now)
            && self.reads.is_empty()
            && self.waiting == 0
            && self.replies.is_empty()
            && self.commits.is_empty()
            && self.subscriptions.values().all(caught_up);
        match self.life {
            Life::Connecting => true,
            Life::Open => is_idle,
            // It is being ended already; to end it again would make it ready again, for ever.
            Life::Ending | Life::Closing => false,
        }
    }
}

/// How long a session with offers being READ may linger: short beside the time that an offer may take.
fn offer_linger(hub: &Hub) -> Duration {
    hub.config.linger.min(hub.config.offer_timeout / 5)
}
