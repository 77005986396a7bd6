//! Putting a broker together.

use std::fmt;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use keyway_fabric::{DomainId, Fabric, FabricChoice, FabricOptions, HugePages, SharedId};
use tokio::sync::mpsc;

use crate::broker::{Broker, Parts};
use crate::connector::{Connector, WAITING_MAX};
use crate::core::CoreConfig;
use crate::inbox::inbox;
use crate::listener::Listener;
use crate::reactor::Reactor;
use crate::settings::Sizes;
use crate::supervise::OnFailure;
use crate::{BrokerError, Idle, Settings, unix_socket};

/// Builds a [`Broker`].
#[derive(Default)]
pub struct Builder {
    settings: Settings,
    listen: Vec<String>,
    unix: Option<PathBuf>,
    on_failure: Option<OnFailure>,
}

impl Builder {
    /// Listens on a TCP address as well, such as `127.0.0.1:4480`; port 0 takes any free one. Without an address and
    /// without a Unix socket, only clients of the same process come in.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen.push(address.into());
        self
    }

    /// Listens on a Unix socket, which only this process's user may connect to (mode 0600). A socket that a dead broker of
    /// the same user left there is replaced; anything else at the path is an error.
    #[must_use]
    pub fn unix(mut self, path: impl Into<PathBuf>) -> Self {
        self.unix = Some(path.into());
        self
    }

    /// Takes all settings at once.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// See [`Settings::pool_size`].
    #[must_use]
    pub fn pool_size(mut self, bytes: u64) -> Self {
        self.settings.pool_size = bytes;
        self
    }

    /// See [`Settings::segment_size`].
    #[must_use]
    pub fn segment_size(mut self, bytes: u64) -> Self {
        self.settings.segment_size = bytes;
        self
    }

    /// See [`Settings::topic_segments`].
    #[must_use]
    pub fn topic_segments(mut self, segments: u32) -> Self {
        self.settings.topic_segments = Some(segments);
        self
    }

    /// See [`Settings::record_max`].
    #[must_use]
    pub fn record_max(mut self, bytes: u64) -> Self {
        self.settings.record_max = bytes;
        self
    }

    /// See [`Settings::sessions_max`].
    #[must_use]
    pub fn sessions_max(mut self, sessions: u32) -> Self {
        self.settings.sessions_max = sessions;
        self
    }

    /// See [`Settings::topics_max`].
    #[must_use]
    pub fn topics_max(mut self, topics: u32) -> Self {
        self.settings.topics_max = topics;
        self
    }

    /// See [`Settings::quarantine`].
    #[must_use]
    pub fn quarantine(mut self, quarantine: Duration) -> Self {
        self.settings.quarantine = quarantine;
        self
    }

    /// See [`Settings::offer_timeout`].
    #[must_use]
    pub fn offer_timeout(mut self, timeout: Duration) -> Self {
        self.settings.offer_timeout = timeout;
        self
    }

    /// See [`Settings::grace_max`].
    #[must_use]
    pub fn grace_max(mut self, grace: Duration) -> Self {
        self.settings.grace_max = grace;
        self
    }

    /// See [`Settings::bootstrap_timeout`].
    #[must_use]
    pub fn bootstrap_timeout(mut self, timeout: Duration) -> Self {
        self.settings.bootstrap_timeout = timeout;
        self
    }

    /// See [`Settings::idle`].
    #[must_use]
    pub fn idle(mut self, idle: Idle) -> Self {
        self.settings.idle = idle;
        self
    }

    /// See [`Settings::fabric`].
    #[must_use]
    pub fn fabric(mut self, fabric: FabricChoice) -> Self {
        self.settings.fabric = fabric;
        self
    }

    /// See [`Settings::huge_pages`].
    #[must_use]
    pub fn huge_pages(mut self, pages: HugePages) -> Self {
        self.settings.huge_pages = pages;
        self
    }

    /// What to do when the broker fails inside and ends by itself. Called at most once, on a thread that is about to end;
    /// [`Broker::stop`] returns the error as well.
    #[must_use]
    pub fn on_failure(mut self, tell: impl FnOnce(&BrokerError) + Send + 'static) -> Self {
        self.on_failure = Some(Box::new(tell));
        self
    }

    /// Starts the broker: when this returns, clients can come in.
    ///
    /// # Errors
    ///
    /// The settings do not fit each other, an address cannot be listened on, or the fabric, memory or threads cannot be had.
    /// Nothing is left behind then.
    pub fn start(self) -> Result<Broker, BrokerError> {
        let sizes = self.settings.sizes()?;
        let bound = self.listen.iter().map(|address| listen_tcp(address)).collect::<Result<Vec<_>, _>>()?;
        let (tcp, addresses): (_, Vec<SocketAddr>) = bound.into_iter().unzip();
        let (unix, socket_file) = self.unix.as_deref().map(unix_socket::listen).transpose()?.unzip();
        let mut fabric = open_fabric(&self.settings, &addresses)?;
        let config = pool(&mut *fabric, &self.settings, sizes)?;
        tell_fabric(&*fabric);
        let waker = keyway_fabric::Waker::new().map_err(system("make the reactor's waker"))?;
        let (inbox, mail) = inbox(self.settings.sessions_max, waker);
        let (streams, in_process) = mpsc::channel(WAITING_MAX);
        let timeout = self.settings.bootstrap_timeout;
        // `verbs:mlx5_0` speaks the fabric `verbs`.
        let family = fabric.name().split(':').next().unwrap_or_default().to_owned();
        let listener = Listener { tcp, unix, in_process, inbox: inbox.clone(), fabric: family, timeout };
        let reactor = Reactor::new(fabric, config, inbox.clone(), mail, timeout, self.settings.idle);
        let connector = Connector::new(streams, inbox.clone());
        Parts { reactor, listener, inbox, connector, addresses, socket_file, on_failure: self.on_failure }.start()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("settings", &self.settings)
            .field("listen", &self.listen)
            .field("unix", &self.unix)
            .finish_non_exhaustive()
    }
}

