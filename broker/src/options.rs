//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Parser, ValueEnum};
use keyway_broker::{Broker, Builder, Idle, Settings};
use keyway_fabric::{FabricChoice, HugePages};
use tracing_subscriber::EnvFilter;

const EXAMPLES: &str = "\
Examples:
  keyway-broker
      on 127.0.0.1:4480, with a pool of 512 MiB
  keyway-broker --listen 0.0.0.0:4480 --unix /run/keyway.sock --pool-size 4GiB
      for other hosts, and for this one over a Unix socket
  keyway-broker --listen 127.0.0.1:0 --log debug
      on any free port, which the line on standard output names
  keyway-broker --listen 192.0.2.7:4480 --fabric verbs --huge-pages try
      on the RDMA device that has this address, with the pool in huge pages

Sizes take units: 64KiB, 4MiB, 1GB (powers of 1000 without the i). Durations do too: 250ms, 5s, 1m.
The first SIGINT or SIGTERM stops the broker cleanly; a second one ends it at once, with status 1.";

/// The broker of a Keyway message bus.
///
/// Keeps topics as rings of segments in one pool of memory. Consumers READ the segments themselves, under keys that are
/// replaced every epoch. When it is ready, one line on standard output says where it listens.
#[derive(Debug, Parser)]
#[command(name = "keyway-broker", version, after_help = EXAMPLES)]
pub(crate) struct Options {
    /// TCP address to listen on; may be given several times. Port 0 takes any free one. Without this option it is 127.0.0.1:4480,
    /// or none if --unix is given
    #[arg(long, value_name = "HOST:PORT")]
    listen: Vec<String>,

    /// Unix socket to listen on, for this user's processes only (mode 0600). A dead broker's socket is replaced
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,

    /// Memory for records
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = size)]
    pool_size: u64,

    /// The pieces that the pool is cut into, each of which belongs to one topic at a time: a multiple of 4 KiB
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = size)]
    segment_size: u64,

    /// The most segments that a topic keeps; then its oldest goes [default: 32, or half of a smaller pool]
    #[arg(long, value_name = "N")]
    topic_segments: Option<u32>,

    /// The largest record: key, headers and payload
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = size)]
    record_max: u64,

    /// The most producers and consumers at once
    #[arg(long, value_name = "N", default_value_t = Settings::default().sessions_max)]
    sessions_max: u32,

    /// The most topics
    #[arg(long, value_name = "N", default_value_t = Settings::default().topics_max)]
    topics_max: u32,

    /// How long the value of a dead key is not issued again
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = humantime::parse_duration)]
    quarantine: Duration,

    /// How long a producer has to serve a large batch that it offered
    #[arg(long, value_name = "DURATION", default_value = "250ms", value_parser = humantime::parse_duration)]
    offer_timeout: Duration,

    /// The longest that a consumer may ask to keep a superseded key
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = humantime::parse_duration)]
    grace_max: Duration,

    /// What to trade: processor time for latency, or the other way round
    #[arg(long, value_enum, default_value_t = IdleOption::Balanced)]
    idle: IdleOption,

    /// The fabric that clients READ through: soft, which needs no device; verbs, for the first RDMA device that is up or the one that has
    /// the address listened on; verbs:DEVICE; or auto, for a device if there is one, else soft
    #[arg(long, value_name = "FABRIC", env = "KEYWAY_FABRIC", default_value_t)]
    fabric: FabricChoice,

    /// Whether the pool is in huge pages of 2 MiB: off, or try, which takes ordinary ones where not enough are set aside
    #[arg(long, value_name = "PAGES", default_value_t)]
    huge_pages: HugePages,

    /// What to log on standard error: error, warn, info, debug, trace, or a filter such as keyway_broker=debug
    #[arg(long, value_name = "FILTER", env = "KEYWAY_LOG", default_value = "info", value_parser = filter)]
    pub(crate) log: EnvFilter,

    /// How long consumers may go on reading when the broker is told to stop
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) drain: Duration,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum IdleOption {
    /// Never sleeps: takes a core of its own
    Latency,
    /// Sleeps after some hundred microseconds without work
    Balanced,
    /// Sleeps as soon as there is no work
    Frugal,
}

impl Options {
    /// The settings that were asked for.
    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.pool_size = self.pool_size;
        settings.segment_size = self.segment_size;
        settings.topic_segments = self.topic_segments;
        settings.record_max = self.record_max;
        settings.sessions_max = self.sessions_max;
        settings.topics_max = self.topics_max;
        settings.quarantine = self.quarantine;
        settings.offer_timeout = self.offer_timeout;
        settings.grace_max = self.grace_max;
        settings.idle = match self.idle {
            IdleOption::Latency => Idle::Latency,
            IdleOption::Balanced => Idle::Balanced,
            IdleOption::Frugal => Idle::Frugal,
        };
        settings.fabric = self.fabric.clone();
        settings.huge_pages = self.huge_pages;
        settings
    }

    /// A builder of the broker that was asked for.
    pub(crate) fn builder(self) -> Builder {
        let mut builder = Broker::builder().settings(self.settings());
        if self.listen.is_empty() && self.unix.is_none() {
            builder = builder.listen("127.0.0.1:4480");
        }
        for address in self.listen {
            builder = builder.listen(address);
        }
        match self.unix {
            Some(path) => builder.unix(path),
            None => builder,
        }
    }
}

