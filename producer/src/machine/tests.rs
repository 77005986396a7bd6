//! The machine, fed by hand: what it sends in which order, and what it makes of every answer in every state.

use super::*;

use keyway_channel::ChannelConfig;
use keyway_client::ErrorKind;
use keyway_fabric::soft::{SoftConfig, SoftFabric};
use keyway_fabric::{
    DownCause, EndpointAddress, EndpointConfig, Fabric, Key, LocalSpan, Op, Outcome as Done, Work, WorkError,
};
use keyway_schema::batch::{BATCH_HEADER_LEN, Batch, BatchBuilder};
use keyway_schema::limits::{CONTROL_SLOT, PUBLISH_SLOT};
use keyway_schema::message::{
    Commit, Committed, Credit, Failed, Lagged, Offer, Publish, ShuttingDown, TopicOpened, Withdraw,
};
use keyway_schema::record::{RecordRef, batch_max};
use keyway_schema::{Code, ToBrokerRef, ToClient, TopicName};

const GENERATION: u32 = 5;
const TOPIC: u32 = 3;
const RECORD_MAX: u32 = 200_000;
const SLOTS: u16 = 6;

/// A machine, the memory that it works in, and what it has asked for.
struct Bench {
    fabric: SoftFabric,
    domain: DomainId,
    machine: ProducerMachine,
    link: LinkId,
    /// Receives that wait for a message.
    receives: VecDeque<(Op, LocalSpan)>,
    /// What was sent and not looked at: messages, with the batch of a `Publish`.
    sent: VecDeque<(ToBroker, Vec<u8>)>,
    /// Binds and unbinds that are posted and not completed.
    work: VecDeque<(Op, Work)>,
    closed: bool,
    now: Now,
}

impl Bench {
    fn new() -> Self {
        let mut fabric = SoftFabric::new(SoftConfig::default()).unwrap();
        let domain = fabric.domain().unwrap();
        let machine = ProducerMachine::new(ProducerConfig {
            topic: TopicName::new("t").unwrap(),
            settings: None,
            producer: 77,
            server: "keyway://test:1".into(),
            offer_memory: 1 << 20,
        });
        let (link, _) = Self::endpoint(&mut fabric, domain);
        Self {
            fabric,
            domain,
            machine,
            link,
            receives: VecDeque::new(),
            sent: VecDeque::new(),
            work: VecDeque::new(),
            closed: false,
            now: Now::default(),
        }
    }

    fn endpoint(fabric: &mut SoftFabric, domain: DomainId) -> (LinkId, EndpointAddress) {
        fabric.endpoint(EndpointConfig { domain, send_depth: 16, receive_depth: 16, remote_read: true }).unwrap()
    }

    /// A new session with broker `instance`, which the machine has not opened its topic in.
    fn connect(&mut self, instance: u64) {
        let (link, _) = Self::endpoint(&mut self.fabric, self.domain);
        self.link = link;
        self.closed = false;
        let channel = ChannelConfig {
            link,
            generation: GENERATION,
            receive: self.fabric.local(self.domain, SLOTS.into(), CONTROL_SLOT).unwrap(),
            receive_slots: SLOTS,
            receive_size: CONTROL_SLOT,
            send: self.fabric.local(self.domain, SLOTS.into(), PUBLISH_SLOT).unwrap(),
            send_slots: SLOTS,
            send_size: PUBLISH_SLOT,
            peer_slots: SLOTS,
            peer_size: PUBLISH_SLOT,
        };
        self.machine.connected(&Connected { instance, session: 1, channel, domain: self.domain, offers: 2 });
        self.turn();
    }

    /// A session in which the topic is open.
    fn open(&mut self, instance: u64, last_number: u64) {
        self.connect(instance);
        let (ToBroker::OpenTopic(open), _) = self.expect_sent() else { panic!("the topic is opened first") };
        assert_eq!((open.topic.as_str(), open.producer), ("t", 77));
        self.tell(opened(open.request, last_number));
    }