/// Opens the fabric, on the device that has an address listened on where that is known.
fn open_fabric(settings: &Settings, addresses: &[SocketAddr]) -> Result<Box<dyn Fabric + Send>, BrokerError> {
    let choice = settings.fabric.clone();
    // No device has the address of all interfaces, or the one of this machine alone.
    let address = addresses.iter().map(SocketAddr::ip).find(|ip| !ip.is_unspecified() && !ip.is_loopback());
    let mut options = FabricOptions::new(choice);
    options.address = address;
    options.huge_pages = settings.huge_pages;
    let opened =
        options.open().map_err(|source| BrokerError::OpenFabric { fabric: settings.fabric.to_string(), source })?;
    if let Some(reason) = &opened.fallback {
        tracing::warn!("no RDMA device is used, and the broker goes on with the software fabric: {reason}");
    }
    Ok(opened.fabric)
}

/// Says what the broker runs on.
fn tell_fabric(fabric: &dyn Fabric) {
    let capabilities = fabric.capabilities();
    tracing::info!(
        fabric = fabric.name(),
        strategy = fabric.strategy(),
        bounds_enforced = capabilities.bounds_enforced,
        windows_max = capabilities.windows_max,
        "fabric opened"
    );
}

/// Makes the pool, and the configuration of a core that uses it.
fn pool(fabric: &mut dyn Fabric, settings: &Settings, sizes: Sizes) -> Result<CoreConfig, BrokerError> {
    // A session is refused for want of windows rather than told of a failed allocation.
    let windows_max = fabric.capabilities().windows_max.max(1);
    let failed = |what: &'static str| move |source| BrokerError::Fabric { what: what.to_owned(), source };
    let mut instance = [0; 8];
    getrandom::fill(&mut instance).map_err(|error| BrokerError::System {
        what: "get a random number for the broker's instance",
        source: std::io::Error::other(error.to_string()),
    })?;
    let domain = fabric.domain().map_err(failed("a protection domain"))?;
    let pool = match fabric.shared(domain, sizes.pool_len()) {
        Ok(pool) => pool,
        Err(source) => {
            // Nothing is in it, and whatever this says, the reason to end is another.
            let _ = fabric.free_domain(domain);
            let what = format!("a pool of {}", bytesize::ByteSize(sizes.pool_len()));
            return Err(BrokerError::Fabric { what, source });
        }
    };
    let mut config = core_config(settings, sizes, u64::from_ne_bytes(instance), domain, pool);
    config.windows_max = config.windows_max.min(windows_max);
    Ok(config)
}

