//! Ctrl-C and TERM, for what must tidy up before it ends.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static INSTALLED: Once = Once::new();
static CAME: AtomicBool = AtomicBool::new(false);

/// From now on an interrupt only sets a flag; whoever waits for something has to look at [`came`].
pub(crate) fn catch() {
    INSTALLED.call_once(|| {
        if let Err(error) = ctrlc::set_handler(|| CAME.store(true, Ordering::Relaxed)) {
            // Then an interrupt ends us at once, which leaves things behind but is no reason not to begin.
            eprintln!("interrupts cannot be caught: {error}");
        }
    });
}

/// Whether there has been one.
pub(crate) fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}
