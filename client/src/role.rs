//! What a producer's or consumer's machine must offer to be driven.

use std::time::Duration;

use keyway_channel::ChannelConfig;
use keyway_fabric::{DomainId, Fabric, Machine, Memory, Now};
use keyway_schema::bootstrap::Role as Part;

use crate::Error;

/// What a role asks of each of its sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPlan {
    /// Which side of the bus it is.
    pub role: Part,
    /// Its name, for the broker's logs.
    pub name: String,
    /// The receive slots to post.
    pub receive_slots: u16,
    /// How long each is.
    pub receive_size: u32,
    /// The most send slots to have; never more than the broker posts receives.
    pub send_slots_max: u16,
    /// The longest that each should be; never longer than the broker's receives.
    pub send_size_max: u32,
    /// The most READs, binds and unbinds that it has outstanding at once, beside the messages.
    pub work_depth: u32,
    /// Whether the broker may READ from it.
    pub remote_read: bool,
    /// The most batches that it offers at once.
    pub offers_max: u16,
}

/// A connected session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The broker's instance: another one than before means that its topics are new.
    pub instance: u64,
    /// The session's id, as the broker's logs name it.
    pub session: u64,
    /// What the session's [`Channel`](keyway_channel::Channel) is made of.
    pub channel: ChannelConfig,
    /// The domain of everything that this client makes.
    pub domain: DomainId,
    /// The most batches that may be offered at once.
    pub offers: u16,
}

/// How far a role has come.
#[derive(Clone, Debug)]
pub enum Progress {
    /// It has not been ready yet: the connect deadline runs.
    Opening,
    /// It has been ready, in this session or an earlier one of this object.
    Ready {
        /// Whether it is ready in the present session.
        now: bool,
    },
    /// It has ended, in order or because of an error. The driver ends too.
    Over(Option<Error>),
}

/// A producer or consumer, as the [`Driver`](crate::Driver) sees it: a machine with what connects it to the application.
///
/// For each session the driver calls [`connected`](Self::connected), then hands the session's events to the machine, the last
/// of them `Down`, then [`disconnected`](Self::disconnected). The machine is never told `Up`: `connected` stands for it. It
/// makes its channel in `connected`, and may end a session by closing the link.
pub trait Role: Machine {
    /// What the application asks for.
    type Command: Send + 'static;

    /// What it asks of its next session.
    fn plan(&self) -> SessionPlan;

    /// Called before the first session, and again before the first one on another fabric: makes what outlives sessions. What it has
    /// made before is gone by then.
    ///
    /// # Errors
    ///
    /// The fabric's; the attempt to connect has failed.
    fn prepare(&mut self, _domain: DomainId, _fabric: &mut dyn Fabric) -> Result<(), Error> {
        Ok(())
    }

    /// The fabric is left, between two sessions or at the end: frees what it has made in it and forgets every id. Of memory whose
    /// bytes it still wants it keeps views.
    fn leave(&mut self, _fabric: &mut dyn Fabric) {}

    /// Takes in a command.
    fn command(&mut self, now: Now, command: Self::Command);

    /// A session exists.
    fn connected(&mut self, now: Now, connected: &Connected, memory: &mut dyn Memory);

    /// The session is over, and the machine has been told `Down`. `cause` is how the driver saw it; the role returns what
    /// it knows better, such as why it closed the link itself.
    fn disconnected(&mut self, now: Now, cause: Error) -> Error;

    /// An attempt to connect has failed, and another one follows. For the errors of operations that run into their deadline.
    fn unreachable(&mut self, _now: Now, _cause: &Error) {}

    /// Exchanges with the application: called every turn, after the machine was driven. Takes what there is to send, gives
    /// out what was received, makes views, resets slots, allocates. Returns how much it did; zero lets the driver rest.
    ///
    /// # Errors
    ///
    /// What ends the whole client, not only the session.
    fn turn(&mut self, now: Now, fabric: &mut dyn Fabric) -> Result<usize, Error>;

    /// How far it has come.
    fn progress(&self) -> Progress;

    /// The client ends with this error: a refusal that no attempt will change, or the connect deadline. Everything that
    /// waits is told. Only [`leave`](Self::leave) is called afterwards.
    fn fail(&mut self, now: Now, cause: Error);

    /// The application has dropped every handle. The role should be over soon, without the application's help.
    fn abandon(&mut self, now: Now);
}

/// How long one attempt to connect may take, unless the client's connect deadline is over before: a broker that accepts and
/// says nothing is given up, and tried again.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a client may take to be ready for the first time, unless it is told otherwise.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
