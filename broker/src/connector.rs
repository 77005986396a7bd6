//! How clients in the same process reach a broker: without a port, and with data streams that are pipes.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use keyway_fabric::soft::{Pipe, parse_preamble};
use keyway_fabric::{Dial, Stream};
use tokio::sync::mpsc;

use crate::inbox::{Inbox, Request, Unposted};

/// How many bootstrap streams may wait for the listener: what a burst of clients dials before its thread has run once.
pub(crate) const WAITING_MAX: usize = 256;

/// How long the reactor may take to answer. It answers within a turn, some microseconds; more means that it hangs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Dials the broker that it came from. It may outlive the broker: every dial is refused then.
pub(crate) struct Connector {
    streams: mpsc::Sender<UnixStream>,
    inbox: Inbox,
    /// Held while asking: the inbox has one place for all connectors' questions.
    asking: Mutex<()>,
}

impl Connector {
    pub(crate) fn new(streams: mpsc::Sender<UnixStream>, inbox: Inbox) -> Self {
        Self { streams, inbox, asking: Mutex::new(()) }
    }
}

impl Dial for Connector {
    fn bootstrap(&self) -> io::Result<UnixStream> {
        let (client, broker) = UnixStream::pair()?;
        self.streams.try_send(broker).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                refused("too many clients of this process wait for the broker's listener")
            }
            mpsc::error::TrySendError::Closed(_) => refused("the broker has stopped"),
        })?;
        Ok(client)
    }

    fn data(&self, preamble: &[u8]) -> io::Result<Stream> {
        let preamble = preamble.try_into().ok().and_then(parse_preamble);
        let token =
            preamble.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a data stream's preamble"))?;
        let (client, broker) = Pipe::pair()?;
        let (reply, answer) = crossbeam_channel::bounded(1);
        let reply = Box::new(move |known| {
            // The caller may have given up waiting.
            let _ = reply.send(known);
        });
        let asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        self.inbox.post(Request::Data { token, stream: Stream::Memory(broker), reply }).map_err(|unposted| {
            refused(match unposted {
                Unposted::Full => "the broker is held up: too many requests wait",
                Unposted::Gone => "the broker has stopped",
            })
        })?;
        let known = answer.recv_timeout(ANSWER_TIMEOUT);
        drop(asking);
        match known {
            Ok(true) => Ok(Stream::Memory(client)),
            Ok(false) => Err(refused("the broker has no such endpoint; its session has ended")),
            Err(_) => Err(refused("the broker does not answer; it has stopped, or its reactor is held up")),
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.streams.is_closed() { "connector to a stopped broker" } else { "connector to a broker" })
    }
}

fn refused(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, text)
}
