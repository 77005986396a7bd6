//! What a producer is made of.

use std::sync::Arc;
use std::time::Duration;

use keyway_client::{AddressError, CONNECT_TIMEOUT, Driver, DriverConfig, Error, Opening, Server};
use keyway_fabric::{FabricChoice, IdleLimits};
use keyway_schema::TopicName;
use keyway_schema::limits::CLIENT_NAME_MAX;
use keyway_schema::message::TopicSettings;

use crate::Producer;
use crate::buffer::Shared;
use crate::machine::{ProducerConfig, ProducerMachine};
use crate::role::{Options, ProducerRole};

/// The most encoded bytes that wait for their receipts, unless it is set.
pub const BUFFER_DEFAULT: usize = 4 << 20;

/// The smallest batch length that may be set: less would be mostly headers.
const BATCH_MAX_MIN: usize = 256;

/// The most memory for batches that are offered, beyond the one that a producer of large records cannot do without.
const OFFER_MEMORY: u64 = 16 << 20;

/// Settings of a producer.
#[derive(Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct ProducerBuilder {
    server: Result<Server, AddressError>,
    topic: String,
    name: String,
    settings: Option<TopicSettings>,
    buffer: usize,
    batch_max: Option<usize>,
    linger: Duration,
    connect_timeout: Duration,
    idle: IdleLimits,
    fabric: FabricChoice,
}

impl ProducerBuilder {
    pub(crate) fn new(server: Result<Server, AddressError>, topic: String) -> Self {
        Self {
            server,
            topic,
            name: String::from("producer"),
            settings: None,
            buffer: BUFFER_DEFAULT,
            batch_max: None,
            linger: Duration::ZERO,
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

    /// The settings to create the topic with, if it does not exist.
    pub fn settings(mut self, settings: TopicSettings) -> Self {
        self.settings = Some(settings);
        self
    }

    /// The most encoded bytes that are taken and not yet answered (default: 4 MiB). A single larger record passes when nothing
    /// else waits.
    pub fn buffer(mut self, bytes: usize) -> Self {
        self.buffer = bytes;
        self
    }

    /// The length up to which batches are filled while they wait, header included (default: what fits a slot of the broker,
    /// somewhat less than 64 KiB). Larger ones, up to what the topic takes, are read by the broker out of the producer's memory.
    pub fn batch_max(mut self, bytes: usize) -> Self {
        self.batch_max = Some(bytes);
        self
    }

    /// How long a record may wait for others to share its batch (default: not at all; records share a batch when they
    /// have to wait anyway).
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// How long connecting may take, with all attempts (default: 10 s). After that the producer reconnects for as long as it takes.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The fabric to use (default: [`FabricChoice::Auto`], the one that the broker speaks, as far as this machine can).
    pub fn fabric(mut self, fabric: FabricChoice) -> Self {
        self.fabric = fabric;
        self
    }

    /// How the producer's thread rests (default: [`IdleLimits::BALANCED`]).
    pub fn idle(mut self, idle: IdleLimits) -> Self {
        self.idle = idle;
        self
    }

    /// Connects, and opens the topic.
    ///
    /// # Errors
    ///
    /// A setting is wrong, the broker refused, or the connect timeout is over.
    pub fn connect(self) -> Result<Producer, Error> {
        let (producer, opening) = self.start()?;
        opening.wait()?;
        Ok(producer)
    }

    /// Like [`connect`](Self::connect), without holding a thread.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect).
    pub async fn connect_async(self) -> Result<Producer, Error> {
        let (producer, opening) = self.start()?;
        opening.ready().await?;
        Ok(producer)
    }

    fn start(self) -> Result<(Producer, Opening), Error> {
        let server = self.server?;
        let topic = TopicName::new(&self.topic).map_err(|source| Error::Topic { topic: self.topic, source })?;
        let wrong =
            |setting, value: usize, allowed: String| Error::Setting { setting, value: value.to_string(), allowed };
        if self.name.len() > CLIENT_NAME_MAX {
            let allowed = format!("at most {CLIENT_NAME_MAX} bytes");
            return Err(wrong("the length of the producer's name", self.name.len(), allowed));
        }
        if let Some(batch_max) = self.batch_max.filter(|batch_max| *batch_max < BATCH_MAX_MIN) {
            return Err(wrong("batch_max", batch_max, format!("at least {BATCH_MAX_MIN}")));
        }
        let mut producer = [0; 8];
        getrandom::fill(&mut producer).map_err(|error| Error::Internal { what: format!("no randomness: {error}") })?;
        let machine = ProducerMachine::new(ProducerConfig {
            topic: topic.clone(),
            settings: self.settings,
            producer: u64::from_le_bytes(producer),
            server: server.to_string(),
            offer_memory: OFFER_MEMORY,
        });
        let options = Options {
            name: self.name,
            topic: topic.to_string(),
            server: server.to_string(),
            linger: self.linger,
            batch_max: self.batch_max,
        };
        let shared = Arc::new(Shared::new(self.buffer));
        let role = ProducerRole::new(machine, Arc::clone(&shared), options);
        let config = DriverConfig {
            connect_timeout: self.connect_timeout,
            idle: self.idle,
            fabric: self.fabric,
            ..DriverConfig::new(server, "keyway-producer")
        };
        let (driver, opening) = Driver::spawn("producer", config, role)?;
        shared.set_notifier(driver.notifier().clone());
        Ok((Producer::new(shared, driver), opening))
    }
}
