//! What a consumer is made of.

use std::sync::Arc;
use std::time::Duration;

use keyway_client::{AddressError, CONNECT_TIMEOUT, Driver, DriverConfig, Error, Opening, Server};
use keyway_fabric::{FabricChoice, IdleLimits};
use keyway_schema::TopicName;
use keyway_schema::limits::{CLIENT_NAME_MAX, DEPTH_MAX, EPOCH_MIN_US};
use keyway_schema::message::{EpochSettings, Scope, Start};

use crate::Consumer;
use crate::events::events;
use crate::machine::{ConsumerMachine, LANDING_DEFAULT, MachineConfig, READS_DEFAULT};
use crate::role::{ConsumerRole, ITEMS_MAX, Shared};

/// The least landing memory that may be set: two of the smallest arenas.
const LANDING_MIN: u64 = 2 << 20;

/// The most READs in flight that may be set.
const READS_MAX: u16 = 64;

/// The fewest grants of segment scope: one that is current and one that takes its place.
const DEPTH_MIN: u16 = 2;

/// Settings of a consumer.
#[derive(Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct ConsumerBuilder {
    server: Result<Server, AddressError>,
    topic: String,
    name: String,
    start: Start,
    scope: Scope,
    epoch: Duration,
    grace: Duration,
    epoch_bytes: u64,
    epoch_records: u64,
    depth: u16,
    landing: u64,
    reads: u16,
    connect_timeout: Duration,
    idle: IdleLimits,
    fabric: FabricChoice,
}

impl ConsumerBuilder {
    pub(crate) fn new(server: Result<Server, AddressError>, topic: String) -> Self {
        let epoch = EpochSettings::default();
        Self {
            server,
            topic,
            name: String::from("consumer"),
            start: Start::Latest,
            scope: Scope::Segment,
            epoch: Duration::from_micros(epoch.interval_us.into()),
            grace: Duration::from_millis(epoch.grace_ms.into()),
            epoch_bytes: epoch.bytes,
            epoch_records: epoch.records,
            depth: 0,
            landing: LANDING_DEFAULT,
            reads: READS_DEFAULT,
            connect_timeout: CONNECT_TIMEOUT,
            idle: IdleLimits::BALANCED,
            fabric: FabricChoice::Auto,
        }
    }

    /// A name for the broker's logs, of 128 bytes at most.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Where to start (default: behind the latest record).
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// What one grant covers (default: a segment).
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// The longest that a key is current (default: 100 ms; at least 100 µs).
    pub fn epoch(mut self, interval: Duration) -> Self {
        self.epoch = interval;
        self
    }

    /// How long a key that was replaced lives at most, however stuck this consumer is (default: 1 s).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// The most bytes that one key opens before it is replaced (default: no limit).
    pub fn epoch_bytes(mut self, bytes: u64) -> Self {
        self.epoch_bytes = bytes;
        self
    }

    /// The most records that one key opens before it is replaced (default: no limit).
    pub fn epoch_records(mut self, records: u64) -> Self {
        self.epoch_records = records;
        self
    }

    /// The most grants to hold at once (default: the broker's for the scope; 2 to 64).
    pub fn depth(mut self, grants: u16) -> Self {
        self.depth = grants;
        self
    }

    /// How many bytes of records may have landed and not been dropped by the application (default: 16 MiB). There is room for
    /// two of the topic's largest batches whatever it says.
    pub fn landing(mut self, bytes: u64) -> Self {
        self.landing = bytes;
        self
    }

    /// The most READs in flight at once (default: 8; 1 to 64).
    pub fn reads(mut self, reads: u16) -> Self {
        self.reads = reads;
        self
    }

    /// How long connecting may take, with all attempts (default: 10 s). After that the consumer reconnects for as long as it
    /// takes.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The fabric to use (default: [`FabricChoice::Auto`], the one that the broker speaks, as far as this machine can).
    pub fn fabric(mut self, fabric: FabricChoice) -> Self {
        self.fabric = fabric;
        self
    }

    /// How the consumer's thread rests (default: [`IdleLimits::BALANCED`]).
    pub fn idle(mut self, idle: IdleLimits) -> Self {
        self.idle = idle;
        self
    }

