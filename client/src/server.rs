//! Where a broker is.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use keyway_fabric::Dial;

/// The port of `keyway://HOST` without one.
pub const DEFAULT_PORT: u16 = 4480;

const TCP_SCHEME: &str = "keyway://";
const UNIX_SCHEME: &str = "keyway+unix://";

/// Where a broker is. Parsed from `keyway://HOST:PORT` (without a port: 4480) and `keyway+unix:///PATH`; a broker in the same
/// process is named by its connector.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Server {
    /// Over TCP: host and port, as text that is resolved at each attempt. An IPv6 address stands in brackets.
    Tcp(String),
    /// Over a Unix socket.
    Unix(PathBuf),
    /// In this process.
    InProcess(Arc<dyn Dial>),
}

/// Why a text is not the address of a broker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a broker's address: {problem}; write keyway://HOST:PORT or keyway+unix:///PATH")]
pub struct AddressError {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub problem: AddressProblem,
}

/// What is wrong with an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressProblem {
    /// It begins with something else.
    #[error("it begins with neither keyway:// nor keyway+unix://")]
    Scheme,
    /// Nothing stands where the host should.
    #[error("it names no host")]
    Host,
    /// An IPv6 address without its brackets.
    #[error("an IPv6 address stands in brackets, as in keyway://[::1]:4480")]
    Brackets,
    /// The port is none.
    #[error("{port:?} is not a port (1 to 65535)")]
    Port {
        /// What stands in its place.
        port: String,
    },
    /// Something follows the port.
    #[error("nothing may follow the port, and {rest:?} does")]
    Rest {
        /// What follows.
        rest: String,
    },
    /// A Unix socket's path must be absolute.
    #[error("the socket's path {path:?} does not begin with a slash")]
    Path {
        /// The path.
        path: String,
    },
}

impl FromStr for Server {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse(text).map_err(|problem| AddressError { text: text.to_owned(), problem })
    }
}

fn parse(text: &str) -> Result<Server, AddressProblem> {
    if let Some(path) = text.strip_prefix(UNIX_SCHEME) {
        return if path.len() > 1 && path.starts_with('/') {
            Ok(Server::Unix(path.into()))
        } else {
            Err(AddressProblem::Path { path: path.to_owned() })
        };
    }
    let authority = text.strip_prefix(TCP_SCHEME).ok_or(AddressProblem::Scheme)?;
    let (authority, rest) = authority.split_at(authority.find(['/', '?', '#']).unwrap_or(authority.len()));
    if !matches!(rest, "" | "/") {
        return Err(AddressProblem::Rest { rest: rest.to_owned() });
    }
    let (host, port) = split_port(authority)?;
    if host.is_empty() || host == "[]" {
        return Err(AddressProblem::Host);
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => match port.parse() {
            Ok(number) if number != 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => number,
            _ => return Err(AddressProblem::Port { port: port.to_owned() }),
        },
    };
    Ok(Server::Tcp(format!("{host}:{port}")))
}

/// Host, brackets included, and port.
fn split_port(authority: &str) -> Result<(&str, Option<&str>), AddressProblem> {
    if authority.starts_with('[') {
        let end = authority.find(']').ok_or(AddressProblem::Brackets)? + 1;
        let (host, rest) = authority.split_at(end);
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(AddressProblem::Rest { rest: rest.to_owned() }),
        };
    }
    match authority.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Err(AddressProblem::Brackets),
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((authority, None)),
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(authority) => write!(f, "{TCP_SCHEME}{authority}"),
            Self::Unix(path) => write!(f, "{UNIX_SCHEME}{}", path.display()),
            Self::InProcess(_) => f.write_str("the broker in this process"),
        }
    }
}

impl TryFrom<&str> for Server {
    type Error = AddressError;
    fn try_from(text: &str) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl TryFrom<String> for Server {
    type Error = AddressError;
    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl TryFrom<&String> for Server {
    type Error = AddressError;
    fn try_from(text: &String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<&Server> for Server {
    fn from(server: &Server) -> Self {
        server.clone()
    }
}

impl From<SocketAddr> for Server {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address.to_string())
    }
}

impl From<Arc<dyn Dial>> for Server {
    fn from(dial: Arc<dyn Dial>) -> Self {
        Self::InProcess(dial)
    }
}

/// What `TryFrom` gives for a [`Server`] that cannot fail.
impl From<Infallible> for AddressError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_printed_as_it_is_parsed() {
        for (text, printed) in [
            ("keyway://127.0.0.1:4481", "keyway://127.0.0.1:4481"),
            ("keyway://broker.example", "keyway://broker.example:4480"),
            ("keyway://broker/", "keyway://broker:4480"),
            ("keyway://[::1]:9", "keyway://[::1]:9"),
            ("keyway://[::1]", "keyway://[::1]:4480"),
            ("keyway+unix:///run/keyway.sock", "keyway+unix:///run/keyway.sock"),
        ] {
            assert_eq!(text.parse::<Server>().unwrap().to_string(), printed);
        }
        let address: SocketAddr = "[::1]:4480".parse().unwrap();
        assert_eq!(Server::from(address).to_string(), "keyway://[::1]:4480");
    }

    #[test]
    fn a_malformed_address_is_refused_with_its_fault() {
        use AddressProblem::*;
        for (text, problem) in [
            ("", Scheme),
            ("127.0.0.1:4480", Scheme),
            ("http://broker", Scheme),
            ("keyway://", Host),
            ("keyway://:4480", Host),
            ("keyway://[]:4480", Host),
            ("keyway://::1:4480", Brackets),
            ("keyway://[::1:4480", Brackets),
            ("keyway://[::1]4480", Rest { rest: "4480".into() }),
            ("keyway://broker:", Port { port: String::new() }),
            ("keyway://broker:0", Port { port: "0".into() }),
            ("keyway://broker:+1", Port { port: "+1".into() }),
            ("keyway://broker:65536", Port { port: "65536".into() }),
            ("keyway://broker:1/topic", Rest { rest: "/topic".into() }),
            ("keyway+unix://run/keyway.sock", Path { path: "run/keyway.sock".into() }),
            ("keyway+unix:///", Path { path: "/".into() }),
        ] {
            let error = text.parse::<Server>().unwrap_err();
            assert_eq!(error, AddressError { text: text.into(), problem });
        }
        let message = "broker:1".parse::<Server>().unwrap_err().to_string();
        assert_eq!(
            message,
            "\"broker:1\" is not a broker's address: it begins with neither keyway:// nor keyway+unix://; \
             write keyway://HOST:PORT or keyway+unix:///PATH"
        );
    }
}
