//! The clients of a bench: what they send, what they get, what they READ.

use keyway_fabric::{Event, Key, Memory, RemoteSpan};
use keyway_schema::batch::BatchBuilder;
use keyway_schema::bootstrap::Role;
use keyway_schema::message::{
    EpochSettings, Grant, OpenTopic, Publish, Scope, Start, Subscribe, Subscribed, TopicOpened,
};
use keyway_schema::record::RecordRef;
use keyway_schema::{Code, ToBroker, ToClient};
use rkyv::util::AlignedVec;

use super::bench::{Bench, Client, GENERATION};
use super::memory::POOL_ADDRESS;
use crate::core::Notice;

impl Bench {
    /// Sends raw bytes into the next receive slot. Returns whether there was one.
    pub(super) fn send_raw(&mut self, client: Client, bytes: &[u8]) -> bool {
        let endpoint = self.links.get_mut(&client.link).expect("the link exists");
        if endpoint.is_closed {
            return false;
        }
        let Some((op, slot)) = endpoint.receives.pop_front() else { return false };
        let span = slot.part(0, bytes.len() as u32);
        self.memory.bytes_mut(span).copy_from_slice(bytes);
        self.events.push_back(Event::Message { link: client.link, op, span });
        self.run();
        true
    }

    pub(super) fn encode(&mut self, client: Client, message: &ToBroker, attachment: &[u8]) -> Vec<u8> {
        let endpoint = self.links.get_mut(&client.link).expect("the link exists");
        let credits = if endpoint.is_generous { std::mem::take(&mut endpoint.credits) } else { 0 };
        let mut slot: AlignedVec<64> = AlignedVec::new();
        slot.resize(64 * 1024, 0);
        let start = message.encode(GENERATION, credits, attachment.len(), &mut slot).expect("the message fits");
        slot[start..start + attachment.len()].copy_from_slice(attachment);
        slot[..start + attachment.len()].to_vec()
    }

    pub(super) fn send(&mut self, client: Client, message: impl Into<ToBroker>) {
        self.send_with(client, &message.into(), &[]);
    }

    pub(super) fn send_with(&mut self, client: Client, message: &ToBroker, attachment: &[u8]) {
        let bytes = self.encode(client, message, attachment);
        assert!(self.send_raw(client, &bytes), "the client has a credit");
    }

    pub(super) fn stops_crediting(&mut self, client: Client) {
        self.links.get_mut(&client.link).expect("the link exists").is_generous = false;
    }

    /// How many local memories there are.
    pub(super) fn locals(&self) -> usize {
        self.memory.locals.len()
    }

    /// How many receive slots the broker has posted for a client.
    pub(super) fn receives(&self, client: Client) -> usize {
        self.links[&client.link].receives.len()
    }

    pub(super) fn is_closed(&self, client: Client) -> bool {
        self.links[&client.link].is_closed
    }

    /// What has arrived at a client, without credits.
    pub(super) fn inbox(&mut self, client: Client) -> Vec<ToClient> {
        let endpoint = self.links.get_mut(&client.link).expect("the link exists");
        endpoint.inbox.drain(..).filter(|message| !matches!(message, ToClient::Credit(_))).collect()
    }

    pub(super) fn offer_bytes(&mut self, client: Client, address: u64, bytes: Vec<u8>) {
        self.links.get_mut(&client.link).expect("the link exists").offers.insert(address, bytes);
    }

    /// What a READ under a key gets.
    pub(super) fn read(&self, key: u32, address: u64, len: u32) -> Option<Vec<u8>> {
        let remote = RemoteSpan { address, len, key: Key(key) };
        let bound = self.memory.windows.values().filter_map(|window| window.binding);
        let (_, span) = bound.into_iter().find(|(key, _)| *key == remote.key)?;
        let from = address.checked_sub(POOL_ADDRESS)?;
        let within = from >= span.offset && from + u64::from(len) <= span.end();
        within.then(|| self.memory.pool[from as usize..][..len as usize].to_vec())
    }

    pub(super) fn read_grant(&self, grant: &Grant) -> Option<Vec<u8>> {
        self.read(grant.key, grant.address, grant.len)
    }
}

pub(super) fn batch(topic: u32, producer: u64, number: u64, payloads: &[&[u8]]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Vec::new());
    for payload in payloads {
        builder.push(RecordRef { key: &[], headers: &[], payload });
    }
    builder.finish(topic, producer, number)
}

pub(super) fn subscribe(scope: Scope, start: Start) -> Subscribe {
    Subscribe {
        request: 1,
        topic: "t".to_owned(),
        name: String::new(),
        start,
        scope,
        epoch: EpochSettings { interval_us: 10_000, grace_ms: 100, bytes: 0, records: 0 },
        depth: 0,
        grant_bytes: 0,
    }
}

impl Bench {
    pub(super) fn opens(&mut self, client: Client, producer: u64) -> TopicOpened {
        self.send(client, OpenTopic { request: 1, topic: "t".to_owned(), settings: None, producer });
        match self.inbox(client).pop() {
            Some(ToClient::TopicOpened(opened)) => opened,
            other => panic!("a topic was to be opened, and the answer is {other:?}"),
        }
    }

    /// A producer with topic `t` open.
    pub(super) fn producer(&mut self, producer: u64) -> Client {
        let client = self.connect(Role::Producer);
        self.opens(client, producer);
        client
    }

    pub(super) fn publish(&mut self, client: Client, producer: u64, number: u64, payloads: &[&[u8]]) {
        let bytes = batch(1, producer, number, payloads);
        self.send_with(client, &Publish { topic: 1 }.into(), &bytes);
    }

    pub(super) fn subscribes(&mut self, client: Client, request: Subscribe) -> Subscribed {
        self.send(client, request);
        let endpoint = self.links.get_mut(&client.link).expect("the link exists");
        match endpoint.inbox.pop_front() {
            Some(ToClient::Subscribed(subscribed)) => subscribed,
            other => panic!("a subscription was to be made, and the answer is {other:?}"),
        }
    }

    /// The grants that have arrived, nothing else having done so.
    pub(super) fn grants(&mut self, client: Client) -> Vec<Grant> {
        let grant = |message| match message {
            ToClient::Grant(grant) => grant,
            other => panic!("a grant was to come, and {other:?} did"),
        };
        self.inbox(client).into_iter().map(grant).collect()
    }

    /// The code with which a session was ended.
    pub(super) fn ended(&mut self, client: Client) -> Option<Code> {
        self.notices.iter().find_map(|notice| match notice {
            Notice::SessionClosed { id, refusal, .. } if *id == client.id => {
                refusal.as_ref().map(|refusal| refusal.code)
            }
            _ => None,
        })
    }
}
