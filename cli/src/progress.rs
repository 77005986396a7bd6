//! Progress bars: on standard error, and only if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often a bar moves by itself, so that one who waits sees that it is alive.
const TICK: Duration = Duration::from_millis(250);
/// At full speed the bar is told of every so many records: it is locked and looks at the clock each time.
const STRIDE: u64 = 256;

/// What is counted, and how much of it there will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Records(u64),
    Bytes(u64),
    Unknown,
}

/// A progress bar that may be invisible.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    goal: Goal,
    stride: u64,
}

impl Progress {
    /// A bar towards `goal`. With a `paced` source it is told of every record, since they may be few.
    pub(crate) fn new(goal: Goal, paced: bool) -> Self {
        // Draws to standard error, and not at all if that is no terminal.
        let (bar, template) = match goal {
            Goal::Records(records) => {
                (ProgressBar::new(records), "{bar:40} {human_pos}/{human_len} records, {per_sec}")
            }
            Goal::Bytes(bytes) => {
                (ProgressBar::new(bytes), "{bar:40} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left")
            }
            Goal::Unknown => (ProgressBar::no_length(), "{spinner} {bytes}, {bytes_per_sec}"),
        };
        bar.set_style(ProgressStyle::with_template(template).expect("the templates above are well formed"));
        if !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
        Self { bar, goal, stride: if paced { 1 } else { STRIDE } }
    }

    /// Tells how far it is.
    pub(crate) fn at(&self, records: u64, bytes: u64) {
        if !records.is_multiple_of(self.stride) || self.bar.is_hidden() {
            return;
        }
        self.bar.set_position(match self.goal {
            Goal::Records(_) => records,
            Goal::Bytes(_) | Goal::Unknown => bytes,
        });
    }

    /// Takes the bar away, to make room for the summary.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// A bar that counts steps and says what each does. May be invisible, as [`Progress`].
#[derive(Debug)]
pub(crate) struct Steps {
    bar: ProgressBar,
}

impl Steps {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{spinner} {pos}/{len} {msg}");
        bar.set_style(style.expect("the template above is well formed"));
        if !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
        Self { bar }
    }

    /// Tells which step begins.
    pub(crate) fn at(&self, number: usize, of: usize, what: &'static str) {
        self.bar.set_length(of as u64);
        self.bar.set_position(number as u64);
        self.bar.set_message(what);
    }

    /// Takes the bar away, to make room for the report.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
