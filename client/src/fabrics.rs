//! A client's fabric: the ones that it can speak, and the one that it uses.
//!
//! The broker has one fabric, and a client learns which only from the Welcome. So each attempt to connect offers, in its Hello, every
//! fabric that the client was told to use and can open, best first, and moves to the one that the broker names. What the
//! client has made on the one before ends with it. A broker that was started anew on another fabric is followed like that.
//!
//! A device is opened for the address that the bootstrap stream leaves this machine from: that one leads to the broker. A broker on
//! the same host is reached without such an address; its Welcome tells which device it is on, and the client takes the same.
//!
//! The driver's loop wants a fabric before there is any broker. It begins with the software one, which needs nothing.

use std::net::IpAddr;
use std::sync::Arc;

use keyway_fabric::{DomainId, Fabric, FabricChoice, FabricError, FabricOptions};

use crate::Error;

/// Opens a fabric, for a broker that is reached from an address.
pub type OpenFabric = fn(&FabricChoice, Option<IpAddr>) -> Result<Box<dyn Fabric>, FabricError>;

/// Opens a fabric as [`FabricOptions`] does.
pub(crate) fn open_fabric(choice: &FabricChoice, address: Option<IpAddr>) -> Result<Box<dyn Fabric>, FabricError> {
    let mut options = FabricOptions::new(choice.clone());
    options.address = address;
    Ok(options.open()?.fabric)
}

/// A fabric that is open, and the client's domain in it.
pub(crate) struct Held {
    pub(crate) fabric: Box<dyn Fabric>,
    pub(crate) domain: DomainId,
    family: &'static str,
    /// What it was opened for.
    address: Option<IpAddr>,
}

/// What is to be done for the fabric that the broker has named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// Nothing: it is in use.
    Used,
    /// The client must move to it.
    Offered,
    /// It was not offered.
    Foreign,
}

/// The client's fabrics.
pub(crate) struct Fabrics {
    choice: FabricChoice,
    open: OpenFabric,
    used: Held,
    /// Whether the role has been prepared on the one in use.
    is_prepared: bool,
    /// The address that the present attempt leaves this machine from, if it does.
    address: Option<IpAddr>,
    /// What else the present attempt has offered.
    offered: Vec<Held>,
    /// Why it has offered no device, though one might have been used.
    deviceless: Option<FabricError>,
}

impl Fabrics {
    /// The software fabric, until a broker names one of those that `choice` stands for.
    pub(crate) fn new(choice: FabricChoice, open: OpenFabric) -> Result<Self, Error> {
        let used = Held::open(&FabricChoice::Soft, None, open).map_err(|error| unopened(&FabricChoice::Soft, error))?;
        Ok(Self { choice, open, used, is_prepared: false, address: None, offered: Vec::new(), deviceless: None })
    }

    /// The fabric in use.
    pub(crate) fn fabric(&mut self) -> &mut dyn Fabric {
        &mut *self.used.fabric
    }

    /// Whether that is a device, rather than software.
    pub(crate) fn is_device(&self) -> bool {
        self.used.family != SOFT
    }

    /// The domain in it.
    pub(crate) fn domain(&self) -> DomainId {
        self.used.domain
    }

    /// Opens what can be offered to a broker that is reached from `address`, and returns what it is called, best first.
    ///
    /// # Errors
    ///
    /// The one fabric that was chosen cannot be opened.
    pub(crate) fn offer(&mut self, address: Option<IpAddr>) -> Result<Vec<String>, Error> {
        // What an earlier attempt has opened may be for another address.
        self.offered.clear();
        self.deviceless = None;
        self.address = address;
        let (first, second) = match &self.choice {
            FabricChoice::Auto => (FabricChoice::Verbs { device: None }, Some(FabricChoice::Soft)),
            one => (one.clone(), None),
        };
        let mut families = Vec::new();
        match self.offer_one(&first, address) {
            Ok(family) => families.push(family.to_owned()),
            Err(error) if second.is_some() => {
                tracing::debug!(fabric = %first, %error, "not offered to the broker");
                self.deviceless = Some(error);
            }
            Err(error) => return Err(unopened(&first, error)),
        }
        if let Some(second) = second {
            let family = self.offer_one(&second, address).map_err(|error| unopened(&second, error))?;
            families.push(family.to_owned());
        }
        Ok(families)
    }

    /// Why no device is among what was last offered, if one was looked for.
    pub(crate) const fn deviceless(&self) -> Option<&FabricError> {
        self.deviceless.as_ref()
    }

