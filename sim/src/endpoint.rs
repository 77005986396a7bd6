//! One simulated endpoint: its two queues and what becomes of their entries.
//!
//! It only keeps the books. When an entry is executed, and what that does at the peer, is the `network`'s.

use std::collections::VecDeque;

use keyway_fabric::memory::Claim;
use keyway_fabric::{DownCause, EndpointConfig, Event, LinkId, LocalId, LocalSpan, Op, Outcome, Time, Work, WorkError};

use crate::NodeId;
use crate::device::{Ready, Release};

/// One end of a connection, wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The node.
    pub(crate) node: NodeId,
    /// Its endpoint.
    pub(crate) link: LinkId,
}

/// What an endpoint waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its peer.
    ExpectPeer,
    /// Work.
    Up,
    /// Being polled to its end; nothing is executed any more.
    Failed(DownCause),
}

/// Where an entry of the send queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Waits for its turn.
    Queued,
    /// On its way to the peer, or being executed.
    Issued,
    /// Executed; the answer is on its way.
    Executed(Outcome),
    /// Over.
    Over(Result<Outcome, WorkError>),
}

/// An entry of the send queue.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) op: Op,
    pub(crate) work: Work,
    pub(crate) claim: Option<(LocalId, Claim)>,
    pub(crate) stage: Stage,
    /// Fragments of a READ that have not been taken yet.
    pub(crate) fragments: u32,
    /// It will be refused, so that nothing behind it is executed.
    pub(crate) refused: bool,
}

/// A posted receive.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) op: Op,
    pub(crate) into: LocalSpan,
    pub(crate) claim: Claim,
}

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) link: LinkId,
    pub(crate) config: EndpointConfig,
    pub(crate) peer: Option<Place>,
    pub(crate) state: State,
    pub(crate) sends: VecDeque<Entry>,
    pub(crate) receives: VecDeque<Receive>,
    /// Posted, and the completion not yet polled.
    pub(crate) sends_open: u32,
    pub(crate) receives_open: u32,
    /// The entry that must be executed before the next is issued.
    pub(crate) issuing: bool,
    /// `Down` may be reported once everything else has been.
    pub(crate) down_due: bool,
    /// When the last answer arrives that is on its way.
    pub(crate) answered_at: Time,
    numbers: u64,
}

impl Endpoint {
    pub(crate) fn new(link: LinkId, config: EndpointConfig) -> Self {
        Self {
            link,
            config,
            peer: None,
            state: State::ExpectPeer,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            sends_open: 0,
            receives_open: 0,
            issuing: false,
            down_due: false,
            answered_at: Time::ZERO,
            numbers: 0,
        }
    }

    pub(crate) fn push(&mut self, op: Op, work: Work, claim: Option<(LocalId, Claim)>) {
        self.numbers += 1;
        self.sends_open += 1;
        self.sends.push_back(Entry {
            number: self.numbers,
            op,
            work,
            claim,
            stage: Stage::Queued,
            fragments: 0,
            refused: false,
        });
    }

    pub(crate) fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        self.sends.iter_mut().find(|entry| entry.number == number)
    }

    /// Whether a READ posted before entry `number` is not over: what a fence waits for.
    pub(crate) fn reads_before(&self, number: u64) -> bool {
        self.sends
            .iter()
            .take_while(|entry| entry.number != number)
            .any(|entry| matches!(entry.work, Work::Read { .. }) && !matches!(entry.stage, Stage::Over(_)))
    }

    /// Whether a READ posted before entry `number` has not been taken to its end at the peer.
    pub(crate) fn reads_unexecuted_before(&self, number: u64) -> bool {
        self.sends.iter().take_while(|entry| entry.number != number).any(|entry| {
            matches!(entry.work, Work::Read { .. }) && matches!(entry.stage, Stage::Queued | Stage::Issued)
        })
    }

    /// Whether something posted before entry `number` is going to be refused.
    pub(crate) fn refused_before(&self, number: u64) -> bool {
        self.sends.iter().take_while(|entry| entry.number != number).any(|entry| entry.refused)
    }

    /// Takes out what is over, in order.
    pub(crate) fn complete(&mut self, ready: &mut VecDeque<Ready>) {
        while let Some(Stage::Over(result)) = self.sends.front().map(|entry| entry.stage) {
            let entry = self.sends.pop_front().expect("the front was just looked at");
            ready.push_back(finished(self.link, entry, result));
        }
    }

    /// Puts the endpoint into the error state: everything posted is over. `first` is what the oldest open entry ends with.
    pub(crate) fn fail(&mut self, cause: DownCause, first: WorkError, ready: &mut VecDeque<Ready>) {
        if matches!(self.state, State::Failed(_)) {
            return;
        }
        self.state = State::Failed(cause);
        let mut error = first;
        for entry in &mut self.sends {
            // A bind that was executed stays executed; only a completion is in order.
            let local = matches!(entry.work, Work::Bind { .. } | Work::Unbind { .. });
            entry.stage = match entry.stage {
                Stage::Executed(outcome) if local => Stage::Over(Ok(outcome)),
                // What is over and still here is behind something that is not: only errors of its own it keeps.
                Stage::Over(result) if local || result.is_err() => Stage::Over(result),
                _ => Stage::Over(Err(std::mem::replace(&mut error, WorkError::Flushed))),
            };
        }
        self.complete(ready);
        while let Some(receive) = self.receives.pop_front() {
            ready.push_back(flushed(self.link, receive));
        }
    }
}

pub(crate) fn finished(link: LinkId, entry: Entry, result: Result<Outcome, WorkError>) -> Ready {
    let window = match entry.work {
        Work::Bind { window, .. } | Work::Unbind { window } => Some(window),
        _ => None,
    };
    let release = Release { claim: entry.claim, window, send: Some(link), receive: None };
    Ready { event: Event::Done { link, op: entry.op, result }, release }
}

pub(crate) fn flushed(link: LinkId, receive: Receive) -> Ready {
    let event = Event::Done { link, op: receive.op, result: Err(WorkError::Flushed) };
    let release =
        Release { claim: Some((receive.into.local, receive.claim)), window: None, send: None, receive: Some(link) };
    Ready { event, release }
}
