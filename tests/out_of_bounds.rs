//! T21: a consumer that READs before, beyond or across its grant, or with a key that is not its own, is refused.
//!
//! Not every device checks a window's bounds: where it does not, what depends on them is listed as ignored, with the reason.

mod bus;

use std::process::ExitCode;
use std::time::Duration;

use keyway::Scope;
use keyway_fabric::{DownCause, FabricOptions, Key, RemoteSpan, WorkError};
use keyway_schema::message::Grant;
use keyway_schema::record::RecordRef;
use libtest_mimic::Arguments;

use crate::bus::raw::{RawSession, Way, granted, subscription};
use crate::bus::{Watchdog, small_broker, trial, until_counters, way};

const LIMIT: Duration = Duration::from_secs(120);

const SCOPES: [Scope; 3] = [Scope::Message, Scope::Batch, Scope::Segment];

/// What a READ does wrong, given what it might.
type Trespass = (&'static str, fn(RemoteSpan) -> RemoteSpan);

/// Within the pool, and outside the window.
const OUT_OF_BOUNDS: [Trespass; 9] = [
    ("just before", |granted| RemoteSpan { address: granted.address - 8, len: 8, ..granted }),
    ("one byte before", |granted| RemoteSpan { address: granted.address - 1, len: 1, ..granted }),
    ("across its start", |granted| RemoteSpan { address: granted.address - 8, len: 16, ..granted }),
    ("one byte too early", |granted| RemoteSpan { address: granted.address - 1, ..granted }),
    ("just beyond", |granted| RemoteSpan { address: end(granted), len: 8, ..granted }),
    ("one byte beyond", |granted| RemoteSpan { address: end(granted), len: 1, ..granted }),
    ("across its end", |granted| RemoteSpan { address: end(granted) - 8, len: 16, ..granted }),
    ("one byte too long", |granted| RemoteSpan { len: granted.len + 1, ..granted }),
    ("around it", |granted| RemoteSpan { address: granted.address - 8, len: granted.len + 16, ..granted }),
];

/// What every device refuses.
const FOREIGN: [Trespass; 6] = [
    ("far away", |granted| RemoteSpan { address: granted.address.wrapping_add(1 << 40), len: 8, ..granted }),
    ("at zero", |granted| RemoteSpan { address: 0, len: 8, ..granted }),
    ("at the end of the address space", |granted| RemoteSpan { address: u64::MAX - 3, len: 8, ..granted }),
    ("with the next key", |granted| RemoteSpan { key: Key(granted.key.0 ^ 1), ..granted }),
    ("with the key of a window that there is not", |granted| RemoteSpan {
        key: Key(granted.key.0 ^ 0x00ff_0000),
        ..granted
    }),
    ("with no key", |granted| RemoteSpan { key: Key(0), ..granted }),
];

fn end(granted: RemoteSpan) -> u64 {
    granted.address + u64::from(granted.len)
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let opened = FabricOptions::new(bus::fabric()).open().expect("the fabric under test can be opened");
    let unenforced = (!opened.fabric.capabilities().bounds_enforced).then(|| {
        format!("{} lets a READ with a window's key reach everything that was registered with it", opened.fabric.name())
    });
    drop(opened);
    let mut trials = vec![trial("a_grant_opens_exactly_its_record", None, a_grant_opens_exactly_its_record)];
    for scope in SCOPES {
        let title = |what| format!("{}::{what}", format!("{scope:?}").to_lowercase());
        trials.push(trial(title("a_foreign_read_is_refused"), None, move || refused(scope, &FOREIGN)));
        let obstacle = unenforced.clone();
        trials.push(trial(title("a_read_out_of_bounds_is_refused"), obstacle, move || refused(scope, &OUT_OF_BOUNDS)));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A fresh consumer's session, and the second record's grant, which has neighbours in memory on both sides.
fn second_grant(way: &Way, scope: Scope) -> (RawSession, Grant) {
    let mut consumer = RawSession::consumer(way);
    consumer.subscribe(subscription("bounds", scope, 60_000_000, 8));
    let mut grant = consumer.receive_grant();
    if scope == Scope::Message {
        grant = consumer.receive_grant();
    }
    (consumer, grant)
}

/// Each is refused, and costs its own session and no other.
fn refused(scope: Scope, trespasses: &[Trespass]) {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let way = way(&broker);
    let mut producer = RawSession::producer(&way);
    let opened = producer.open_topic("bounds", 7);
    producer.commit(opened.topic, 7, 1, &[b"the first record", b"the second record", b"the third record"]);
    for (name, trespass) in trespasses {
        let (mut consumer, grant) = second_grant(&way, scope);
        let inside = RemoteSpan { len: grant.len.min(4096), ..granted(&grant) };
        assert!(consumer.read(inside).is_ok(), "the grant itself may be READ");
        assert_eq!(consumer.read(trespass(granted(&grant))), Err(WorkError::RemoteAccess), "{name}");
        assert_eq!(consumer.expect_down(), DownCause::Work(WorkError::RemoteAccess), "{name}");
    }
    assert!(producer.is_up(), "the producer has nothing to do with it");
    let expected = trespasses.len() as u64;
    until_counters(&broker, "each refusal to be counted", |counters| counters.remote_access_violations == expected);
    until_counters(&broker, "every window to be freed", |counters| counters.windows == 0);
}

fn a_grant_opens_exactly_its_record() {
    let _watchdog = Watchdog::start(LIMIT);
    let broker = small_broker().start().expect("the settings fit each other");
    let way = way(&broker);
    let mut producer = RawSession::producer(&way);
    let opened = producer.open_topic("bounds", 7);
    producer.commit(opened.topic, 7, 1, &[b"the first record", b"the second record", b"the third record"]);
    let (mut consumer, grant) = second_grant(&way, Scope::Message);
    let bytes = consumer.read(granted(&grant)).expect("the key is live");
    let record = RecordRef::read(&bytes).expect("a record's grant holds a record");
    assert_eq!((record.payload, record.encoded_len()), (&b"the second record"[..], bytes.len()));
    assert_eq!(grant.sequence, 1);
}