    /// Connects, and subscribes.
    ///
    /// # Errors
    ///
    /// A setting is wrong, the broker refused, or the connect timeout is over.
    pub fn connect(self) -> Result<Consumer, Error> {
        let (consumer, opening) = self.start_driver()?;
        opening.wait()?;
        Ok(consumer)
    }

    /// Like [`connect`](Self::connect), without holding a thread.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect).
    pub async fn connect_async(self) -> Result<Consumer, Error> {
        let (consumer, opening) = self.start_driver()?;
        opening.ready().await?;
        Ok(consumer)
    }

    fn start_driver(self) -> Result<(Consumer, Opening), Error> {
        let machine = MachineConfig {
            name: self.name.clone(),
            start: self.start,
            scope: self.scope,
            epoch: self.epoch_settings()?,
            depth: self.depth,
            landing: self.landing,
            reads: self.reads,
            ..MachineConfig::new(self.topic_name()?)
        };
        let server = self.server?;
        let shared = Arc::new(Shared::default());
        let (items, received) = flume::bounded(ITEMS_MAX);
        let (sink, events) = events();
        let role =
            ConsumerRole::new(ConsumerMachine::new(machine), Arc::clone(&shared), server.to_string(), items, sink);
        let config = DriverConfig {
            connect_timeout: self.connect_timeout,
            idle: self.idle,
            fabric: self.fabric,
            ..DriverConfig::new(server, "keyway-consumer")
        };
        let (driver, opening) = Driver::spawn("consumer", config, role)?;
        Ok((Consumer::new(received, shared, events, driver), opening))
    }

    fn topic_name(&self) -> Result<TopicName, Error> {
        let name = TopicName::new(&self.topic);
        name.map_err(|source| Error::Topic { topic: self.topic.clone(), source })
    }

    /// The epoch's settings, after everything that has a range was found within it.
    fn epoch_settings(&self) -> Result<EpochSettings, Error> {
        within("the length of the consumer's name", self.name.len() as u64, 0, CLIENT_NAME_MAX as u64)?;
        within("landing", self.landing, LANDING_MIN, u64::MAX)?;
        within("reads", self.reads.into(), 1, READS_MAX.into())?;
        if self.depth != 0 {
            within("depth", self.depth.into(), DEPTH_MIN.into(), DEPTH_MAX.into())?;
        }
        let interval = u64::try_from(self.epoch.as_micros()).unwrap_or(u64::MAX);
        within("the epoch, in microseconds,", interval, EPOCH_MIN_US.into(), u32::MAX.into())?;
        let grace = u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX);
        within("the grace, in milliseconds,", grace, 1, u32::MAX.into())?;
        Ok(EpochSettings {
            interval_us: interval as u32,
            grace_ms: grace as u32,
            bytes: self.epoch_bytes,
            records: self.epoch_records,
        })
    }
}

fn within(setting: &'static str, value: u64, min: u64, max: u64) -> Result<(), Error> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let allowed = if max == u64::MAX { format!("at least {min}") } else { format!("{min} to {max}") };
    Err(Error::Setting { setting, value: value.to_string(), allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_outside_its_range_is_refused_by_name_before_anything_is_dialled() {
        let builder = || Consumer::builder("keyway://127.0.0.1:1", "topic");
        for (builder, setting) in [
            (builder().epoch(Duration::from_micros(99)), "the epoch, in microseconds,"),
            (builder().epoch(Duration::from_secs(5_000)), "the epoch, in microseconds,"),
            (builder().grace(Duration::ZERO), "the grace, in milliseconds,"),
            (builder().depth(1), "depth"),
            (builder().depth(65), "depth"),
            (builder().landing(1), "landing"),
            (builder().reads(0), "reads"),
            (builder().name("n".repeat(129)), "the length of the consumer's name"),
        ] {
            match builder.connect() {
                Err(Error::Setting { setting: named, .. }) => assert_eq!(named, setting),
                other => panic!("{other:?}"),
            }
        }
        let topic = Consumer::builder("keyway://127.0.0.1:1", "a topic").connect();
        assert!(matches!(topic, Err(Error::Topic { .. })), "{topic:?}");
        let server = Consumer::builder("127.0.0.1:1", "topic").connect();
        assert!(matches!(server, Err(Error::Address(_))), "{server:?}");
    }
}
