//! Completion queues for as many endpoints as there are.
//!
//! A queue that overflows is lost, and its endpoints with it. So each endpoint reserves a place for every piece of work that
//! it may have outstanding, on a queue with room for that; when none has, another is made. A few large queues are polled in
//! place of one for each endpoint, and none is ever resized, which not every device can do under load.

use std::sync::Arc;

use super::failure::failed;
use super::sys::{Channel, CompletionQueue, Context};
use crate::FabricError;

/// The size of a queue, if the device has as large ones and no endpoint needs more: some ten endpoints of a broker, or one
/// client, at 64 bytes a completion a quarter of a MiB.
const ENTRIES: u32 = 4096;

/// A queue and how much of it is reserved.
struct Reserved {
    queue: Arc<CompletionQueue>,
    places: u32,
}

/// The queues, on one channel.
pub(super) struct Queues {
    all: Vec<Reserved>,
    channel: Arc<Channel>,
    entries_max: u32,
    /// Every queue was asked to notify, and none was seen to have done so.
    notifies: bool,
}

impl Queues {
    pub(super) fn new(context: &Arc<Context>, entries_max: u32) -> Result<Self, FabricError> {
        let channel =
            Channel::new(context).map_err(|error| failed("ibv_create_comp_channel", context.name(), error))?;
        Ok(Self { all: Vec::new(), channel, entries_max, notifies: false })
    }

    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Reserves places on a queue.
    pub(super) fn reserve(&mut self, places: u32, device: &str) -> Result<Arc<CompletionQueue>, FabricError> {
        if let Some(found) = self.all.iter_mut().find(|entry| entry.queue.entries() - entry.places >= places) {
            found.places += places;
            return Ok(Arc::clone(&found.queue));
        }
        if places > self.entries_max {
            return Err(FabricError::Exhausted { what: "completion queue entries", limit: self.entries_max.into() });
        }
        let entries = ENTRIES.min(self.entries_max).max(places);
        let queue =
            CompletionQueue::new(&self.channel, entries).map_err(|error| failed("ibv_create_cq", device, error))?;
        self.all.push(Reserved { queue: Arc::clone(&queue), places });
        self.notifies = false;
        Ok(queue)
    }

    /// Gives places back. A queue that nobody uses goes, but for the last one.
    pub(super) fn release(&mut self, queue: &Arc<CompletionQueue>, places: u32) {
        let Some(place) = self.all.iter().position(|entry| Arc::ptr_eq(&entry.queue, queue)) else { return };
        self.all[place].places -= places;
        if self.all[place].places == 0 && self.all.len() > 1 {
            self.all.swap_remove(place);
        }
    }

    /// Takes the notifications that have come; tells whether there was one. Each queue notifies once when asked.
    pub(super) fn take_notifications(&mut self) -> bool {
        let any = self.channel.take_notifications(self.all.len());
        self.notifies &= !any;
        any
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn at(&self, place: usize) -> &CompletionQueue {
        &self.all[place].queue
    }

    /// Asks that the channel be notified of the next completion on any of them. If it is to be already, nothing is asked:
    /// that would be a system call.
    pub(super) fn notify(&mut self) {
        if std::mem::replace(&mut self.notifies, true) {
            return;
        }
        for entry in &self.all {
            if let Err(error) = entry.queue.notify() {
                tracing::error!(%error, "ibv_req_notify_cq failed; this fabric may sleep through a completion");
            }
        }
    }
}