    /// Does what the machine wants; sends complete at once.
    fn turn(&mut self) {
        while let Some(transmit) = self.machine.transmit(self.now, &mut self.fabric) {
            match transmit {
                Transmit::Post { op, work: Work::Recv { into }, .. } => self.receives.push_back((op, into)),
                Transmit::Post { link, op, work: Work::Send { from } } => {
                    let bytes = self.fabric.bytes(from);
                    let (envelope, message) = ToBrokerRef::decode(bytes).unwrap();
                    assert_eq!(envelope.generation, GENERATION);
                    let attachment = bytes[envelope.attachment_start()..].to_vec();
                    self.sent.push_back((message.to_message(), attachment));
                    self.handle(Event::Done { link, op, result: Ok(Done::Finished) });
                }
                Transmit::Post { op, work, .. } => self.work.push_back((op, work)),
                Transmit::Close { link } => {
                    assert_eq!(link, self.link);
                    self.closed = true;
                }
                Transmit::Allocate { op, domain } => {
                    let result = self.fabric.window(domain);
                    self.handle(Event::Allocated { op, result });
                }
                Transmit::FreeWindow { window } => self.fabric.free_window(window).unwrap(),
                Transmit::FreeLocal { .. } => panic!("the driver's business"),
            }
            self.lend();
        }
    }

    fn lend(&mut self) {
        if let Some((slots, slot_len)) = self.machine.offer_memory_wanted() {
            let shared = self.fabric.shared(self.domain, u64::from(slots) * slot_len).unwrap();
            self.machine.lend(OfferMemory { shared, slots, slot_len });
        }
    }

    fn handle(&mut self, event: Event) {
        self.machine.handle(self.now, event, &mut self.fabric);
    }

    /// A message of the broker comes, with a credit for every receive slot that it has used.
    fn tell(&mut self, message: impl Into<ToClient>) {
        let (op, into) = self.receives.pop_front().expect("a receive is posted");
        let credits = self.used_credits();
        let end = message.into().encode(GENERATION, credits, 0, self.fabric.bytes_mut(into)).unwrap();
        self.handle(Event::Message { link: self.link, op, span: into.part(0, end as u32) });
        self.lend();
        self.turn();
    }

    fn used_credits(&self) -> u16 {
        let room = self.machine.session.as_ref().map_or(0, |session| session.channel.room());
        SLOTS - 1 - room as u16
    }

    /// Completes the oldest bind or unbind.
    fn complete_work(&mut self) {
        let (op, work) = self.work.pop_front().expect("work is posted");
        let outcome = if matches!(work, Work::Bind { .. }) { Done::Bound(Key(0)) } else { Done::Unbound };
        self.handle(Event::Done { link: self.link, op, result: Ok(outcome) });
        self.turn();
    }

    fn down(&mut self) {
        while let Some((op, _)) = self.work.pop_front() {
            self.handle(Event::Done { link: self.link, op, result: Err(WorkError::Flushed) });
        }
        self.receives.clear();
        self.sent.clear();
        self.handle(Event::Down { link: self.link, cause: DownCause::PeerLost });
        self.turn();
    }

    fn submit(&mut self, len: usize) -> Ticket {
        let mut builder = BatchBuilder::default();
        builder.push(RecordRef { key: b"", headers: b"", payload: &vec![7; len] });
        let (bytes, records) = builder.into_unsealed();
        let ticket = self.machine.submit(bytes, records);
        self.lend();
        self.turn();
        ticket
    }

    fn expect_sent(&mut self) -> (ToBroker, Vec<u8>) {
        self.sent.pop_front().expect("a message was sent")
    }

    /// The number of the batch that was published next.
    fn expect_publish(&mut self) -> u64 {
        let (message, batch) = self.expect_sent();
        assert!(matches!(message, ToBroker::Publish(Publish { topic: TOPIC })), "{message:?}");
        let header = *Batch::read(&batch).expect("what is sent is a valid batch").header();
        assert_eq!((header.topic, header.producer), (TOPIC, 77));
        header.number
    }

    fn outcomes(&mut self) -> Vec<(u64, Result<u64, ErrorKind>)> {
        std::iter::from_fn(|| self.machine.poll_outcome())
            .map(|outcome| (outcome.ticket.0, outcome.result.map(|(sequence, _)| sequence).map_err(|e| e.kind())))
            .collect()
    }
}

fn opened(request: u32, last_number: u64) -> TopicOpened {
    TopicOpened {
        request,
        topic: TOPIC,
        next_sequence: 0,
        record_max: RECORD_MAX,
        batch_max: batch_max(RECORD_MAX),
        last_number,
    }
}

fn committed(numbers: impl IntoIterator<Item = u64>) -> Committed {
    let commit = |number| Commit { number, base_sequence: number * 10, time: number };
    Committed { topic: TOPIC, commits: numbers.into_iter().map(commit).collect() }
}

