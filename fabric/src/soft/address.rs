//! How software endpoints name each other: tokens, addresses and the preamble of a data stream.
//!
//! An endpoint's address is a random token behind a magic number. Whoever dials a peer's data port writes that peer's
//! [`preamble`] first, so that one listener can serve bootstrap and data streams on the same port and hand each data
//! stream to the endpoint that it is meant for. The preamble belongs to the listener: it is read off the stream before the
//! stream is attached. A token is unguessable, so it also keeps strangers from taking an endpoint's place.

use std::fmt;

use crate::{EndpointAddress, FabricError};

/// What an endpoint address of this fabric begins with; the last byte is the format's version.
const ADDRESS_MAGIC: [u8; 8] = *b"kwysofa\x01";

/// What a data stream begins with; the last byte is the format's version.
pub const PREAMBLE_MAGIC: [u8; 8] = *b"kwydata\x01";

/// The length of a token in bytes: enough that guessing one is hopeless.
pub const TOKEN_LEN: usize = 16;

/// The length of a data stream's preamble: the magic and the dialled endpoint's token.
pub const PREAMBLE_LEN: usize = PREAMBLE_MAGIC.len() + TOKEN_LEN;

/// The random name of one software endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub [u8; TOKEN_LEN]);

impl Token {
    /// A token that nobody else has.
    pub(super) fn random() -> Result<Self, FabricError> {
        let mut bytes = [0; TOKEN_LEN];
        super::random(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The address that carries this token.
    pub(super) fn address(self) -> EndpointAddress {
        EndpointAddress([&ADDRESS_MAGIC[..], &self.0].concat())
    }

    /// The token of a software endpoint's address.
    ///
    /// # Errors
    ///
    /// [`FabricError::Address`] if the address is of another fabric or another version.
    pub fn of(address: &EndpointAddress) -> Result<Self, FabricError> {
        let token = address.0.strip_prefix(&ADDRESS_MAGIC).and_then(|rest| rest.try_into().ok());
        token.map(Self).ok_or(FabricError::Address { fabric: super::NAME })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The first bytes tell tokens apart in a log; the whole would let a reader of the log take the endpoint's place.
        write!(f, "token {:02x}{:02x}..", self.0[0], self.0[1])
    }
}

/// What to write first on a data stream to the endpoint at `peer`.
///
/// # Errors
///
/// [`FabricError::Address`] if the address is not one of a software endpoint.
pub fn preamble(peer: &EndpointAddress) -> Result<[u8; PREAMBLE_LEN], FabricError> {
    let token = Token::of(peer)?;
    let mut bytes = [0; PREAMBLE_LEN];
    bytes[..PREAMBLE_MAGIC.len()].copy_from_slice(&PREAMBLE_MAGIC);
    bytes[PREAMBLE_MAGIC.len()..].copy_from_slice(&token.0);
    Ok(bytes)
}

/// The endpoint that a data stream with this preamble is for, or `None` if it is no data stream.
pub fn parse_preamble(bytes: &[u8; PREAMBLE_LEN]) -> Option<Token> {
    bytes.strip_prefix(&PREAMBLE_MAGIC)?.try_into().ok().map(Token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preamble_names_the_dialled_endpoint() {
        let token = Token::random().unwrap();
        let address = token.address();
        assert_eq!(Token::of(&address).unwrap(), token);
        let preamble = preamble(&address).unwrap();
        assert_eq!(parse_preamble(&preamble), Some(token));
    }

    #[test]
    fn foreign_addresses_and_preambles_are_refused() {
        assert!(Token::of(&EndpointAddress(vec![0; 24])).is_err());
        assert!(Token::of(&EndpointAddress(ADDRESS_MAGIC.to_vec())).is_err());
        assert!(preamble(&EndpointAddress(Vec::new())).is_err());
        let mut bytes = preamble(&Token([7; TOKEN_LEN]).address()).unwrap();
        bytes[7] += 1;
        assert_eq!(parse_preamble(&bytes), None, "another version");
    }
}
