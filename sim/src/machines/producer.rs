//! The producer's machine with a simulated application.

use std::collections::{BTreeMap, VecDeque};

use keyway_fabric::*;
use keyway_producer::machine::{IN_FLIGHT_MAX, OFFERS_MAX, OfferMemory, ProducerConfig, ProducerMachine, Ticket};
use keyway_schema::TopicName;
use keyway_schema::batch::BatchBuilder;
use keyway_schema::bootstrap::Role;
use keyway_schema::limits::CONTROL_SLOT;
use keyway_schema::record::RecordRef;

use crate::device::SimFabric;
use crate::payload::Mark;
use crate::scenario::{ProducerPart, Scenario};
use crate::session::{Connected, Plan, Receipt, Session};

/// Records that wait to be taken by the machine at most.
const WAITING_MAX: usize = 64;

/// A producer.
#[derive(Debug)]
pub(crate) struct MachineProducer {
    machine: ProducerMachine,
    rng: fastrand::Rng,
    slot: u32,
    domain: Option<DomainId>,
    offer_memory: Option<SharedId>,
    waiting: VecDeque<(Mark, Vec<u8>)>,
    batches: BTreeMap<Ticket, Vec<Mark>>,
    receipts: Vec<Receipt>,
    stopping: bool,
    leaving: bool,
}

impl MachineProducer {
    pub(crate) fn new(part: &ProducerPart, scenario: &Scenario, mut rng: fastrand::Rng) -> Self {
        let config = ProducerConfig {
            topic: TopicName::new(&part.topic).expect("the world's topics have valid names"),
            settings: None,
            producer: rng.u64(1..),
            server: "the simulated broker".into(),
            offer_memory: u64::from(scenario.record_max) * rng.u64(1..5),
        };
        Self {
            machine: ProducerMachine::new(config),
            rng,
            slot: scenario.slot,
            domain: None,
            offer_memory: None,
            waiting: VecDeque::new(),
            batches: BTreeMap::new(),
            receipts: Vec::new(),
            stopping: false,
            leaving: false,
        }
    }

    /// Gives the machine batches of as many records as the seed wants, while it takes them.
    fn submit(&mut self) -> usize {
        let Some(limits) = self.machine.limits() else { return 0 };
        let mut work = 0;
        while self.machine.room() && !self.waiting.is_empty() {
            let fills_batch = self.rng.u32(0..4) == 0;
            let most = if fills_batch { limits.batch_max } else { limits.publish_max };
            let mut builder = BatchBuilder::new(Vec::new());
            let mut marks = Vec::new();
            while let Some((mark, payload)) = self.waiting.pop_front() {
                let record = RecordRef { key: b"", headers: b"", payload: &payload };
                if !builder.is_empty() && builder.len() + record.encoded_len() > most as usize {
                    self.waiting.push_front((mark, payload));
                    break;
                }
                builder.push(record);
                marks.push(mark);
            }
            let (bytes, records) = builder.into_unsealed();
            let ticket = self.machine.submit(bytes, records);
            self.batches.insert(ticket, marks);
            work += 1;
        }
        work
    }

    fn answer(&mut self) -> usize {
        let mut work = 0;
        while let Some(outcome) = self.machine.poll_outcome() {
            work += 1;
            let marks = self.batches.remove(&outcome.ticket).expect("a batch is answered once");
            for (at, mark) in (0..).zip(marks) {
                let receipt = match &outcome.result {
                    Ok((sequence, time)) => Receipt { mark, sequence: Some(sequence + at), time: *time },
                    Err(_) => Receipt { mark, sequence: None, time: 0 },
                };
                self.receipts.push(receipt);
            }
        }
        work
    }

    fn lend(&mut self, fabric: &mut SimFabric) -> usize {
        let Some((slots, slot_len)) = self.machine.offer_memory_wanted() else { return 0 };
        let domain = self.domain.expect("prepared before the first session");
        let shared = fabric.shared(domain, u64::from(slots) * slot_len).expect("the system has memory left");
        self.machine.lend(OfferMemory { shared, slots, slot_len });
        if let Some(before) = self.offer_memory.replace(shared) {
            fabric.free_shared(before).expect("memory that is replaced is lent to nobody");
        }
        1
    }
}

impl Machine for MachineProducer {
    fn handle(&mut self, now: Now, event: Event, memory: &mut dyn Memory) {
        self.machine.handle(now, event, memory);
    }

    fn handle_timeout(&mut self, now: Now, memory: &mut dyn Memory) {
        self.machine.handle_timeout(now, memory);
    }

    fn timeout(&self) -> Option<Time> {
        self.machine.timeout()
    }

    fn transmit(&mut self, now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        self.machine.transmit(now, memory)
    }
}

impl Session for MachineProducer {
    fn plan(&self) -> Plan {
        Plan {
            role: Role::Producer,
            receive_slots: 32,
            receive_size: CONTROL_SLOT,
            send_slots_max: 64,
            send_size_max: self.slot,
            work_depth: OFFERS_MAX.into(),
            remote_read: true,
        }
    }

    fn prepare(&mut self, domain: DomainId, _fabric: &mut SimFabric) {
        self.domain = Some(domain);
    }

    fn connected(&mut self, _now: Now, connected: &Connected, _memory: &mut dyn Memory) {
        self.machine.connected(&super::connected(connected));
    }

    fn disconnected(&mut self, _now: Now) {
        self.machine.take_reason();
    }

    fn turn(&mut self, _now: Now, fabric: &mut SimFabric) -> usize {
        let mut work = self.answer() + self.submit() + self.lend(fabric);
        if self.stopping && !self.leaving && self.waiting.is_empty() && self.batches.is_empty() {
            self.leaving = true;
            self.machine.leave();
            work += 1;
        }
        work += self.answer();
        work
    }

    fn publish(&mut self, _now: Now, mark: Mark, payload: &[u8]) -> bool {
        let full = self.waiting.len() >= WAITING_MAX || self.batches.len() >= IN_FLIGHT_MAX;
        if !full {
            self.waiting.push_back((mark, payload.to_vec()));
        }
        !full
    }

    fn receipts(&mut self) -> Vec<Receipt> {
        std::mem::take(&mut self.receipts)
    }

    fn stop(&mut self, _now: Now) {
        self.stopping = true;
    }

    fn is_over(&self) -> bool {
        self.stopping && self.waiting.is_empty() && self.machine.has_left()
    }

    fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.batches.is_empty()
    }

    fn dissolve(&mut self, fabric: &mut SimFabric) {
        if let Some(shared) = self.offer_memory.take() {
            fabric.free_shared(shared).expect("with the session its windows are gone");
        }
    }
}