/// What is wrong with a command line, in one line.
pub(crate) fn one_line(error: &clap::Error) -> String {
    let rendered = error.render().to_string();
    // Everything before the usage: the message and, where there are any, what is missing or possible.
    let message = rendered.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let parts: Vec<&str> = message.filter(|line| !line.is_empty() && !line.starts_with("For more")).collect();
    let line = parts.join(" ");
    format!("{} (see --help)", line.strip_prefix("error: ").unwrap_or(&line))
}

fn filter(text: &str) -> Result<EnvFilter, tracing_subscriber::filter::ParseError> {
    EnvFilter::try_new(text)
}

fn size(text: &str) -> Result<u64, String> {
    let size =
        text.parse::<ByteSize>().map_err(|_| "not a size; give a number and a unit, such as 256MiB".to_owned())?;
    Ok(size.as_u64())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let arguments = ["keyway-broker"].iter().chain(arguments);
        Options::try_parse_from(arguments).map_err(|error| one_line(&error))
    }

    #[test]
    fn the_definition_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn the_defaults_are_the_librarys() {
        let builder = format!("{:?}", parse(&[]).unwrap().builder());
        let expected = format!("{:?}", Broker::builder().listen("127.0.0.1:4480"));
        assert_eq!(builder, expected);
    }

    #[test]
    fn every_option_reaches_the_builder() {
        let options = parse(&[
            "--listen",
            "127.0.0.1:0",
            "--listen",
            "[::1]:0",
            "--unix",
            "/run/b.sock",
            "--pool-size",
            "1GiB",
            "--segment-size",
            "8MiB",
            "--topic-segments",
            "12",
            "--record-max",
            "64KB",
            "--sessions-max",
            "9",
            "--topics-max",
            "8",
            "--quarantine",
            "1m",
            "--offer-timeout",
            "2s",
            "--grace-max",
            "3s",
            "--idle",
            "frugal",
            "--fabric",
            "verbs:mlx5_0",
            "--huge-pages",
            "try",
            "--log",
            "keyway_broker=debug",
            "--drain",
            "1m 5s",
        ])
        .unwrap();
        assert_eq!(options.drain, Duration::from_secs(65));
        let builder = Broker::builder().listen("127.0.0.1:0").listen("[::1]:0").unix("/run/b.sock");
        let builder = builder.pool_size(1 << 30).segment_size(8 << 20).topic_segments(12).record_max(64_000);
        let builder = builder.sessions_max(9).topics_max(8).quarantine(Duration::from_secs(60));
        let builder = builder.offer_timeout(Duration::from_secs(2)).grace_max(Duration::from_secs(3));
        let device = Some("mlx5_0".to_owned());
        let builder = builder.idle(Idle::Frugal).fabric(FabricChoice::Verbs { device }).huge_pages(HugePages::Try);
        assert_eq!(format!("{:?}", options.builder()), format!("{builder:?}"));
    }

    #[test]
    fn a_unix_socket_alone_opens_no_port() {
        let builder = format!("{:?}", parse(&["--unix", "/run/b.sock"]).unwrap().builder());
        assert_eq!(builder, format!("{:?}", Broker::builder().unix("/run/b.sock")));
    }

    #[test]
    fn what_cannot_be_used_is_told_in_one_line() {
        let cases = [
            (&["--frobnicate"][..], "unexpected argument '--frobnicate' found"),
            (&["--pool-size", "much"], "invalid value 'much' for '--pool-size <SIZE>': not a size"),
            (&["--pool-size", "-5MB"], "unexpected argument '-5' found"),
            (&["--quarantine", "5 apples"], "invalid value '5 apples' for '--quarantine <DURATION>'"),
            (&["--sessions-max", "many"], "invalid value 'many' for '--sessions-max <N>'"),
            (&["--idle", "lazy"], "[possible values: latency, balanced, frugal]"),
            (
                &["--fabric", "tcp"],
                "invalid value 'tcp' for '--fabric <FABRIC>': \"tcp\" is no fabric: it is soft, verbs,",
            ),
            (&["--huge-pages", "1GiB"], "invalid value '1GiB' for '--huge-pages <PAGES>'"),
            (&["--log", "keyway=loud"], "invalid value 'keyway=loud' for '--log <FILTER>'"),
            (&["--unix"], "a value is required for '--unix <PATH>'"),
            (&["stray"], "unexpected argument 'stray' found"),
        ];
        for (arguments, expected) in cases {
            let line = parse(arguments).expect_err("these arguments cannot be used");
            assert!(line.contains(expected), "{line}");
            assert!(!line.contains('\n') && line.ends_with("(see --help)"), "{line}");
        }
    }
}
