//! The device as something to probe and to hold to the contract.

use super::fabric::VerbsFabric;
use super::open::VerbsConfig;
use super::trial;
use crate::conformance::{Backend, Deviation, Failure};
use crate::probe::{DeviceReport, Measured, NotMeasured, ProbeTarget, RawDeregistration, Strategy, StrategyReport};
use crate::{Fabric, Stream};

/// A device, to be probed, or to run the conformance suite on.
#[derive(Clone, Debug)]
pub struct VerbsTarget {
    name: String,
    config: VerbsConfig,
    device: DeviceReport,
    strategy: StrategyReport,
    deviations: Vec<Deviation>,
}

/// The cases that a device without bounds on windows does not satisfy.
const BOUNDS: [&str; 4] = [
    "a_read_before_a_window_is_refused",
    "a_read_beyond_a_window_is_refused",
    "a_read_across_a_windows_start_is_refused",
    "a_read_across_a_windows_end_is_refused",
];

/// The cases that are about the keys of memory windows, not of registrations.
const WINDOW_KEYS: [&str; 2] =
    ["every_bind_and_every_unbind_uses_up_a_key", "a_key_comes_round_after_256_binds_and_not_before"];

impl VerbsTarget {
    /// The device that `config` names, or chooses.
    ///
    /// # Errors
    ///
    /// It cannot be opened, or cannot work.
    pub fn open(config: VerbsConfig) -> Result<Self, crate::FabricError> {
        let fabric = VerbsFabric::open(&config)?;
        let mut deviations = Vec::new();
        if !fabric.capabilities().bounds_enforced {
            let reason = "the device checks a READ against its region's bounds, not against the window's";
            deviations.extend(BOUNDS.map(|case| Deviation { case, reason: reason.into() }));
        }
        let strategy = fabric.strategy_report();
        if strategy.strategy == Strategy::Registrations {
            let reason = "a registration's key follows no rule, and none comes after it";
            deviations.extend(WINDOW_KEYS.map(|case| Deviation { case, reason: reason.into() }));
        }
        Ok(Self { name: fabric.name().to_owned(), config, device: fabric.device_report(), strategy, deviations })
    }

    /// How its fabrics are opened.
    pub fn config(&self) -> &VerbsConfig {
        &self.config
    }
}

impl Backend for VerbsTarget {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn fabric(&self) -> Result<Box<dyn Fabric>, Failure> {
        Ok(Box::new(VerbsFabric::open(&self.config)?))
    }

    fn streams(&self) -> Result<(Stream, Stream), Failure> {
        Err(Failure("endpoints on a device need no stream".into()))
    }

    fn notices_hang_up(&self) -> bool {
        false
    }

    fn deviations(&self) -> Vec<Deviation> {
        self.deviations.clone()
    }
}

impl ProbeTarget for VerbsTarget {
    fn device(&self) -> Result<DeviceReport, Failure> {
        Ok(self.device.clone())
    }

    fn strategy(&self) -> Result<StrategyReport, Failure> {
        Ok(self.strategy.clone())
    }

    fn deregister_under_window(&self) -> Measured<RawDeregistration> {
        let config = VerbsConfig { strategy: Some(Strategy::Windows), ..self.config.clone() };
        let mut fabric = VerbsFabric::open(&config)?;
        trial::deregister_under_window(&mut fabric).map_err(|refusal| NotMeasured::because(refusal.in_words()))
    }
}
