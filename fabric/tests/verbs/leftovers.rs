//! What the kernel still holds for this process.

use std::process::Command;

/// The kinds of object that a process can have.
const KINDS: [&str; 6] = ["ctx", "pd", "cq", "mr", "qp", "srq"];

/// Nothing, or the kernel's list of it. Without the tool that asks, nothing is known, and nothing is complained about.
pub(crate) fn none() -> Result<(), String> {
    let own = format!("pid {} ", std::process::id());
    let of_kind = |kind| -> Vec<String> {
        let listed = list(kind).unwrap_or_default();
        listed.lines().filter(|line| format!("{line} ").contains(&own)).map(str::to_owned).collect()
    };
    // Every object keeps its context open, so that one question is enough where nothing is left.
    if of_kind("ctx").is_empty() {
        return Ok(());
    }
    Err(format!("the kernel still holds {}", KINDS.map(of_kind).concat().join("; ")))
}

/// Whether what is left can be looked at.
pub(crate) fn are_visible() -> bool {
    list("ctx").is_some()
}

fn list(kind: &str) -> Option<String> {
    let output = Command::new("rdma").args(["resource", "show", kind]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
