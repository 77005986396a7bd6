//! One attempt to get a session: from an address to a connected endpoint, without ever blocking.
//!
//! The order is: dial; `Hello`; on `Welcome`, move to the fabric that it names, make the endpoint and its slots, answer `Confirm` and,
//! where the fabric's endpoints run over a byte stream, dial that too; then await both the broker's `Ready` and the fabric's `Up`.
//! All of it is under one deadline. A [`Bootstrapper`] is polled by the driver's turn and tells which descriptors to sleep on. The one thing that
//! blocks is the system's resolver, when a host is given by name.
//!
//! It owns what it has made until it hands it over as a [`Session`]; an attempt that fails gives everything back.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use keyway_channel::ChannelConfig;
use keyway_fabric::{
    DomainId, EndpointAddress, EndpointConfig, Fabric, FabricError, LinkId, LocalId, Now, Time, Watch, one_line,
};
use keyway_schema::Code;
use keyway_schema::bootstrap::{Bootstrap, BootstrapError};
use keyway_schema::limits::VERSION;

use crate::data_stream::{DataStream, dial_data};
use crate::fabrics::{Fabrics, Named};
use crate::socket::{Dialling, Wire, WireError};
use crate::{Connected, Error, Server, SessionPlan};

/// What every attempt of a client has in common.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) server: Server,
}

/// A connected session and what belongs to it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) connected: Connected,
    wire: Wire,
}

/// What an attempt has come to.
#[derive(Debug)]
pub(crate) enum Polled {
    /// It goes on.
    Pending,
    /// It goes on once the client has moved to this fabric.
    Move(String),
    /// There is a session.
    Done(Box<Session>),
}

/// What the broker has said in its Welcome.
#[derive(Debug)]
struct Welcome {
    instance: u64,
    session: u64,
    generation: u32,
    fabric: String,
    endpoint: EndpointAddress,
    receive_slots: u16,
    receive_size: u32,
    offers: u16,
}

/// An attempt.
#[derive(Debug)]
pub(crate) struct Bootstrapper {
    deadline: Time,
    /// How long it had.
    patience: Duration,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Dialling(Dialling),
    ExpectWelcome(Wire),
    /// The client is to move to the fabric of the Welcome.
    ExpectFabric(Wire, Welcome),
    ExpectReady {
        wire: Wire,
        connected: Connected,
        data: DataStream,
        ready: bool,
    },
    /// The attempt has failed, or its session was handed over.
    Over,
}

impl Bootstrapper {
    pub(crate) fn start(target: &Target, now: Now, patience: Duration) -> Result<Self, Error> {
        let dialling = match &target.server {
            Server::Tcp(authority) => Dialling::tcp(authority),
            Server::Unix(path) => Dialling::unix(path),
            Server::InProcess(dial) => dial.bootstrap().and_then(Dialling::connected),
        };
        let dialling = dialling.map_err(|source| unreachable(target, source))?;
        Ok(Self { deadline: now.time + patience, patience, stage: Stage::Dialling(dialling) })
    }

    /// The endpoint that the attempt has made, once it has.
    pub(crate) fn link(&self) -> Option<LinkId> {
        match &self.stage {
            Stage::ExpectReady { connected, .. } => Some(connected.channel.link),
            _ => None,
        }
    }

    /// When it is given up.
    pub(crate) fn deadline(&self) -> Time {
        self.deadline
    }

    pub(crate) fn watches(&self, to: &mut Vec<Watch>) {
        match &self.stage {
            Stage::Dialling(dialling) => to.extend(dialling.watch()),
            Stage::ExpectWelcome(wire) | Stage::ExpectFabric(wire, _) => wire.watches(to),
            Stage::ExpectReady { wire, data, .. } => {
                wire.watches(to);
                data.watches(to);
            }
            Stage::Over => {}
        }
    }

