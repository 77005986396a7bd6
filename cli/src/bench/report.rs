//! What `keyway bench` prints: the figures, and under which conditions they were taken. The field names are part of the interface.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::arguments::Bench;
use super::wire::Received;
use crate::figures::Throughput;

/// The figures of a measurement, and its conditions.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    throughput: Throughput,
    pub(super) lost: u64,
    rekeys: u64,
    pub(super) remote_access_errors: u64,
    pub(super) reconnects: u64,
    epochs: u64,
    reads: u64,
    rereads: u64,
    /// Of the mean READ, tail words left out of the bytes and not of the READs.
    read_bytes: u64,
    /// Times that a consumer went through the ring, or began to.
    passes: u64,
    #[serde(flatten)]
    conditions: Conditions,
}

#[derive(Debug, Serialize)]
struct Conditions {
    mode: &'static str,
    fabric: String,
    /// What sessions are set up over; the software fabric's data goes there too.
    transport: &'static str,
    scope: String,
    epoch_us: Option<u64>,
    size: usize,
    batch: Option<usize>,
    /// Null: another broker's.
    ring: Option<u64>,
    producers: u16,
    consumers: u16,
    /// Which processes there were.
    processes: String,
    cpus: usize,
    version: &'static str,
}

impl Report {
    pub(super) fn new(arguments: &Bench, received: &[Received]) -> Self {
        let sum = |of: fn(&Received) -> u64| received.iter().map(of).sum::<u64>();
        let longest = received.iter().map(|received| received.seconds).fold(0.0, f64::max);
        let (records, bytes) = (sum(|received| received.records), sum(|received| received.bytes));
        let throughput = Throughput::new(records, bytes, Duration::from_secs_f64(longest));
        let reads = sum(|received| received.reads);
        let own = arguments.server.is_none();
        let conditions = Conditions {
            mode: if arguments.prefill { "prefill" } else { "live" },
            fabric: if own { arguments.fabric.to_string() } else { "the broker's".into() },
            transport: match &arguments.server {
                Some(server) if !server.to_string().starts_with("keyway+unix:") => "tcp",
                _ => "unix",
            },
            scope: arguments.scope.to_string(),
            epoch_us: arguments.epoch.micros(),
            size: arguments.size,
            batch: arguments.batch,
            ring: own.then_some(arguments.ring as u64),
            producers: arguments.producers,
            consumers: arguments.consumers,
            processes: format!(
                "{}{} of producers, {} of consumers",
                if own { "1 of the broker, " } else { "" },
                arguments.producers,
                arguments.consumers
            ),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            version: env!("CARGO_PKG_VERSION"),
        };
        Self {
            throughput,
            lost: sum(|received| received.lost),
            rekeys: sum(|received| received.rekeys),
            remote_access_errors: sum(|received| received.remote_access_errors),
            reconnects: sum(|received| received.reconnects),
            epochs: sum(|received| received.epochs),
            reads,
            rereads: sum(|received| received.rereads),
            read_bytes: sum(|received| received.encoded).checked_div(reads).unwrap_or(0),
            passes: sum(|received| received.passes),
            conditions,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conditions { mode, fabric, scope, size, processes, cpus, .. } = &self.conditions;
        let what = if *mode == "prefill" { "pulled out of a full ring" } else { "published and received" };
        let epoch = match self.conditions.epoch_us {
            Some(us) => format!("every {}", humantime::format_duration(Duration::from_micros(us))),
            None => "never".into(),
        };
        writeln!(f, "{what}: {}, {} lost", self.throughput, self.lost)?;
        writeln!(
            f,
            "fabric {fabric}, records of {size} B, scope {scope}, keys replaced {epoch}: {} re-keys in {} epochs, {} READs of {} B \
             in the mean ({} repeated), {} reconnects, {} remote access errors",
            self.rekeys,
            self.epochs,
            self.reads,
            self.read_bytes,
            self.rereads,
            self.reconnects,
            self.remote_access_errors
        )?;
        write!(f, "processes: {processes}; {cpus} CPUs")
    }
}
