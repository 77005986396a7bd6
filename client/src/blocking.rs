//! Waiting for a future on a thread of one's own, without a runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use keyway_fabric::SystemClock;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread, for so long at most (forever without a limit); `None` if it was not ready by then,
/// and it is dropped.
pub fn wait_for<F: Future>(future: F, timeout: Option<Duration>) -> Option<F::Output> {
    let mut future = pin!(future);
    // Most are ready at once, and need neither a waker nor the clock. One that is not is polled again below with the waker
    // that counts, so nothing that happens in between is missed.
    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return Some(output);
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let clock = SystemClock::start();
    let start = clock.now().time;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        match timeout {
            None => std::thread::park(),
            Some(timeout) => {
                let rest = timeout.saturating_sub(clock.now().time.since(start));
                if rest.is_zero() {
                    return None;
                }
                std::thread::park_timeout(rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_future_that_another_thread_completes_is_waited_for() {
        let (sender, receiver) = flume::bounded(0);
        let thread = std::thread::Builder::new().spawn(move || sender.send(7).unwrap()).unwrap();
        assert_eq!(wait_for(receiver.recv_async(), None), Some(Ok(7)));
        thread.join().unwrap();
    }

    #[test]
    fn a_future_that_is_never_ready_is_given_up() {
        assert_eq!(wait_for(std::future::pending::<()>(), Some(Duration::from_millis(1))), None);
        assert_eq!(wait_for(std::future::ready(1), Some(Duration::ZERO)), Some(1));
    }
}
