//! A producer that publishes nonsense, leaves out numbers, or offers what cannot be READ ends its own session with a reason; the
//! others' records are committed before and behind it, and consumers see no trace of it.

mod bus;

use std::time::Duration;

use keyway::{Broker, Consumer, Server, Start};
use keyway_schema::Code;
use keyway_schema::batch::{BATCH_HEADER_LEN, BatchBuilder};
use keyway_schema::message::Offer;
use keyway_schema::record::RecordRef;

use crate::bus::bystander::Bystander;
use crate::bus::clients::{SCOPES, next_record, producer};
use crate::bus::raw::RawSession;
use crate::bus::{PATIENCE, Watchdog, small_broker, until_counters, way};

const LIMIT: Duration = Duration::from_secs(120);

/// The hostile producer's number.
const WHO: u64 = 13;

fn batch(topic: u32, producer: u64, number: u64, payload: &[u8]) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    builder.push(RecordRef { key: b"", headers: b"", payload });
    builder.finish(topic, producer, number)
}

#[test]
fn a_batch_that_makes_no_sense() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let way = way(&broker);
    let mut bystander = Bystander::start(&way);
    type Spoil = fn(&mut Vec<u8>, u32);
    let cases: [(&str, Code, Spoil); 8] = [
        ("with a flipped bit in a record", Code::BatchInvalid, |batch, _| batch[BATCH_HEADER_LEN + 9] ^= 1),
        ("with a flipped bit in its header", Code::BatchInvalid, |batch, _| batch[17] ^= 1),
        ("that is cut", Code::BatchInvalid, |batch, _| batch.truncate(batch.len() - 8)),
        ("that is longer than it says", Code::BatchInvalid, |batch, _| batch.extend([0; 8])),
        ("of another producer", Code::BatchInvalid, |spoilt, topic| *spoilt = batch(topic, WHO + 1, 1, b"forged")),
        ("of another topic", Code::BatchInvalid, |spoilt, topic| *spoilt = batch(topic + 1, WHO, 1, b"astray")),
        ("whose number leaves one out", Code::BatchOrder, |spoilt, topic| *spoilt = batch(topic, WHO, 2, b"early")),
        ("with a record that is too large", Code::BatchTooLarge, |spoilt, topic| {
            *spoilt = batch(topic, WHO, 1, &[7; (32 << 10) + 1]);
        }),
    ];
    for (name, code, spoil) in cases {
        let mut session = RawSession::producer(&way);
        let opened = session.open_topic("bystander", WHO);
        let mut batch = batch(opened.topic, WHO, 1, b"a record as it should be");
        spoil(&mut batch, opened.topic);
        session.publish(opened.topic, &batch);
        assert_eq!(session.reason(), Some(code), "a batch {name}");
        bystander.exchange();
    }
    let counters = broker.counters().expect("the broker answers");
    assert_eq!(counters.fillers, 0, "what is refused takes no place in the log");
}

/// Makes an offer behind which others' batches wait.
fn offer(session: &mut RawSession, topic: u32, len: u32) {
    session.send(Offer { topic, number: 1, address: 0x1000, len, key: 0x0000_0101 });
}

fn others_go_on(broker: &Broker, topic: &str, records: u64) {
    let server = Server::from(broker.connector());
    for scope in SCOPES {
        let mut consumer =
            Consumer::builder(&server, topic).start(Start::Earliest).scope(scope).connect().expect("it can connect");
        for number in 0..records {
            let record = next_record(&mut consumer);
            assert_eq!((record.sequence(), record.payload()), (number, &number.to_le_bytes()[..]), "{scope:?}");
        }
        consumer.close(PATIENCE).expect("it closes");
    }
}

#[test]
fn an_offer_under_a_key_that_opens_nothing() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let honest = producer(&Server::from(broker.connector()), "offers");
    let enqueue = |number: u64| honest.enqueue(number.to_le_bytes().to_vec()).expect("it is taken");
    enqueue(0).wait().expect("it is committed");
    let mut session = RawSession::producer(&way(&broker));
    let topic = session.open_topic("offers", WHO).topic;
    offer(&mut session, topic, 20_000);
    session.expect_down();
    enqueue(1).wait().expect("it is committed behind the filler");
    others_go_on(&broker, "offers", 2);
    until_counters(&broker, "the filler", |counters| counters.fillers == 1 && counters.offers == 0);
    assert_eq!(honest.stats().reconnects, 0);
}

#[test]
fn an_offer_that_is_never_served_delays_the_topic_by_its_timeout_only() {
    let _watchdog = Watchdog::start(LIMIT);
    let timeout = Duration::from_millis(400);
    let broker = small_broker().offer_timeout(timeout).start().expect("the settings fit each other");
    let honest = producer(&Server::from(broker.connector()), "offers");
    let enqueue = |number: u64| honest.enqueue(number.to_le_bytes().to_vec()).expect("it is taken");
    enqueue(0).wait().expect("it is committed");
    let mut session = RawSession::producer(&way(&broker));
    let topic = session.open_topic("offers", WHO).topic;
    // From here on the session is silent: nobody answers the broker's READ.
    offer(&mut session, topic, 20_000);
    enqueue(1).wait().expect("it is committed behind the filler");
    until_counters(&broker, "the filler", |counters| counters.fillers == 1 && counters.sessions == 1);
    others_go_on(&broker, "offers", 2);
    assert_eq!(honest.stats().reconnects, 0);
}

#[test]
fn an_offer_that_is_larger_than_the_topic_takes() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let way = way(&broker);
    let mut bystander = Bystander::start(&way);
    for (len, code) in
        [(u32::MAX - 7, Code::BatchTooLarge), ((33 << 10) + 64, Code::BatchTooLarge), (7, Code::BatchInvalid)]
    {
        let mut session = RawSession::producer(&way);
        let topic = session.open_topic("bystander", WHO).topic;
        offer(&mut session, topic, len);
        assert_eq!(session.reason(), Some(code), "{len} bytes");
        bystander.exchange();
    }
}
