//! A consumer that does not play fair. It keeps the key of its first grant, hands in every later one unused, and when the key is
//! some hundred epochs old, READs with it.
//!
//! No consumer of the bus can do that, so this one speaks the control protocol itself: a [`Role`] of its own on the
//! clients' driver. That makes it the shortest consumer there is, too: subscribe, be granted, READ, release.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use keyway::{Error, FabricChoice, Server};
use keyway_channel::Channel;
use keyway_client::{Connected, Driver, DriverConfig, Progress, Role, SessionPlan};
use keyway_fabric::{
    DomainId, Event, Fabric, Key, LocalId, LocalSpan, Machine, Memory, Now, Op, Outcome, RemoteSpan, Target, Time,
    Transmit, Work, WorkError,
};
use keyway_schema::limits::{CONTROL_SLOT, RECORD_MAX_DEFAULT};
use keyway_schema::message::{EpochSettings, Release, Scope, Start, Subscribe};
use keyway_schema::record::batch_max;
use keyway_schema::{ToBroker, ToClientRef};

/// How many epochs old the key is when it is tried: more than the 256 after which its number alone would come round.
const AGE: u64 = 300;
/// The tag of the READs. A channel's tags have their high bits set.
const READ: Op = Op(1);
const TIMEOUT: Duration = Duration::from_secs(10);

/// What came of it.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) key: Key,
    /// What the key opened while it was live.
    pub(crate) bytes_read: u32,
    /// How many epochs later it was tried again.
    pub(crate) age: u64,
    /// How the second READ ended.
    pub(crate) result: Result<Outcome, WorkError>,
}

/// Keeps a key, and tries it when it is stale.
pub(crate) fn attempt(server: &Server, fabric: FabricChoice, topic: &str) -> Result<Attempt, Error> {
    let (told, attempt) = sync_channel(1);
    let role = Hoarder {
        topic: topic.to_owned(),
        told,
        landing: None,
        channel: None,
        state: State::ExpectSubscribed,
        read: None,
    };
    let config =
        DriverConfig { connect_timeout: TIMEOUT, fabric, ..DriverConfig::new(server.clone(), "keyway-hoarder") };
    let (driver, opening) = Driver::spawn("hoarder", config, role)?;
    opening.wait()?;
    let attempt = attempt.recv_timeout(TIMEOUT);
    driver.join(TIMEOUT);
    attempt.map_err(|_| Error::Timeout { what: "trying a stale key".into(), after: TIMEOUT, last: None })
}

/// The first grant, used once.
#[derive(Clone, Copy)]
struct Hoard {
    subscription: u32,
    span: RemoteSpan,
    epoch: u64,
    sequence: u64,
}

#[derive(Clone, Copy)]
enum State {
    ExpectSubscribed,
    ExpectFirstGrant,
    Reading(Hoard),
    /// Hands in grants until the key is old enough.
    Hoarding(Hoard),
    ReadingStale(Hoard, u64),
    Over,
}

struct Hoarder {
    topic: String,
    told: SyncSender<Attempt>,
    landing: Option<LocalId>,
    channel: Option<Channel>,
    state: State,
    /// A READ to post.
    read: Option<RemoteSpan>,
}

impl Hoarder {
    fn channel(&mut self) -> &mut Channel {
        self.channel.as_mut().expect("events come within a session only")
    }

    fn message(&mut self, op: Op, span: LocalSpan, memory: &mut dyn Memory) {
        let received = self.channel().receive::<ToClientRef<'_>>(memory, span).expect("the broker keeps the protocol");
        let answer = match (self.state, received.message) {
            (State::ExpectSubscribed, ToClientRef::Subscribed(_)) => {
                self.state = State::ExpectFirstGrant;
                None
            }
            (State::ExpectFirstGrant, ToClientRef::Grant(grant)) => {
                let (address, len, key) =
                    (grant.address.to_native(), grant.len.to_native(), Key(grant.key.to_native()));
                let span = RemoteSpan { address, len, key };
                let subscription = grant.subscription.to_native();
                let hoard =
                    Hoard { subscription, span, epoch: grant.epoch.to_native(), sequence: grant.sequence.to_native() };
                self.state = State::Reading(hoard);
                self.read = Some(span);
                None
            }
            (State::Hoarding(hoard), ToClientRef::Grant(grant)) => {
                let epoch = grant.epoch.to_native();
                if epoch - hoard.epoch >= AGE {
                    self.state = State::ReadingStale(hoard, epoch);
                    self.read = Some(hoard.span);
                    None
                } else {
                    Some(release(&hoard, epoch))
                }
            }
            _ => None,
        };
        self.channel().repost(op);
        if let Some(release) = answer {
            self.channel().send(memory, &release).expect("a Release fits every slot");
        }
    }

