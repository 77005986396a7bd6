//! Running the tests in turn where the device is, and looking after each whether it left anything on the device.

#![allow(clippy::disallowed_methods, reason = "looking again for a while needs the clock")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Planned;
use crate::softroce;
use crate::tools;

/// What a device holds for processes, and under which name each kind is numbered.
const KINDS: [(&str, &str); 6] =
    [("ctx", "ctxn"), ("pd", "pdn"), ("cq", "cqn"), ("qp", "lqpn"), ("mr", "mrn"), ("srq", "srqn")];

/// A process that was killed takes a moment to let go of what it held.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often to look meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Runs every planned program and returns 0 if all succeeded and left nothing behind.
pub(crate) fn run_all(plan: &Path) -> Result<u8, String> {
    let text = std::fs::read(plan).map_err(|error| format!("cannot read {}: {error}", plan.display()))?;
    let plan: Vec<Planned> =
        serde_json::from_slice(&text).map_err(|error| format!("{} is no plan: {error}", plan.display()))?;
    let device = softroce::device()?;
    let mut failed = Vec::new();
    for (place, planned) in (1..).zip(&plan) {
        println!("\ndevice test {place} of {}: {}", plan.len(), planned.title);
        if let Err(why) = run(planned, &device) {
            println!("device test {place} of {}: {} FAILED: {why}", plan.len(), planned.title);
            failed.push(format!("{}: {why}", planned.title));
        }
    }
    println!("\n{} device tests passed, {} failed", plan.len() - failed.len(), failed.len());
    for failed in &failed {
        println!("  {failed}");
    }
    Ok(u8::from(!failed.is_empty()))
}

/// Runs one program on that device.
fn run(planned: &Planned, device: &str) -> Result<(), String> {
    let Planned { program, arguments, environment, directory, .. } = planned;
    let before = held()?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory);
    command.envs(environment.iter().map(|(name, value)| (name, value))).env("KEYWAY_VERBS_DEVICE", device);
    let began = Instant::now();
    let status = command.status().map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    println!("it took {:.1} s", began.elapsed().as_secs_f64());
    if !status.success() {
        return Err(format!("it ended with {status}"));
    }
    let left = left_behind(&before)?;
    if left.is_empty() { Ok(()) } else { Err(format!("it left on the device: {}", left.join(", "))) }
}

/// What the device holds that it did not hold before, once what is about to go has gone.
fn left_behind(before: &BTreeSet<String>) -> Result<Vec<String>, String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left: Vec<_> = held()?.difference(before).cloned().collect();
        if left.is_empty() || Instant::now() >= deadline {
            return Ok(left);
        }
        std::thread::park_timeout(LOOK_AGAIN);
    }
}

/// What the device holds for processes now.
fn held() -> Result<BTreeSet<String>, String> {
    let mut held = BTreeSet::new();
    let mut told = false;
    for (kind, number) in KINDS {
        // Not every kernel tells of every kind.
        if let Ok(answer) = tools::run(tools::command("rdma").args(["-j", "resource", "show", kind])) {
            told = true;
            held.extend(owned(kind, number, &answer)?);
        }
    }
    if told { Ok(held) } else { Err("`rdma resource show` tells of nothing: is the program rdma there?".into()) }
}

/// Those objects of an answer of `rdma` that a process holds. What the kernel holds for itself has no process.
fn owned(kind: &str, number: &str, answer: &[u8]) -> Result<Vec<String>, String> {
    let answer = answer.trim_ascii();
    if answer.is_empty() {
        return Ok(Vec::new());
    }
    let objects: Vec<Value> = serde_json::from_slice(answer)
        .map_err(|error| format!("`rdma -j resource show {kind}` said something else than a list: {error}"))?;
    let text = |object: &Value, field: &str| match &object[field] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let owned = objects.iter().filter(|object| object.get("pid").is_some());
    Ok(owned
        .map(|object| {
            let field = |field| text(object, field);
            format!("{kind} {} on {} of {} ({})", field(number), field("ifname"), field("comm"), field("pid"))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processes_hold_is_told_from_what_the_kernel_holds() {
        let answer = br#"[{"ifindex":0,"ifname":"rxe0","lqpn":1,"type":"GSI","comm":"ib_core"},
            {"ifindex":0,"ifname":"rxe0","lqpn":17,"type":"RC","state":"RTS","pid":172,"comm":"keyway-broker"}]"#;
        assert_eq!(owned("qp", "lqpn", answer), Ok(vec!["qp 17 on rxe0 of keyway-broker (172)".into()]));
    }

    #[test]
    fn nothing_is_held_where_nothing_is_listed() {
        assert_eq!(owned("mr", "mrn", b"[]\n"), Ok(vec![]));
        assert_eq!(owned("mr", "mrn", b"\n"), Ok(vec![]));
    }

    #[test]
    fn an_answer_of_another_form_is_an_error_and_not_nothing() {
        assert!(owned("mr", "mrn", b"{}").is_err());
        assert!(owned("mr", "mrn", b"mr 3").is_err());
    }
}