    fn offer_one(&mut self, choice: &FabricChoice, address: Option<IpAddr>) -> Result<&'static str, FabricError> {
        let family = family(choice);
        if !self.used.serves(family, address) {
            self.offered.push(Held::open(choice, address, self.open)?);
        }
        Ok(family)
    }

    /// What a fabric that the broker names takes. Others that were opened for the attempt are closed. `device` is the address of the
    /// device that the broker is on.
    pub(crate) fn named(&mut self, family: &str, device: Option<IpAddr>) -> Named {
        self.offered.retain(|held| held.family == family);
        if let Some(device) = device
            && self.address.is_none()
            && matches!(self.choice, FabricChoice::Auto | FabricChoice::Verbs { device: None })
        {
            self.follow(family, device);
        }
        // What was opened for this attempt comes before what an earlier one has left in use.
        if self.offered.iter().any(|held| held.family == family) {
            Named::Offered
        } else if self.used.family != family || !self.is_chosen(family) {
            Named::Foreign
        } else if self.is_prepared {
            Named::Used
        } else {
            Named::Offered
        }
    }

    /// Takes the device of a broker on this host in the place of what was opened without an address. One that cannot be opened
    /// leaves that in its place.
    fn follow(&mut self, name: &str, device: IpAddr) {
        if self.used.serves(name, Some(device)) {
            self.offered.clear();
        } else if let Some(held) = self.offered.iter_mut().find(|held| !held.serves(name, Some(device))) {
            match Held::open(&FabricChoice::Verbs { device: None }, Some(device), self.open) {
                Ok(same) => *held = same,
                Err(error) => tracing::debug!(%device, %error, "the broker's device is not this client's"),
            }
        }
    }

    /// Whether a fabric is among those that were chosen. The software one is in use before any is.
    fn is_chosen(&self, name: &str) -> bool {
        self.choice.family().is_none_or(|family| family == name)
    }

    /// Moves to a fabric that was offered. Returns the one before, if that is another and something may have been made in it.
    pub(crate) fn move_to(&mut self, name: &str) -> Option<Held> {
        let was_prepared = std::mem::replace(&mut self.is_prepared, true);
        let place = self.offered.iter().position(|held| held.family == name)?;
        let next = self.offered.swap_remove(place);
        self.offered.clear();
        let former = std::mem::replace(&mut self.used, next);
        was_prepared.then_some(former)
    }

    /// The role could not be prepared: it is tried again for the next session.
    pub(crate) fn unprepared(&mut self) {
        self.is_prepared = false;
    }

    /// The fabric in use, at the end.
    pub(crate) fn into_used(self) -> Held {
        self.used
    }
}

impl Held {
    fn open(choice: &FabricChoice, address: Option<IpAddr>, open: OpenFabric) -> Result<Self, FabricError> {
        let mut fabric = open(choice, address)?;
        let domain = fabric.domain()?;
        Ok(Self { fabric, domain, family: family(choice), address })
    }

    /// Whether it is one of this family that leads to a broker reached from `address`. Software leads everywhere.
    fn serves(&self, family: &str, address: Option<IpAddr>) -> bool {
        self.family == family && (family == SOFT || self.address == address)
    }
}

impl Drop for Held {
    /// Gives the domain back, of which nothing should be left.
    fn drop(&mut self) {
        if let Err(error) = self.fabric.free_domain(self.domain) {
            tracing::debug!(fabric = self.fabric.name(), %error, "a client's domain goes with its fabric");
        }
    }
}

fn unopened(choice: &FabricChoice, source: FabricError) -> Error {
    Error::OpenFabric { fabric: choice.to_string(), source: Arc::new(source) }
}

const SOFT: &str = "soft";

