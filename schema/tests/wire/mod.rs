//! What the tests of the wire share: both directions behind one trait, slots, and arbitrary messages.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fmt::Debug;

use keyway_schema::bootstrap::{Bootstrap, Role};
use keyway_schema::limits::{CLIENT_NAME_MAX, COMMITS_MAX, CONTROL_SLOT, ERROR_TEXT_MAX, RECEIVE_SLOTS_MIN};
use keyway_schema::message::*;
use keyway_schema::{DecodeError, EncodeError, Envelope, ToBroker, ToBrokerRef, ToClient, ToClientRef};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use rkyv::util::AlignedVec;

/// Control messages of one direction.
pub(crate) trait Direction: Clone + Debug + PartialEq {
    fn encode(&self, generation: u32, credits: u16, attachment: usize, slot: &mut [u8]) -> Result<usize, EncodeError>;
    fn decode(message: &[u8]) -> Result<(Envelope, Self), DecodeError>;
    fn name(&self) -> &'static str;

    /// The message as it stands in a slot, without attachment.
    fn to_bytes(&self, generation: u32, credits: u16) -> AlignedVec<16> {
        let mut slot = slot(CONTROL_SLOT as usize, 0);
        let len = self.encode(generation, credits, 0, &mut slot).expect("every control message fits a control slot");
        slot.resize(len, 0);
        slot
    }
}

macro_rules! direction {
    ($owned:ident, $borrowed:ident) => {
        impl Direction for $owned {
            fn encode(
                &self,
                generation: u32,
                credits: u16,
                attachment: usize,
                slot: &mut [u8],
            ) -> Result<usize, EncodeError> {
                $owned::encode(self, generation, credits, attachment, slot)
            }
            fn decode(message: &[u8]) -> Result<(Envelope, Self), DecodeError> {
                let (envelope, decoded) = $borrowed::decode(message)?;
                // Printing walks through every field: a decoder that lets through what cannot be read fails here.
                assert!(!format!("{decoded:?}").is_empty());
                Ok((envelope, decoded.to_message()))
            }
            fn name(&self) -> &'static str {
                $owned::name(self)
            }
        }
    };
}

direction!(ToBroker, ToBrokerRef);
direction!(ToClient, ToClientRef);

/// A slot with something in it already.
pub(crate) fn slot(len: usize, filled_with: u8) -> AlignedVec<16> {
    let mut slot = AlignedVec::new();
    slot.resize(len, filled_with);
    slot
}

/// The bytes, aligned as in a receive slot.
pub(crate) fn aligned(bytes: &[u8]) -> AlignedVec<16> {
    let mut slot = AlignedVec::with_capacity(bytes.len());
    slot.extend_from_slice(bytes);
    slot
}

fn topic() -> impl Strategy<Value = String> {
    "[A-Za-z0-9._/-]{1,249}"
}

fn name() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..CLIENT_NAME_MAX / 4).prop_map(String::from_iter)
}

fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..ERROR_TEXT_MAX / 4).prop_map(String::from_iter)
}

fn epoch_settings() -> impl Strategy<Value = EpochSettings> {
    any::<(u32, u32, u64, u64)>().prop_map(|(interval_us, grace_ms, bytes, records)| EpochSettings {
        interval_us,
        grace_ms,
        bytes,
        records,
    })
}

fn start() -> impl Strategy<Value = Start> {
    prop_oneof![
        Just(Start::Latest),
        Just(Start::Earliest),
        any::<u64>().prop_map(Start::Sequence),
        any::<u64>().prop_map(Start::Time)
    ]
}

fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![Just(Scope::Segment), Just(Scope::Batch), Just(Scope::Message)]
}

fn topic_settings() -> impl Strategy<Value = TopicSettings> {
    any::<(u32, u32)>().prop_map(|(segments, record_max)| TopicSettings {
        segments,
        record_max,
        overflow: Overflow::DropOldest,
    })
}

fn commits() -> impl Strategy<Value = Vec<Commit>> {
    let commit =
        any::<(u64, u64, u64)>().prop_map(|(number, base_sequence, time)| Commit { number, base_sequence, time });
    vec(commit, 0..=COMMITS_MAX)
}

