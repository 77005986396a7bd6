//! What the kernel still holds for this process.

use std::process::Command;

/// The kinds of object that a process can have: contexts last, which everything else is in.
const KINDS: [&str; 6] = ["qp", "cq", "mr", "pd", "srq", "ctx"];

/// Nothing, or the kernel's list of it. Without the tool that asks, nothing is known, and nothing is complained about.
pub(crate) fn none() -> Result<(), String> {
    let own = format!("pid {} ", std::process::id());
    for kind in KINDS {
        let Some(listed) = list(kind) else { return Ok(()) };
        let left: Vec<&str> = listed.lines().filter(|line| format!("{line} ").contains(&own)).collect();
        if !left.is_empty() {
            return Err(format!("the kernel still holds {}", left.join("; ")));
        }
    }
    Ok(())
}

/// Whether what is left can be looked at.
pub(crate) fn are_visible() -> bool {
    list("qp").is_some()
}

fn list(kind: &str) -> Option<String> {
    let output = Command::new("rdma").args(["resource", "show", kind]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
