//! A window: what lends a range under a key, and what is known of it while a bind is under way.

use std::io;
use std::sync::Arc;

use super::sys::{self, BindSpan, QueuePair, Region};
use crate::{Access, DomainId, Key, Outcome, SharedId, SharedSpan, WorkError};

/// A key that opens nothing on any device: what a window has that is lent by registrations and not bound.
const NO_KEY: Key = Key(0);

/// What a window is bound to.
pub(super) struct Binding {
    pub(super) span: SharedSpan,
    pub(super) access: Access,
    /// The memory's registration, which has to outlive the binding.
    pub(super) region: Arc<Region>,
    /// The registration that lends it, where windows are registrations.
    pub(super) own: Option<Region>,
}

/// How a window lends.
pub(super) enum Means {
    /// By a type-1 memory window.
    Window(sys::Window),
    /// By a registration for each binding.
    Registration,
}

/// A window.
pub(super) struct Window {
    pub(super) domain: DomainId,
    home: Arc<sys::Domain>,
    means: Means,
    /// The key of the last bind or unbind that was executed.
    current: Key,
    /// The key of the last one that was posted.
    posted: Key,
    /// A bind or unbind was posted, and its completion not yet reported.
    busy: bool,
    binding: Option<Binding>,
    /// What was to be bound by a bind that was flushed after the device had it. A device executes a bind before what stands
    /// in front of it is acknowledged, so it may be in force all the same: nobody knows until the window is freed.
    doubt: Option<Option<Binding>>,
}

impl Window {
    pub(super) fn new(domain: DomainId, home: &Arc<sys::Domain>, by_registration: bool) -> io::Result<Self> {
        let means = if by_registration { Means::Registration } else { Means::Window(sys::Window::new(home)?) };
        let key = match &means {
            Means::Window(window) => window.key(),
            Means::Registration => NO_KEY,
        };
        Ok(Self {
            domain,
            home: Arc::clone(home),
            means,
            current: key,
            posted: key,
            busy: false,
            binding: None,
            doubt: None,
        })
    }

    pub(super) fn key(&self) -> Key {
        self.posted
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    pub(super) fn is_bound(&self) -> bool {
        self.binding.is_some()
    }

    pub(super) fn is_registration(&self) -> bool {
        matches!(self.means, Means::Registration)
    }

    /// Whether its key opens nothing, whatever the device has made of a bind that was flushed.
    pub(super) fn is_dead(&self) -> bool {
        self.binding.is_none() && self.doubt.is_none()
    }

    /// What its keys may open.
    pub(super) fn spans(&self) -> impl Iterator<Item = SharedSpan> + '_ {
        self.binding.iter().chain(self.doubt.iter().flatten()).map(|binding| binding.span)
    }

    /// Says which key the next bind or unbind will yield. Whether or not it can be done, the window is busy until it is settled.
    pub(super) fn announce(&mut self, to: Option<&Binding>) -> io::Result<()> {
        self.busy = true;
        self.posted = self.current;
        if self.doubt.is_some() {
            // Which key the device counts on from is not known, so the window is replaced underneath. The one that is
            // bound, or in doubt, lends until then.
            let fresh = sys::Window::new(&self.home)?;
            self.current = fresh.key();
            if let Means::Window(window) = &mut self.means {
                window.close()?;
                *window = fresh;
            }
            self.doubt = None;
            self.binding = None;
        }
        self.posted = match &self.means {
            Means::Window(_) => self.current.next(),
            Means::Registration => to.and_then(|binding| binding.own.as_ref()).map_or(NO_KEY, Region::key),
        };
        Ok(())
    }

    /// Rings a bind or unbind in. A window that was never bound is unbound over the anchor.
    pub(super) fn ring(
        &mut self,
        pair: &mut QueuePair,
        to: Option<&Binding>,
        anchor: Option<&Region>,
    ) -> io::Result<()> {
        let Means::Window(window) = &mut self.means else {
            unreachable!("a registration is executed here, not by the device")
        };
        let span = match to {
            Some(Binding { span, access, region, .. }) => {
                BindSpan { region, address: region.start() + span.offset, len: span.len, access: *access }
            }
            None => {
                let region = self.binding.as_ref().map(|binding| &*binding.region).or(anchor);
                let region = region.expect("whoever posts an unbind has made its domain an anchor");
                BindSpan { region, address: region.start(), len: 0, access: Access::None }
            }
        };
        pair.bind(window, &span)?;
        if window.key() != self.posted {
            // Whoever was told the key that was announced has been told a wrong one.
            let (announced, given) = (self.posted, window.key());
            tracing::error!(%announced, %given, "the device gives keys by another rule than the index and a low byte that counts up");
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        Ok(())
    }

    /// Executes a bind or unbind that is a registration.
    pub(super) fn execute(&mut self, to: Option<Binding>) -> io::Result<Outcome> {
        if let Some(own) = self.binding.as_mut().and_then(|binding| binding.own.as_mut()) {
            own.close()?;
        }
        Ok(self.take_over(to))
    }

    fn take_over(&mut self, to: Option<Binding>) -> Outcome {
        self.current = self.posted;
        self.binding = to;
        if self.binding.is_some() { Outcome::Bound(self.current) } else { Outcome::Unbound }
    }

    /// The bind or unbind has completed on the device, or failed. `was_rung` tells whether the device had it.
    pub(super) fn settle(
        &mut self,
        to: Option<Binding>,
        result: Result<(), WorkError>,
        was_rung: bool,
    ) -> Result<Outcome, WorkError> {
        self.busy = false;
        match result {
            Ok(()) => Ok(self.take_over(to)),
            Err(error) => {
                self.posted = self.current;
                if let Means::Window(window) = &mut self.means {
                    window.restore_key(self.current);
                    if was_rung && error != WorkError::Bind {
                        self.doubt = Some(to);
                    }
                }
                Err(error)
            }
        }
    }

    /// The completion of what was executed here is reported.
    pub(super) fn release(&mut self) {
        self.busy = false;
    }

    /// Lets go of shared memory that it stays bound to.
    pub(super) fn forget(&mut self, shared: SharedId) {
        self.binding.take_if(|binding| binding.span.shared == shared);
    }

    /// Deallocates it: its key is dead from then on.
    pub(super) fn close(&mut self) -> Result<(), (&'static str, io::Error)> {
        if let Some(own) = self.binding.as_mut().and_then(|binding| binding.own.as_mut()) {
            own.close().map_err(|error| ("ibv_dereg_mr", error))?;
        }
        if let Means::Window(window) = &mut self.means {
            window.close().map_err(|error| ("ibv_dealloc_mw", error))?;
        }
        self.binding = None;
        self.doubt = None;
        Ok(())
    }
}