fn failed(request: u32, code: Code) -> Failed {
    Failed { request, subject: 0, code: code.number(), text: "no".into() }
}

#[test]
fn a_batch_is_published_and_its_commit_is_its_receipt() {
    let mut bench = Bench::new();
    bench.open(1, 0);
    assert!(bench.machine.room());
    bench.submit(100);
    bench.submit(0);
    assert_eq!((bench.expect_publish(), bench.expect_publish()), (1, 2));
    bench.tell(committed([1, 2]));
    assert_eq!(bench.outcomes(), [(1, Ok(10)), (2, Ok(20))]);
    assert_eq!(bench.machine.in_flight(), 0);
}

#[test]
fn there_is_room_exactly_while_a_batch_would_be_sent_at_once() {
    let mut bench = Bench::new();
    assert!(!bench.machine.room(), "no session");
    bench.connect(1);
    assert!(!bench.machine.room(), "the topic is not open");
    let (ToBroker::OpenTopic(open), _) = bench.expect_sent() else { panic!("the topic is opened first") };
    bench.tell(opened(open.request, 0));
    let mut taken = 0;
    while bench.machine.room() {
        bench.submit(10);
        taken += 1;
    }
    // One credit and one send slot are kept for the channel's own message.
    assert_eq!(taken, SLOTS - 1);
    bench.tell(committed([1]));
    assert!(bench.machine.room(), "the credits came with the answer");
}

#[test]
fn a_batch_in_flight_is_bounded_by_what_the_broker_remembers() {
    let mut bench = Bench::new();
    bench.open(1, 0);
    for number in 1..=IN_FLIGHT_MAX as u64 {
        assert!(bench.machine.room(), "{number}");
        bench.submit(1);
        bench.tell(Credit {});
    }
    assert!(!bench.machine.room());
    bench.tell(committed([1]));
    assert!(bench.machine.room());
}

#[test]
fn a_large_batch_is_offered_behind_its_bind_and_unbound_when_it_was_read() {
    let mut bench = Bench::new();
    bench.open(1, 0);
    bench.submit(100_000);
    bench.submit(10);
    let (_, bind) = bench.work[0];
    let Work::Bind { window, span, .. } = bind else { panic!("a window is bound: {bind:?}") };
    assert_eq!(span.len as usize, BATCH_HEADER_LEN + 100_008);
    let (ToBroker::Offer(offer), _) = bench.expect_sent() else { panic!("the batch is offered") };
    assert_eq!((offer.topic, offer.number, u64::from(offer.len)), (TOPIC, 1, span.len));
    assert_eq!((offer.address, Key(offer.key)), (bench.fabric.address(span), bench.fabric.key(window)));
    assert_eq!(bench.expect_publish(), 2, "the next one follows at once");
    let mut bytes = vec![0; span.len as usize];
    bench.fabric.load(span, &mut bytes);
    assert_eq!(Batch::read(&bytes).unwrap().header().number, 1);

    bench.complete_work();
    bench.tell(Withdraw { topic: TOPIC, number: 1 });
    assert!(matches!(bench.work[0].1, Work::Unbind { .. }));
    bench.complete_work();
    assert!(bench.outcomes().is_empty(), "read is not committed");
    bench.tell(committed([1, 2]));
    assert_eq!(bench.outcomes(), [(1, Ok(10)), (2, Ok(20))]);
    assert_eq!(bench.machine.counts().offers, 1);
}

#[test]
fn an_offer_that_was_not_answered_is_made_again_from_memory_of_the_next_fabric() {
    let mut bench = Bench::new();
    bench.open(1, 0);
    bench.submit(100_000);
    assert!(matches!(bench.work.front(), Some((_, Work::Bind { .. }))));
    bench.down();
    bench.machine.memory_lost();
    bench.fabric = SoftFabric::new(SoftConfig::default()).unwrap();
    // So that no id of the former fabric happens to be one of this.
    let first = bench.fabric.domain().unwrap();
    bench.fabric.shared(first, 4096).unwrap();
    bench.domain = bench.fabric.domain().unwrap();
    bench.open(1, 0);
    let Some((_, Work::Bind { span, .. })) = bench.work.front().copied() else { panic!("it is lent again") };
    let mut bytes = vec![0; span.len as usize];
    bench.fabric.load(span, &mut bytes);
    assert_eq!(Batch::read(&bytes).expect("the batch is in it").header().number, 1);
    bench.complete_work();
    bench.tell(committed([1]));
    assert_eq!(bench.outcomes(), [(1, Ok(10))]);
}

