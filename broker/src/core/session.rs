//! A session: one client's endpoint, its channel, and what it asked for.

use keyway_channel::Channel;
use keyway_fabric::DownCause;
use keyway_schema::bootstrap::Role;

use super::notice::{Notice, SessionId};

/// One client's connection.
#[derive(Clone, Debug)]
pub(super) struct Session {
    id: SessionId,
    role: Role,
    name: String,
    channel: Channel,
    closing: bool,
}

impl Session {
    pub(super) fn new(id: SessionId, role: Role, name: &str, channel: Channel) -> Self {
        Self { id, role, name: name.to_owned(), channel, closing: false }
    }

    pub(super) const fn id(&self) -> SessionId {
        self.id
    }

    pub(super) const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Notes that its endpoint is being closed. Returns whether that is news.
    pub(super) const fn close(&mut self) -> bool {
        !std::mem::replace(&mut self.closing, true)
    }

    /// What is told about its end.
    pub(super) fn closed(&self, cause: DownCause) -> Notice {
        Notice::SessionClosed { id: self.id, role: self.role, name: self.name.clone(), refusal: None, cause }
    }
}
