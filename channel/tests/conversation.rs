//! Two channels that talk at random never overrun each other's slots, never exceed their credits, and never starve.

mod slots;

use std::collections::VecDeque;

use keyway_channel::{Channel, Received};
use keyway_fabric::{LocalSpan, Memory, Op, Work};
use keyway_schema::limits::CONTROL_SLOT;
use keyway_schema::message::{Arm, Credit};
use keyway_schema::{ToBroker, ToBrokerRef};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::slots::{Bytes, config};

/// What one side may do next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Writes a message, if there is room.
    Say,
    /// Posts one piece of work.
    Transmit,
    /// Its oldest SEND arrives at the other side.
    Arrive,
    /// Its oldest arrived SEND completes.
    Complete,
    /// Looks at the oldest message that has arrived for it.
    Handle,
    /// Posts the slot of the oldest handled message again.
    Repost,
}

const STEPS: [Step; 6] = [Step::Say, Step::Transmit, Step::Arrive, Step::Complete, Step::Handle, Step::Repost];

/// One end of the conversation, with its part of the fabric.
struct Side {
    channel: Channel,
    memory: Bytes,
    /// Receives posted and not taken.
    posted: VecDeque<(Op, LocalSpan)>,
    /// SENDs posted that have not arrived.
    on_the_way: VecDeque<(Op, LocalSpan)>,
    /// SENDs that have arrived and not completed.
    arrived: VecDeque<Op>,
    /// Messages that have arrived here and were not looked at.
    inbox: VecDeque<(Op, LocalSpan)>,
    /// Receive slots of messages that were looked at.
    handled: VecDeque<Op>,
    said: u64,
    heard: u64,
}

impl Side {
    fn new(receive_slots: u16, send_slots: u16, peer_slots: u16) -> Self {
        let config = config(receive_slots, send_slots, peer_slots, CONTROL_SLOT);
        let mut side = Self {
            channel: Channel::new(config),
            memory: Bytes::of(&config),
            posted: VecDeque::new(),
            on_the_way: VecDeque::new(),
            arrived: VecDeque::new(),
            inbox: VecDeque::new(),
            handled: VecDeque::new(),
            said: 0,
            heard: 0,
        };
        // Neither side sends before the other's receives are posted: that is what the bootstrap's `Ready` is for.
        while side.transmit() {}
        side
    }

    fn say(&mut self) -> bool {
        if self.channel.room() == 0 {
            return false;
        }
        let message = ToBroker::from(Arm { subscription: 0, sequence: self.said });
        self.channel.send(&mut self.memory, &message).expect("an Arm fits a control slot");
        self.said += 1;
        true
    }

    fn transmit(&mut self) -> bool {
        let Some(post) = self.channel.transmit::<ToBroker>(&mut self.memory) else { return false };
        match post.work {
            Work::Recv { into } => self.posted.push_back((post.op, into)),
            Work::Send { from } => self.on_the_way.push_back((post.op, from)),
            other => panic!("a channel does not post {other:?}"),
        }
        true
    }

    fn arrive(&mut self, peer: &mut Self) -> bool {
        let Some((op, from)) = self.on_the_way.pop_front() else { return false };
        let (receive, into) = peer.posted.pop_front().expect("a SEND met no receive slot");
        assert!(from.len <= into.len, "a SEND of {} bytes met a slot of {}", from.len, into.len);
        let span = into.part(0, from.len);
        peer.memory.bytes_mut(span).copy_from_slice(self.memory.bytes(from));
        peer.inbox.push_back((receive, span));
        self.arrived.push_back(op);
        true
    }

    fn complete(&mut self) -> bool {
        let Some(op) = self.arrived.pop_front() else { return false };
        assert!(self.channel.done(op));
        true
    }

    fn handle(&mut self) -> bool {
        let Some((op, span)) = self.inbox.pop_front() else { return false };
        let received: Received<ToBrokerRef<'_>> =
            self.channel.receive(&self.memory, span).expect("the peer keeps the protocol");
        let message = received.message.to_message();
        if message != ToBroker::from(Credit {}) {
            assert_eq!(message, Arm { subscription: 0, sequence: self.heard }.into(), "messages arrive in order");
            self.heard += 1;
        }
        self.handled.push_back(op);
        true
    }

    fn repost(&mut self) -> bool {
        let Some(op) = self.handled.pop_front() else { return false };
        self.channel.repost(op);
        true
    }

    fn step(&mut self, step: Step, peer: &mut Self) -> bool {
        match step {
            Step::Say => self.say(),
            Step::Transmit => self.transmit(),
            Step::Arrive => self.arrive(peer),
            Step::Complete => self.complete(),
            Step::Handle => self.handle(),
            Step::Repost => self.repost(),
        }
    }

    /// The most messages that this side can be holding slots for is its own number of slots.
    fn check(&self) {
        let slots = usize::from(self.channel.config().receive_slots);
        assert!(self.posted.len() + self.inbox.len() + self.handled.len() <= slots);
    }
}

/// Does everything but saying new things until nothing is left to do. Two sides that have nothing to say must fall silent.
fn settle(sides: &mut [Side; 2]) {
    let [a, b] = sides;
    for _ in 0..10_000 {
        let mut worked = false;
        for step in &STEPS[1..] {
            worked |= a.step(*step, b);
            worked |= b.step(*step, a);
        }
        if !worked {
            return;
        }
    }
    panic!("two sides with nothing to say keep sending credits");
}

fn step() -> impl Strategy<Value = (bool, Step)> {
    (any::<bool>(), prop::sample::select(&STEPS[..]))
}

proptest! {
    #[test]
    fn a_random_conversation_keeps_its_credits_and_goes_on(
        slots in (4_u16..12, 4_u16..12),
        send_slots in (2_u16..12, 2_u16..12),
        steps in vec(step(), 0..600),
    ) {
        let mut sides =
            [Side::new(slots.0, send_slots.0, slots.1), Side::new(slots.1, send_slots.1, slots.0)];
        for (which, step) in steps {
            let [a, b] = &mut sides;
            let (actor, peer) = if which { (a, b) } else { (b, a) };
            actor.step(step, peer);
            actor.check();
            peer.check();
        }
        settle(&mut sides);
        // Whatever has happened, each can still say something, and it is heard: alone, and both at once.
        for speakers in [&[0][..], &[1], &[0, 1], &[1, 0]] {
            for _ in 0..30 {
                for speaker in speakers {
                    prop_assert!(sides[*speaker].say(), "side {speaker} starves");
                }
                settle(&mut sides);
            }
        }
        prop_assert_eq!((sides[0].said, sides[1].said), (sides[1].heard, sides[0].heard));
        prop_assert!(sides.iter().all(|side| side.channel.is_drained()));
    }
}

/// The worst that can happen to credits: each side says all that it can before it hears anything.
#[test]
fn two_sides_that_talk_at_once_do_not_lock_each_other_out() {
    for slots in 4..20 {
        let mut sides = [Side::new(slots, 32, slots), Side::new(slots, 32, slots)];
        for _ in 0..100 {
            for side in &mut sides {
                while side.say() {}
                while side.transmit() {}
            }
            settle(&mut sides);
            assert!(sides.iter().all(|side| side.channel.room() > 0), "with {slots} slots");
        }
        assert_eq!((sides[0].said, sides[1].said), (sides[1].heard, sides[0].heard));
        assert!(sides[0].said >= 100);
    }
}