#[test]
fn batches_behind_an_offer_that_cannot_be_made_yet_wait_for_it() {
    let mut bench = Bench::new();
    bench.open(1, 0);
    for _ in 0..3 {
        bench.submit(100_000);
    }
    bench.submit(10);
    let numbers: Vec<_> = std::iter::from_fn(|| bench.sent.pop_front())
        .map(|(message, _)| match message {
            ToBroker::Offer(offer) => offer.number,
            other => panic!("only offers can go: {other:?}"),
        })
        .collect();
    assert_eq!(numbers, [1, 2], "the broker allows two");
    assert!(!bench.machine.room());
    bench.complete_work();
    bench.complete_work();
    bench.tell(committed([1]));
    bench.complete_work();
    assert!(matches!(bench.expect_sent().0, ToBroker::Offer(Offer { number: 3, .. })));
    assert_eq!(bench.expect_publish(), 4);
}

#[test]
fn what_is_unanswered_is_sent_again_in_the_next_session() {
    let mut bench = Bench::new();
    bench.open(1, 0);
    for len in [10, 100_000, 20] {
        bench.submit(len);
    }
    bench.tell(committed([1]));
    bench.down();
    assert!(!bench.machine.room());
    bench.open(1, 2);
    assert!(matches!(bench.expect_sent().0, ToBroker::Offer(Offer { number: 2, .. })));
    assert_eq!(bench.expect_publish(), 3);
    bench.tell(committed([2, 3]));
    assert_eq!(bench.outcomes(), [(1, Ok(10)), (2, Ok(20)), (3, Ok(30))]);
    let counts = bench.machine.counts();
    assert_eq!((counts.retries, counts.reconnects, counts.batches), (2, 1, 3));
}

#[test]
fn a_restarted_broker_gets_what_is_unanswered_under_new_numbers() {
    let mut bench = Bench::new();
    bench.open(1, 0);
    for _ in 0..3 {
        bench.submit(10);
    }
    bench.tell(committed([1, 2]));
    bench.down();
    bench.open(2, 0);
    assert_eq!(bench.expect_publish(), 1);
    bench.tell(committed([1]));
    assert_eq!(bench.outcomes(), [(1, Ok(10)), (2, Ok(20)), (3, Ok(10))]);
}

#[test]
fn the_batch_that_the_broker_refused_fails_and_the_others_go_on() {
    let mut bench = Bench::new();
    bench.open(1, 0);
    for _ in 0..3 {
        bench.submit(10);
    }
    bench.tell(failed(0, Code::BatchInvalid));
    assert!(bench.closed);
    let reason = bench.machine.take_reason().unwrap();
    assert_eq!(reason.kind(), ErrorKind::Refused(Code::BatchInvalid));
    bench.down();
    bench.open(1, 1);
    assert_eq!(bench.outcomes(), [(2, Err(ErrorKind::Refused(Code::BatchInvalid)))]);
    assert_eq!((bench.expect_publish(), bench.expect_publish()), (1, 2));
    bench.tell(committed([1, 2]));
    assert_eq!(bench.outcomes(), [(1, Ok(10)), (3, Ok(20))]);
}

#[test]
fn a_refusal_that_comes_on_the_bootstrap_stream_alone_counts_as_well() {
    let mut bench = Bench::new();
    bench.open(1, 0);
    bench.submit(10);
    bench.down();
    let said = Error::refused("to go on with the session", Code::BatchInvalid.number(), "no");
    let cause = bench.machine.session_over(said);
    assert_eq!(cause.kind(), ErrorKind::Refused(Code::BatchInvalid));
    bench.open(1, 0);
    assert_eq!(bench.outcomes(), [(1, Err(ErrorKind::Refused(Code::BatchInvalid)))]);
}

#[test]
fn a_batch_that_a_recreated_topic_does_not_take_fails_alone() {
    let mut bench = Bench::new();
    bench.open(1, 0);
    bench.submit(1000);
    bench.submit(10);
    bench.down();
    bench.connect(2);
    let (ToBroker::OpenTopic(open), _) = bench.expect_sent() else { panic!("the topic is opened first") };
    bench.tell(TopicOpened { record_max: 100, batch_max: batch_max(100), ..opened(open.request, 0) });
    assert_eq!(bench.outcomes(), [(1, Err(ErrorKind::Refused(Code::BatchTooLarge)))]);
    assert_eq!(bench.expect_publish(), 1);
}

