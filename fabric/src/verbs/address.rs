//! What a peer needs to connect to a queue pair, as bytes.

use std::fmt;
use std::net::IpAddr;

use super::port::Port;
use crate::{EndpointAddress, FabricError};

/// What an endpoint address of this fabric begins with; the last byte is the format's version.
const MAGIC: [u8; 8] = *b"kwyverb\x01";

/// Magic, kind of link, MTU, READs, a byte of nothing, LID, number, packet, GID.
const LEN: usize = 8 + 4 + 2 + 4 + 4 + 16;

/// The lowest and the highest code of an MTU (`enum ibv_mtu`): 256 and 4096 bytes.
const MTU_CODES: std::ops::RangeInclusive<u8> = 1..=5;

/// A queue pair's address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PairAddress {
    pub(super) ethernet: bool,
    /// The port's MTU, as `enum ibv_mtu`.
    pub(super) mtu: u8,
    /// How many READs of its peer it can answer at once.
    pub(super) reads_in: u8,
    pub(super) lid: u16,
    pub(super) pair: u32,
    /// The number of the first packet from it: random, so that packets of an earlier connection are not taken for its own.
    pub(super) packet: u32,
    pub(super) gid: [u8; 16],
}

/// The network address of the device that an endpoint is on: its GID on Ethernet is one.
pub(crate) fn device_address(address: &EndpointAddress) -> Option<IpAddr> {
    let address = PairAddress::decode(address).ok().filter(|address| address.ethernet)?;
    Some(IpAddr::from(address.gid).to_canonical())
}

impl PairAddress {
    pub(super) fn new(port: &Port, pair: u32, packet: u32, reads_in: u8) -> Self {
        Self { ethernet: port.ethernet, mtu: port.mtu, reads_in, lid: port.lid, pair, packet, gid: port.gid }
    }

    pub(super) fn encode(&self) -> EndpointAddress {
        let mut bytes = Vec::with_capacity(LEN);
        bytes.extend(MAGIC);
        bytes.extend([u8::from(self.ethernet), self.mtu, self.reads_in, 0]);
        bytes.extend(self.lid.to_le_bytes());
        bytes.extend(self.pair.to_le_bytes());
        bytes.extend(self.packet.to_le_bytes());
        bytes.extend(self.gid);
        EndpointAddress(bytes)
    }

    /// Takes an address apart.
    ///
    /// # Errors
    ///
    /// [`FabricError::Address`] if it is of another fabric or another version.
    pub(super) fn decode(address: &EndpointAddress) -> Result<Self, FabricError> {
        let refused = FabricError::Address { fabric: super::NAME };
        let Ok(bytes) = <&[u8; LEN]>::try_from(address.0.as_slice()) else { return Err(refused) };
        let (magic, rest) = bytes.split_at(MAGIC.len());
        let [ethernet, mtu, reads_in, _, rest @ ..] = rest else { return Err(refused) };
        let (lid, rest) = rest.split_at(2);
        let (pair, rest) = rest.split_at(4);
        let (packet, gid) = rest.split_at(4);
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        if magic != MAGIC
            || *ethernet > 1
            || !MTU_CODES.contains(mtu)
            || word(pair) >> 24 != 0
            || word(packet) >> 24 != 0
        {
            return Err(refused);
        }
        let mut own = [0; 16];
        own.copy_from_slice(gid);
        Ok(Self {
            ethernet: *ethernet == 1,
            mtu: *mtu,
            reads_in: *reads_in,
            lid: word(lid) as u16,
            pair: word(pair),
            packet: word(packet),
            gid: own,
        })
    }
}

impl fmt::Debug for PairAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gid = std::net::Ipv6Addr::from(self.gid);
        write!(f, "queue pair {} at {gid} (LID {}, MTU {} bytes)", self.pair, self.lid, 128_u32 << self.mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written_and_nothing_else_is() {
        let address = PairAddress {
            ethernet: true,
            mtu: 5,
            reads_in: 16,
            lid: 0x1234,
            pair: 0x00ab_cdef,
            packet: 0x0012_3456,
            gid: *b"0123456789abcdef",
        };
        let bytes = address.encode();
        assert_eq!(PairAddress::decode(&bytes).ok(), Some(address));
        for (place, byte) in [(0, 0), (7, 2), (8, 2), (9, 0), (9, 6), (17, 1), (21, 1)] {
            let mut other = bytes.clone();
            other.0[place] = byte;
            assert!(PairAddress::decode(&other).is_err(), "byte {place} as {byte}");
        }
        for len in [0, 8, LEN - 1] {
            assert!(PairAddress::decode(&EndpointAddress(bytes.0[..len].to_vec())).is_err());
        }
        assert!(PairAddress::decode(&EndpointAddress([&bytes.0[..], &[0]].concat())).is_err());
    }

    #[test]
    fn the_device_behind_an_address_is_found_by_its_gid_on_ethernet() {
        let mut address = PairAddress {
            ethernet: true,
            mtu: 3,
            reads_in: 1,
            lid: 0,
            pair: 17,
            packet: 0,
            gid: std::net::Ipv4Addr::new(192, 0, 2, 7).to_ipv6_mapped().octets(),
        };
        assert_eq!(address.encode().device_address(), Some(IpAddr::from([192, 0, 2, 7])));
        address.ethernet = false;
        assert_eq!(address.encode().device_address(), None);
        assert_eq!(EndpointAddress(vec![1; 8]).device_address(), None);
    }
}
