//! A connected pair of fabrics, made for one question and taken down in order after it.

use std::time::Duration;

use super::report::{Answer, Measured};
use crate::conformance::harness::{POOL, Pair, Side, ensure, pattern};
use crate::conformance::{Backend, Failure};
use crate::{Holdings, Key, LinkId, Outcome, RemoteSpan, SystemClock, Target, Time, WindowId, Work, WorkError};

/// How many polls that found nothing go straight on to the next. After those other threads get a turn between two: on a
/// machine of one processor a software device runs in one.
const SPINS_MAX: u32 = 64;

/// How many polls may pass between two looks at the clock of the watchdog.
const POLLS_A_LOOK: u32 = 1024;

/// When a completion is given up that is being timed. Only a watchdog.
const WATCHDOG: Duration = Duration::from_secs(20);

/// The most events taken in at once.
const EVENTS: usize = 64;

/// Two connected fabrics, and what has to be freed in the end.
pub(super) struct Stand<'a> {
    pub(super) pair: Pair<'a>,
    pub(super) clock: SystemClock,
    windows: Vec<WindowId>,
}

/// Asks one question of a pair of fabrics of its own, and adds what they still hold after it to `left_behind`.
pub(super) fn ask<T>(
    backend: &dyn Backend,
    left_behind: &mut Holdings,
    question: impl FnOnce(&mut Stand<'_>) -> Result<T, Failure>,
) -> Measured<T> {
    let pair = Pair::new(backend)?;
    let mut stand = Stand { pair, clock: SystemClock::start(), windows: Vec::new() };
    let answer = question(&mut stand);
    match stand.take_down() {
        Ok(held) => held.iter().for_each(|held| add(left_behind, *held)),
        // What went wrong first says more. The fabrics free everything when they are dropped.
        Err(failure) if answer.is_ok() => return Err(failure.into()),
        Err(_) => {}
    }
    Ok(answer?)
}

fn add(sum: &mut Holdings, more: Holdings) {
    sum.domains += more.domains;
    sum.locals += more.locals;
    sum.shareds += more.shareds;
    sum.windows += more.windows;
    sum.bound += more.bound;
    sum.endpoints += more.endpoints;
}

impl Stand<'_> {
    /// A new window of the owner's.
    pub(super) fn window(&mut self) -> Result<WindowId, Failure> {
        let window = self.pair.window()?;
        self.windows.push(window);
        Ok(window)
    }

    /// Frees a window, bound or not.
    pub(super) fn free(&mut self, window: WindowId) -> Result<(), Failure> {
        self.pair.owner.fabric.free_window(window)?;
        self.windows.retain(|kept| *kept != window);
        Ok(())
    }

    /// READs a part of the pool, or what lies around it. If that ends the endpoints, new ones are connected.
    pub(super) fn attempt(&mut self, key: Key, offset: u64, len: u32) -> Result<Answer, Failure> {
        let from = self.pair.remote(key, offset, len);
        let slot = self.pair.reader.slot(0, len);
        self.pair.reader.fabric.bytes_mut(slot).fill(0);
        let op = self.pair.reader.post_read(from, 0)?;
        match self.pair.reader_result(op)? {
            Ok(_) => {
                if offset.checked_add(len.into()).is_some_and(|end| end <= POOL) {
                    let bytes = self.pair.reader.fabric.bytes(slot);
                    let right = bytes.iter().zip(offset..).all(|(byte, at)| *byte == pattern(at));
                    ensure!(right, "a READ of {offset}+{len} ended well and brought other bytes than lie there");
                }
                Ok(Answer::Opened)
            }
            Err(error) => {
                self.reconnect()?;
                Ok(if error == WorkError::RemoteAccess { Answer::Refused } else { Answer::Failed(error) })
            }
        }
    }

    /// The worst of several answers: one that opens outweighs all others, and what is no refusal outweighs refusals.
    pub(super) fn worst_attempt(
        &mut self,
        attempts: impl IntoIterator<Item = (Key, u64, u32)>,
    ) -> Result<Answer, Failure> {
        let mut worst = Answer::Refused;
        for (key, offset, len) in attempts {
            match self.attempt(key, offset, len)? {
                Answer::Opened => return Ok(Answer::Opened),
                Answer::Refused => {}
                failed @ Answer::Failed(_) => worst = failed,
            }
        }
        Ok(worst)
    }

    /// Ends both endpoints, if they have not ended yet, and connects new ones.
    pub(super) fn reconnect(&mut self) -> Result<(), Failure> {
        self.disconnect()?;
        self.pair.connect()
    }

    fn disconnect(&mut self) -> Result<(), Failure> {
        let links = (self.pair.owner.link, self.pair.reader.link);
        self.pair.owner.fabric.close(links.0);
        self.pair.reader.fabric.close(links.1);
        self.pair.until("both endpoints to end", |pair| {
            pair.owner.down(links.0).is_some() && pair.reader.down(links.1).is_some()
        })?;
        self.forget_events();
        Ok(())
    }

    /// Forgets what both sides were told. Between two trials only: a watch for an event of before would be in vain.
    pub(super) fn forget_events(&mut self) {
        self.pair.owner.events.clear();
        self.pair.reader.events.clear();
    }

    /// Frees everything, children first; returns what the two fabrics then still hold.
    fn take_down(mut self) -> Result<[Holdings; 2], Failure> {
        self.disconnect()?;
        for window in std::mem::take(&mut self.windows) {
            self.pair.owner.fabric.free_window(window)?;
        }
        self.pair.owner.fabric.free_shared(self.pair.pool)?;
        for side in [&mut self.pair.owner, &mut self.pair.reader] {
            side.fabric.free_local(side.local)?;
            side.fabric.free_domain(side.domain)?;
        }
        Ok([self.pair.owner.fabric.holdings(), self.pair.reader.fabric.holdings()])
    }

    /// Does a piece of work of the owner's; how long it took from its posting to its completion.
    pub(super) fn time_at_owner(&mut self, work: Work) -> Result<(Duration, Outcome), Failure> {
        let link = self.pair.owner.link;
        time(&mut self.pair.owner, None, self.clock, link, work)
    }

    /// The reader fetches a part of what the owner lends; how long it took from the posting to the completion.
    pub(super) fn time_read(&mut self, from: RemoteSpan) -> Result<Duration, Failure> {
        let work = Work::Read { from, into: Target::Local(self.pair.reader.slot(0, from.len)) };
        let link = self.pair.reader.link;
        time(&mut self.pair.reader, Some(&mut self.pair.owner), self.clock, link, work).map(|(took, _)| took)
    }
}

