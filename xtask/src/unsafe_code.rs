//! Every crate but the fabric forbids unsafe code, examples and benchmarks included: one that needed it would show that an
//! interface is missing. Tests are left to their authors.

use std::path::PathBuf;

use serde::Deserialize;

use crate::step::{Failure, cargo, output, workspace};

/// The one package whose job it is.
const EXCEPTION: &str = "keyway-fabric";
/// What the root file of every other target must say.
const FORBID: &str = "#![forbid(unsafe_code)]";

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

/// Fails with the list of targets that do not forbid it.
pub(crate) fn check() -> Result<(), Failure> {
    let json = output(cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: Metadata = serde_json::from_slice(&json)?;
    let targets = metadata.packages.iter().filter(|package| package.name != EXCEPTION).flat_map(|p| &p.targets);
    let mut checked = 0;
    let mut missing = Vec::new();
    for Target { kind, src_path: path } in targets {
        if kind.iter().any(|kind| kind == "test") {
            continue;
        }
        let text = std::fs::read_to_string(path).map_err(|source| Failure::Read { path: path.clone(), source })?;
        checked += 1;
        if !text.lines().any(|line| line.trim_end() == FORBID) {
            missing.push(format!("  {}", path.strip_prefix(workspace()).unwrap_or(path).display()));
        }
    }
    if missing.is_empty() {
        eprintln!("{checked} targets say {FORBID}");
        return Ok(());
    }
    Err(Failure::Found(format!("these do not say {FORBID}:\n{}", missing.join("\n"))))
}
