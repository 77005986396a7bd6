//! What the broker's messages mean to a producer.

use keyway_channel::Received;
use keyway_client::{Error, ErrorKind};
use keyway_fabric::{LocalSpan, Memory, Op};
use keyway_schema::message::{ArchivedFailed, ArchivedTopicOpened};
use keyway_schema::{Code, ToClientRef};

use super::{Limits, Outcome, ProducerMachine, State};
use crate::flight::Flight;

impl ProducerMachine {
    /// A message has arrived in a receive slot.
    pub(super) fn message(&mut self, op: Op, span: LocalSpan, memory: &dyn Memory) {
        let Some(session) = &mut self.session else { return };
        session.channel.repost(op);
        if matches!(session.state, State::ToClose | State::ExpectDown) {
            return;
        }
        let received: Received<ToClientRef<'_>> = match session.channel.receive(memory, span) {
            Ok(received) => received,
            Err(error) => return self.broke(error.to_string()),
        };
        match received.message {
            ToClientRef::Credit(_) => {}
            ToClientRef::TopicOpened(opened) => self.opened(opened),
            ToClientRef::Committed(committed) => {
                let topic = committed.topic.to_native();
                for commit in committed.commits.iter().map(|commit| commit.to_native()) {
                    self.committed(topic, commit.number, (commit.base_sequence, commit.time));
                }
            }
            ToClientRef::Withdraw(withdraw) => self.offers.ended(withdraw.number.to_native()),
            ToClientRef::Failed(failed) => self.failed(failed),
            ToClientRef::ShuttingDown(_) => self.shutting_down = true,
            other => self.broke(format!("a {} came to a producer", other.name())),
        }
    }

    fn opened(&mut self, opened: &ArchivedTopicOpened) {
        let Some(session) = &mut self.session else { return };
        let State::ExpectOpened { request, .. } = session.state else {
            return self.broke("a topic was opened that was not asked for".into());
        };
        if opened.request.to_native() != request {
            return self.broke(format!("TopicOpened answers {}, asked was {request}", opened.request));
        }
        session.state = State::Open { topic: opened.topic.to_native() };
        self.limits = Some(Limits {
            record_max: opened.record_max.to_native(),
            batch_max: opened.batch_max.to_native(),
            publish_max: u32::try_from(session.channel.publish_max()).unwrap_or(u32::MAX),
        });
        let last_number = opened.last_number.to_native();
        let fresh = self.instance.is_some_and(|instance| instance != session.instance);
        self.counts.reconnects += u64::from(self.instance.is_some());
        self.instance = Some(session.instance);
        self.shutting_down = false;
        let blame = self.blame.take();
        let reopened = self.flights.reopened(last_number, fresh, blame.is_some());
        for flight in reopened.unknown {
            let server = self.config.server.clone();
            let reason = "the broker has forgotten this producer: the batch may be in the log or not".into();
            self.fail_batch(flight, Error::Lost { server, reason });
        }
        if let (Some(flight), Some(cause)) = (reopened.refused, blame) {
            self.fail_batch(flight, cause);
        }
    }

    fn committed(&mut self, topic: u32, number: u64, receipt: (u64, u64)) {
        let state = self.session.as_ref().map(|session| session.state);
        if !matches!(state, Some(State::Open { topic: open } ) if open == topic) {
            return self.broke(format!("a batch of topic {topic} was committed, which is not open"));
        }
        self.offers.ended(number);
        match self.flights.committed(number) {
            Ok(Some(Flight { ticket, bytes, .. })) => {
                self.counts.batches += 1;
                self.outcomes.push_back(Outcome { ticket, result: Ok(receipt), bytes });
            }
            Ok(None) => {}
            Err(expected) => self.broke(format!("batch {number} was committed while {expected} is not")),
        }
    }

    fn failed(&mut self, failed: &ArchivedFailed) {
        let request = failed.request.to_native();
        let code = failed.code.to_native();
        let refused = |what: &str| Error::refused(what, code, failed.text.as_str());
        let Some(session) = &self.session else { return };
        if matches!(session.state, State::ExpectOpened { request: asked, .. } if asked == request) {
            let error = refused(&format!("to open the topic {}", self.config.topic));
            if !error.is_retryable() {
                self.fatal = Some(error.clone());
            }
            return self.close(error);
        }
        let error = refused("to go on with the session");
        self.judge(&error);
        self.close(error);
    }
    /// What the broker's reason for ending a session means for what was sent in it.
    pub(super) fn judge(&mut self, error: &Error) {
        match error.kind() {
            ErrorKind::Refused(Code::Evicted) => self.fatal = Some(error.clone()),
            // The same batch would be refused again. The first that the broker lacks is the one that it means; PoolExhausted
            // passes, but whoever publishes into a pool without a free segment should hear of it.
            ErrorKind::Refused(code) if !code.is_retryable() || code == Code::PoolExhausted => {
                self.blame = Some(error.clone());
            }
            _ => {}
        }
    }
}
