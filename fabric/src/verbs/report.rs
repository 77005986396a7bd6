//! What a device says of itself, and how keys are made on it, as plain data.

use std::net::Ipv6Addr;

use super::fabric::VerbsFabric;
use crate::Fabric;
use crate::probe::{DeviceReport, StrategyReport};

impl VerbsFabric {
    /// What the device says of itself, and which of its ports is in use.
    pub fn device_report(&self) -> DeviceReport {
        let (limits, port) = (&self.limits, &self.port);
        let types = [(limits.type_1_windows, "type 1"), (limits.type_2_windows, "type 2")];
        let gid = Ipv6Addr::from(port.gid).to_canonical();
        let network = if port.ethernet { "RoCE v2".to_owned() } else { format!("InfiniBand, LID {}", port.lid) };
        DeviceReport {
            name: Some(self.context.name().to_owned()),
            firmware: Some(limits.firmware.clone()).filter(|firmware| !firmware.is_empty()),
            port: Some(format!("{gid} (GID {} of port {}, {network})", port.gid_place, port.number)),
            window_types: types.iter().filter(|(has, _)| *has).map(|(_, name)| (*name).to_owned()).collect(),
            windows_max: Some(limits.windows.into()),
            regions_max: Some(limits.regions.into()),
            region_bytes_max: Some(limits.region_bytes),
            endpoints_max: Some(limits.queue_pairs.into()),
            work_max: Some(limits.queue_entries.into()),
            completion_queues_max: Some(limits.completion_queues.into()),
            completions_max: Some(limits.completion_entries.into()),
            scatter_max: Some(limits.pieces.into()),
            mtu_bytes: Some(128 << port.mtu),
            reads_outgoing_max: Some(limits.reads_out.into()),
            reads_incoming_max: Some(limits.reads_in.into()),
            read_bytes_max: Some(self.capabilities().read_max.into()),
        }
    }

    /// Everything that nobody has freed yet, by name: what would be reported if the fabric were dropped now.
    pub fn leftovers(&self) -> Vec<String> {
        let links = self.endpoints.iter().map(|(link, endpoint)| {
            let (sends, receives) = (endpoint.sends.len(), endpoint.receives.len());
            format!("{link} ({sends} pieces of work and {receives} receives outstanding)")
        });
        let windows = self.windows.iter().map(|(id, window)| {
            let spans: Vec<String> = window.spans().map(|span| format!("{span:?}")).collect();
            match spans.as_slice() {
                [] => format!("{id} (unbound)"),
                spans => format!("{id} (bound to {} under {})", spans.join(", or "), window.key()),
            }
        });
        let shareds = self.shareds.iter().map(|(id, shared)| format!("{id} ({} bytes)", shared.memory.len()));
        let locals = self.locals.iter().map(|(id, local)| format!("{id} ({:?})", local.memory));
        let domains = self.domains.iter().map(|(id, _)| id.to_string());
        links.chain(windows).chain(shareds).chain(locals).chain(domains).collect()
    }

    /// How keys are made on the device, and why so.
    pub fn strategy_report(&self) -> StrategyReport {
        self.strategy.clone()
    }
}
