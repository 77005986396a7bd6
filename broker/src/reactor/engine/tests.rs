//! How sessions are made, waited for and undone, on a fabric with nobody at the other end.

use keyway_fabric::soft::{Pipe, SoftConfig, SoftFabric};
use keyway_fabric::{Waker, drive};

use super::*;
use crate::inbox::{Mail, inbox};

const UP_TIMEOUT: Duration = Duration::from_secs(5);

struct Bench {
    fabric: SoftFabric,
    engine: Engine,
    inbox: Inbox,
    mail: Mail,
    now: Now,
}

impl Bench {
    fn new(fabric: SoftConfig) -> Self {
        let mut fabric = SoftFabric::new(fabric).unwrap();
        let domain = fabric.domain().unwrap();
        let pool = fabric.shared(domain, 16 << 20).unwrap();
        let config = CoreConfig::new(7, domain, pool, 16 << 20);
        let (inbox, mail) = inbox(4, Waker::new().unwrap());
        Self { fabric, engine: Engine::new(config, UP_TIMEOUT), inbox, mail, now: Now::default() }
    }

    fn open(&mut self, role: Role) -> Result<Opened, Refusal> {
        let opening = Opening { role, name: "test".to_owned(), receive_slots: 16, receive_size: 1024 };
        self.engine.open(self.now, &mut self.fabric, &self.inbox, &opening)
    }

    /// Turns until a turn does nothing, as the reactor does.
    fn settle(&mut self) {
        let mut events = Vec::new();
        let mut work = 1;
        while work > 0 || !events.is_empty() {
            work = 0;
            while let Some(id) = self.mail.next_loss() {
                self.engine.lost(self.now, id);
                work += 1;
            }
            work += drive(&mut self.engine, &mut self.fabric, self.now, &mut events).unwrap();
            while let Some(notice) = self.engine.core.poll_notice() {
                if let crate::core::Notice::SessionClosed { id, refusal, .. } = &notice {
                    self.engine.closed(*id, refusal.as_ref());
                }
                work += 1;
            }
        }
    }

    /// Nothing of any session is left, neither in the fabric nor in the tables.
    fn assert_empty(&self) {
        let holdings = self.fabric.holdings();
        assert_eq!((holdings.locals, holdings.endpoints, holdings.windows), (0, 0, 0));
        let Engine { sessions, by_link, by_token, deadlines, .. } = &self.engine;
        assert_eq!((sessions.len(), by_link.len(), by_token.len(), deadlines.len()), (0, 0, 0, 0));
        assert_eq!(self.engine.core.counters().sessions, 0);
    }
}

#[test]
fn a_session_that_gets_no_endpoint_leaves_nothing() {
    let mut bench = Bench::new(SoftConfig { endpoints_max: 0, ..SoftConfig::default() });
    let refusal = bench.open(Role::Producer).unwrap_err();
    assert_eq!(refusal.code, Code::SessionsExhausted);
    assert!(refusal.text.contains("no endpoints left"), "{}", refusal.text);
    bench.settle();
    bench.assert_empty();
}

#[test]
fn while_it_stops_no_session_is_opened() {
    let mut bench = Bench::new(SoftConfig::default());
    bench.engine.core.shut_down(bench.now, Duration::from_secs(1));
    assert_eq!(bench.open(Role::Consumer).unwrap_err().code, Code::ShuttingDown);
    bench.settle();
    bench.assert_empty();
}

#[test]
fn an_answer_that_nobody_takes_ends_its_session() {
    let mut bench = Bench::new(SoftConfig::default());
    for role in [Role::Producer, Role::Consumer] {
        drop(bench.open(role).unwrap());
    }
    bench.settle();
    bench.assert_empty();
}

#[test]
fn a_peer_that_does_not_come_is_given_up_at_its_deadline_and_not_before() {
    let mut bench = Bench::new(SoftConfig::default());
    let mut opened = bench.open(Role::Consumer).unwrap();
    assert_eq!(bench.engine.timeout(), Some(Time::ZERO + UP_TIMEOUT));
    bench.now.time = Time::ZERO + UP_TIMEOUT - Duration::from_nanos(1);
    bench.settle();
    assert!(opened.closed.try_recv().is_err());
    bench.now.time = Time::ZERO + UP_TIMEOUT;
    bench.settle();
    let reason = opened.closed.try_recv().unwrap().expect("the broker says why");
    assert_eq!(reason.code, Code::Timeout);
    drop(opened);
    bench.settle();
    bench.assert_empty();
}

#[test]
fn a_token_is_good_for_one_stream_and_dies_with_its_session() {
    let mut bench = Bench::new(SoftConfig::default());
    let opened = bench.open(Role::Consumer).unwrap();
    let token = Token::of(&opened.endpoint).unwrap();
    let attach = |bench: &mut Bench| {
        let (_client, broker) = Pipe::pair().unwrap();
        bench.engine.attach(bench.now, &mut bench.fabric, token, Stream::Memory(broker))
    };
    assert!(attach(&mut bench));
    assert!(!attach(&mut bench), "a second stream");
    drop(opened);
    bench.settle();
    bench.assert_empty();

    let opened = bench.open(Role::Consumer).unwrap();
    let token = Token::of(&opened.endpoint).unwrap();
    drop(opened);
    bench.settle();
    let (_client, broker) = Pipe::pair().unwrap();
    assert!(!bench.engine.attach(bench.now, &mut bench.fabric, token, Stream::Memory(broker)));
    bench.assert_empty();
}

#[test]
fn a_client_that_confirms_after_its_session_was_closed_is_told_so() {
    let mut bench = Bench::new(SoftConfig::default());
    let opened = bench.open(Role::Consumer).unwrap();
    let (id, endpoint) = (opened.session.id(), opened.endpoint.clone());
    bench.engine.lost(bench.now, id);
    bench.settle();
    let refusal = bench.engine.confirm(&mut bench.fabric, id, &endpoint).unwrap_err();
    assert_eq!(refusal.code, Code::Timeout);
}