/// Any message from client to broker.
pub(crate) fn to_broker() -> impl Strategy<Value = ToBroker> {
    prop_oneof![
        (any::<(u32, u64)>(), topic(), option::of(topic_settings()))
            .prop_map(|((request, producer), topic, settings)| OpenTopic { request, topic, settings, producer }.into()),
        any::<u32>().prop_map(|topic| Publish { topic }.into()),
        any::<(u32, u64, u64, u32, u32)>().prop_map(|(topic, number, address, len, key)| Offer {
            topic,
            number,
            address,
            len,
            key
        }
        .into()),
        (any::<(u32, u16, u32)>(), topic(), name(), start(), scope(), epoch_settings()).prop_map(
            |((request, depth, grant_bytes), topic, name, start, scope, epoch)| {
                Subscribe { request, topic, name, start, scope, epoch, depth, grant_bytes }.into()
            }
        ),
        any::<(u32, u64, u64, bool)>().prop_map(|(subscription, epoch, sequence, pause)| {
            Release { subscription, epoch, sequence, pause }.into()
        }),
        any::<(u32, u64)>().prop_map(|(subscription, sequence)| Arm { subscription, sequence }.into()),
        any::<u32>().prop_map(|subscription| Unsubscribe { subscription }.into()),
        Just(Goodbye {}.into()),
        Just(Credit {}.into()),
    ]
}

/// Any message from broker to client.
pub(crate) fn to_client() -> impl Strategy<Value = ToClient> {
    prop_oneof![
        any::<(u32, u32, u64, u32, u32, u64)>().prop_map(
            |(request, topic, next_sequence, record_max, batch_max, last_number)| {
                TopicOpened { request, topic, next_sequence, record_max, batch_max, last_number }.into()
            }
        ),
        (any::<u32>(), commits()).prop_map(|(topic, commits)| Committed { topic, commits }.into()),
        any::<(u32, u64)>().prop_map(|(topic, number)| Withdraw { topic, number }.into()),
        (any::<(u32, u32, u32, u32, u32, u64, u64, u16)>(), epoch_settings()).prop_map(
            |((request, subscription, topic, segment_size, batch_max, sequence, offset, depth), epoch)| {
                Subscribed { request, subscription, topic, segment_size, batch_max, sequence, offset, epoch, depth }
                    .into()
            }
        ),
        any::<((u32, u64, u64, u64, u32, u64), (u32, u64, u32, u64, u32, u32))>().prop_map(
            |(
                (subscription, epoch, supersedes, offset, len, address),
                (key, sequence, records, time, crc, current_us),
            )| {
                let grant = Grant {
                    subscription,
                    epoch,
                    supersedes,
                    offset,
                    len,
                    address,
                    key,
                    sequence,
                    records,
                    time,
                    crc,
                    current_us,
                };
                grant.into()
            }
        ),
        any::<(u32, u64)>().prop_map(|(subscription, tail)| Wake { subscription, tail }.into()),
        any::<(u32, u64, u64)>()
            .prop_map(|(subscription, sequence, offset)| Lagged { subscription, sequence, offset }.into()),
        any::<(u32, u64, u16)>().prop_map(|(subscription, epoch, code)| Revoked { subscription, epoch, code }.into()),
        (any::<(u32, u32, u16)>(), text()).prop_map(|((request, subject, code), text)| Failed {
            request,
            subject,
            code,
            text
        }
        .into()),
        any::<u32>().prop_map(|deadline_ms| ShuttingDown { deadline_ms }.into()),
        Just(Credit {}.into()),
    ]
}

/// Any message of the bootstrap that is within the limits.
pub(crate) fn bootstrap() -> impl Strategy<Value = Bootstrap> {
    let slots = (RECEIVE_SLOTS_MIN.., CONTROL_SLOT..);
    let role = prop_oneof![Just(Role::Producer), Just(Role::Consumer)];
    prop_oneof![
        (role, name(), vec("[a-z]{1,20}", 0..4), slots.clone()).prop_map(
            |(role, name, fabrics, (receive_slots, receive_size))| Bootstrap::Hello {
                role,
                name,
                fabrics,
                receive_slots,
                receive_size
            }
        ),
        (any::<(u64, u64, u32, u16)>(), "[a-z]{1,20}", vec(any::<u8>(), 0..=256), slots).prop_map(
            |((instance, session, generation, offers), fabric, endpoint, (receive_slots, receive_size))| {
                Bootstrap::Welcome {
                    instance,
                    session,
                    generation,
                    fabric,
                    endpoint,
                    receive_slots,
                    receive_size,
                    offers,
                }
            }
        ),
        vec(any::<u8>(), 0..=256).prop_map(|endpoint| Bootstrap::Confirm { endpoint }),
        Just(Bootstrap::Ready),
        (any::<u16>(), text()).prop_map(|(code, text)| Bootstrap::Refused { code, text }),
    ]
}