    fn read_done(&mut self, result: Result<Outcome, WorkError>, memory: &mut dyn Memory) {
        match self.state {
            State::Reading(hoard) => {
                result.expect("the key is live");
                self.state = State::Hoarding(hoard);
                self.channel().send(memory, &release(&hoard, hoard.epoch)).expect("a Release fits every slot");
            }
            State::ReadingStale(hoard, epoch) => {
                let Hoard { span: RemoteSpan { key, len, .. }, epoch: first, .. } = hoard;
                let attempt = Attempt { key, bytes_read: len, age: epoch - first, result };
                self.told.send(attempt).expect("whoever started this waits for it");
                self.state = State::Over;
            }
            _ => unreachable!("no other state posts READs"),
        }
    }
}

/// Hands in an epoch, and asks for its records again: the next grant opens the same bytes under another key.
fn release(hoard: &Hoard, epoch: u64) -> ToBroker {
    let Hoard { subscription, sequence, .. } = *hoard;
    Release { subscription, epoch, sequence, pause: false }.into()
}

impl Machine for Hoarder {
    fn handle(&mut self, _now: Now, event: Event, memory: &mut dyn Memory) {
        match event {
            Event::Message { op, span, .. } => self.message(op, span, memory),
            Event::Done { op: READ, result, .. } => self.read_done(result, memory),
            Event::Done { op, .. } => {
                self.channel().done(op);
            }
            _ => {}
        }
    }

    fn handle_timeout(&mut self, _now: Now, _memory: &mut dyn Memory) {}

    fn timeout(&self) -> Option<Time> {
        None
    }

    fn transmit(&mut self, _now: Now, memory: &mut dyn Memory) -> Option<Transmit> {
        let channel = self.channel.as_mut()?;
        let link = channel.link();
        if let Some(from) = self.read.take() {
            let local = self.landing.expect("it is made before any session");
            let into = Target::Local(LocalSpan { local, slot: 0, offset: 0, len: from.len });
            return Some(Transmit::Post { link, op: READ, work: Work::Read { from, into } });
        }
        let post = channel.transmit::<ToBroker>(memory)?;
        Some(Transmit::Post { link, op: post.op, work: post.work })
    }
}

impl Role for Hoarder {
    type Command = ();

    fn plan(&self) -> SessionPlan {
        SessionPlan {
            role: keyway_schema::bootstrap::Role::Consumer,
            name: "hoarder".into(),
            receive_slots: 16,
            receive_size: CONTROL_SLOT,
            send_slots_max: 16,
            send_size_max: CONTROL_SLOT,
            work_depth: 1,
            remote_read: false,
            offers_max: 0,
        }
    }

    fn prepare(&mut self, domain: DomainId, fabric: &mut dyn Fabric) -> Result<(), Error> {
        let landing =
            fabric.local(domain, 1, batch_max(RECORD_MAX_DEFAULT)).map_err(Error::fabric("making landing memory"))?;
        self.landing = Some(landing);
        Ok(())
    }

    fn command(&mut self, _now: Now, (): ()) {}

    fn connected(&mut self, _now: Now, connected: &Connected, memory: &mut dyn Memory) {
        let subscribe = Subscribe {
            request: 1,
            topic: self.topic.clone(),
            name: "hoarder".into(),
            start: Start::Earliest,
            scope: Scope::Batch,
            epoch: EpochSettings::default(),
            depth: 1,
            grant_bytes: batch_max(RECORD_MAX_DEFAULT),
        };
        let channel = self.channel.insert(Channel::new(connected.channel));
        channel.send::<ToBroker>(memory, &subscribe.into()).expect("a Subscribe fits every slot");
    }

    fn disconnected(&mut self, _now: Now, cause: Error) -> Error {
        self.channel = None;
        cause
    }

    fn turn(&mut self, _now: Now, _fabric: &mut dyn Fabric) -> Result<usize, Error> {
        Ok(0)
    }

    fn progress(&self) -> Progress {
        match self.state {
            State::ExpectSubscribed => Progress::Opening,
            State::Over => Progress::Over(None),
            _ => Progress::Ready { now: true },
        }
    }

    fn fail(&mut self, _now: Now, _cause: Error) {
        self.state = State::Over;
    }

    fn abandon(&mut self, _now: Now) {
        self.state = State::Over;
    }
}
