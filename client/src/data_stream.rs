//! The byte stream that a software endpoint runs over: dialled where the bootstrap was, greeted, and handed to the fabric.

use std::io;
use std::os::fd::AsRawFd;

use keyway_fabric::{EndpointAddress, Fabric, LinkId, Watch, soft};

use crate::bootstrap::{Target, unreachable};
use crate::socket::{Dialling, Socket, Wire};
use crate::{Error, Server};

/// The byte stream of an endpoint.
#[derive(Debug)]
pub(crate) enum DataStream {
    Dialling { dialling: Dialling, preamble: Vec<u8> },
    Greeting { socket: Socket, preamble: Vec<u8> },
    Attached,
}

/// Begins the endpoint's byte stream, at the address that the bootstrap was dialled at.
pub(crate) fn dial_data(
    target: &Target,
    fabric: &mut dyn Fabric,
    wire: &Wire,
    link: LinkId,
    peer: &EndpointAddress,
) -> Result<DataStream, Error> {
    if !fabric.needs_stream() {
        return Ok(DataStream::Attached);
    }
    let preamble = soft::preamble(peer).map_err(Error::fabric("naming the broker's endpoint"))?.to_vec();
    let dialling = match &target.server {
        Server::InProcess(dial) => {
            let stream = dial.data(&preamble).map_err(|source| unreachable(target, source))?;
            fabric.attach(link, stream).map_err(Error::fabric("attaching the data stream"))?;
            return Ok(DataStream::Attached);
        }
        Server::Unix(path) => Dialling::unix(path).map_err(|source| unreachable(target, source))?,
        // Not resolved again: a name may have several addresses, and the endpoint is at this one.
        Server::Tcp(_) => Dialling::addresses(wire.peer().into_iter().collect()),
    };
    Ok(DataStream::Dialling { dialling, preamble })
}

impl DataStream {
    /// Goes on as far as it gets.
    pub(crate) fn poll(&mut self, target: &Target, fabric: &mut dyn Fabric, link: LinkId) -> Result<(), Error> {
        loop {
            match std::mem::replace(self, Self::Attached) {
                Self::Dialling { dialling, preamble } => {
                    match dialling.poll().map_err(|source| unreachable(target, source))? {
                        Ok(socket) => *self = Self::Greeting { socket, preamble },
                        Err(dialling) => {
                            *self = Self::Dialling { dialling, preamble };
                            return Ok(());
                        }
                    }
                }
                Self::Greeting { mut socket, mut preamble } => {
                    match socket.write(&preamble) {
                        Ok(written) => drop(preamble.drain(..written)),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(unreachable(target, error)),
                    }
                    if preamble.is_empty() {
                        return fabric
                            .attach(link, socket.into_stream())
                            .map_err(Error::fabric("attaching the data stream"));
                    }
                    *self = Self::Greeting { socket, preamble };
                    return Ok(());
                }
                Self::Attached => return Ok(()),
            }
        }
    }

    pub(crate) fn watches(&self, to: &mut Vec<Watch>) {
        match self {
            Self::Dialling { dialling, .. } => to.extend(dialling.watch()),
            Self::Greeting { socket, .. } => to.push(Watch::writing(socket.as_raw_fd())),
            Self::Attached => {}
        }
    }
}
