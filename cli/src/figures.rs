//! What a command reports at its end, for a reader or as one line of JSON. The field names are part of the interface.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

/// How much, how fast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Throughput {
    pub(crate) records: u64,
    /// Payloads only.
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) records_per_second: f64,
    /// In 10^6 bytes.
    pub(crate) megabytes_per_second: f64,
}

impl Throughput {
    pub(crate) fn new(records: u64, bytes: u64, took: Duration) -> Self {
        let seconds = took.as_secs_f64();
        let rate = |amount: f64| if seconds > 0.0 { rounded(amount / seconds) } else { 0.0 };
        Self {
            records,
            bytes,
            seconds: rounded(seconds),
            records_per_second: rate(records as f64),
            megabytes_per_second: rate(bytes as f64 / 1e6),
        }
    }
}

impl fmt::Display for Throughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = self.bytes as f64 / 1e6;
        write!(
            f,
            "{} records, {megabytes:.1} MB in {:.3} s: {:.0} records/s, {:.1} MB/s",
            self.records, self.seconds, self.records_per_second, self.megabytes_per_second
        )
    }
}

/// Three decimals: what is behind them is noise.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// Prints figures in the form asked for.
pub(crate) fn print(figures: &(impl fmt::Display + Serialize), json: bool, mut to: impl Write) -> io::Result<()> {
    if json {
        serde_json::to_writer(&mut to, figures)?;
        writeln!(to)
    } else {
        writeln!(to, "{figures}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_amounts_over_time() {
        let figures = Throughput::new(3_000, 6_000_000, Duration::from_millis(1_500));
        assert_eq!(figures.to_string(), "3000 records, 6.0 MB in 1.500 s: 2000 records/s, 4.0 MB/s");
        let mut json = Vec::new();
        print(&figures, true, &mut json).unwrap();
        assert_eq!(
            String::from_utf8(json).unwrap(),
            "{\"records\":3000,\"bytes\":6000000,\"seconds\":1.5,\"records_per_second\":2000.0,\
             \"megabytes_per_second\":4.0}\n"
        );
    }

    #[test]
    fn no_time_has_no_rate() {
        assert_eq!(Throughput::new(1, 1, Duration::ZERO).records_per_second, 0.0);
    }
}
