//! Everything that travels has the bytes that it always had, and those bytes still mean the same.
//!
//! The bytes are in `golden/`, a file each, as hexadecimal text. After an intended change of the wire, which needs a new
//! `limits::VERSION`, write them again with `KEYWAY_BLESS=1 cargo test -p keyway-schema --test golden`.

mod wire;

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};
use std::path::PathBuf;

use keyway_schema::batch::{Batch, BatchBuilder, BatchHeader};
use keyway_schema::bootstrap::{Bootstrap, Role};
use keyway_schema::limits::{CONTROL_SLOT, VERSION};
use keyway_schema::message::*;
use keyway_schema::record::{RecordRef, append_header, headers};
use keyway_schema::segment::{SegmentHeader, Tail};
use keyway_schema::{Code, DecodeError, MAGIC, ToBroker, ToClient};

use crate::wire::{Direction, aligned, slot};

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(16) {
        let words: Vec<String> = line.chunks(4).map(|word| word.iter().fold(String::new(), hex_digits)).collect();
        writeln!(text, "{}", words.join(" ")).expect("writing to a string does not fail");
    }
    text
}

fn hex_digits(mut text: String, byte: &u8) -> String {
    write!(text, "{byte:02x}").expect("writing to a string does not fail");
    text
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).expect("golden files are hexadecimal");
    digits.chunks(2).map(byte).collect()
}

/// Compares with the golden file, which it writes instead if that is asked for, and returns the file's bytes.
#[allow(clippy::disallowed_methods, reason = "a test's switch is an environment variable")]
fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = directory().join(name).with_extension("hex");
    if std::env::var_os("KEYWAY_BLESS").is_some() {
        std::fs::write(&path, to_hex(bytes)).expect("the golden file can be written");
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(text, to_hex(bytes), "{name} has other bytes than it had: does the wire need a new version?");
    from_hex(&text)
}

/// File names are the messages' names.
fn golden_message<M: Direction>(message: &M) {
    let expected = golden(message.name(), &message.to_bytes(0x0102_0304, 0x0506));
    let (envelope, decoded) = M::decode(&aligned(&expected)).expect("the golden bytes are a message");
    assert_eq!(decoded, *message);
    assert_eq!((envelope.generation, envelope.credits), (0x0102_0304, 0x0506));
}

fn to_broker() -> Vec<ToBroker> {
    let settings = Some(TopicSettings { segments: 16, record_max: 1 << 20, overflow: Overflow::DropOldest });
    let epoch = EpochSettings { interval_us: 100_000, grace_ms: 1000, bytes: 1 << 32, records: 77 };
    vec![
        OpenTopic { request: 1, topic: "plant-7/line_2.temperature".into(), settings, producer: 0x1122_3344_5566_7788 }
            .into(),
        Offer { topic: 2, number: 3, address: 0x7f00_0000_1000, len: 1 << 20, key: 0x0001_02ff }.into(),
        Subscribe {
            request: 4,
            topic: "words".into(),
            name: "printer".into(),
            start: Start::Sequence(42),
            scope: Scope::Batch,
            epoch,
            depth: 32,
            grant_bytes: 1 << 16,
        }
        .into(),
        Release { subscription: 5, epoch: 6, sequence: 7, pause: true }.into(),
        Arm { subscription: 8, sequence: 9 }.into(),
        Unsubscribe { subscription: 10 }.into(),
        Goodbye {}.into(),
        Credit {}.into(),
    ]
}

