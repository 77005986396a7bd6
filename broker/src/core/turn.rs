//! A turn of the core: events come in, what they mean for others is handed on, what is to be posted goes out.

use keyway_fabric::{
    Event, FabricError, LocalSpan, Machine, Memory, Now, Op, Outcome, Time, Transmit, WindowId, WorkError,
};
use keyway_schema::{Code, ToBrokerRef};

use super::Core;
use super::life::{Life, LifeEvent};
use super::notice::Refusal;
use super::requests::Slot;
use super::slab::Place;
use super::timers::Timer;
use super::transmit;

impl Machine for Core {
    fn handle(&mut self, now: Now, event: Event, memory: &mut dyn Memory) {
        let place = match &event {
            Event::Up { link } | Event::Message { link, .. } | Event::Done { link, .. } => {
                self.links.get(link).copied()
            }
            Event::Down { link, .. } => self.links.remove(link),
            Event::Allocated { .. } => None,
        };
        match (event, place) {
            (Event::Up { .. }, Some(place)) => {
                if let Some(session) = self.sessions.get_mut(place) {
                    session.live(LifeEvent::Up, &mut self.hub);
                }
            }
            (Event::Message { op, span, .. }, Some(place)) => self.received(place, op, span, now, memory),
            (Event::Done { op, result, .. }, Some(place)) => self.done(place, op, result, now, memory),
            (Event::Down { cause, .. }, Some(place)) => {
                if let Some(session) = self.sessions.remove(place) {
                    self.ids.remove(&session.id);
                    session.dissolve(cause, now, &mut self.hub, memory);
                }
            }
            (Event::Allocated { op, result }, _) => self.allocated(op, result, now, memory),
            (_, None) => {}
        }
        if let Some(place) = place {
            self.make_ready(place);
        }
        self.settle(now, memory);
    }

    fn handle_timeout(&mut self, now: Now, memory: &mut dyn Memory) {
        while let Some(timer) = self.hub.timers.pop(now.time) {
            match timer {
                Timer::Stop => {
                    self.stop_timer = None;
                    let all: Vec<_> = self.sessions.iter().map(|(place, _)| place).collect();
                    all.into_iter().for_each(|place| self.end_stopping(place, now));
                }
                Timer::Parked => self.hub.unpark(now.time),
                Timer::Session(place) => {
                    if let Some(session) = self.sessions.get_mut(place) {
                        session.time_out(now, &mut self.hub);
                        self.make_ready(place);
                    }
                }
                Timer::Subscription(place, number) => {
                    if let Some(session) = self.sessions.get_mut(place) {
                        session.time_out_subscription(number, now, &mut self.hub);
                        self.make_ready(place);
                    }
                }
            }
        }
        self.settle(now, memory);
    }

    fn timeout(&self) -> Option<Time> {
        self.hub.timers.first()
    }

    fn transmit(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        loop {
            if let Some(chore) = self.hub.chores.pop_front() {
                return Some(chore);
            }
            // What was returned before has been done by now: the segments of freed windows can be given to whoever waits.
            if self.hub.uncover_freed() {
                self.settle(now, memory);
                continue;
            }
            let place = *self.ready.front()?;
            if let Some(session) = self.sessions.get_mut(place) {
                if let Some(transmit) = session.transmit(now, &mut self.hub, memory) {
                    return Some(transmit);
                }
                session.is_ready = false;
            }
            self.ready.pop_front();
            if self.hub.stops_at.is_some() {
                self.end_drained(now);
            }
        }
    }
}

impl Core {
    pub(super) fn make_ready(&mut self, place: Place) {
        if let Some(session) = self.sessions.get_mut(place)
            && !std::mem::replace(&mut session.is_ready, true)
        {
            self.ready.push_back(place);
        }
    }

    fn received(&mut self, place: Place, op: Op, span: LocalSpan, now: Now, memory: &mut dyn Memory) {
        let Some(session) = self.sessions.get_mut(place) else { return };
        if session.hears_until.is_some() {
            session.listens_on(now.time, &mut self.hub);
        }
        match session.life {
            Life::Connecting | Life::Open => match session.receive(op, span, now, &mut self.hub, memory) {
                Ok(Slot::Done) => session.repost(op),
                Ok(Slot::Kept) => {}
                Err(refusal) => session.end(refusal, now, &mut self.hub),
            },
            // Only its credits still matter: they may be what the last message waits for.
            Life::Ending => {
                let _ = session.channel.receive::<ToBrokerRef<'_>>(memory, span);
            }
            Life::Closing => {}
        }
    }

