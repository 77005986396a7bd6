//! Which device, port and GID to use.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::failure::failed;
use super::sys::{Context, GID_ROCE_V2, GidEntry, Limits, device_names};
use crate::FabricError;

/// The port of a device that endpoints are made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) ethernet: bool,
    pub(super) lid: u16,
    /// As `enum ibv_mtu`.
    pub(super) mtu: u8,
    /// The most bytes of one message or READ.
    pub(super) message_max: u32,
    pub(super) gid: [u8; 16],
    /// The GID's place in the port's table.
    pub(super) gid_place: u8,
}

/// A device with a port that works.
pub(super) struct Found {
    pub(super) context: Arc<Context>,
    pub(super) limits: Limits,
    pub(super) port: Port,
}

/// Opens the device of that name, or the first that has an active port with a GID for the address.
pub(super) fn find(device: Option<&str>, address: Option<IpAddr>) -> Result<Found, FabricError> {
    let names = device_names().map_err(|error| no_devices(&error.to_string()))?;
    if names.is_empty() {
        return Err(no_devices("the list of devices is empty"));
    }
    if let Some(device) = device
        && !names.iter().any(|name| name == device)
    {
        return Err(FabricError::NoDevice {
            what: format!("there is no RDMA device {device:?} here, but {}", names.join(", ")),
            advice: "name one of them, as in verbs:DEVICE".into(),
        });
    }
    // Nobody is reached by other hosts under these, so they choose nothing.
    let address = address.filter(|address| !address.is_unspecified() && !address.is_loopback());
    let mut refusals = Vec::new();
    for name in names.iter().filter(|name| device.is_none_or(|device| device == *name)) {
        match open(name, address) {
            Ok(found) => return Ok(found),
            Err(error) => refusals.push(error),
        }
    }
    if refusals.len() == 1 {
        return Err(refusals.remove(0));
    }
    let each: Vec<String> = refusals.iter().map(what).collect();
    let unopened = refusals.into_iter().find_map(|refusal| match refusal {
        FabricError::Verb { verb: "ibv_open_device", advice, .. } => Some(advice),
        _ => None,
    });
    Err(FabricError::NoDevice {
        what: format!("none of the RDMA devices {} can be used: {}", names.join(", "), each.join("; ")),
        advice: match (unopened, address) {
            (Some(advice), _) => advice,
            (None, Some(_)) => {
                "listen on an address of the RDMA network, or name the device; `ibv_devinfo -v` shows the GIDs".into()
            }
            (None, None) => "`ibv_devinfo -v` shows their ports and GIDs".into(),
        },
    })
}

/// What is wrong with a device, without what to do about it.
fn what(refusal: &FabricError) -> String {
    match refusal {
        FabricError::NoDevice { what, .. } => what.clone(),
        FabricError::Verb { verb, device, source, .. } => format!("{verb} failed on {device} ({source})"),
        other => other.to_string(),
    }
}

fn no_devices(why: &str) -> FabricError {
    FabricError::NoDevice {
        what: format!("no RDMA device was found ({why})"),
        advice: "check `rdma link` and `ibv_devinfo`; is the kernel's driver loaded, and its provider installed \
                 (ibverbs-providers)? Without hardware, `rdma link add rxe0 type rxe netdev DEVICE` makes a Soft-RoCE one"
            .into(),
    }
}

