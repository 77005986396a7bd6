//! What can go wrong when a fabric's objects are made, used and freed.

use std::io;

use crate::WindowId;

/// A failed operation on a fabric's objects. Failures of posted work are [`WorkError`](crate::WorkError)s.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The id names nothing: the object was freed, or belongs to another fabric.
    #[error("{what} names nothing: it was freed, or belongs to another fabric")]
    Unknown {
        /// The id, as text.
        what: String,
    },
    /// Memory could not be had from the operating system.
    #[error("cannot allocate {len} bytes of {what} memory; lower the configured sizes or free memory")]
    Memory {
        /// `local` or `shared`.
        what: &'static str,
        /// How many bytes were asked for.
        len: u64,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The device, or the configured limit, has no more of something.
    #[error("no {what} left: {limit} are in use; close sessions or raise the limit")]
    Exhausted {
        /// What there is no more of.
        what: &'static str,
        /// How many there are.
        limit: u64,
    },
    /// Shared memory is still lent.
    #[error("{what} is still lent through {} windows ({windows:?}); unbind or free them first", windows.len())]
    Lent {
        /// The memory.
        what: String,
        /// The windows that are bound to it.
        windows: Vec<WindowId>,
    },
    /// A domain still has objects in it.
    #[error("{what} is still in use by {users}; free them first")]
    InUse {
        /// The object.
        what: String,
        /// What uses it.
        users: String,
    },
    /// The endpoint's send or receive queue is full: more was posted than it was made for.
    #[error("the {queue} queue of {link} is full ({depth} entries)")]
    QueueFull {
        /// `send` or `receive`.
        queue: &'static str,
        /// The endpoint.
        link: String,
        /// Its depth.
        depth: u32,
    },
    /// A bind or unbind of the window is outstanding.
    #[error("{window} has a bind or unbind outstanding; wait for its completion")]
    WindowBusy {
        /// The window.
        window: WindowId,
    },
    /// The objects belong to different protection domains.
    #[error("{what} belongs to another protection domain")]
    DomainMismatch {
        /// The object.
        what: String,
    },
    /// The span is not within its memory, or is of the wrong length.
    #[error("the span {span} is not within its memory, or not as long as the work needs")]
    OutOfBounds {
        /// The span, as text.
        span: String,
    },
    /// The slot is lent to other work, or viewed, and must not be written now.
    #[error("{span} is in use by work in flight or by a view, and cannot be written now")]
    SlotBusy {
        /// The span, as text.
        span: String,
    },
    /// The peer's endpoint address is not of this fabric's kind.
    #[error("the peer's endpoint address is not one of the {fabric} fabric")]
    Address {
        /// This fabric.
        fabric: &'static str,
    },
    /// The backend does not offer this.
    #[error("the {fabric} fabric cannot {what}")]
    Unsupported {
        /// The fabric.
        fabric: &'static str,
        /// What was asked.
        what: &'static str,
    },
    /// No RDMA device can be used.
    #[error("{what}; {advice}")]
    NoDevice {
        /// What was looked for, and what was found instead.
        what: String,
        /// What to do.
        advice: String,
    },
    /// A call to the device failed.
    #[error("{verb} failed on {device}: {advice}")]
    Verb {
        /// The call.
        verb: &'static str,
        /// The device.
        device: String,
        /// What that usually means, and what to do.
        advice: String,
        /// Its reason.
        #[source]
        source: io::Error,
    },
    /// The operating system refused.
    #[error("{what} failed")]
    System {
        /// The call.
        what: &'static str,
        /// Its reason.
        #[source]
        source: io::Error,
    },
}

impl FabricError {
    /// An id that names nothing.
    pub fn unknown(id: impl ToString) -> Self {
        Self::Unknown { what: id.to_string() }
    }

    /// That an object is in use, if any of `users` is left, each by its name and number.
    ///
    /// # Errors
    ///
    /// That.
    pub fn unless_unused(what: impl ToString, users: &[(&str, usize)]) -> Result<(), Self> {
        let left = users.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}"));
        let left: Vec<_> = left.collect();
        if left.is_empty() { Ok(()) } else { Err(Self::InUse { what: what.to_string(), users: left.join(", ") }) }
    }
}

/// An error with all of its causes, in one line.
pub fn one_line(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        // Some causes repeat what the error above them says already.
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        source = cause.source();
    }
    line.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_is_told_already_is_not_told_again() {
        let source = || io::Error::other("the disk is full");
        let error = FabricError::System { what: "open", source: source() };
        assert_eq!(one_line(&error), "open failed: the disk is full");
        #[derive(Debug, thiserror::Error)]
        #[error("cannot go on:\n{0}")]
        struct Repeating(#[source] io::Error);
        assert_eq!(one_line(&Repeating(source())), "cannot go on: the disk is full");
    }
}
