//! What is said on a new connection until it is known what it is for.
//!
//! The first eight bytes tell a bootstrap from a data stream. Everything is bounded: the lengths by the format, the time by
//! the caller.

use std::io;

use keyway_fabric::EndpointAddress;
use keyway_fabric::soft::{PREAMBLE_LEN, PREAMBLE_MAGIC, Token, parse_preamble};
use keyway_schema::Code;
use keyway_schema::bootstrap::{Bootstrap, BootstrapError, PREAMBLE};
use keyway_schema::limits::error_text;
use tokio::sync::oneshot;

use super::socket::Socket;
use crate::core::Refusal;
use crate::inbox::{Inbox, Opened, Opening, Request, Unposted};

/// What a connection turned out to be.
#[derive(Debug)]
pub(super) enum Greeting {
    /// A client's bootstrap stream.
    Bootstrap,
    /// An endpoint's byte stream.
    Data(Token),
}

/// Why a connection is closed.
#[derive(Debug)]
pub(super) enum Rejection {
    /// It began with something else.
    Stranger([u8; 8]),
    /// It did not say what it is in time.
    Slow,
    /// It ended before it was known what it is for.
    Ended(io::Error),
    /// The client was told why.
    Refused(Refusal),
}

impl From<io::Error> for Rejection {
    fn from(error: io::Error) -> Self {
        Self::Ended(error)
    }
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<BootstrapError> for Rejection {
    fn from(error: BootstrapError) -> Self {
        let code = match error {
            BootstrapError::Version { .. } => Code::Version,
            BootstrapError::Limit { .. } => Code::Settings,
            _ => Code::Protocol,
        };
        Self::Refused(refusal(code, error.to_string()))
    }
}

impl From<Unposted> for Rejection {
    fn from(unposted: Unposted) -> Self {
        Self::Refused(match unposted {
            Unposted::Full => refusal(Code::Internal, "the broker is held up: too many requests wait".to_owned()),
            Unposted::Gone => stopping(),
        })
    }
}

/// Reads what a connection begins with.
pub(super) async fn recognise(socket: &mut Socket) -> Result<Greeting, Rejection> {
    let mut first = [0; 8];
    socket.read_exact(&mut first).await?;
    if first == PREAMBLE {
        return Ok(Greeting::Bootstrap);
    }
    if first != PREAMBLE_MAGIC {
        return Err(Rejection::Stranger(first));
    }
    let mut preamble = [0; PREAMBLE_LEN];
    preamble[..first.len()].copy_from_slice(&first);
    socket.read_exact(&mut preamble[first.len()..]).await?;
    parse_preamble(&preamble).map(Greeting::Data).ok_or(Rejection::Stranger(first))
}

/// Opens a session with the client that speaks on `socket`, up to `Ready`.
pub(super) async fn bootstrap(socket: &mut Socket, inbox: &Inbox, fabric: &str) -> Result<Opened, Rejection> {
    let opening = expect_hello(receive(socket).await?, fabric)?;
    let mut opened = ask(inbox, |reply| Request::Open { opening, reply }).await??;
    send(socket, &welcome(&opened, fabric)).await?;
    let answer = tokio::select! {
        answer = receive(socket) => answer?,
        closed = &mut opened.closed => return Err(closed.ok().flatten().unwrap_or_else(stopping).into()),
    };
    let endpoint = expect_confirm(answer)?;
    ask(inbox, |reply| Request::Confirm { session: opened.session.id(), endpoint, reply }).await??;
    send(socket, &Bootstrap::Ready).await?;
    Ok(opened)
}

/// The last word to a client that gets no session. It is not waited for.
pub(super) fn refuse(socket: &mut Socket, refusal: &Refusal) {
    let text = error_text(&refusal.text).to_owned();
    let message = Bootstrap::Refused { code: refusal.code.number(), text };
    if let Ok(frame) = message.encode()
        && let Err(error) = socket.try_write(&frame)
    {
        tracing::debug!(%error, "cannot tell a client that it is refused");
    }
}

pub(super) fn refusal(code: Code, text: String) -> Refusal {
    Refusal { code, text }
}

fn stopping() -> Refusal {
    refusal(Code::ShuttingDown, "the broker has stopped".to_owned())
}

fn expect_hello(message: Bootstrap, fabric: &str) -> Result<Opening, Rejection> {
    let Bootstrap::Hello { role, name, fabrics, receive_slots, receive_size } = message else {
        return Err(
            refusal(Code::Protocol, "the bootstrap begins with Hello, and something else came".to_owned()).into()
        );
    };
    if !fabrics.iter().any(|offered| offered == fabric) {
        let offered = fabrics.join(", ");
        let text = format!("this broker speaks the fabric {fabric}, the client speaks {offered:?}");
        return Err(refusal(Code::Fabric, text).into());
    }
    Ok(Opening { role, name, receive_slots, receive_size })
}

fn welcome(opened: &Opened, fabric: &str) -> Bootstrap {
    Bootstrap::Welcome {
        instance: opened.instance,
        session: opened.session.id().0,
        generation: opened.generation,
        fabric: fabric.to_owned(),
        endpoint: opened.endpoint.0.clone(),
        receive_slots: opened.receive_slots,
        receive_size: opened.receive_size,
        offers: opened.offers,
    }
}

fn expect_confirm(message: Bootstrap) -> Result<EndpointAddress, Rejection> {
    match message {
        Bootstrap::Confirm { endpoint } => Ok(EndpointAddress(endpoint)),
        _ => Err(refusal(Code::Protocol, "Welcome is answered by Confirm, and something else came".to_owned()).into()),
    }
}

/// Asks the reactor and waits for its answer.
async fn ask<T>(inbox: &Inbox, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, Rejection> {
    let (reply, answer) = oneshot::channel();
    inbox.post(request(reply))?;
    answer.await.map_err(|_| stopping().into())
}

async fn receive(socket: &mut Socket) -> Result<Bootstrap, Rejection> {
    let mut prefix = [0; 4];
    socket.read_exact(&mut prefix).await?;
    let mut archive = vec![0; Bootstrap::frame_len(prefix)?];
    socket.read_exact(&mut archive).await?;
    Ok(Bootstrap::decode(&archive)?)
}

async fn send(socket: &mut Socket, message: &Bootstrap) -> Result<(), Rejection> {
    Ok(socket.write_all(&message.encode()?).await?)
}
