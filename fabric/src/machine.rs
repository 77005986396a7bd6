//! Machines, and the loop that joins one to a fabric.

use std::collections::VecDeque;

use crate::{Event, Fabric, FabricError, LinkId, Memory, Now, Op, Time, Transmit, Work, WorkError};

/// A role of the bus as a pure state machine: no clock, no thread, no socket, no unbounded allocation. It is told what
/// happened and the time, and says what it wants posted.
pub trait Machine {
    /// Takes in one event. Bytes that the event speaks of are looked at through `memory` now or, if the machine keeps the
    /// slot, later.
    fn handle(&mut self, now: Now, event: Event, memory: &mut dyn Memory);

    /// Does what is due at `now`.
    fn handle_timeout(&mut self, now: Now, memory: &mut dyn Memory);

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called next.
    fn timeout(&self) -> Option<Time>;

    /// The next thing to do, until there is none. What is returned is done before the next call, so that a key read with
    /// [`Memory::key`] is the one of the bind returned before.
    fn transmit(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit>;
}

/// The most events that one turn takes in before timers and the doorbell have their turn: enough to keep a reactor busy, few
/// enough that a turn stays well under the shortest epoch.
pub const EVENTS_A_TURN: usize = 256;

/// One turn: transmits what is waiting, takes in up to [`EVENTS_A_TURN`] events, transmitting after each, then the timer if
/// it is due, and rings the doorbell. Returns how much work was done; zero means that the caller may rest.
///
/// `events` is kept between turns by the caller: answers that came too late in this turn wait in it for the next.
///
/// # Errors
///
/// The fabric refused something that the machine was sure of: the two no longer agree, and the session or process that
/// they serve must end.
pub fn drive<M: Machine + ?Sized>(
    machine: &mut M,
    fabric: &mut dyn Fabric,
    now: Now,
    events: &mut Vec<Event>,
) -> Result<usize, FabricError> {
    let mut batch = VecDeque::new();
    let mut work = transmit(machine, fabric, now, &mut batch, events)?;
    fabric.poll(events, EVENTS_A_TURN);
    batch = VecDeque::from(std::mem::take(events));
    while let Some(event) = batch.pop_front() {
        machine.handle(now, event, fabric);
        work += 1 + transmit(machine, fabric, now, &mut batch, events)?;
    }
    // Keeps the larger buffer; `batch` is empty now, and what was answered meanwhile stays for the next turn.
    let mut buffer = Vec::from(std::mem::take(&mut batch));
    buffer.append(events);
    *events = buffer;
    if machine.timeout().is_some_and(|at| at <= now.time) {
        machine.handle_timeout(now, fabric);
        work += 1 + transmit(machine, fabric, now, &mut batch, events)?;
    }
    if work > 0 {
        fabric.submit();
    }
    Ok(work)
}

/// Does everything that the machine wants done now. `batch` is what has been polled and the machine has not been told yet;
/// answers go to `answers`.
fn transmit<M: Machine + ?Sized>(
    machine: &mut M,
    fabric: &mut dyn Fabric,
    now: Now,
    batch: &mut VecDeque<Event>,
    answers: &mut Vec<Event>,
) -> Result<usize, FabricError> {
    let mut work = 0;
    while let Some(transmit) = machine.transmit(now, fabric) {
        work += 1;
        match transmit {
            Transmit::Post { link, op, work } => post(fabric, link, op, work, batch)?,
            Transmit::Close { link } => fabric.close(link),
            Transmit::Allocate { op, domain } => {
                let result = fabric.window(domain);
                answers.push(Event::Allocated { op, result });
            }
            Transmit::FreeWindow { window } => fabric.free_window(window)?,
            Transmit::FreeLocal { local } => fabric.free_local(local)?,
        }
    }
    Ok(work)
}

/// Posts work. To the fabric an endpoint is gone once its `Down` was polled, to the machine once it has handled it: what is
/// posted in between is flushed, right before the `Down`, so that for the machine too it is the endpoint's last event.
fn post(
    fabric: &mut dyn Fabric,
    link: LinkId,
    op: Op,
    work: Work,
    batch: &mut VecDeque<Event>,
) -> Result<(), FabricError> {
    let refused = match fabric.post(link, op, work) {
        Err(refused @ FabricError::Unknown { .. }) => refused,
        posted => return posted,
    };
    let down = batch.iter().position(|event| matches!(event, Event::Down { link: gone, .. } if *gone == link));
    let Some(place) = down else { return Err(refused) };
    batch.insert(place, Event::Done { link, op, result: Err(WorkError::Flushed) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::{SoftConfig, SoftFabric};
    use crate::{DownCause, EndpointConfig, LocalSpan};

    /// Posts a receive to `other` when it hears of the first end.
    struct Late {
        other: LinkId,
        into: LocalSpan,
        wants: bool,
        heard: Vec<String>,
    }

    impl Machine for Late {
        fn handle(&mut self, _: Now, event: Event, _: &mut dyn Memory) {
            self.wants = self.heard.is_empty();
            self.heard.push(format!("{event:?}"));
        }

        fn handle_timeout(&mut self, _: Now, _: &mut dyn Memory) {}

        fn timeout(&self) -> Option<Time> {
            None
        }

        fn transmit(&mut self, _: Now, _: &mut dyn Memory) -> Option<Transmit> {
            let work = Work::Recv { into: self.into };
            std::mem::take(&mut self.wants).then_some(Transmit::Post { link: self.other, op: Op(7), work })
        }
    }

    #[test]
    fn what_is_posted_to_an_endpoint_before_its_end_is_told_is_flushed_before_its_end() {
        let mut fabric = SoftFabric::new(SoftConfig::default()).unwrap();
        let domain = fabric.domain().unwrap();
        let local = fabric.local(domain, 1, 64).unwrap();
        let config = EndpointConfig { domain, send_depth: 1, receive_depth: 1, remote_read: false };
        let [first, other] = [(); 2].map(|()| fabric.endpoint(config).unwrap().0);
        fabric.close(first);
        fabric.close(other);
        let into = LocalSpan { local, slot: 0, offset: 0, len: 64 };
        let mut machine = Late { other, into, wants: false, heard: Vec::new() };
        let mut events = Vec::new();
        drive(&mut machine, &mut fabric, Now::default(), &mut events).unwrap();
        let expected = [
            Event::Down { link: first, cause: DownCause::Closed },
            Event::Done { link: other, op: Op(7), result: Err(WorkError::Flushed) },
            Event::Down { link: other, cause: DownCause::Closed },
        ];
        assert_eq!(machine.heard, expected.map(|event| format!("{event:?}")));
    }
}