fn to_client() -> Vec<ToClient> {
    let epoch = EpochSettings { interval_us: 1000, grace_ms: 500, bytes: 0, records: 0 };
    let commit = |number| Commit { number, base_sequence: 100 * number, time: 1_700_000_000_000_000_000 };
    vec![
        TopicOpened { request: 1, topic: 2, next_sequence: 3, record_max: 4, batch_max: 72, last_number: 5 }.into(),
        Committed { topic: 1, commits: vec![commit(1), commit(2)] }.into(),
        Withdraw { topic: 1, number: 2 }.into(),
        Subscribed {
            request: 1,
            subscription: 2,
            topic: 3,
            segment_size: 4 << 20,
            batch_max: 1 << 20,
            sequence: 4,
            offset: 4096,
            epoch,
            depth: 4,
        }
        .into(),
        Grant {
            subscription: 1,
            epoch: 2,
            supersedes: 1,
            offset: 4 << 20,
            len: 4 << 20,
            address: 0x7f00_0040_0000,
            key: 0x0001_0200,
            sequence: 1000,
            records: 3,
            time: 1_700_000_000_000_000_000,
            crc: 0xdead_beef,
            current_us: 1000,
        }
        .into(),
        Wake { subscription: 1, tail: 8192 }.into(),
        Lagged { subscription: 1, sequence: 5000, offset: 12 << 20 }.into(),
        Revoked { subscription: 1, epoch: 9, code: Code::TopicRemoved.number() }.into(),
        Failed { request: 1, subject: 2, code: Code::PoolExhausted.number(), text: "no segment is left".into() }.into(),
        ShuttingDown { deadline_ms: 5000 }.into(),
        Credit {}.into(),
    ]
}

#[test]
fn the_control_messages() {
    to_broker().iter().for_each(golden_message);
    to_client().iter().for_each(golden_message);
}

#[test]
fn a_publish_with_its_batch() {
    let batch = batch();
    let mut slot = slot(CONTROL_SLOT as usize, 0);
    let start = ToBroker::from(Publish { topic: 7 }).encode(1, 2, batch.len(), &mut slot).unwrap();
    slot[start..start + batch.len()].copy_from_slice(&batch);
    let expected = aligned(&golden("Publish", &slot[..start + batch.len()]));
    let (envelope, message) = ToBroker::decode(&expected).unwrap();
    assert_eq!(message, ToBroker::from(Publish { topic: 7 }));
    assert_eq!(expected[envelope.attachment_start()..], batch);
}

/// Each start, scope and setting has bytes of its own.
#[test]
fn the_forms_of_a_subscription() {
    let forms = [
        ("latest-segment", Start::Latest, Scope::Segment),
        ("earliest-message", Start::Earliest, Scope::Message),
        ("time-batch", Start::Time(1_700_000_000_000_000_000), Scope::Batch),
    ];
    for (name, start, scope) in forms {
        let message = ToBroker::from(Subscribe {
            request: 1,
            topic: "t".into(),
            name: String::new(),
            start,
            scope,
            epoch: EpochSettings { interval_us: 1, grace_ms: 2, bytes: 3, records: 4 },
            depth: 0,
            grant_bytes: 0,
        });
        let expected = golden(&format!("Subscribe-{name}"), &message.to_bytes(1, 0));
        assert_eq!(ToBroker::decode(&aligned(&expected)).unwrap().1, message);
    }
    let message = ToBroker::from(OpenTopic { request: 1, topic: "t".into(), settings: None, producer: 2 });
    let expected = golden("OpenTopic-defaults", &message.to_bytes(1, 0));
    assert_eq!(ToBroker::decode(&aligned(&expected)).unwrap().1, message);
}

#[test]
fn the_bootstrap() {
    let hello = |role| Bootstrap::Hello {
        role,
        name: "printer".into(),
        fabrics: vec!["verbs".into(), "soft".into()],
        receive_slots: 64,
        receive_size: 1024,
    };
    let messages = [
        ("Hello-producer", hello(Role::Producer)),
        ("Hello-consumer", hello(Role::Consumer)),
        (
            "Welcome",
            Bootstrap::Welcome {
                instance: 0x1122_3344_5566_7788,
                session: 1,
                generation: 2,
                fabric: "soft".into(),
                endpoint: vec![1, 2, 3, 4, 5],
                receive_slots: 16,
                receive_size: 65_536,
                offers: 4,
            },
        ),
        ("Confirm", Bootstrap::Confirm { endpoint: vec![9; 20] }),
        ("Ready", Bootstrap::Ready),
        ("Refused", Bootstrap::Refused { code: Code::SessionsExhausted.number(), text: "1024 are open".into() }),
    ];
    for (name, message) in messages {
        let frame = golden(name, &message.encode().unwrap());
        let (prefix, archive) = frame.split_first_chunk().unwrap();
        assert_eq!(Bootstrap::frame_len(*prefix), Ok(archive.len()));
        assert_eq!(Bootstrap::decode(archive), Ok(message));
    }
}

