//! Records that failed while nobody held their `Pending`: no silent loss. The next flush or close tells of them, and the log does.

use std::time::Duration;

use keyway_client::Error;
use keyway_fabric::{Now, Time};

/// How often lost records are logged at most, but for the last of them.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// What was lost and not told yet.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    untold: Option<Error>,
    unlogged: u64,
    log_at: Time,
}

impl Lost {
    /// So many more are lost; `told` says that a flush which is under way will tell of it.
    pub(crate) fn add(&mut self, records: u32, error: &Error, told: bool) {
        self.unlogged += u64::from(records);
        if !told {
            self.untold.get_or_insert_with(|| error.clone());
        }
    }

    /// The first error that no flush has told of.
    pub(crate) fn take_untold(&mut self) -> Option<Error> {
        self.untold.take()
    }

    /// Logs how many were lost, unless that was done a moment ago.
    pub(crate) fn log(&mut self, now: Now, topic: &str, error: &Error) {
        if self.log_at <= now.time {
            self.log_at = now.time + LOG_INTERVAL;
            self.log_rest(topic, error);
        }
    }

    /// Logs what was not logged yet.
    pub(crate) fn log_rest(&mut self, topic: &str, error: &Error) {
        let records = std::mem::take(&mut self.unlogged);
        if records > 0 {
            tracing::error!(records, %topic, %error, "records were not published, and nobody waits for their receipts");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_once_and_by_its_first_error() {
        let mut lost = Lost::default();
        lost.add(1, &Error::Internal { what: "told".into() }, true);
        assert!(lost.take_untold().is_none());
        for what in ["first", "second"] {
            lost.add(1, &Error::Internal { what: what.into() }, false);
        }
        assert!(lost.take_untold().is_some_and(|error| error.to_string().contains("first")));
        assert!(lost.take_untold().is_none());
    }

    #[test]
    fn what_is_not_logged_at_once_is_kept_for_the_next_line() {
        let error = Error::Internal { what: "x".into() };
        let at = |seconds| Now { time: Time::ZERO + Duration::from_secs(seconds), ..Now::default() };
        let mut lost = Lost::default();
        lost.add(1, &error, true);
        lost.log(at(10), "t", &error);
        assert_eq!(lost.unlogged, 0);
        lost.add(2, &error, true);
        lost.log(at(10), "t", &error);
        assert_eq!(lost.unlogged, 2);
        lost.log(at(11), "t", &error);
        assert_eq!(lost.unlogged, 0);
    }
}