    fn done(&mut self, place: Place, op: Op, result: Result<Outcome, WorkError>, now: Now, memory: &mut dyn Memory) {
        let Some(session) = self.sessions.get_mut(place) else { return };
        if session.channel.done(op) {
            if session.life == Life::Ending && session.is_told && session.channel.is_drained() {
                session.live(LifeEvent::Told, &mut self.hub);
            }
        } else if transmit::is_read(op) {
            session.read_done(result.is_ok(), now, &mut self.hub, memory);
        } else if let Some(window) = self.hub.windows.of_op(op) {
            session.window_done(window, result, now, &mut self.hub);
        }
    }

    fn allocated(&mut self, op: Op, result: Result<WindowId, FabricError>, now: Now, memory: &dyn Memory) {
        let Some(tag) = transmit::allocation_of(op) else { return };
        let session = self.sessions.of_tag(tag).and_then(|place| self.sessions.get_mut(place));
        let Some(session) = session else {
            // The session has ended meanwhile.
            self.hub.chores.extend(result.ok().map(|window| Transmit::FreeWindow { window }));
            return;
        };
        let (place, id) = (session.me, session.id);
        let refusal = result.as_ref().err().map(ToString::to_string);
        session.stock.allocated(result.ok(), id, &mut self.hub, now.time, memory);
        if let Some(why) = refusal.filter(|_| session.stock.len() == 0) {
            let text = format!("no memory window could be had for a subscription: {why}");
            self.hub.counters.refusals += 1;
            session.end(Refusal::new(Code::WindowsExhausted, text), now, &mut self.hub);
        }
        self.make_ready(place);
    }

    /// Hands on what an event means for others, until nothing is left.
    fn settle(&mut self, now: Now, memory: &mut dyn Memory) {
        loop {
            if let Some((subscription, cause)) = self.hub.due.pop_front() {
                if let Some(session) = self.sessions.get_mut(subscription.session) {
                    if let Some(entry) = session.subscriptions.get_mut(&subscription.subscription) {
                        entry.caused(cause);
                    }
                    session.needs_care(subscription.subscription);
                    self.make_ready(subscription.session);
                }
            } else if let Some((place, topic, commit)) = self.hub.commits.pop_front() {
                if let Some(session) = self.sessions.get_mut(place) {
                    session.commits.push_back((topic, commit));
                    self.make_ready(place);
                }
            } else if let Some((place, refusal)) = self.hub.endings.pop_front() {
                if let Some(session) = self.sessions.get_mut(place) {
                    session.end(refusal, now, &mut self.hub);
                    self.make_ready(place);
                }
            } else if let Some(topic) = self.hub.retries.pop_front() {
                self.retry(topic, now, memory);
            } else if !self.serve_waiting(now, memory) {
                break;
            }
        }
        if self.hub.stops_at.is_some() {
            self.end_drained(now);
            if self.sessions.len() == 0 {
                self.hub.unpark(Time::NEVER);
            }
        }
    }

    /// Gives free segments to the topics that wait for them, in turn. Returns whether one was given.
    fn serve_waiting(&mut self, now: Now, memory: &mut dyn Memory) -> bool {
        if !self.hub.pool.has_free() {
            return false;
        }
        for _ in 0..self.hub.pool.waiting() {
            let Some(topic) = self.hub.pool.next_waiting() else { break };
            let (entry, _) = self.hub.topic_and_pool(topic);
            entry.is_queued = false;
            if self.retry(topic, now, memory) {
                return true;
            }
        }
        false
    }

    /// Appends the batches of a topic that wait, as far as there is room. Returns whether any was.
    fn retry(&mut self, topic: u32, now: Now, memory: &mut dyn Memory) -> bool {
        let mut moved = false;
        while let Some(waiting) = self.hub.known(topic).waiting.front().copied() {
            let Some(session) = self.sessions.get_mut(waiting.session) else {
                self.hub.topic_and_pool(topic).0.waiting.pop_front();
                continue;
            };
            if !session.append(topic, waiting.batch, now, &mut self.hub, memory) {
                break;
            }
            self.hub.topic_and_pool(topic).0.waiting.pop_front();
            session.waiting -= 1;
            session.repost(waiting.op);
            self.make_ready(waiting.session);
            moved = true;
        }
        let (entry, pool) = self.hub.topic_and_pool(topic);
        if !entry.waiting.is_empty() && !std::mem::replace(&mut entry.is_queued, true) {
            pool.wait(topic);
        }
        moved
    }

    /// Ends the sessions of which nothing is left to do.
    fn end_drained(&mut self, now: Now) {
        let drained: Vec<_> =
            self.sessions.iter().filter(|(_, it)| it.is_drained(now.time, &self.hub)).map(|it| it.0).collect();
        for place in drained {
            self.end_stopping(place, now);
        }
    }

    fn end_stopping(&mut self, place: Place, now: Now) {
        let Some(session) = self.sessions.get_mut(place) else { return };
        session.end(Refusal::new(Code::ShuttingDown, "the broker is shutting down"), now, &mut self.hub);
        self.make_ready(place);
    }
}