/// The configuration of a core; what the settings allow, the core takes.
fn core_config(settings: &Settings, sizes: Sizes, instance: u64, domain: DomainId, pool: SharedId) -> CoreConfig {
    let mut config = CoreConfig::new(instance, domain, pool, sizes.pool_len());
    config.segment_size = sizes.segment_size;
    config.topic_segments = sizes.topic_segments;
    config.topic_segments_max = sizes.segments;
    config.record_max = sizes.record_max;
    config.sessions_max = settings.sessions_max;
    config.topics_max = settings.topics_max;
    config.grace_max_ms = sizes.grace_max_ms;
    config.quarantine = settings.quarantine;
    config.offer_timeout = settings.offer_timeout;
    config
}

/// Listens on the first address of a name that can be had. The port is the one that the system chose.
fn listen_tcp(address: &str) -> Result<(TcpListener, SocketAddr), BrokerError> {
    let resolved = address.to_socket_addrs().map(Vec::from_iter);
    let unresolved = |source| BrokerError::Resolve { address: address.to_owned(), source };
    let resolved = resolved.map_err(unresolved)?;
    let first = *resolved.first().ok_or_else(|| unresolved(std::io::ErrorKind::NotFound.into()))?;
    let refused = |source| BrokerError::Listen { address: first, source };
    let listener = TcpListener::bind(&resolved[..]).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    Ok((listener, bound))
}

pub(crate) fn system(what: &'static str) -> impl Fn(std::io::Error) -> BrokerError {
    move |source| BrokerError::System { what, source }
}

#[cfg(test)]
mod tests {
    use keyway_schema::limits::{RECORD_MAX_CEILING, SEGMENT_MAX, SEGMENT_MIN};

    use super::*;

    #[test]
    fn what_the_settings_allow_the_core_takes() {
        let default = Settings::default;
        let smallest = u64::from(SEGMENT_MIN);
        let largest = u64::from(SEGMENT_MAX);
        let brief = Duration::from_millis(1);
        let room = smallest - 4096 - 8 - 64 - 8;
        let cases = [
            default(),
            Settings { segment_size: smallest, pool_size: 2 * smallest, record_max: room, ..default() },
            Settings {
                segment_size: smallest,
                pool_size: 1 << 40,
                record_max: 1,
                topic_segments: Some(2),
                ..default()
            },
            Settings {
                segment_size: largest,
                pool_size: 3 * largest,
                record_max: RECORD_MAX_CEILING.into(),
                topic_segments: Some(3),
                ..default()
            },
            Settings { sessions_max: 1, topics_max: 1, grace_max: brief, offer_timeout: brief, ..default() },
        ];
        for settings in cases {
            let sizes = settings.sizes().unwrap();
            let domain = DomainId { index: 0, generation: 0 };
            let config = core_config(&settings, sizes, 1, domain, SharedId { index: 0, generation: 0 });
            assert_eq!(config.check(), Ok(()), "{settings:?}");
        }
        let settings = Settings { segment_size: smallest, record_max: room + 1, ..default() };
        assert!(settings.sizes().is_err(), "one byte more does not fit");
    }
}
