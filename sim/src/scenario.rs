//! What a seed makes of a world: who is in it, on what network and devices, and what happens to them.

use std::time::Duration;

use keyway_broker::core::Faults;
use keyway_fabric::Time;
use keyway_schema::limits::{SEGMENT_HEADER, SEGMENT_MIN};
use keyway_schema::message::{EpochSettings, Scope, Start};
use keyway_schema::record::batch_max;

use crate::device::DeviceTraits;
use crate::network::NetworkTraits;
use crate::puppet::{Manners, Subscription};

/// What kind of world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mix {
    /// Nothing goes wrong.
    Steady,
    /// Tiny rings and slow consumers.
    Lapping,
    /// Keys that live for a fraction of a millisecond.
    ShortEpochs,
    /// Processes die, stall and are cut off; streams break; the wall clock jumps.
    Faults,
    /// The broker dies and comes back.
    Restart,
    /// Batches that do not fit a slot.
    Offers,
    /// Too few segments, windows and sessions.
    Exhaustion,
    /// Consumers that stop, are late, keep keys or talk nonsense.
    Hostile,
}

impl Mix {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Steady,
        Self::Lapping,
        Self::ShortEpochs,
        Self::Faults,
        Self::Restart,
        Self::Offers,
        Self::Exhaustion,
        Self::Hostile,
    ];
}

/// Which clients a world has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cast {
    /// Those made by hand.
    Puppets,
    /// The real machines, and those made by hand where they break the protocol.
    Machines,
}

/// A producer of a world.
#[derive(Clone, Debug)]
pub(crate) struct ProducerPart {
    pub(crate) topic: String,
    pub(crate) manners: Manners,
    /// The mean time between two records.
    pub(crate) pause: Duration,
    /// How long its records are at most.
    pub(crate) record_max: usize,
    pub(crate) puppet: bool,
}

/// A consumer of a world.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerPart {
    pub(crate) wish: Subscription,
    pub(crate) manners: Manners,
    pub(crate) starts_at: Time,
    /// How long its application keeps what it got.
    pub(crate) dwell: Duration,
    pub(crate) puppet: bool,
}

/// Something that happens to the world.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Disturbance {
    /// A client's process is killed; it starts anew after a while.
    Kill { actor: usize, back_after: Duration },
    /// A client gets no processor.
    Stall { actor: usize, length: Duration },
    /// A client and the broker cannot reach each other.
    Cut { actor: usize, length: Duration },
    /// A bootstrap stream breaks, and the endpoint does not.
    Hangup { actor: usize },
    /// The broker is killed and starts anew.
    Restart { back_after: Duration },
    /// The broker gets no processor.
    StallBroker { length: Duration },
    /// The wall clock jumps.
    Jump { nanoseconds: i64 },
}

/// A world to be simulated.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// The seed that it was made from.
    pub(crate) seed: u64,
    /// What kind it is.
    pub(crate) mix: Mix,
    /// Who is in it.
    pub(crate) cast: Cast,
    /// The broker's deliberate faults.
    pub(crate) faults: Faults,
    pub(crate) network: NetworkTraits,
    pub(crate) device: DeviceTraits,
    pub(crate) segment_size: u32,
    pub(crate) pool_segments: u32,
    pub(crate) ring: u32,
    pub(crate) record_max: u32,
    /// The broker's receive slots for a producer are so long.
    pub(crate) slot: u32,
    pub(crate) quarantine: Duration,
    pub(crate) offer_timeout: Duration,
    pub(crate) sessions_max: u32,
    pub(crate) windows_max: u32,
    /// The longest that a node waits for the processor.
    pub(crate) turn_delay: Duration,
    /// Of 1,000 answers of the bootstrap, how many are lost.
    pub(crate) bootstrap_lost: u32,
    pub(crate) producers: Vec<ProducerPart>,
    pub(crate) consumers: Vec<ConsumerPart>,
    pub(crate) run_for: Duration,
    pub(crate) disturbances: Vec<(Time, Disturbance)>,
}

const fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

fn between(rng: &mut fastrand::Rng, from: u64, to: u64) -> Duration {
    us(rng.u64(from..=to))
}

impl Scenario {
    /// The world of a seed.
    pub(crate) fn new(seed: u64, mix: Mix, cast: Cast) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ (mix as u64) << 56);
        let rng = &mut rng;
        let run_for = between(rng, 30_000, 150_000);
        let ring = if mix == Mix::Lapping { 2 } else { rng.u32(2..=4) };
        let topics = if mix == Mix::Exhaustion { 2 } else { rng.usize(1..=2) };
        let mut scenario = Self {
            seed,
            mix,
            cast,
            faults: Faults::default(),
            network: network(rng),
            device: DeviceTraits {
                bounds_enforced: rng.u32(0..4) > 0,
                windows_max: 4_096,
                // Every fourth device gives nothing but indices that were freed.
                index_reuse: match rng.u32(0..=30) {
                    _ if seed % 4 == 3 => 100,
                    percent => percent,
                },
            },
            segment_size: SEGMENT_MIN,
            pool_segments: (ring + 2) * topics as u32 + rng.u32(2..8),
            ring,
            record_max: 16 * 1024,
            slot: [4_096, 8_192, 32 * 1024][rng.usize(0..3)],
            quarantine: Duration::from_secs(300),
            offer_timeout: between(rng, 5_000, 50_000),
            sessions_max: 64,
            windows_max: 2_048,
            turn_delay: between(rng, 1, 60),
            bootstrap_lost: if matches!(mix, Mix::Faults | Mix::Restart) { 50 } else { 0 },
            producers: Vec::new(),
            consumers: Vec::new(),
            run_for,
            disturbances: Vec::new(),
        };
        scenario.people(rng, topics);
        scenario.disturb(rng);
        scenario.limit(rng);
        scenario
    }

    fn people(&mut self, rng: &mut fastrand::Rng, topics: usize) {
        let topic = |rng: &mut fastrand::Rng| format!("topic-{}", rng.usize(0..topics));
        for _ in 0..rng.usize(1..=3) {
            let record_max = match self.mix {
                Mix::Offers => 15 * 1024,
                Mix::Lapping | Mix::Exhaustion => rng.usize(2_000..8_000),
                _ => rng.usize(64..3_000),
            };
            let pause = match self.mix {
                Mix::Lapping => between(rng, 30, 300),
                Mix::Offers => between(rng, 200, 2_000),
                _ => between(rng, 100, 2_000),
            };
            let manners = match self.mix {
                Mix::Hostile if rng.u32(0..4) == 0 => Manners::Garbage { grants: rng.u64(1..20) },
                _ => Manners::Good,
            };
            let puppet = self.cast == Cast::Puppets || manners != Manners::Good;
            self.producers.push(ProducerPart { topic: topic(rng), manners, pause, record_max, puppet });
        }
        for _ in 0..rng.usize(1..=4) {
            let manners = self.manners(rng);
            let puppet = self.cast == Cast::Puppets || manners != Manners::Good || rng.u32(0..5) == 0;
            let topic = topic(rng);
            let wish = self.wish(rng, topic);
            let starts_at = Time(rng.u64(0..self.run_for.as_nanos() as u64 / 2));
            let dwell = match self.mix {
                Mix::Lapping => between(rng, 0, 5_000),
                _ => between(rng, 0, 100),
            };
            self.consumers.push(ConsumerPart { wish, manners, starts_at, dwell, puppet });
        }
    }

    fn manners(&self, rng: &mut fastrand::Rng) -> Manners {
        if self.mix != Mix::Hostile {
            return Manners::Good;
        }
        match rng.u32(0..6) {
            0 => Manners::Good,
            1 => Manners::Stops { grants: rng.u64(1..20) },
            2 => Manners::Late { percent: rng.u32(60..90) },
            3 => Manners::Late { percent: rng.u32(110..400) },
            4 => Manners::KeepsKeys { turns: rng.u32(2..200) },
            _ => Manners::Garbage { grants: rng.u64(1..20) },
        }
    }

    fn wish(&self, rng: &mut fastrand::Rng, topic: String) -> Subscription {
        let start = match rng.u32(0..4) {
            0 => Start::Latest,
            _ => Start::Earliest,
        };
        let scope = [Scope::Segment, Scope::Segment, Scope::Batch, Scope::Message][rng.usize(0..4)];
        let interval_us = match self.mix {
            Mix::ShortEpochs => rng.u32(100..400),
            _ => rng.u32(500..30_000),
        };
        let grace_ms = rng.u32(10..100);
        let bytes = if rng.bool() { 0 } else { rng.u64(10_000..100_000) };
        let records = if rng.bool() { 0 } else { rng.u64(1..50) };
        let depth = match scope {
            Scope::Segment => [0, 4, 6][rng.usize(0..3)],
            _ => [0, 1, 2, 8][rng.usize(0..4)],
        };
        let landing = batch_max(self.record_max) + rng.u32(0..32 * 1024);
        Subscription {
            topic,
            start,
            scope,
            epoch: EpochSettings { interval_us, grace_ms, bytes, records },
            depth,
            landing,
        }
    }

    fn disturb(&mut self, rng: &mut fastrand::Rng) {
        let count = match self.mix {
            Mix::Faults => rng.usize(2..8),
            Mix::Restart => rng.usize(1..4),
            Mix::Offers => rng.usize(0..3),
            Mix::Hostile => rng.usize(0..2),
            Mix::Lapping => rng.usize(0..2),
            _ => 0,
        };
        let actors = self.producers.len() + self.consumers.len();
        for at in 0..count {
            let when = Time(rng.u64(0..self.run_for.as_nanos() as u64));
            let actor = rng.usize(0..actors);
            let back_after = between(rng, 10, 20_000);
            let length = between(rng, 10, 80_000);
            let disturbance = match self.mix {
                Mix::Restart if at == 0 => Disturbance::Restart { back_after },
                Mix::Lapping => Disturbance::Stall { actor, length },
                // Producers that die in mid-offer.
                Mix::Offers => Disturbance::Kill { actor: rng.usize(0..self.producers.len()), back_after },
                _ => match rng.u32(0..8) {
                    0 | 1 => Disturbance::Kill { actor, back_after },
                    2 | 3 => Disturbance::Stall { actor, length },
                    4 => Disturbance::Cut { actor, length },
                    5 => Disturbance::Hangup { actor },
                    6 => Disturbance::StallBroker { length: between(rng, 10, 20_000) },
                    _ => Disturbance::Jump { nanoseconds: rng.i64(-3_600_000_000_000..3_600_000_000_000) },
                },
            };
            self.disturbances.push((when, disturbance));
        }
    }

    fn limit(&mut self, rng: &mut fastrand::Rng) {
        let people = (self.producers.len() + self.consumers.len()) as u32;
        if self.mix != Mix::Exhaustion {
            return;
        }
        match rng.u32(0..3) {
            // So few that the topics must wait for each other's limbo. One ring and a segment at least, or a topic would
            // never get one.
            0 => self.pool_segments = self.ring + rng.u32(1..=self.ring + 1),
            1 => self.windows_max = rng.u32(4..16) * people,
            _ => self.sessions_max = people.max(2) - 1,
        }
    }

    pub(crate) fn pool_len(&self) -> u64 {
        u64::from(self.pool_segments) * u64::from(self.segment_size)
    }
}

fn network(rng: &mut fastrand::Rng) -> NetworkTraits {
    let latency = between(rng, 2, 100);
    NetworkTraits {
        latency,
        latency_max: latency * rng.u32(2..30),
        slow: rng.u32(0..50),
        fragments: rng.u32(1..6),
        spread: between(rng, 0, 200),
        patience: between(rng, 5_000, 40_000),
    }
}

const _: () = assert!(SEGMENT_HEADER + batch_max(16 * 1024) < SEGMENT_MIN, "a batch fits a segment");
