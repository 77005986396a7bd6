//! `keyway probe` says what a fabric does, to a reader and to a program.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

use serde_json::Value;

fn probe(arguments: &[&str]) -> Output {
    // Little memory, so that the test costs little of it.
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.args(["probe", "--memory", "1MiB"]).args(arguments).output().unwrap()
}

#[track_caller]
fn succeeded(output: &Output) -> &Output {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn the_software_fabric_is_reported_to_a_reader_in_aligned_lines() {
    let output = probe(&["--fabric", "soft"]);
    assert!(succeeded(&output).stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = String::from_utf8(output.stdout).unwrap();
    for line in [
        "Probe of soft",
        "  ok    the region's own key                      refused",
        "  note  the first key after many binds            the same key after 256 binds, and it opens",
        "  ok    READs in flight, make before break        none died in 50 changes",
        "  ok    what is left behind                       nothing",
        "Keyway can run on soft.",
    ] {
        assert!(report.lines().any(|said| said == line), "{line:?} is not in\n{report}");
    }
    let bind = report.lines().find(|line| line.contains("1 MiB: bind to completion")).unwrap();
    assert_eq!(
        bind.split_whitespace().filter(|word| word.ends_with("ns") || word.ends_with("µs")).count(),
        4,
        "{bind}"
    );
    assert!(report.contains("1 GiB: not measured: needs 1073741824 bytes"), "{report}");
}

#[test]
fn the_json_report_is_one_object_with_the_fields_that_are_promised() {
    let output = probe(&["--fabric", "soft", "--json"]);
    let report: Value = serde_json::from_slice(&succeeded(&output).stdout).unwrap();
    assert_eq!((&report["format"], &report["fabric"], &report["usable"]), (&1.into(), &"soft".into(), &true.into()));
    assert_eq!((&report["fallback"], &report["keys"]["strategy"]), (&Value::Null, &"windows".into()));
    let findings = [
        ("inside", "opened"),
        ("bounds", "enforced"),
        ("outside_region", "refused"),
        ("region_key", "refused"),
        ("unknown_key", "refused"),
        ("stale_key", "refused"),
        ("key_round", "comes_round"),
        ("rebind_under_read", "died"),
        ("make_before_break", "survived"),
        ("deregistration", "lent"),
        ("dead_endpoint", "stays_bound"),
    ];
    assert_eq!(report["findings"].as_object().unwrap().len(), findings.len());
    for (name, result) in findings {
        let finding = &report["findings"][name];
        assert_eq!((&finding["result"], &finding["not_measured"]), (&result.into(), &Value::Null), "{name}: {finding}");
        for words in ["grade", "tried", "seen", "verdict"] {
            assert!(finding[words].as_str().is_some_and(|text| !text.is_empty()), "{name}: {finding}");
        }
    }
    assert_eq!(report["findings"]["key_round"]["round_after_binds"], 256);
    assert_eq!(report["findings"]["make_before_break"]["died"], 0);
    assert!(report["findings"]["rebind_under_read"]["trials"].as_u64().is_some_and(|trials| trials == 50));

    let sizes = report["costs"]["sizes"].as_array().unwrap();
    let bytes: Vec<_> = sizes.iter().map(|size| size["bytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes, [64 << 10, 1 << 20, 64 << 20, 1 << 30]);
    assert!(sizes[3]["not_measured"].as_str().is_some_and(|why| why.contains("1073741824")), "{}", sizes[3]);
    for distribution in
        [&sizes[0]["bind"], &sizes[1]["registration"], &report["costs"]["window"], &report["reads"]["latency"]]
    {
        assert!(distribution["n"].as_u64().is_some_and(|n| n > 0), "{distribution}");
        let [p50, p90, p99, max] =
            ["p50_us", "p90_us", "p99_us", "max_us"].map(|at| distribution[at].as_f64().unwrap());
        assert!(p50 > 0.0 && p50 <= p90 && p90 <= p99 && p99 <= max, "{distribution}");
    }
    assert!(sizes[0]["registration_per_bind"]["p50"].as_f64().is_some_and(|ratio| ratio > 0.0), "{}", sizes[0]);
    for trial in report["reads"]["bandwidth"].as_array().unwrap() {
        assert!(trial["megabytes_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{trial}");
    }
    assert!(report["left_behind"].as_object().unwrap().values().all(|held| *held == 0), "{}", report["left_behind"]);
}

#[test]
fn a_device_that_is_not_there_is_one_line_and_a_failure() {
    let output = probe(&["--device", "no_such_device"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("keyway: cannot open verbs:no_such_device: ") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_device_and_a_fabric_are_not_named_at_once() {
    assert_eq!(probe(&["--device", "rxe0", "--fabric", "soft"]).status.code(), Some(2));
}
