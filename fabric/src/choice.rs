//! Which backend a process runs on, chosen when it starts.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::soft::{SoftConfig, SoftFabric};
#[cfg(feature = "verbs")]
use crate::verbs::{VerbsConfig, VerbsFabric};
use crate::{Fabric, FabricError, HugePages, one_line};

/// A backend, as an operator or an application names it: `soft`, `verbs`, `verbs:DEVICE`, `auto`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum FabricChoice {
    /// The software fabric.
    #[default]
    Soft,
    /// An RDMA device.
    Verbs {
        /// Its name, such as `mlx5_0`; without one, the first device with an active port.
        device: Option<String>,
    },
    /// An RDMA device if there is one that works, else the software fabric.
    Auto,
}

impl FabricChoice {
    /// What a bootstrap calls such a fabric, whatever its device; `auto` is none yet.
    pub const fn family(&self) -> Option<&'static str> {
        match self {
            Self::Soft => Some("soft"),
            Self::Verbs { .. } => Some("verbs"),
            Self::Auto => None,
        }
    }
}

/// What a fabric is opened for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricOptions {
    /// The backend.
    pub choice: FabricChoice,
    /// The address of this machine under which peers reach it, if that is known: it chooses the device's port and GID.
    pub address: Option<IpAddr>,
    /// The pages of shared memory.
    pub huge_pages: HugePages,
}

/// A fabric that was opened.
pub struct Opened {
    /// The fabric.
    pub fabric: Box<dyn Fabric + Send>,
    /// Why it is not what was asked for first, in one line: `auto` found no device.
    pub fallback: Option<String>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("fabric", &self.fabric.name())
            .field("fallback", &self.fallback)
            .finish_non_exhaustive()
    }
}

impl FabricOptions {
    /// Options for a backend, with nothing else said.
    pub fn new(choice: FabricChoice) -> Self {
        Self { choice, address: None, huge_pages: HugePages::Off }
    }

    /// Opens the fabric.
    ///
    /// # Errors
    ///
    /// There is no such device, or it cannot work, and `auto` was not asked for; or the system has no more descriptors.
    pub fn open(&self) -> Result<Opened, FabricError> {
        match &self.choice {
            FabricChoice::Soft => Ok(Opened { fabric: self.soft()?, fallback: None }),
            FabricChoice::Verbs { device } => Ok(Opened { fabric: self.verbs(device.as_deref())?, fallback: None }),
            FabricChoice::Auto => match self.verbs(None) {
                Ok(fabric) => Ok(Opened { fabric, fallback: None }),
                Err(error) => Ok(Opened { fabric: self.soft()?, fallback: Some(one_line(&error)) }),
            },
        }
    }

    fn soft(&self) -> Result<Box<dyn Fabric + Send>, FabricError> {
        let config = SoftConfig { huge_pages: self.huge_pages, ..SoftConfig::default() };
        Ok(Box::new(SoftFabric::new(config)?))
    }

    #[cfg(feature = "verbs")]
    fn verbs(&self, device: Option<&str>) -> Result<Box<dyn Fabric + Send>, FabricError> {
        let config = VerbsConfig {
            device: device.map(str::to_owned),
            address: self.address,
            huge_pages: self.huge_pages,
            ..VerbsConfig::default()
        };
        Ok(Box::new(VerbsFabric::open(&config)?))
    }

    #[cfg(not(feature = "verbs"))]
    fn verbs(&self, _device: Option<&str>) -> Result<Box<dyn Fabric + Send>, FabricError> {
        Err(FabricError::Unsupported {
            fabric: "verbs",
            what: "be used: this program was built without the feature `verbs`",
        })
    }
}

impl fmt::Display for FabricChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Soft => f.write_str("soft"),
            Self::Verbs { device: None } => f.write_str("verbs"),
            Self::Verbs { device: Some(device) } => write!(f, "verbs:{device}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// A name that is no backend's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no fabric: it is soft, verbs, verbs:DEVICE or auto")]
pub struct NoSuchFabric(pub String);

impl FromStr for FabricChoice {
    type Err = NoSuchFabric;

    fn from_str(text: &str) -> Result<Self, NoSuchFabric> {
        match text.split_once(':') {
            None if text == "soft" => Ok(Self::Soft),
            None if text == "verbs" => Ok(Self::Verbs { device: None }),
            None if text == "auto" => Ok(Self::Auto),
            Some(("verbs", device)) if !device.is_empty() => Ok(Self::Verbs { device: Some(device.to_owned()) }),
            _ => Err(NoSuchFabric(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_as_it_is_written() {
        for text in ["soft", "verbs", "verbs:mlx5_0", "auto"] {
            assert_eq!(text.parse::<FabricChoice>().map(|choice| choice.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "Soft", "verbs:", "soft:0", "tcp"] {
            assert_eq!(text.parse::<FabricChoice>(), Err(NoSuchFabric(text.to_owned())));
        }
    }

    #[cfg(not(feature = "verbs"))]
    #[test]
    fn without_the_feature_auto_says_why_it_is_the_software_fabric_and_verbs_is_refused() {
        let opened = FabricOptions::new(FabricChoice::Auto).open().expect("the software fabric needs no device");
        assert_eq!(opened.fabric.name(), "soft");
        assert!(opened.fallback.is_some_and(|line| line.contains("without the feature `verbs`")));
        let refused = FabricOptions::new(FabricChoice::Verbs { device: None }).open();
        assert!(refused.is_err_and(|error| error.to_string().contains("without the feature `verbs`")));
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn a_device_that_is_not_there_is_refused_by_name() {
        let choice = FabricChoice::Verbs { device: Some("no_such_device".into()) };
        let refused = FabricOptions::new(choice).open().expect_err("there is no such device");
        assert!(matches!(refused, FabricError::NoDevice { .. }), "{refused}");
        let opened = FabricOptions::new(FabricChoice::Auto).open().expect("whatever devices there are");
        assert_eq!(opened.fabric.name() == "soft", opened.fallback.is_some(), "{opened:?}");
        assert!(opened.fallback.is_none_or(|line| !line.contains('\n') && line.contains("RDMA device")));
    }
}
