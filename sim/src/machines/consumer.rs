//! The consumer's machine with a simulated application, which holds what it got for a while.

use std::collections::VecDeque;
use std::time::Duration;

use keyway_consumer::machine::{ConsumerMachine, LandingMemory, MachineConfig, Output};
use keyway_fabric::*;
use keyway_schema::TopicName;
use keyway_schema::batch::Batch;
use keyway_schema::bootstrap::Role;
use keyway_schema::limits::CONTROL_SLOT;
use keyway_schema::record::RecordRef;

use crate::device::SimFabric;
use crate::scenario::ConsumerPart;
use crate::session::{Connected, Delivery, Plan, Session};

/// The length of a slot for a tail word.
const WORD: u32 = 64;

/// A consumer.
#[derive(Debug)]
pub(crate) struct MachineConsumer {
    machine: ConsumerMachine,
    dwell: Duration,
    domain: Option<DomainId>,
    landing: Option<LandingMemory>,
    /// What the application holds, and until when.
    held: VecDeque<(Time, View)>,
    /// Arenas that are free once nothing of them is held.
    retired: Vec<(LocalId, u32)>,
    deliveries: Vec<Delivery>,
    stopping: bool,
}

impl MachineConsumer {
    pub(crate) fn new(part: &ConsumerPart, mut rng: fastrand::Rng) -> Self {
        let wish = &part.wish;
        let config = MachineConfig {
            start: wish.start,
            scope: wish.scope,
            epoch: wish.epoch,
            depth: wish.depth,
            landing: u64::from(wish.landing) * rng.u64(1..4),
            reads: rng.u16(1..6),
            subscribe_timeout: Duration::from_millis(100),
            ..MachineConfig::new(TopicName::new(&wish.topic).expect("the world's topics have valid names"))
        };
        Self {
            machine: ConsumerMachine::new(config),
            dwell: part.dwell,
            domain: None,
            landing: None,
            held: VecDeque::new(),
            retired: Vec::new(),
            deliveries: Vec::new(),
            stopping: false,
        }
    }

    fn land(&mut self, arenas: u32, size: u32, fabric: &mut SimFabric) {
        let domain = self.domain.expect("prepared before the first session");
        let memory = "the system has memory left";
        let local = fabric.local(domain, arenas, size).expect(memory);
        let word = fabric.local(domain, 1, WORD).expect(memory);
        let landing = LandingMemory { local, arenas, size, word };
        self.machine.landed(landing);
        if let Some(before) = self.landing.replace(landing) {
            self.retired.retain(|(local, _)| *local != before.local);
            free(before, fabric);
        }
    }

    fn batches(&mut self, view: &View, from: u64) {
        let mut bytes: &[u8] = view;
        while !bytes.is_empty() {
            let Ok(batch) = Batch::read(bytes) else {
                // Delivered as what it is: the judges will say that it cannot be.
                return self.deliveries.push(Delivery::Record { sequence: from, time: 0, payload: b"torn".to_vec() });
            };
            let header = *batch.header();
            for (sequence, record) in (header.base_sequence..).zip(batch.records()) {
                if sequence >= from {
                    let payload = record.payload.to_vec();
                    self.deliveries.push(Delivery::Record { sequence, time: header.time, payload });
                }
            }
            bytes = &bytes[header.len as usize..];
        }
    }

    fn take(&mut self, now: Now, output: &Output, fabric: &mut SimFabric) {
        match *output {
            Output::Land { arenas, size } => self.land(arenas, size, fabric),
            Output::Batches { span, from } => {
                let view = fabric.view(span);
                self.batches(&view, from);
                self.held.push_back((now.time + self.dwell, view));
            }
            Output::Record { span, sequence, time } => {
                let view = fabric.view(span);
                let payload = RecordRef::read(&view).map_or_else(|| b"torn".to_vec(), |record| record.payload.to_vec());
                self.deliveries.push(Delivery::Record { sequence, time, payload });
                self.held.push_back((now.time + self.dwell, view));
            }
            Output::Lagged { from, to } => self.deliveries.push(Delivery::Gap { from, to }),
            Output::Sought { .. } => unreachable!("nobody has asked for a seek"),
            Output::Restarted { .. } => self.deliveries.push(Delivery::Restarted),
            Output::Retired { local, slot } => self.retired.push((local, slot)),
        }
    }

    /// Lets go of what was held long enough, and gives back arenas that nobody looks at any more.
    fn let_go(&mut self, now: Now, fabric: &mut SimFabric) -> usize {
        while self.held.front().is_some_and(|(until, _)| *until <= now.time) {
            self.held.pop_front();
        }
        let before = self.retired.len();
        let machine = &mut self.machine;
        self.retired.retain(|(local, slot)| {
            let free = fabric.reset(*local, *slot);
            if free {
                machine.arena_free(*local, *slot);
            }
            !free
        });
        before - self.retired.len()
    }
}

fn free(landing: LandingMemory, fabric: &mut SimFabric) {
    for local in [landing.local, landing.word] {
        fabric.free_local(local).expect("landing memory is freed once");
    }
}

impl Machine for MachineConsumer {
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

impl Session for MachineConsumer {
    fn plan(&self) -> Plan {
        Plan {
            role: Role::Consumer,
            receive_slots: 64,
            receive_size: CONTROL_SLOT,
            send_slots_max: 64,
            send_size_max: CONTROL_SLOT,
            work_depth: self.machine.config().work_depth(),
            remote_read: false,
        }
    }

    fn prepare(&mut self, domain: DomainId, _fabric: &mut SimFabric) {
        self.domain = Some(domain);
    }

    fn connected(&mut self, now: Now, connected: &Connected, _memory: &mut dyn Memory) {
        self.machine.connected(now, connected.instance, connected.session, connected.channel);
    }

    fn disconnected(&mut self, _now: Now) {
        self.machine.disconnected();
    }

    fn turn(&mut self, now: Now, fabric: &mut SimFabric) -> usize {
        let mut work = 0;
        while let Some(output) = self.machine.poll_output() {
            self.take(now, &output, fabric);
            work += 1;
        }
        work + self.let_go(now, fabric)
    }

    /// When the application lets go of the oldest thing that it holds.
    fn wants_turn_at(&self) -> Option<Time> {
        self.held.front().map(|(until, _)| *until)
    }

    fn deliveries(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }

    fn stop(&mut self, _now: Now) {
        self.stopping = true;
        self.machine.leave();
    }

    fn is_over(&self) -> bool {
        self.stopping && self.machine.has_left()
    }

    fn is_settled(&self) -> bool {
        self.machine.is_subscribed()
    }

    fn dissolve(&mut self, fabric: &mut SimFabric) {
        self.held.clear();
        if let Some(landing) = self.landing.take() {
            free(landing, fabric);
        }
    }
}