/// Does a piece of work; how long it took. A peer that must serve it gets a turn after each of this side's.
fn time(
    side: &mut Side,
    mut peer: Option<&mut Side>,
    clock: SystemClock,
    link: LinkId,
    work: Work,
) -> Result<(Duration, Outcome), Failure> {
    side.events.clear();
    let mut patience = Patience::start(clock);
    let start = clock.time();
    let op = side.post_to(link, work)?;
    side.fabric.submit();
    loop {
        if let Some(peer) = &mut peer {
            peer.fabric.poll(&mut peer.events, EVENTS);
        }
        side.fabric.poll(&mut side.events, EVENTS);
        if let Some(result) = side.result(op) {
            let took = clock.time().since(start);
            return match result {
                Ok(outcome) => Ok((took, outcome)),
                Err(error) => Err(Failure(format!("{work:?} failed: {error}"))),
            };
        }
        patience.wait("a completion that is being timed")?;
    }
}

/// Waits between two polls: spins, then lets other threads run, and gives up in the end.
pub(super) struct Patience {
    clock: SystemClock,
    start: Time,
    polls: u32,
}

impl Patience {
    pub(super) fn start(clock: SystemClock) -> Self {
        Self { clock, start: clock.time(), polls: 0 }
    }

    /// Something was found: starts from the beginning.
    pub(super) fn renew(&mut self) {
        *self = Self::start(self.clock);
    }

    pub(super) fn wait(&mut self, what: &str) -> Result<(), Failure> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls <= SPINS_MAX {
            std::hint::spin_loop();
            return Ok(());
        }
        if self.polls.is_multiple_of(POLLS_A_LOOK) {
            let waited = self.clock.time().since(self.start);
            ensure!(waited < WATCHDOG, "waited in vain for {what}");
        }
        std::thread::yield_now();
        Ok(())
    }
}
