//! What a session wants posted next.
//!
//! The order matters in one place: the SEND of a grant follows the bind of its window, so that it arrives after the binding is in
//! force.

use keyway_fabric::{Access, Memory, Now, Op, Target, Transmit, Work};
use keyway_schema::ToClient;
use keyway_schema::bootstrap::Role;
use keyway_schema::limits::{COMMITS_MAX, error_text};
use keyway_schema::message::{Committed, Failed, ShuttingDown};

use super::hub::Hub;
use super::life::Life;
use super::session::Session;
use super::slab::Place;
use super::subscription::{Around, Draft, Held, ScopeState, Step};
use super::window::{Event, State};
use super::windows::{Grant, Windows};

/// The high byte of the tags of READs.
const READ: u64 = 0xa0 << 56;
/// The high byte of the tags of allocations.
const ALLOCATE: u64 = 0xa1 << 56;
const KIND: u64 = 0xff << 56;

/// Whether a tag is that of a READ.
pub(super) const fn is_read(op: Op) -> bool {
    op.0 & KIND == READ
}

/// The session's place in the tag of an allocation.
pub(super) const fn allocation_of(op: Op) -> Option<u64> {
    if op.0 & KIND == ALLOCATE { Some(op.0 & !KIND) } else { None }
}

impl Session {
    /// The next thing to do on its endpoint or for its windows.
    pub(super) fn transmit(&mut self, now: Now, hub: &mut Hub, memory: &mut dyn Memory) -> Option<Transmit> {
        let link = self.channel.link();
        let mut stuck = 0;
        loop {
            if self.life == Life::Closing {
                return None;
            }
            if let Some(draft) = self.granting.take() {
                self.grant(draft, hub, memory);
            }
            if let Some(post) = self.channel.transmit::<ToClient>(memory) {
                return Some(Transmit::Post { link, op: post.op, work: post.work });
            }
            if self.life == Life::Ending && self.tell_refusal(memory) {
                continue;
            }
            if self.life != Life::Open {
                return None;
            }
            if self.speak(now, hub, memory) {
                continue;
            }
            if let Some(work) = self.next_read() {
                return Some(Transmit::Post { link, op: Op(READ), work });
            }
            if let Some(place) = self.stock.next_unbind(hub) {
                return Some(self.unbind(place, hub));
            }
            let Some(number) = self.due.front().copied() else { return self.replace_window(hub) };
            let step = match self.subscriptions.get_mut(&number) {
                Some(subscription) => {
                    let room = self.channel.room();
                    subscription.step(&mut Around { hub, stock: &mut self.stock, room, now, memory })
                }
                None => Step::Rest,
            };
            match step {
                Step::Say(message) => self.say(&message, memory),
                Step::Again => {}
                Step::Bind(draft) => return Some(self.bind(draft, now, hub, memory)),
                Step::MoveOn(place) => {
                    hub.windows.get_mut(place).take(Event::Unbind);
                    return Some(self.unbind(place, hub));
                }
                Step::Allocate => return Some(self.allocate(hub)),
                Step::Stuck => {
                    // It is asked again when the endpoint has moved; the others may be able to go on now.
                    self.set_subscription_timer(number, now.time, hub);
                    self.due.rotate_left(1);
                    stuck += 1;
                    if stuck >= self.due.len() {
                        return self.replace_window(hub);
                    }
                }
                Step::Rest => {
                    self.due.pop_front();
                    if let Some(subscription) = self.subscriptions.get_mut(&number) {
                        subscription.is_due = false;
                    }
                    self.set_subscription_timer(number, now.time, hub);
                }
            }
        }
    }

    fn say(&mut self, message: &ToClient, memory: &mut dyn Memory) {
        self.channel.send(memory, message).expect("every message to a client fits a control slot");
    }

    /// Sends the reason of the session's end, once. Returns whether it did so now.
    fn tell_refusal(&mut self, memory: &mut dyn Memory) -> bool {
        let Some(refusal) = self.refusal.as_ref().filter(|_| !self.is_told && self.channel.room() > 0) else {
            return false;
        };
        let (code, text) = (refusal.code.number(), error_text(&refusal.text).to_owned());
        self.is_told = true;
        self.say(&Failed { request: 0, subject: 0, code, text }.into(), memory);
        true
    }

