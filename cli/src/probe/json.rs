//! The report as one JSON object. Its fields are part of the interface and listed in `docs/probe.md`: a name that changes here
//! changes [`FORMAT`].

use std::time::Duration;

use keyway::probe::{
    Answer, Costs, Deregistration, DeviceReport, Distribution, FabricDeregistration, Findings, Grade, InFlight,
    LATENCY_BYTES, Line, Measured, RawDeregistration, Reads, Report, Strategy,
};
use serde_json::{Map, Value, json};

/// Raised when a field is renamed, removed or changes its meaning. New fields do not raise it.
const FORMAT: u32 = 1;

/// The whole report.
pub(super) fn object(report: &Report, fallback: Option<&str>) -> Value {
    let unusable = report.usable().err().map(|unusable| unusable.findings).unwrap_or_default();
    let held = report.left_behind;
    json!({
        "format": FORMAT,
        "fabric": report.fabric,
        "fallback": fallback,
        "usable": unusable.is_empty(),
        "unusable_because": unusable,
        "device": device(&report.device),
        "keys": {
            "strategy": match report.strategy.strategy {
                Strategy::Windows => "windows",
                Strategy::Registrations => "registrations",
            },
            "words": report.keys,
            "reason": report.strategy.reason,
        },
        "findings": findings(report),
        "costs": costs(&report.costs, &report.cost_verdict()),
        "reads": reads(&report.reads),
        "left_behind": {
            "domains": held.domains, "locals": held.locals, "shareds": held.shareds, "windows": held.windows,
            "bound": held.bound, "endpoints": held.endpoints,
        },
    })
}

fn device(device: &DeviceReport) -> Value {
    json!({
        "name": device.name,
        "firmware": device.firmware,
        "port": device.port,
        "window_types": device.window_types,
        "windows_max": device.windows_max,
        "regions_max": device.regions_max,
        "region_bytes_max": device.region_bytes_max,
        "endpoints_max": device.endpoints_max,
        "work_max": device.work_max,
        "completion_queues_max": device.completion_queues_max,
        "completions_max": device.completions_max,
        "scatter_max": device.scatter_max,
        "mtu_bytes": device.mtu_bytes,
        "reads_outgoing_max": device.reads_outgoing_max,
        "reads_incoming_max": device.reads_incoming_max,
        "read_bytes_max": device.read_bytes_max,
    })
}

/// Each finding's own fields, then what all have.
fn findings(report: &Report) -> Value {
    let lines = report.lines().into_iter().filter_map(|line| {
        let own = own(line.name, &report.findings)?;
        Some((line.name.to_owned(), finding(own, &line)))
    });
    Value::Object(lines.collect())
}