fn open(name: &str, address: Option<IpAddr>) -> Result<Found, FabricError> {
    let gone = || no_devices(&format!("{name} is gone"));
    let context = Context::open(name).map_err(|error| failed("ibv_open_device", name, error))?.ok_or_else(gone)?;
    if context.is_iwarp() {
        return Err(FabricError::NoDevice {
            what: format!("{name} is an iWARP device, and queue pairs are connected here on InfiniBand and RoCE only"),
            advice: "use another device, or the software fabric (soft)".into(),
        });
    }
    let limits = context.limits().map_err(|error| failed("ibv_query_device", name, error))?;
    let gids = context.gids().map_err(|error| failed("ibv_query_gid_table", name, error))?;
    let mut why = format!("{name} has no port");
    let mut advice = "bring the port's network interface up and give it an address (`rdma link`, `ip address`)";
    for number in 1..=limits.ports {
        let state = context.port(number).map_err(|error| failed("ibv_query_port", name, error))?;
        if !state.active {
            why = format!("port {number} of {name} is not active");
            continue;
        }
        let chosen = if state.ethernet {
            choose_gid(&gids, number, address)
        } else {
            gids.iter().find(|entry| entry.port == u32::from(number))
        };
        let Some(entry) = chosen else {
            why = no_gid(name, number, address, &gids);
            if address.is_some() {
                advice = "use an address that the device has (on which to listen, or from which to connect), give its network \
                          interface this one, or name the device and no address";
            }
            continue;
        };
        let (Ok(gid_place), Ok(mtu)) = (u8::try_from(entry.index), u8::try_from(state.mtu)) else {
            why = format!("the GID of port {number} of {name} is past the 256th entry of its table");
            continue;
        };
        let port = Port {
            number,
            ethernet: state.ethernet,
            lid: state.lid,
            mtu,
            message_max: state.message_max,
            gid: entry.gid,
            gid_place,
        };
        return Ok(Found { context, limits, port });
    }
    Err(FabricError::NoDevice { what: why, advice: advice.into() })
}

fn no_gid(name: &str, port: u8, address: Option<IpAddr>, gids: &[GidEntry]) -> String {
    let own = gids.iter().filter(|entry| entry.port == u32::from(port) && entry.kind == GID_ROCE_V2);
    let own: Vec<String> = own.map(|entry| plain(entry.gid).to_string()).collect();
    match address {
        Some(address) => format!(
            "port {port} of {name} has no RoCE v2 GID for the address {address}, but {}",
            if own.is_empty() { "none at all".to_owned() } else { own.join(", ") }
        ),
        None => format!("port {port} of {name} has no RoCE v2 GID"),
    }
}

/// A GID as an address.
fn plain(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// The RoCE v2 GID of an address; without one, that of an IPv4 address, else of a global IPv6 one, else any.
fn choose_gid(gids: &[GidEntry], port: u8, address: Option<IpAddr>) -> Option<&GidEntry> {
    let usable = gids.iter().filter(|entry| entry.port == u32::from(port) && entry.kind == GID_ROCE_V2);
    match address {
        Some(address) => usable.into_iter().find(|entry| plain(entry.gid) == address.to_canonical()),
        None => usable.min_by_key(|entry| match plain(entry.gid) {
            IpAddr::V4(_) => 0,
            IpAddr::V6(address) if !address.is_unicast_link_local() => 1,
            IpAddr::V6(_) => 2,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(address: &str, index: u32, port: u32, kind: u32) -> GidEntry {
        let address: IpAddr = address.parse().unwrap();
        let gid = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        GidEntry { gid, index, port, kind }
    }

    #[test]
    fn the_gid_is_that_of_the_address_and_of_roce_v2() {
        let gids = [
            entry("fe80::1", 0, 1, 1),
            entry("fe80::1", 1, 1, GID_ROCE_V2),
            entry("2001:db8::1", 2, 1, GID_ROCE_V2),
            entry("10.0.0.1", 3, 1, 1),
            entry("10.0.0.1", 4, 1, GID_ROCE_V2),
            entry("10.0.1.1", 0, 2, GID_ROCE_V2),
        ];
        let index = |port, address: Option<&str>| {
            let address = address.map(|address| address.parse().unwrap());
            choose_gid(&gids, port, address).map(|entry| entry.index)
        };
        assert_eq!(index(1, None), Some(4), "an IPv4 address is preferred");
        assert_eq!(index(1, Some("10.0.0.1")), Some(4));
        assert_eq!(index(1, Some("::ffff:10.0.0.1")), Some(4));
        assert_eq!(index(1, Some("2001:db8::1")), Some(2));
        assert_eq!(index(1, Some("10.0.1.1")), None, "that one is another port's");
        assert_eq!(index(2, None), Some(0));
        assert_eq!(choose_gid(&gids[..3], 1, None).map(|entry| entry.index), Some(2));
        assert_eq!(choose_gid(&gids[..1], 1, None), None, "RoCE v1 only");
    }
}
