//! What happens when one of the broker's threads fails: whoever started the broker hears of it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{BrokerError, one_line};

/// Called once, on the thread that failed.
pub(crate) type OnFailure = Box<dyn FnOnce(&BrokerError) + Send>;

/// Who is told of the first failure of either thread.
#[derive(Clone, Default)]
pub(crate) struct Supervisor(Arc<Mutex<Option<OnFailure>>>);

impl Supervisor {
    pub(crate) fn new(on_failure: Option<OnFailure>) -> Self {
        Self(Arc::new(Mutex::new(on_failure)))
    }

    /// Runs a thread's body. A panic becomes an error; an error is logged and told.
    pub(crate) fn run<T>(
        &self,
        thread: &'static str,
        body: impl FnOnce() -> Result<T, BrokerError>,
    ) -> Result<T, BrokerError> {
        // Nothing that the body owned is looked at after a panic.
        let result = catch_unwind(AssertUnwindSafe(body))
            .unwrap_or_else(|panic| Err(BrokerError::Failed { thread, reason: panic_text(&*panic).to_owned() }));
        if let Err(error) = &result {
            tracing::error!(thread, error = one_line(error), "the broker has failed");
            let told = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(on_failure) = told {
                on_failure(error);
            }
        }
        result
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked without a text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_and_is_told_once() {
        let (sender, receiver) = crossbeam_channel::bounded(2);
        let supervisor = Supervisor::new(Some(Box::new(move |error| sender.send(error.to_string()).unwrap())));
        let result: Result<(), _> = supervisor.run("keyway-test", || panic!("the number was {}", 7));
        assert!(matches!(result, Err(BrokerError::Failed { thread: "keyway-test", .. })));
        assert!(receiver.recv().unwrap().ends_with("the number was 7"));
        assert!(supervisor.run::<()>("keyway-test", || Err(BrokerError::Silent)).is_err());
        assert!(receiver.recv().is_err(), "only the first failure is told");
    }

    #[test]
    fn a_body_that_ends_well_tells_nobody() {
        let supervisor = Supervisor::new(Some(Box::new(|error| panic!("told of {error}"))));
        assert_eq!(supervisor.run("keyway-test", || Ok(5)).unwrap(), 5);
    }
}