    /// Goes on as far as it gets. `up` says whether the fabric has reported [`link`](Self::link) as up. On an error the
    /// attempt is over and has given back what it made.
    pub(crate) fn poll(
        &mut self,
        target: &Target,
        plan: &SessionPlan,
        now: Now,
        up: bool,
        fabrics: &mut Fabrics,
    ) -> Result<Polled, Error> {
        let result = self.advance(target, plan, up, fabrics).and_then(|polled| match polled {
            Polled::Pending if self.deadline <= now.time => Err(self.late(target)),
            polled => Ok(polled),
        });
        if result.is_err() {
            self.abort(fabrics.fabric());
        }
        result
    }

    /// Gives up, and gives back what was made.
    pub(crate) fn abort(&mut self, fabric: &mut dyn Fabric) {
        if let Stage::ExpectReady { connected, .. } = std::mem::replace(&mut self.stage, Stage::Over) {
            fabric.close(connected.channel.link);
            free(fabric, &connected.channel);
        }
    }

    fn advance(
        &mut self,
        target: &Target,
        plan: &SessionPlan,
        up: bool,
        fabrics: &mut Fabrics,
    ) -> Result<Polled, Error> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Dialling(dialling) => match dialling.poll().map_err(|source| unreachable(target, source))? {
                    Err(dialling) => {
                        self.stage = Stage::Dialling(dialling);
                        return Ok(Polled::Pending);
                    }
                    Ok(socket) => {
                        if let Err(error) = socket.watch_host() {
                            tracing::debug!(server = %target.server, %error, "cannot have its host watched");
                        }
                        let offered = fabrics.offer(socket.leaves_from())?;
                        let mut wire = Wire::new(socket);
                        let hello = hello(plan, offered);
                        wire.send(&hello).map_err(|error| internal(&format!("a Hello that is too long: {error}")))?;
                        self.stage = Stage::ExpectWelcome(wire);
                    }
                },
                Stage::ExpectWelcome(mut wire) => {
                    let step = "waiting for its Welcome";
                    match wire.poll().map_err(|error| spoilt(target, step, error))? {
                        None => {
                            self.stage = Stage::ExpectWelcome(wire);
                            return Ok(Polled::Pending);
                        }
                        Some(message) => {
                            let welcome = welcome(target, step, message)
                                .map_err(|error| explained(error, fabrics.deviceless()))?;
                            self.stage = Stage::ExpectFabric(wire, welcome);
                        }
                    }
                }
                Stage::ExpectFabric(wire, welcome) => {
                    match fabrics.named(&welcome.fabric, welcome.endpoint.device_address()) {
                        Named::Used => self.stage = welcomed(target, plan, fabrics, wire, welcome)?,
                        Named::Offered => {
                            let fabric = welcome.fabric.clone();
                            self.stage = Stage::ExpectFabric(wire, welcome);
                            return Ok(Polled::Move(fabric));
                        }
                        Named::Foreign => {
                            let reason = format!("it chose the fabric {:?}, which was not offered", welcome.fabric);
                            return Err(handshake(target, "waiting for its Welcome", reason));
                        }
                    }
                }
                Stage::ExpectReady { mut wire, connected, mut data, mut ready } => {
                    let polled = poll_ready(target, &mut wire, &mut ready)
                        .and_then(|()| data.poll(target, fabrics.fabric(), connected.channel.link));
                    if polled.is_ok() && ready && up {
                        return Ok(Polled::Done(Box::new(Session { connected, wire })));
                    }
                    // Kept on failure too: `abort` gives back the endpoint.
                    self.stage = Stage::ExpectReady { wire, connected, data, ready };
                    return polled.map(|()| Polled::Pending);
                }
                Stage::Over => return Err(internal("an attempt to connect was polled after its end")),
            }
        }
    }

    fn late(&self, target: &Target) -> Error {
        let step = match &self.stage {
            Stage::Dialling(_) => "the connection was not accepted",
            Stage::ExpectWelcome(_) | Stage::ExpectFabric(..) => "no Welcome came",
            Stage::ExpectReady { data: DataStream::Attached, ready: false, .. } => "no Ready came",
            Stage::ExpectReady { data: DataStream::Attached, .. } => "the endpoint did not come up",
            Stage::ExpectReady { .. } => "the data stream was not accepted",
            Stage::Over => "it was over",
        };
        Error::Timeout { what: format!("connecting to {} ({step})", target.server), after: self.patience, last: None }
    }
}

