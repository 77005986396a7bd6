//! The pair of Soft-RoCE devices that tests find: rxe0 at 10.77.0.1 and rxe1 at 10.77.1.1, each on a dummy interface.

#![allow(clippy::disallowed_methods, reason = "waiting for the kernel to fill a table needs a deadline")]

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::Error;
use super::job::LOOK_AGAIN;
use crate::tools::{self, Rights};

/// One device and what it sits on.
struct Link {
    device: &'static str,
    interface: &'static str,
    address: Ipv4Addr,
}

const PAIR: [Link; 2] = [
    Link { device: "rxe0", interface: "keyway-rxe0", address: Ipv4Addr::new(10, 77, 0, 1) },
    Link { device: "rxe1", interface: "keyway-rxe1", address: Ipv4Addr::new(10, 77, 1, 1) },
];

/// Room for RoCE's largest packet, 4096 bytes of payload, and its headers.
const MTU: &str = "4200";

/// The kernel fills a device's table of addresses behind our back, at once on an idle machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Devices that were made here, and go with this.
pub(super) struct Links {
    rights: Rights,
    /// What removes what was made, in the order in which it was made.
    undo: Vec<Vec<&'static str>>,
}

impl Links {
    /// Makes both devices.
    pub(super) fn make(rights: Rights) -> Result<Self, Error> {
        let mut links = Self { rights, undo: Vec::new() };
        for Link { device, interface, address } in &PAIR {
            let address = format!("{address}/24");
            links.ask("ip", &["link", "add", interface, "type", "dummy"])?;
            links.undo.push(vec!["ip", "link", "delete", interface]);
            links.ask("ip", &["link", "set", interface, "mtu", MTU, "up"])?;
            // Before the device is there, so that its table of addresses begins with this one in it.
            links.ask("ip", &["address", "add", &address, "dev", interface])?;
            links.ask("rdma", &["link", "add", device, "type", "rxe", "netdev", interface])?;
            links.undo.push(vec!["rdma", "link", "delete", device]);
        }
        for link in &PAIR {
            until_addressed(link)?;
        }
        Ok(links)
    }

    fn ask(&self, program: &str, arguments: &[&str]) -> Result<(), Error> {
        let failed = |failed: tools::Failed| Error::Command { command: failed.command, said: failed.said };
        tools::run(self.rights.command(program).args(arguments)).map(drop).map_err(failed)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        while let Some(words) = self.undo.pop() {
            if let Err(error) = self.ask(words[0], &words[1..]) {
                eprintln!("softroce: left behind: {error}");
            }
        }
    }
}

/// Waits until the device has its address, without which no peer can be told where it is.
fn until_addressed(link: &Link) -> Result<(), Error> {
    let wanted = gid(link.address);
    let table = Path::new("/sys/class/infiniband").join(link.device).join("ports/1/gids");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let entries = std::fs::read_dir(&table).into_iter().flatten().flatten();
        // An entry that is not in use cannot be read.
        if entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).any(|gid| gid.trim() == wanted) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let command = format!("rdma link add {}", link.device);
            return Err(Error::Command { command, said: format!("the device has no GID {wanted} after {PATIENCE:?}") });
        }
        std::thread::park_timeout(LOOK_AGAIN);
    }
}

/// An IPv4 address as the kernel writes it in a table of GIDs.
fn gid(address: Ipv4Addr) -> String {
    let segments = address.to_ipv6_mapped().segments();
    segments.map(|segment| format!("{segment:04x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_the_mapped_address_in_full() {
        assert_eq!(gid(Ipv4Addr::new(10, 77, 1, 1)), "0000:0000:0000:0000:0000:ffff:0a4d:0101");
    }
}
