//! Opening a device: finding it, trying it out, and deciding how keys are made on it.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::fabric::{ASYNC_TAG, CHANNEL_TAG, VerbsFabric, WAKER_TAG};
use super::port::{Found, find};
use super::queues::Queues;
use super::resting::Resting;
use super::sys::{Chain, Limits, Polled};
use super::trial::{self, Refusal};
use crate::memory::HugePages;
use crate::poller::Poller;
use crate::probe::{Strategy, StrategyReport};
use crate::table::Table;
use crate::{FabricError, SystemClock, Waker};

/// How many freed windows rest on a device that gives a freed index out at once. A session whose two segments are re-keyed every
/// 5 ms uses up some three windows a second, so that an index comes back to it after twenty minutes, and to a hundred
/// such sessions after twelve seconds: what it comes back with is then for the quarantine of whoever grants keys. A window costs
/// a device some hundred bytes.
pub const WINDOWS_RESTING: u32 = 4096;

/// How to open a fabric on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsConfig {
    /// The device's name, such as `mlx5_0`; without one, the first that works.
    pub device: Option<String>,
    /// The address of this machine under which peers reach it: it chooses the port and the GID.
    pub address: Option<IpAddr>,
    /// The pages of shared memory.
    pub huge_pages: HugePages,
    /// How keys are made; without one, by type-1 windows if the device has them and they work, else by registrations.
    pub strategy: Option<Strategy>,
    /// How many freed windows are kept from the device for a while, so that it does not give their indices out again at
    /// once; without a number, [`WINDOWS_RESTING`] if it is found to do that, else none.
    pub windows_resting: Option<u32>,
}

impl VerbsFabric {
    /// A fabric with nothing in it, on a device that was tried out.
    ///
    /// # Errors
    ///
    /// There is no such device, it has no port that works, or it cannot do what the bus needs.
    pub fn open(config: &VerbsConfig) -> Result<Self, FabricError> {
        let mut fabric = Self::untried(config)?;
        if let Some(strategy) = config.strategy {
            fabric.try_out(strategy, "it was asked for".into()).map_err(|refusal| fabric.useless(strategy, refusal))?;
            return Ok(fabric);
        }
        let why = match fabric.windows_offered() {
            Err(why) => why,
            Ok(why) => match fabric.try_out(Strategy::Windows, why) {
                Ok(()) => return Ok(fabric),
                Err(refusal) => refusal.in_words(),
            },
        };
        let why = format!("type-1 memory windows cannot be used: {why}");
        tracing::info!(device = fabric.context.name(), why, "keys are made by registrations");
        let strategy = Strategy::Registrations;
        fabric.try_out(strategy, why).map_err(|refusal| fabric.useless(strategy, refusal))?;
        Ok(fabric)
    }

    /// What the device says of its windows: whether it is worth trying, and why or why not.
    fn windows_offered(&self) -> Result<String, String> {
        let Limits { windows, type_1_windows, .. } = self.limits;
        match (windows, type_1_windows) {
            (0, _) => Err("the device has none (max_mw is 0)".into()),
            (_, false) => Err("the device says that it has none (no MEM_WINDOW among its capabilities)".into()),
            (_, true) => {
                Ok("the device has type-1 memory windows, and a bind, READs and a rebind went as they have to".into())
            }
        }
    }

    /// Tries a strategy out, and keeps it if it works.
    fn try_out(&mut self, strategy: Strategy, reason: String) -> Result<(), Refusal> {
        self.strategy = StrategyReport { strategy, reason };
        let findings = trial::run(self)?;
        self.bounds_enforced = findings.bounds_enforced;
        if findings.reuses_indices {
            self.resting.suggest(WINDOWS_RESTING);
        }
        Ok(())
    }

    fn useless(&self, strategy: Strategy, refusal: Refusal) -> FabricError {
        match refusal {
            Refusal::Object(error) => error,
            Refusal::Behaviour(what) => FabricError::NoDevice {
                what: format!("{} cannot lend memory by {}: {what}", self.context.name(), words(strategy)),
                advice: "update its firmware, driver and rdma-core, or name another device".into(),
            },
        }
    }

    /// A fabric whose device was not tried out.
    fn untried(config: &VerbsConfig) -> Result<Self, FabricError> {
        let Found { context, limits, port } = find(config.device.as_deref(), config.address)?;
        let system = |what| move |source| FabricError::System { what, source };
        let waker = Waker::new().map_err(system("eventfd"))?;
        let poller = Poller::new().map_err(system("epoll_create1"))?;
        let queues = Queues::new(&context, limits.completion_entries)?;
        for (fd, tag) in
            [(waker.fd(), WAKER_TAG), (queues.channel().fd(), CHANNEL_TAG), (context.async_fd(), ASYNC_TAG)]
        {
            poller.add(fd, tag, false).map_err(system("epoll_ctl"))?;
        }
        Ok(Self {
            name: format!("verbs:{}", context.name()),
            endpoints: Table::new(),
            windows: Table::new(),
            shareds: Table::new(),
            locals: Table::new(),
            domains: Table::new(),
            queues,
            context,
            limits,
            port,
            huge_pages: config.huge_pages,
            strategy: StrategyReport { strategy: Strategy::Windows, reason: "nothing was tried yet".into() },
            bounds_enforced: false,
            resting: Resting::new(config.windows_resting),
            poller,
            waker,
            armed: false,
            clock: SystemClock::start(),
            told_unanswered: None,
            quiet_polls: 0,
            quick_looks: 0,
            listed: Vec::new(),
            has_stalled: false,
            ups: VecDeque::new(),
            finished: VecDeque::new(),
            failing: Vec::new(),
            chain: Chain::default(),
            polled: Polled::new(),
            ready: Vec::new(),
        })
    }
}

/// A strategy in words for an operator.
pub(super) const fn words(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Windows => "type-1 memory windows",
        Strategy::Registrations => "a registration for each key",
    }
}
