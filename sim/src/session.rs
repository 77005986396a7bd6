//! What the world needs of a client, whether it is the real machine or one made by hand.

use keyway_channel::ChannelConfig;
use keyway_fabric::{DomainId, Machine, Memory, Now, Time};
use keyway_schema::bootstrap::Role;

use crate::device::SimFabric;
use crate::payload::Mark;

/// What a client asks of each of its sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) role: Role,
    pub(crate) receive_slots: u16,
    pub(crate) receive_size: u32,
    pub(crate) send_slots_max: u16,
    pub(crate) send_size_max: u32,
    /// READs, binds and unbinds at once, beside the messages.
    pub(crate) work_depth: u32,
    pub(crate) remote_read: bool,
}

/// A connected session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connected {
    pub(crate) instance: u64,
    pub(crate) session: u64,
    pub(crate) channel: ChannelConfig,
    pub(crate) domain: DomainId,
    pub(crate) offers: u16,
}

/// What a consumer's application got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// A record.
    Record {
        /// Its sequence.
        sequence: u64,
        /// When it was committed.
        time: u64,
        /// Its payload.
        payload: Vec<u8>,
    },
    /// Records that it will never get.
    Gap {
        /// The first.
        from: u64,
        /// The first behind them.
        to: u64,
    },
    /// The broker was started anew.
    Restarted,
}

/// What a producer's application got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// Which record.
    pub(crate) mark: Mark,
    /// Its sequence, or `None` if it was refused.
    pub(crate) sequence: Option<u64>,
    /// When it was committed.
    pub(crate) time: u64,
}

/// A client.
pub(crate) trait Session: Machine + std::fmt::Debug {
    fn plan(&self) -> Plan;

    /// Makes what outlives sessions.
    fn prepare(&mut self, domain: DomainId, fabric: &mut SimFabric);

    fn connected(&mut self, now: Now, connected: &Connected, memory: &mut dyn Memory);

    /// The session is over, and the machine has been told `Down`.
    fn disconnected(&mut self, now: Now);

    /// Exchanges with the application. Returns how much it did.
    fn turn(&mut self, now: Now, fabric: &mut SimFabric) -> usize;

    /// When the application does something of its own accord.
    fn wants_turn_at(&self) -> Option<Time> {
        None
    }

    /// Gives a producer a record; `false` if it does not take it now.
    fn publish(&mut self, _now: Now, _mark: Mark, _payload: &[u8]) -> bool {
        false
    }

    fn receipts(&mut self) -> Vec<Receipt> {
        Vec::new()
    }

    fn deliveries(&mut self) -> Vec<Delivery> {
        Vec::new()
    }

    /// Begins an orderly end.
    fn stop(&mut self, now: Now);

    /// The orderly end is complete: no further session is wanted.
    fn is_over(&self) -> bool;

    /// Whether it has nothing outstanding: for the question whether a quiet world is a finished one.
    fn is_settled(&self) -> bool;

    /// Frees what outlives sessions.
    fn dissolve(&mut self, fabric: &mut SimFabric);
}
