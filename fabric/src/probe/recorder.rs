//! From many measurements to a distribution.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::report::{Distribution, Ratio};

/// Three significant digits: what is behind them is noise.
const DIGITS: u8 = 3;

/// A ratio is counted in so many parts of one.
const PARTS: f64 = 1e3;

/// Takes durations.
pub(super) struct Recorder {
    nanoseconds: Histogram<u64>,
}

/// Takes ratios.
pub(super) struct RatioRecorder {
    parts: Histogram<u64>,
}

fn histogram() -> Histogram<u64> {
    Histogram::new(DIGITS).expect("three is a number of digits that a histogram may have")
}

/// Counts a value. A histogram that resizes itself takes every value.
fn record(histogram: &mut Histogram<u64>, value: u64) {
    histogram.record(value).expect("the histogram resizes itself");
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self { nanoseconds: histogram() }
    }

    pub(super) fn record(&mut self, took: Duration) {
        record(&mut self.nanoseconds, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn finish(&self) -> Distribution {
        let at = |quantile| Duration::from_nanos(self.nanoseconds.value_at_quantile(quantile));
        Distribution { count: self.nanoseconds.len(), p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

impl RatioRecorder {
    pub(super) fn new() -> Self {
        Self { parts: histogram() }
    }

    pub(super) fn record(&mut self, ratio: f64) {
        // A division by a time too short to be told from none is left out: it has no ratio.
        if ratio.is_finite() {
            record(&mut self.parts, (ratio * PARTS).round() as u64);
        }
    }

    pub(super) fn finish(&self) -> Ratio {
        let at = |quantile| self.parts.value_at_quantile(quantile) as f64 / PARTS;
        Ratio { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_keeps_three_digits_of_every_quantile() {
        let mut recorder = Recorder::new();
        (1..=1_000).for_each(|number| recorder.record(Duration::from_micros(number)));
        let seen = recorder.finish();
        assert_eq!(seen.count, 1_000);
        for (quantile, micros) in [(seen.p50, 500), (seen.p90, 900), (seen.p99, 990), (seen.max, 1_000)] {
            let off = quantile.as_secs_f64() / Duration::from_micros(micros).as_secs_f64();
            assert!((off - 1.0).abs() < 1e-3, "{quantile:?} for {micros} us");
        }
    }

    #[test]
    fn a_ratio_to_nothing_is_left_out() {
        let mut recorder = RatioRecorder::new();
        [0.5, 2.0, f64::INFINITY, f64::NAN].into_iter().for_each(|ratio| recorder.record(ratio));
        let seen = recorder.finish();
        assert_eq!((seen.p50, seen.max), (0.5, 2.0));
    }
}