fn finding(own: Measured<Value>, line: &Line) -> Value {
    let (own, not_measured) = match own {
        Ok(own) => (own, None),
        Err(not) => (json!({ "result": null }), Some(not.reason)),
    };
    let Value::Object(mut fields) = own else { unreachable!("a finding's fields are an object") };
    let grade = match line.grade {
        Grade::Good => "good",
        Grade::Notable => "notable",
        Grade::Unusable => "unusable",
    };
    let shared: Map<String, Value> = [
        ("not_measured", json!(not_measured)),
        ("grade", json!(grade)),
        ("tried", json!(line.tried)),
        ("seen", json!(line.seen)),
        ("verdict", json!(line.verdict)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    fields.extend(shared);
    Value::Object(fields)
}

/// What only this finding has; `None` for a line that is no finding of the device's.
fn own(name: &str, found: &Findings) -> Option<Measured<Value>> {
    let answered = |answer: &Measured<Answer>| answer.clone().map(|answer| json!({ "result": word(answer) }));
    Some(match name {
        "inside" => answered(&found.inside),
        "outside_region" => answered(&found.outside_region),
        "region_key" => answered(&found.region_key),
        "unknown_key" => answered(&found.unknown_key),
        "bounds" => found.bounds.clone().map(|bounds| {
            json!({
                "result": if bounds.enforced() { "enforced" } else { "not_enforced" },
                "before": word(bounds.before),
                "across_start": word(bounds.across_start),
                "across_end": word(bounds.across_end),
                "beyond": word(bounds.beyond),
            })
        }),
        "stale_key" => found.stale_key.clone().map(|stale| {
            let answers = stale.answers().map(|(_, answer)| answer);
            let worst = answers.into_iter().find(|answer| *answer == Answer::Opened);
            let worst = worst.or(answers.into_iter().find(|answer| *answer != Answer::Refused));
            json!({
                "result": word(worst.unwrap_or(Answer::Refused)),
                "after_rebind": word(stale.after_rebind),
                "after_unbind": word(stale.after_unbind),
                "after_free": word(stale.after_free),
            })
        }),
        "key_round" => found.key_round.clone().map(|round| {
            json!({
                "result": if round.round_after.is_some() { "comes_round" } else { "no_key_twice" },
                "binds_tried": round.tried,
                "round_after_binds": round.round_after,
                "first_key": word(round.answer),
            })
        }),
        "rebind_under_read" => found.rebind_under_read.clone().map(in_flight),
        "make_before_break" => found.make_before_break.clone().map(in_flight),
        "deregistration" => found.deregistration.clone().map(|seen| deregistration(&seen)),
        "dead_endpoint" => found.dead_endpoint.clone().map(|dead| {
            json!({
                "result": if dead.through_another == Answer::Opened { "stays_bound" } else { "dies" },
                "through_another": word(dead.through_another),
                "after_unbind": word(dead.after_unbind),
            })
        }),
        _ => return None,
    })
}

fn word(answer: Answer) -> &'static str {
    match answer {
        Answer::Refused => "refused",
        Answer::Opened => "opened",
        Answer::Failed(_) => "failed",
    }
}

fn in_flight(seen: InFlight) -> Value {
    let result = if seen.died > 0 { "died" } else { "survived" };
    json!({ "result": result, "trials": seen.trials, "died": seen.died })
}

fn deregistration(seen: &Deregistration) -> Value {
    let fabric = match &seen.fabric {
        FabricDeregistration::Lent { .. } => "lent",
        FabricDeregistration::Failed { .. } => "failed",
        FabricDeregistration::Done => "done",
    };
    let (device, errno, not_measured) = match &seen.device {
        Ok(RawDeregistration::Refused { errno }) => (Some("refused"), Some(*errno), None),
        Ok(RawDeregistration::Done) => (Some("done"), None, None),
        Err(not) => (None, None, Some(&not.reason)),
    };
    json!({
        "result": fabric, "device": device, "device_errno": errno, "device_not_measured": not_measured,
    })
}

fn costs(costs: &Costs, verdict: &str) -> Value {
    let sizes = costs.sizes.iter().map(|size| match &size.paired {
        Ok(paired) => {
            let ratio = paired.ratio;
            json!({
                "bytes": size.bytes,
                "bind": distribution(paired.bind),
                "registration": distribution(paired.registration),
                "registration_per_bind": {
                    "p50": ratio.p50, "p90": ratio.p90, "p99": ratio.p99, "max": ratio.max,
                },
            })
        }
        Err(not) => json!({ "bytes": size.bytes, "not_measured": not.reason }),
    });
    json!({ "sizes": sizes.collect::<Vec<_>>(), "window": measured(&costs.window), "verdict": verdict })
}

fn reads(reads: &Reads) -> Value {
    let bandwidth = reads.bandwidth.iter().map(|bandwidth| match &bandwidth.trial {
        Ok(trial) => json!({
            "bytes": bandwidth.bytes,
            "outstanding": trial.outstanding,
            "reads": trial.reads,
            "seconds": trial.took.as_secs_f64(),
            "megabytes_per_second": trial.megabytes_per_second(bandwidth.bytes),
        }),
        Err(not) => json!({ "bytes": bandwidth.bytes, "not_measured": not.reason }),
    });
    let mut latency = measured(&reads.latency);
    latency["bytes"] = LATENCY_BYTES.into();
    json!({ "latency": latency, "bandwidth": bandwidth.collect::<Vec<_>>() })
}

fn measured(seen: &Measured<Distribution>) -> Value {
    match seen {
        Ok(seen) => distribution(*seen),
        Err(not) => json!({ "not_measured": not.reason }),
    }
}

fn distribution(seen: Distribution) -> Value {
    json!({
        "n": seen.count,
        "p50_us": microseconds(seen.p50),
        "p90_us": microseconds(seen.p90),
        "p99_us": microseconds(seen.p99),
        "max_us": microseconds(seen.max),
    })
}

fn microseconds(took: Duration) -> f64 {
    took.as_nanos() as f64 / 1e3
}