fn batch() -> Vec<u8> {
    let mut encoded = Vec::new();
    append_header(&mut encoded, "type", b"text/plain").expect("it is short");
    append_header(&mut encoded, "trace", &[1, 2, 3]).expect("it is short");
    let mut builder = BatchBuilder::default();
    builder.push(RecordRef { key: b"key", headers: &encoded, payload: b"a record with everything" });
    builder.push(RecordRef { key: b"", headers: b"", payload: b"" });
    builder.push(RecordRef { key: b"", headers: b"", payload: b"12345678" });
    builder.finish(7, 0x1122_3344_5566_7788, 9)
}

#[test]
fn a_batch() {
    let expected = golden("batch", &batch());
    let batch = Batch::read(&expected).unwrap();
    assert_eq!((batch.header().topic, batch.header().producer, batch.header().number), (7, 0x1122_3344_5566_7788, 9));
    let records: Vec<_> = batch.records().collect();
    assert_eq!(records.len(), 3);
    assert_eq!((records[0].key, records[0].payload), (&b"key"[..], &b"a record with everything"[..]));
    let pairs: Vec<_> = headers(records[0].headers).collect();
    assert_eq!(pairs, [("type", &b"text/plain"[..]), ("trace", &[1, 2, 3])]);
    assert_eq!(records[1].size(), 0);
    assert_eq!(records[2].payload, b"12345678");
}

#[test]
fn a_committed_header_and_a_filler() {
    let header = BatchHeader {
        len: 4096,
        crc: 0xdead_beef,
        records: 12,
        base_sequence: 0x0102_0304_0506_0708,
        time: 1_700_000_000_000_000_000,
        producer: 3,
        number: 4,
        topic: 5,
        filler: false,
    };
    let filler = BatchHeader { crc: 0, records: 0, filler: true, ..header };
    for (name, header) in [("batch-header", header), ("batch-filler", filler)] {
        assert_eq!(BatchHeader::read(&golden(name, &header.to_bytes())), Ok(header));
    }
}

#[test]
fn a_segment_header_and_its_tail() {
    let header = SegmentHeader { topic: 1, number: 2, base_sequence: 3, instance: 0x1122_3344_5566_7788 };
    assert_eq!(SegmentHeader::read(&golden("segment-header", &header.to_bytes())), Some(header));
    for (name, sealed) in [("segment-tail", false), ("segment-tail-sealed", true)] {
        let tail = Tail { offset: 0x0102_0304_0506_0708, sealed };
        let bytes = golden(name, &tail.word().to_le_bytes());
        assert_eq!(Tail::from_word(u64::from_le_bytes(bytes.try_into().unwrap())), tail);
    }
}

/// A kind that is known and has no golden file fails here, and so does a file that nothing writes any more.
#[test]
fn nothing_is_left_out() {
    let names: BTreeSet<&str> = to_broker()
        .iter()
        .map(Direction::name)
        .chain(to_client().iter().map(Direction::name))
        .chain(["Publish"])
        .collect();
    let known = (0..=u8::MAX).filter(|kind| is_known::<ToBroker>(*kind) || is_known::<ToClient>(*kind)).count();
    assert_eq!(names.len(), known, "only {names:?} have golden bytes");

    let others = [
        "Subscribe-latest-segment",
        "Subscribe-earliest-message",
        "Subscribe-time-batch",
        "OpenTopic-defaults",
        "Hello-producer",
        "Hello-consumer",
        "Welcome",
        "Confirm",
        "Ready",
        "Refused",
        "batch",
        "batch-header",
        "batch-filler",
        "segment-header",
        "segment-tail",
        "segment-tail-sealed",
    ];
    let expected: BTreeSet<String> = names.into_iter().chain(others).map(|name| format!("{name}.hex")).collect();
    let entries = std::fs::read_dir(directory()).unwrap();
    let found: BTreeSet<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(found, expected);
}

fn is_known<M: Direction + Debug>(kind: u8) -> bool {
    let mut bytes = slot(16, 0);
    bytes[..4].copy_from_slice(&[MAGIC[0], MAGIC[1], VERSION, kind]);
    !matches!(M::decode(&bytes), Err(DecodeError::Kind { .. }))
}