    /// Sends an answer or commits, if there are any and there is room. Returns whether it did so.
    fn speak(&mut self, now: Now, hub: &mut Hub, memory: &mut dyn Memory) -> bool {
        if self.channel.room() == 0 {
            return false;
        }
        let message = if let Some(reply) = self.replies.pop_front() {
            reply
        } else if let Some((topic, _)) = self.commits.front().copied() {
            let same = self.commits.iter().take(COMMITS_MAX).take_while(|(other, _)| *other == topic).count();
            let mut commits = std::mem::take(&mut self.receipts);
            commits.extend(self.commits.drain(..same).map(|(_, commit)| commit));
            Committed { topic, commits }.into()
        } else if let Some(stops_at) = hub.stops_at.filter(|_| self.hears_until.is_none()) {
            self.listens_on(now.time, hub);
            let deadline_ms = u32::try_from(stops_at.since(now.time).as_millis()).unwrap_or(u32::MAX);
            ShuttingDown { deadline_ms }.into()
        } else {
            return false;
        };
        self.say(&message, memory);
        if let ToClient::Committed(Committed { mut commits, .. }) = message {
            commits.clear();
            self.receipts = commits;
        }
        self.repost_held();
        true
    }

    fn next_read(&mut self) -> Option<Work> {
        debug_assert!(self.role == Role::Producer || self.reads.is_empty(), "only producers offer");
        let read = self.reads.iter_mut().find(|read| !read.is_posted)?;
        read.is_posted = true;
        Some(Work::Read { from: read.from, into: Target::Shared(read.into) })
    }

    fn unbind(&mut self, place: Place, hub: &mut Hub) -> Transmit {
        self.stock.use_key(place, hub);
        self.stock.posted();
        hub.counters.unbinds += 1;
        let window = hub.windows.get(place).id;
        Transmit::Post { link: self.channel.link(), op: Windows::op(place), work: Work::Unbind { window } }
    }

    fn allocate(&mut self, hub: &mut Hub) -> Transmit {
        self.stock.allocate(hub);
        Transmit::Allocate { op: Op(ALLOCATE | self.me.tag()), domain: hub.config.domain }
    }

    /// Allocates a replacement ahead of its need.
    fn replace_window(&mut self, hub: &mut Hub) -> Option<Transmit> {
        self.stock.wants_replacement(hub).then(|| self.allocate(hub))
    }

    /// Binds the window of a grant.
    fn bind(&mut self, draft: Draft, now: Now, hub: &mut Hub, memory: &dyn Memory) -> Transmit {
        let subscription = self.subscriptions.get_mut(&draft.subscription).expect("it has just asked for the bind");
        let epoch = subscription.epoch + 1;
        let deadline = now.time + subscription.key_life();
        subscription.grants.push_back(Held {
            window: draft.window,
            epoch,
            segment: draft.segment,
            sequence: draft.grant.sequence,
            end_sequence: draft.end_sequence,
        });
        hub.pool.cover(draft.index);
        hub.counters.binds += 1;
        self.stock.use_key(draft.window, hub);
        self.stock.posted();
        let window = hub.windows.get_mut(draft.window);
        let is_spare = window.take(Event::Bind);
        assert!(is_spare, "{:?} was to be bound in state {:?}", window.id, window.state);
        window.grant = Some(Grant {
            subscription: draft.subscription,
            epoch,
            key: memory.key(window.id).next(),
            is_issued: false,
            segment: draft.index,
            span: draft.span,
            granted_at: now.time,
            deadline,
        });
        let work = Work::Bind { window: window.id, span: draft.span, access: Access::Read };
        let op = Windows::op(draft.window);
        self.granting = Some(draft);
        Transmit::Post { link: self.channel.link(), op, work }
    }

    /// Sends the grant whose bind has just been posted.
    fn grant(&mut self, draft: Draft, hub: &mut Hub, memory: &mut dyn Memory) {
        let Some(subscription) = self.subscriptions.get_mut(&draft.subscription) else { return };
        let Some(window) = hub.windows.find_mut(draft.window) else { return };
        let key = memory.key(window.id);
        let Some(grant) = window.grant.as_mut() else { return };
        grant.key = key;
        if hub.quarantine.contains(key, grant.granted_at) && !hub.faults.skip_quarantine {
            // Somebody may still hold it: it is not granted, and the next window is tried.
            window.take(Event::Release);
            subscription.deny(&draft, hub, memory);
            self.needs_care(draft.subscription);
            return;
        }
        grant.is_issued = true;
        let mut message = draft.grant;
        message.epoch = grant.epoch;
        message.key = key.0;
        message.address = memory.address(grant.span);
        subscription.epoch = grant.epoch;
        hub.counters.grants += 1;
        hub.counters.rekeys += u64::from(message.supersedes > 0);
        if matches!(subscription.scope, ScopeState::Segment(_)) {
            let epoch = message.epoch;
            for held in subscription.grants.iter().filter(|held| held.segment == draft.segment && held.epoch < epoch) {
                let older = hub.windows.get_mut(held.window);
                older.take(Event::Supersede);
                if hub.faults.unbind_before_release
                    && older.take(Event::Release)
                    && older.state == (State::Released { bound: true })
                {
                    self.stock.unbind_later(held.window);
                }
            }
        }
        self.say(&message.into(), memory);
    }
}
