//! Network interfaces and devices that a test makes for itself, and what processes hold on a device.
//!
//! Making them takes root's rights and a kernel with the drivers. Where that is not given, a test that needs them says why it cannot
//! run.

use std::net::Ipv4Addr;
use std::process::Command;

use keyway_fabric::FabricChoice;

/// The kinds of object that a process can have on a device. Contexts come last: everything else is in one.
const KINDS: [&str; 6] = ["qp", "cq", "mr", "pd", "srq", "ctx"];

/// Runs a tool and gives what it says, or what was in the way.
pub(crate) fn tool(program: &str, arguments: &str) -> Result<String, String> {
    let output = Command::new(program).args(arguments.split_whitespace()).output();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("`{program} {arguments}`: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// The threads of a process now. What is held on a device goes by the thread that made it.
pub(crate) fn threads(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// What these threads hold on any device, one line for each object. `Err` where nothing can be known.
pub(crate) fn held_by(threads: &[u32]) -> Result<Vec<String>, String> {
    let mut held = Vec::new();
    for kind in KINDS {
        let listed = match tool("rdma", &format!("resource show {kind}")) {
            Ok(listed) => listed,
            // Older kernels do not tell of every kind.
            Err(_) if matches!(kind, "srq" | "ctx") => continue,
            Err(why) => return Err(why),
        };
        let is_theirs = |line: &&str| threads.iter().any(|id| format!("{line} ").contains(&format!(" pid {id} ")));
        held.extend(listed.lines().filter(is_theirs).map(|line| format!("{kind}: {}", line.trim())));
    }
    Ok(held)
}

/// Whether what processes hold can be looked at.
pub(crate) fn is_visible() -> Result<(), String> {
    held_by(&[]).map(drop)
}

/// An interface with an address that leads nowhere but to this machine, and on a device fabric a Soft-RoCE device on it. It is
/// gone once this is dropped.
pub(crate) struct Interface {
    name: String,
    address: Ipv4Addr,
    device: Option<String>,
}

impl Interface {
    /// One that nothing is connected to. `place` tells a test program's interfaces apart.
    pub(crate) fn alone(place: u8) -> Result<Self, String> {
        let name = name(place);
        tool("ip", &format!("link add {name} type dummy"))?;
        Self { name, address: address(place), device: None }.set_up(4200)
    }

    /// Two that are connected with each other, with an MTU for each. Each reaches the other's address through the wire, though both
    /// are of this machine.
    pub(crate) fn pair(places: [u8; 2], mtu: [u32; 2]) -> Result<[Self; 2], String> {
        let [one, other] = places.map(name);
        tool("ip", &format!("link add {one} type veth peer name {other}"))?;
        let [one, other] =
            [(one, 0), (other, 1)].map(|(name, end)| Self { name, address: address(places[end]), device: None });
        for name in ["all", &one.name, &other.name] {
            for (what, value) in [("rp_filter", "0"), ("accept_local", "1"), ("arp_ignore", "1")] {
                let path = format!("/proc/sys/net/ipv4/conf/{name}/{what}");
                std::fs::write(&path, value).map_err(|error| format!("cannot write {path}: {error}"))?;
            }
        }
        Ok([one.set_up(mtu[0])?, other.set_up(mtu[1])?])
    }

    fn set_up(mut self, mtu: u32) -> Result<Self, String> {
        let Self { name, address, .. } = &self;
        tool("ip", &format!("address add {address}/24 dev {name}"))?;
        tool("ip", &format!("link set {name} mtu {mtu} up"))?;
        if super::fabric() != FabricChoice::Soft {
            let device = format!("{name}rxe");
            tool("rdma", &format!("link add {device} type rxe netdev {name}"))?;
            self.device = Some(device);
        }
        Ok(self)
    }

    /// Its address.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The device on it.
    pub(crate) fn device(&self) -> &str {
        self.device.as_deref().expect("there is one on a device fabric")
    }

    /// Takes the cable out, or puts it back in: without it nothing arrives at the address, and nobody says so.
    pub(crate) fn plug(&self, is_in: bool) {
        let Self { name, address, .. } = self;
        let plugged = if is_in {
            tool("ip", &format!("link set {name} up"))
        } else {
            // The system keeps a way to its own addresses by itself, and gives it back when the interface comes up.
            tool("ip", &format!("route delete local {address} dev {name} table local"))
                .and_then(|_| tool("ip", &format!("link set {name} down")))
        };
        plugged.expect("the interface is there");
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        // The other end of a pair may have taken this one with it. A device goes with its interface.
        drop(tool("ip", &format!("link delete {}", self.name)));
    }
}

/// Names are 15 characters at most, and a device's has three more.
fn name(place: u8) -> String {
    format!("kw{}x{place}", std::process::id() % 100_000)
}

/// All in one network, which is nobody's but documentation's.
fn address(place: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 10 + place)
}