#[test]
fn a_topic_that_is_refused_for_good_is_fatal_and_one_that_is_not_is_asked_for_again() {
    for (code, fatal) in [(Code::Settings, true), (Code::Name, true), (Code::TopicsExhausted, false)] {
        let mut bench = Bench::new();
        bench.connect(1);
        bench.tell(failed(1, code));
        assert!(bench.closed, "{code:?}");
        assert_eq!(bench.machine.fatal().map(Error::kind), fatal.then_some(ErrorKind::Refused(code)));
    }
}

#[test]
fn a_topic_that_is_not_opened_in_time_ends_the_session() {
    let mut bench = Bench::new();
    bench.connect(1);
    let at = bench.machine.timeout().unwrap();
    bench.now.time = at;
    bench.machine.handle_timeout(bench.now, &mut bench.fabric);
    bench.turn();
    assert!(bench.closed);
    assert_eq!(bench.machine.take_reason().unwrap().kind(), ErrorKind::Timeout);
}

#[test]
fn it_leaves_when_everything_is_answered_and_unbound() {
    let mut bench = Bench::new();
    bench.open(1, 0);
    bench.submit(100_000);
    bench.machine.leave();
    bench.sent.clear();
    bench.complete_work();
    bench.tell(committed([1]));
    assert!(bench.sent.is_empty() && !bench.machine.has_left(), "its window is bound");
    bench.complete_work();
    assert!(matches!(bench.expect_sent().0, ToBroker::Goodbye(_)));
    assert!(bench.machine.has_left());
}

#[test]
fn it_takes_nothing_while_the_broker_stops_and_goes_on_with_the_next() {
    let mut bench = Bench::new();
    bench.open(1, 0);
    bench.submit(10);
    bench.tell(ShuttingDown { deadline_ms: 100 });
    assert!(bench.machine.is_shutting_down() && !bench.machine.room());
    bench.expect_publish();
    assert!(bench.sent.is_empty());
    bench.tell(committed([1]));
    assert_eq!(bench.outcomes(), [(1, Ok(10))]);
    assert!(matches!(bench.expect_sent().0, ToBroker::Goodbye(_)), "the broker need not wait for this session");
    bench.down();
    assert_eq!(bench.machine.take_reason().unwrap().kind(), ErrorKind::ShuttingDown);
    bench.open(2, 0);
    assert!(!bench.machine.is_shutting_down() && bench.machine.room());
}

#[test]
fn every_answer_in_every_state() {
    type Prepare = fn(&mut Bench);
    let states: [(&str, Prepare); 4] = [
        ("ExpectOpened", |bench| bench.connect(1)),
        ("Open", |bench| bench.open(1, 0)),
        ("Open, 1 sent", |bench| {
            bench.open(1, 0);
            bench.submit(10);
        }),
        ("Left", |bench| {
            bench.open(1, 0);
            bench.machine.leave();
            bench.turn();
        }),
    ];
    let events: [(&str, ToClient); 8] = [
        ("TopicOpened", opened(1, 0).into()),
        ("TopicOpened, other", opened(9, 0).into()),
        ("Committed 1", committed([1]).into()),
        ("Committed 2", committed([2]).into()),
        ("Committed, other topic", Committed { topic: 9, ..committed([1]) }.into()),
        ("Withdraw 1", Withdraw { topic: TOPIC, number: 1 }.into()),
        ("Failed 0", failed(0, Code::Internal).into()),
        ("Lagged", Lagged { subscription: 1, sequence: 1, offset: 1 }.into()),
    ];
    let mut table = String::new();
    for (state, prepare) in &states {
        for (name, message) in &events {
            let mut bench = Bench::new();
            prepare(&mut bench);
            bench.tell(message.clone());
            let outcome = if bench.closed {
                bench.machine.take_reason().map_or_else(|| "closed".into(), |reason| format!("{:?}", reason.kind()))
            } else {
                format!("open: {}, answered: {}", bench.machine.is_open(), bench.outcomes().len())
            };
            table += &format!("{state} + {name} -> {outcome}\n");
        }
    }
    assert_eq!(table, include_str!("table.txt"), "the table is now:\n{table}");
}