impl Session {
    /// Looks whether the broker has ended the bootstrap stream, or said why it ends the session.
    pub(crate) fn check(&mut self, server: &Server) -> Result<(), Error> {
        match self.wire.poll() {
            Ok(None) => Ok(()),
            Ok(Some(Bootstrap::Refused { code, text })) => Err(Error::refused("to go on with the session", code, text)),
            Ok(Some(message)) => {
                Err(lost(server, format!("the broker sent {} in the middle of it", message_name(&message))))
            }
            Err(WireError::End) => Err(lost(server, "the broker closed it or died".into())),
            Err(WireError::Io(error)) => Err(lost(server, error.to_string())),
            Err(WireError::Frame(error)) => Err(lost(server, error.to_string())),
        }
    }

    pub(crate) fn watches(&self, to: &mut Vec<Watch>) {
        self.wire.watches(to);
    }
}

/// Gives back the slots of a session whose endpoint is closed.
pub(crate) fn free(fabric: &mut dyn Fabric, channel: &ChannelConfig) {
    for local in [channel.receive, channel.send] {
        if let Err(error) = fabric.free_local(local) {
            tracing::error!(%local, %error, "cannot free a session's slots");
        }
    }
}

pub(crate) fn lost(server: &Server, reason: String) -> Error {
    Error::Lost { server: server.to_string(), reason }
}

pub(crate) fn unreachable(target: &Target, source: io::Error) -> Error {
    Error::Connect { server: target.server.to_string(), source: Arc::new(source) }
}

fn internal(what: &str) -> Error {
    Error::Internal { what: what.to_owned() }
}

fn handshake(target: &Target, step: &'static str, reason: String) -> Error {
    Error::Handshake { server: target.server.to_string(), step, reason }
}

fn spoilt(target: &Target, step: &'static str, error: WireError) -> Error {
    match error {
        WireError::End => lost(&target.server, format!("it closed the stream while this side was {step}")),
        WireError::Io(error) => lost(&target.server, format!("{error} while {step}")),
        WireError::Frame(BootstrapError::Version { found }) => {
            Error::Version { server: target.server.to_string(), theirs: found, ours: VERSION }
        }
        WireError::Frame(error) => handshake(target, step, error.to_string()),
    }
}

fn message_name(message: &Bootstrap) -> &'static str {
    match message {
        Bootstrap::Hello { .. } => "Hello",
        Bootstrap::Welcome { .. } => "Welcome",
        Bootstrap::Confirm { .. } => "Confirm",
        Bootstrap::Ready => "Ready",
        Bootstrap::Refused { .. } => "Refused",
    }
}

fn hello(plan: &SessionPlan, fabrics: Vec<String>) -> Bootstrap {
    Bootstrap::Hello {
        role: plan.role,
        name: plan.name.clone(),
        fabrics,
        receive_slots: plan.receive_slots,
        receive_size: plan.receive_size,
    }
}

/// What a message that should be a Welcome says.
fn welcome(target: &Target, step: &'static str, message: Bootstrap) -> Result<Welcome, Error> {
    match message {
        Bootstrap::Welcome { instance, session, generation, fabric, endpoint, receive_slots, receive_size, offers } => {
            let endpoint = EndpointAddress(endpoint);
            Ok(Welcome { instance, session, generation, fabric, endpoint, receive_slots, receive_size, offers })
        }
        Bootstrap::Refused { code, text } => Err(Error::refused("a session", code, text)),
        other => Err(handshake(target, step, format!("{} came", message_name(&other)))),
    }
}

