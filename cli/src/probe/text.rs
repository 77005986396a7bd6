//! The report for a reader.

use std::fmt;

use keyway::probe::{DeviceReport, Distribution, Grade, LATENCY_BYTES, Line, Measured, PairedCosts, Ratio, Report};

use super::size;

/// Text is broken at this many columns.
const WIDTH: usize = 100;

/// Where the second column begins.
const COLUMN: usize = 50;

/// How far a verdict is indented under its finding.
const INDENT: usize = 8;

/// A report as aligned text.
pub(super) struct Text<'a>(pub(super) &'a Report);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        writeln!(f, "Probe of {}", report.fabric)?;
        writeln!(f, "\nWhat it says of itself (not measured)")?;
        for (what, value) in says(&report.device) {
            writeln!(f, "  {what:<width$}{value}", width = COLUMN - 2)?;
        }
        writeln!(f, "\nHow keys are made on it")?;
        paragraph(f, 2, &format!("{}: {}", report.keys, report.strategy.reason))?;
        writeln!(f, "\nWhat it does (measured)")?;
        for line in report.lines() {
            finding(f, &line)?;
        }
        costs(f, report)?;
        reads(f, report)?;
        match report.usable() {
            Ok(()) => writeln!(f, "\nKeyway can run on {}.", report.fabric),
            Err(_) => writeln!(f, "\nKeyway must not be run on {}.", report.fabric),
        }
    }
}

/// What a device says of itself, as far as it does.
fn says(device: &DeviceReport) -> Vec<(&'static str, String)> {
    let types = if device.window_types.is_empty() { "none".into() } else { device.window_types.join(", ") };
    let number = |number: Option<u64>| number.map(|number| number.to_string());
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| if bytes == u64::MAX { "no limit".into() } else { size(bytes) });
    let all = [
        ("device", device.name.clone()),
        ("firmware", device.firmware.clone()),
        ("port", device.port.clone()),
        ("memory window types", Some(types)),
        ("windows at most (max_mw)", number(device.windows_max)),
        ("regions at most (max_mr)", number(device.regions_max)),
        ("largest region (max_mr_size)", bytes(device.region_bytes_max)),
        ("endpoints at most (max_qp)", number(device.endpoints_max)),
        ("work outstanding on an endpoint (max_qp_wr)", number(device.work_max)),
        ("completion queues at most (max_cq)", number(device.completion_queues_max)),
        ("completions in a queue (max_cqe)", number(device.completions_max)),
        ("scatter/gather entries (max_sge)", number(device.scatter_max)),
        ("path MTU", bytes(device.mtu_bytes)),
        ("READs outstanding (max_qp_init_rd_atom)", number(device.reads_outgoing_max)),
        ("READs served at once (max_qp_rd_atom)", number(device.reads_incoming_max)),
        ("largest READ", bytes(device.read_bytes_max)),
    ];
    all.into_iter().filter_map(|(what, value)| Some((what, value?))).collect()
}

fn finding(f: &mut fmt::Formatter<'_>, line: &Line) -> fmt::Result {
    let mark = match line.grade {
        Grade::Good => "ok",
        Grade::Notable => "note",
        Grade::Unusable => "BAD",
    };
    let mut seen = broken(&line.seen, WIDTH - COLUMN).into_iter();
    writeln!(f, "  {mark:<6}{:<width$}{}", line.tried, seen.next().unwrap_or_default(), width = COLUMN - INDENT)?;
    for more in seen {
        writeln!(f, "{:COLUMN$}{more}", "")?;
    }
    paragraph(f, INDENT, &line.verdict)
}

fn costs(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    writeln!(f, "\nWhat a key costs (bind and registration taken in turns)")?;
    header(f)?;
    for costs in &report.costs.sizes {
        let bytes = size(costs.bytes);
        match &costs.paired {
            Ok(PairedCosts { bind, registration, ratio }) => {
                row(f, &format!("{bytes}: bind to completion"), bind)?;
                row(f, &format!("{bytes}: register and deregister"), registration)?;
                ratio_row(f, &format!("{bytes}: registration in binds"), *ratio)?;
            }
            Err(not) => paragraph(f, 2, &format!("{bytes}: not measured: {not}"))?,
        }
    }
    measured_row(f, "a window, allocated and freed", &report.costs.window)?;
    paragraph(f, INDENT, &report.cost_verdict())
}

fn reads(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    writeln!(f, "\nWhat a READ costs (a short trial, both ends driven by one thread)")?;
    header(f)?;
    measured_row(f, &format!("{}: one READ after the other", size(LATENCY_BYTES.into())), &report.reads.latency)?;
    for bandwidth in &report.reads.bandwidth {
        let bytes = size(bandwidth.bytes.into());
        match &bandwidth.trial {
            Ok(trial) => {
                let rate = trial.megabytes_per_second(bandwidth.bytes);
                let what = format!("{bytes}: {} READs outstanding", trial.outstanding);
                writeln!(f, "  {what:<38}{:>8}{rate:>10.1} MB/s", trial.reads)?;
            }
            Err(not) => paragraph(f, 2, &format!("{bytes}: not measured: {not}"))?,
        }
    }
    Ok(())
}

fn header(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "  {:<38}{:>8}{:>12}{:>12}{:>12}{:>12}", "", "n", "p50", "p90", "p99", "max")
}

fn row(f: &mut fmt::Formatter<'_>, what: &str, seen: &Distribution) -> fmt::Result {
    let [p50, p90, p99, max] = [seen.p50, seen.p90, seen.p99, seen.max].map(|took| format!("{took:.1?}"));
    writeln!(f, "  {what:<38}{:>8}{p50:>12}{p90:>12}{p99:>12}{max:>12}", seen.count)
}

fn measured_row(f: &mut fmt::Formatter<'_>, what: &str, seen: &Measured<Distribution>) -> fmt::Result {
    match seen {
        Ok(seen) => row(f, what, seen),
        Err(not) => paragraph(f, 2, &format!("{what}: not measured: {not}")),
    }
}

fn ratio_row(f: &mut fmt::Formatter<'_>, what: &str, seen: Ratio) -> fmt::Result {
    let [p50, p90, p99, max] = [seen.p50, seen.p90, seen.p99, seen.max].map(|ratio| format!("{ratio:.1}x"));
    writeln!(f, "  {what:<38}{:>8}{p50:>12}{p90:>12}{p99:>12}{max:>12}", "")
}

/// Text in lines of at most [`WIDTH`] columns.
fn paragraph(f: &mut fmt::Formatter<'_>, indent: usize, text: &str) -> fmt::Result {
    broken(text, WIDTH - indent).iter().try_for_each(|line| writeln!(f, "{:indent$}{line}", ""))
}

/// Text, broken between words into lines of at most `width` columns.
fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= width => *line = format!("{line} {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_too_wide_and_no_word_is_lost() {
        let words = "a word and another ".repeat(20);
        let lines = broken(&words, 40);
        assert!(lines.iter().all(|line| line.len() <= 40 && line.len() > 30), "{lines:?}");
        assert!(lines.iter().flat_map(|line| line.split(' ')).eq(words.split_whitespace()), "{lines:?}");
        assert_eq!(broken("unbreakable", 4), ["unbreakable"]);
    }
}
