//! What can be probed.

use std::fmt;

use super::{
    DeviceReport, Measured, NotMeasured, ProbeError, ProbeTarget, RawDeregistration, Strategy, StrategyReport,
};
use crate::conformance::{Backend, Failure};
use crate::soft::{Pipe, SoftConfig, SoftFabric};
#[cfg(feature = "verbs")]
use crate::verbs::{VerbsConfig, VerbsTarget};
use crate::{Fabric, FabricOptions, Stream};

/// A target that was opened.
pub struct OpenedTarget {
    /// The target.
    pub target: Box<dyn ProbeTarget>,
    /// Why it is not what was asked for first, in one line: `auto` found no device.
    pub fallback: Option<String>,
}

impl fmt::Debug for OpenedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedTarget")
            .field("target", &self.target.name())
            .field("fallback", &self.fallback)
            .finish_non_exhaustive()
    }
}

/// Opens the fabric that `options` name, as a broker would, and gives what can be probed of it.
///
/// # Errors
///
/// There is no such device, or it cannot work, and `auto` was not asked for.
pub fn open(options: &FabricOptions) -> Result<OpenedTarget, ProbeError> {
    let opened = options
        .open()
        .map_err(|source| ProbeError::Open { name: options.choice.to_string(), source: source.into() })?;
    #[cfg(feature = "verbs")]
    if let Some(device) = opened.fabric.name().strip_prefix("verbs:") {
        let config = VerbsConfig {
            device: Some(device.to_owned()),
            address: options.address,
            huge_pages: options.huge_pages,
            ..VerbsConfig::default()
        };
        let target = VerbsTarget::open(config)
            .map_err(|source| ProbeError::Open { name: options.choice.to_string(), source: source.into() })?;
        return Ok(OpenedTarget { target: Box::new(target), fallback: opened.fallback });
    }
    let config = SoftConfig { huge_pages: options.huge_pages, ..SoftConfig::default() };
    Ok(OpenedTarget { target: Box::new(SoftTarget { config }), fallback: opened.fallback })
}

/// The software fabric over pipes within the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftTarget {
    /// Its limits.
    pub config: SoftConfig,
}

impl Backend for SoftTarget {
    fn name(&self) -> String {
        "soft".into()
    }

    fn fabric(&self) -> Result<Box<dyn Fabric>, Failure> {
        Ok(Box::new(SoftFabric::new(self.config)?))
    }

    fn streams(&self) -> Result<(Stream, Stream), Failure> {
        let (left, right) = Pipe::pair()?;
        Ok((Stream::Memory(left), Stream::Memory(right)))
    }
}

impl ProbeTarget for SoftTarget {
    fn device(&self) -> Result<DeviceReport, Failure> {
        Ok(DeviceReport {
            window_types: vec!["type 1".into()],
            windows_max: Some(self.config.windows_max.into()),
            endpoints_max: Some(self.config.endpoints_max.into()),
            read_bytes_max: Some(self.config.read_max.into()),
            ..DeviceReport::default()
        })
    }

    fn strategy(&self) -> Result<StrategyReport, Failure> {
        let reason = "the software fabric is its own device, and has windows of type 1".into();
        Ok(StrategyReport { strategy: Strategy::Windows, reason })
    }

    fn deregister_under_window(&self) -> Measured<RawDeregistration> {
        Err(NotMeasured::because("the software fabric is its own device"))
    }
}
