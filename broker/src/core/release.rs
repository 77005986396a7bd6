//! What a consumer says of its subscription: how far it has read, which keys it has let go of, that it waits or cannot read.

use keyway_schema::Code;

use super::hub::Hub;
use super::notice::Refusal;
use super::subscription::{Around, Listens, ScopeState, Subscription};
use super::window::{Event, State};

impl Subscription {
    /// The consumer has released the epochs up to one, and wants `sequence` next.
    pub(super) fn release(
        &mut self,
        epoch: u64,
        sequence: u64,
        pause: bool,
        around: &mut Around<'_>,
    ) -> Result<(), Refusal> {
        if epoch > self.epoch {
            let text = format!("epoch {epoch} was released, but the last one granted is {}", self.epoch);
            return Err(Refusal::new(Code::Protocol, text));
        }
        self.moves_to(sequence, around.hub)?;
        let mut finished = None;
        for held in self.grants.iter().take_while(|held| held.epoch <= epoch) {
            let window = around.hub.windows.get_mut(held.window);
            let was_current = window.state.is_current();
            if !window.take(Event::Release) {
                continue;
            }
            if was_current {
                finished = Some(held.segment);
            }
            if window.state == (State::Released { bound: true }) {
                around.stock.unbind_later(held.window);
            }
        }
        if pause {
            self.is_paused = true;
            self.is_armed = false;
            self.unprepare(around.stock);
        }
        match &mut self.scope {
            ScopeState::Segment(scope) => {
                let log = &around.hub.known(self.topic).log;
                scope.released(finished.filter(|_| !pause), sequence, log);
                if pause {
                    // What is on its way to the consumer is released when it gets there.
                    let last = self.epoch;
                    self.revoke_silently(last, around.hub);
                }
            }
            ScopeState::Piece(_) => self.go_back_to(sequence, around),
        }
        Ok(())
    }

    /// The consumer has read up to `sequence` and wants to hear of more.
    pub(super) fn arm(&mut self, sequence: u64, around: &mut Around<'_>) -> Result<(), Refusal> {
        self.moves_to(sequence, around.hub)?;
        self.is_armed = true;
        let was_paused = std::mem::take(&mut self.is_paused);
        match &mut self.scope {
            ScopeState::Segment(scope) => scope.released(None, sequence, &around.hub.known(self.topic).log),
            ScopeState::Piece(_) if was_paused => self.go_back_to(sequence, around),
            ScopeState::Piece(_) => {}
        }
        Ok(())
    }

    fn moves_to(&mut self, sequence: u64, hub: &Hub) -> Result<(), Refusal> {
        let next = hub.known(self.topic).log.next_sequence();
        if sequence > next {
            let text = format!("record {sequence} is said to be next, but the topic ends before {next}");
            return Err(Refusal::new(Code::Protocol, text));
        }
        // What was said before the last `Lagged` arrived counts no more.
        self.sequence = sequence.max(self.told);
        Ok(())
    }

    /// Takes grants out of use without a word.
    pub(super) fn revoke_silently(&mut self, epoch: u64, hub: &mut Hub) {
        let told = self.tell_revoked;
        self.revoke(epoch, hub);
        self.tell_revoked = told;
    }

    /// The consumer is gone from it: every epoch is released.
    pub(super) fn end(&mut self, around: &mut Around<'_>) {
        self.is_ended = true;
        self.unprepare(around.stock);
        for held in &self.grants {
            let window = around.hub.windows.get_mut(held.window);
            if window.take(Event::Release) && window.state == (State::Released { bound: true }) {
                around.stock.unbind_later(held.window);
            }
        }
        let me = self.me;
        self.listens = Listens::default();
        if let Some(topic) = around.hub.topic_mut(self.topic) {
            topic.listeners.remove(me);
        }
    }
}
