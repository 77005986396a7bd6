//! Soft-RoCE in the kernel that runs already: its module loaded, two devices made, and all of it removed afterwards.

use std::path::Path;

use super::error::Error;
use super::links::Links;
use crate::tools::{self, Rights};

const MODULE: &str = "rdma_rxe";

/// Devices in the running kernel, for as long as this lives.
pub(super) struct Loaded {
    // In this order: a module in use cannot be unloaded.
    _links: Links,
    _module: Module,
}

/// The module, unloaded again if it was loaded here.
struct Module {
    rights: Rights,
    loaded: bool,
}

/// Whether there is any point in trying; if not, why, as the end of a sentence.
pub(super) fn available() -> Result<Rights, String> {
    let missing: Vec<_> = ["modprobe", "ip", "rdma"].into_iter().filter(|tool| tools::find(tool).is_none()).collect();
    if !in_kernel() {
        if missing.contains(&"modprobe") {
            return Err("there is no modprobe to ask for the module".into());
        }
        let dry_run = ["--dry-run", "--quiet", MODULE];
        if tools::run(tools::command("modprobe").args(dry_run)).is_err() {
            return Err(format!("the running kernel has no module {MODULE}"));
        }
    }
    if let Some(tool) = missing.into_iter().find(|tool| *tool != "modprobe") {
        return Err(format!("`{tool}` is missing (package iproute2)"));
    }
    Rights::find().ok_or_else(|| "loading it takes root, or sudo without a password".into())
}

/// Loads the module and makes the devices.
pub(super) fn load(rights: Rights) -> Result<Loaded, Error> {
    let loaded = !in_kernel();
    if loaded {
        let failed = |failed: tools::Failed| Error::NoModule(failed.to_string());
        tools::run(rights.command("modprobe").arg(MODULE)).map_err(failed)?;
    }
    let module = Module { rights, loaded };
    Ok(Loaded { _links: Links::make(rights)?, _module: module })
}

fn in_kernel() -> bool {
    Path::new("/sys/module").join(MODULE).exists()
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.loaded
            && let Err(error) = tools::run(self.rights.command("modprobe").args(["--remove", MODULE]))
        {
            eprintln!("softroce: left behind: {error}");
        }
    }
}