fn family(choice: &FabricChoice) -> &'static str {
    choice.family().expect("what is opened is one fabric")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use keyway_fabric::soft::{SoftConfig, SoftFabric};

    use super::*;

    const HERE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)));
    const THERE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 8)));

    /// A machine that has a device, played by the software fabric.
    fn with_device(_: &FabricChoice, _: Option<IpAddr>) -> Result<Box<dyn Fabric>, FabricError> {
        Ok(Box::new(SoftFabric::new(SoftConfig::default())?))
    }

    /// A machine that has none.
    fn without_device(choice: &FabricChoice, address: Option<IpAddr>) -> Result<Box<dyn Fabric>, FabricError> {
        match choice {
            FabricChoice::Soft => with_device(choice, address),
            _ => Err(FabricError::Unsupported { fabric: "verbs", what: "be used: there is no device" }),
        }
    }

    fn verbs() -> FabricChoice {
        FabricChoice::Verbs { device: None }
    }

    #[test]
    fn auto_offers_what_can_be_opened_and_an_explicit_choice_offers_nothing_else() {
        let offer = |choice, open: OpenFabric| Fabrics::new(choice, open).unwrap().offer(HERE);
        assert_eq!(offer(FabricChoice::Auto, with_device).unwrap(), ["verbs", "soft"]);
        assert_eq!(offer(FabricChoice::Auto, without_device).unwrap(), ["soft"]);
        assert_eq!(offer(FabricChoice::Soft, with_device).unwrap(), ["soft"]);
        assert_eq!(offer(verbs(), with_device).unwrap(), ["verbs"]);
        let error = offer(verbs(), without_device).unwrap_err();
        assert!(error.to_string().contains("there is no device"), "{error}");
    }

    #[test]
    fn why_no_device_was_offered_is_known_until_one_is() {
        static IS_THERE: AtomicBool = AtomicBool::new(false);
        fn sometimes(choice: &FabricChoice, address: Option<IpAddr>) -> Result<Box<dyn Fabric>, FabricError> {
            let open = if IS_THERE.load(Ordering::Relaxed) { with_device } else { without_device };
            open(choice, address)
        }
        let mut fabrics = Fabrics::new(FabricChoice::Auto, sometimes).unwrap();
        fabrics.offer(HERE).unwrap();
        assert!(fabrics.deviceless().is_some_and(|why| why.to_string().contains("there is no device")));
        IS_THERE.store(true, Ordering::Relaxed);
        fabrics.offer(HERE).unwrap();
        assert!(fabrics.deviceless().is_none());
    }

    #[test]
    fn the_fabric_that_the_broker_names_is_moved_to_once_and_again_when_another_one_is_named() {
        let mut fabrics = Fabrics::new(FabricChoice::Auto, with_device).unwrap();
        let mut former = Vec::new();
        for named in ["verbs", "verbs", "soft", "soft", "verbs"] {
            fabrics.offer(HERE).unwrap();
            let moves = fabrics.named(named, None) == Named::Offered;
            if moves {
                former.extend(fabrics.move_to(named).map(|held| held.family));
            }
            assert_eq!((fabrics.named(named, None), fabrics.used.family), (Named::Used, named));
        }
        // The one that it began with was never prepared, so nothing needs to be taken back from it.
        assert_eq!(former, ["verbs", "soft"]);
    }

    #[test]
    fn a_device_is_opened_anew_when_the_broker_is_reached_from_another_address() {
        let mut fabrics = Fabrics::new(verbs(), with_device).unwrap();
        for (address, moves) in [(HERE, true), (HERE, false), (THERE, true), (THERE, false), (None, true)] {
            fabrics.offer(address).unwrap();
            let named = fabrics.named("verbs", None);
            assert_eq!(named, if moves { Named::Offered } else { Named::Used }, "{address:?}");
            fabrics.move_to("verbs");
        }
    }

    #[test]
    fn a_broker_on_this_host_is_met_on_its_own_device() {
        let mut fabrics = Fabrics::new(FabricChoice::Auto, with_device).unwrap();
        for (device, moves) in [(HERE, true), (HERE, false), (THERE, true), (THERE, false)] {
            fabrics.offer(None).unwrap();
            let named = fabrics.named("verbs", device);
            assert_eq!(named, if moves { Named::Offered } else { Named::Used }, "{device:?}");
            fabrics.move_to("verbs");
            assert_eq!((fabrics.named("verbs", device), fabrics.used.address), (Named::Used, device));
        }
        // A broker that is reached through a network is on a device of its own host.
        fabrics.offer(HERE).unwrap();
        assert_eq!(fabrics.named("verbs", THERE), Named::Offered);
        fabrics.move_to("verbs");
        assert_eq!(fabrics.used.address, HERE);
    }

    #[test]
    fn what_was_not_offered_is_not_used_though_it_is_open() {
        let mut fabrics = Fabrics::new(verbs(), with_device).unwrap();
        fabrics.offer(HERE).unwrap();
        assert_eq!(fabrics.named("soft", None), Named::Foreign);
        let mut soft = Fabrics::new(FabricChoice::Soft, with_device).unwrap();
        soft.offer(HERE).unwrap();
        assert_eq!((soft.named("soft", None), soft.named("verbs", None)), (Named::Offered, Named::Foreign));
    }
}