/// A refusal of all fabrics that were offered, with the reason why no device was among them.
fn explained(error: Error, deviceless: Option<&FabricError>) -> Error {
    match (error, deviceless) {
        (Error::Refused { what, code, text }, Some(why)) if code == Code::Fabric.number() => {
            Error::Refused { what, code, text: format!("{text}; this client offers no device: {}", one_line(why)) }
        }
        (error, _) => error,
    }
}

/// Makes the session's side of what the broker has welcomed.
fn welcomed(
    target: &Target,
    plan: &SessionPlan,
    fabrics: &mut Fabrics,
    mut wire: Wire,
    welcome: Welcome,
) -> Result<Stage, Error> {
    let Welcome { instance, session, generation, endpoint: peer, receive_slots, receive_size, offers, .. } = welcome;
    let domain = fabrics.domain();
    let fabric = fabrics.fabric();
    let (channel, address) = make_channel(domain, plan, fabric, (receive_slots, receive_size), generation)?;
    let connected = Connected { instance, session, channel, domain, offers: offers.min(plan.offers_max) };
    let data = fabric
        .connect(channel.link, &peer)
        .map_err(Error::fabric("connecting the endpoint"))
        .and_then(|()| {
            let confirm = Bootstrap::Confirm { endpoint: address.0 };
            wire.send(&confirm).map_err(|error| internal(&format!("a Confirm that is too long: {error}")))
        })
        .and_then(|()| dial_data(target, fabric, &wire, channel.link, &peer));
    match data {
        Ok(data) => Ok(Stage::ExpectReady { wire, connected, data, ready: false }),
        Err(error) => {
            fabric.close(channel.link);
            free(fabric, &channel);
            Err(error)
        }
    }
}

/// Makes the endpoint and its slots, or nothing.
fn make_channel(
    domain: DomainId,
    plan: &SessionPlan,
    fabric: &mut dyn Fabric,
    (peer_slots, peer_size): (u16, u32),
    generation: u32,
) -> Result<(ChannelConfig, EndpointAddress), Error> {
    let send_slots = plan.send_slots_max.min(peer_slots);
    let send_size = plan.send_size_max.min(peer_size);
    let slots = Error::fabric("making a session's slots");
    let receive = fabric.local(domain, plan.receive_slots.into(), plan.receive_size).map_err(&slots)?;
    let made = fabric.local(domain, send_slots.into(), send_size).map_err(&slots).and_then(|send| {
        let endpoint = EndpointConfig {
            domain,
            send_depth: u32::from(send_slots) + plan.work_depth,
            receive_depth: plan.receive_slots.into(),
            remote_read: plan.remote_read,
        };
        fabric.endpoint(endpoint).map(|made| (send, made)).map_err(|error| {
            give_back(fabric, send);
            Error::fabric("making an endpoint")(error)
        })
    });
    let (send, (link, address)) = made.inspect_err(|_| give_back(fabric, receive))?;
    let channel = ChannelConfig {
        link,
        generation,
        receive,
        receive_slots: plan.receive_slots,
        receive_size: plan.receive_size,
        send,
        send_slots,
        send_size,
        peer_slots,
        peer_size,
    };
    Ok((channel, address))
}

fn give_back(fabric: &mut dyn Fabric, local: LocalId) {
    if let Err(error) = fabric.free_local(local) {
        tracing::error!(%local, %error, "cannot free slots that were just made");
    }
}

/// Looks for the broker's `Ready`.
fn poll_ready(target: &Target, wire: &mut Wire, ready: &mut bool) -> Result<(), Error> {
    let step = "waiting for its Ready";
    match wire.poll().map_err(|error| spoilt(target, step, error))? {
        None => Ok(()),
        Some(Bootstrap::Ready) => {
            *ready = true;
            Ok(())
        }
        Some(Bootstrap::Refused { code, text }) => Err(Error::refused("a session", code, text)),
        Some(other) => Err(handshake(target, step, format!("{} came", message_name(&other)))),
    }
}
