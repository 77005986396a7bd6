//! A broker that says anything at any time: nothing panics, nothing in flight or viewed is written to, and nothing is handed out that
//! is not valid. (The bench checks the last two whenever it takes a READ or an output.)

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Action {
    /// A message that the broker could send in some state.
    Tell(ToClient),
    /// A grant that is right up to now and then one field.
    Grant {
        segment: u64,
        supersedes: u64,
        change: Option<(u8, u64)>,
    },
    /// The oldest READ ends; with noise in place of what is in the log if so.
    Complete {
        noise: Option<u8>,
    },
    /// The oldest READ is refused.
    Refuse,
    Append {
        len: usize,
    },
    Seal,
    Wake,
    Advance {
        ms: u64,
    },
    /// The session is lost, and another made, of this broker instance.
    Reconnect {
        instance: u64,
    },
    Confirm {
        sequence: u64,
        start: bool,
    },
    /// The application keeps what it gets, or drops everything.
    Keep(bool),
    Leave,
    Seek {
        start: Start,
    },
}

/// Numbers that are often nearly right.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..12_u64,
        1 => any::<u64>(),
        1 => (0..6_u64, 0..3_u64).prop_map(|(segment, batch)| segment * u64::from(SEGMENT) + 4096 + batch * 8),
    ]
}

fn short() -> impl Strategy<Value = u32> {
    number().prop_map(|number| number as u32)
}

fn message() -> impl Strategy<Value = ToClient> {
    let subscription = prop_oneof![9 => Just(5_u32), 1 => short()];
    prop_oneof![
        (subscription.clone(), number()).prop_map(|(subscription, tail)| Wake { subscription, tail }.into()),
        (subscription.clone(), number(), number()).prop_map(|(subscription, sequence, offset)| Lagged {
            subscription,
            sequence,
            offset
        }
        .into()),
        (subscription, number()).prop_map(|(subscription, epoch)| Revoked { subscription, epoch, code: 0 }.into()),
        (short(), short()).prop_map(|(request, code)| {
            Failed { request, subject: 0, code: code as u16, text: "text".into() }.into()
        }),
        short().prop_map(|deadline_ms| ShuttingDown { deadline_ms }.into()),
        (short(), number()).prop_map(|(topic, number)| Withdraw { topic, number }.into()),
        Just(Credit {}.into()),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => message().prop_map(Action::Tell),
        8 => (0..5_u64, prop_oneof![2 => Just(0_u64), 1 => 0..12_u64], proptest::option::weighted(0.2, (0..9_u8, number())))
            .prop_map(|(segment, supersedes, change)| Action::Grant { segment, supersedes, change }),
        16 => proptest::option::weighted(0.1, any::<u8>()).prop_map(|noise| Action::Complete { noise }),
        1 => Just(Action::Refuse),
        8 => (0..16_000_usize).prop_map(|len| Action::Append { len }),
        1 => Just(Action::Seal),
        6 => Just(Action::Wake),
        2 => (0..3_000_u64).prop_map(|ms| Action::Advance { ms }),
        3 => (1..3_u64).prop_map(|instance| Action::Reconnect { instance }),
        4 => (number(), any::<bool>()).prop_map(|(sequence, start)| Action::Confirm { sequence, start }),
        2 => any::<bool>().prop_map(Action::Keep),
        1 => Just(Action::Leave),
        2 => prop_oneof![
            Just(Start::Earliest),
            Just(Start::Latest),
            number().prop_map(Start::Sequence),
            number().prop_map(Start::Time),
        ]
        .prop_map(|start| Action::Seek { start }),
    ]
}

impl Bench {
    fn act(&mut self, action: Action) {
        let can_tell = !self.receives.is_empty() && !self.closed;
        match action {
            Action::Tell(message) if can_tell => self.tell(message),
            Action::Grant { segment, supersedes, change } if can_tell => {
                self.epoch += 1;
                let mut grant = self.any_grant(segment, supersedes);
                if let Some((field, value)) = change {
                    distort(&mut grant, field, value);
                }
                self.tell(grant);
            }
            Action::Complete { noise } => {
                let Some(read) = self.reads.pop_front() else { return };
                let mut bytes = vec![noise.unwrap_or(0); read.from.len as usize];
                if noise.is_none() {
                    self.log.read_any(read.from, &mut bytes);
                }
                self.complete_with(read, &bytes);
            }
            Action::Refuse => self.fail_reads(WorkError::RemoteAccess),
            Action::Append { len } => drop(self.log.append_one(len)),
            Action::Seal => self.log.seal(),
            Action::Wake if can_tell => self.wake(),
            Action::Advance { ms } => self.advance(std::time::Duration::from_millis(ms)),
            Action::Reconnect { instance } => {
                self.down();
                self.connect(instance);
            }
            Action::Confirm { sequence, start } if can_tell => {
                let offset = if start { start_of(0) } else { self.log.tail };
                let sequence = if start { 0 } else { sequence };
                let told = self.subscribed_message(sequence, offset);
                self.tell(told);
            }
            Action::Keep(keep) => {
                self.kept = keep.then(Vec::new);
                self.run();
            }
            Action::Seek { start } => {
                self.seek(start);
            }
            Action::Leave => {
                self.machine.leave();
                self.run();
            }
            _ => {}
        }
    }

    /// A grant for the scope: a segment, or what was appended last.
    fn any_grant(&self, segment: u64, supersedes: u64) -> Grant {
        let grant = self.segment_grant(self.epoch, segment, supersedes);
        if self.machine.config().scope == Scope::Segment {
            return grant;
        }
        let (offset, len) =
            (start_of(segment), self.log.tail.saturating_sub(start_of(segment)).clamp(72, 16_000) as u32);
        Grant {
            offset,
            len: len / 8 * 8,
            address: grant.address + u64::from(SEGMENT_HEADER),
            sequence: self.machine.next_sequence(),
            records: 1,
            ..grant
        }
    }
}

impl Log {
    /// What is at a remote span, as far as there is anything.
    fn read_any(&self, from: RemoteSpan, into: &mut [u8]) {
        let segment = (from.address / STRIDE).checked_sub(1).and_then(|number| self.segments.get(&number));
        let at = (from.address % STRIDE) as usize;
        if let Some(bytes) = segment.and_then(|segment| segment.get(at..at + into.len())) {
            into.copy_from_slice(bytes);
        }
    }
}

fn distort(grant: &mut Grant, field: u8, value: u64) {
    match field {
        0 => grant.epoch = value,
        1 => grant.supersedes = value,
        2 => grant.offset = value,
        3 => grant.len = value as u32,
        4 => grant.address = value,
        5 => grant.sequence = value,
        6 => grant.records = value as u32,
        7 => grant.current_us = value as u32,
        _ => grant.subscription = value as u32,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_a_broker_says_panics(
        scope in prop_oneof![3 => Just(Scope::Segment), 1 => Just(Scope::Batch), 1 => Just(Scope::Message)],
        actions in proptest::collection::vec(action(), 1..200),
    ) {
        let mut bench = Bench::subscribed(scope);
        for action in actions {
            bench.act(action);
        }
        // Records of one instance are handed out in order, each once, between two seeks.
        let mut last = None;
        for item in bench.items() {
            match item {
                Item::Record(sequence) => {
                    prop_assert!(last.is_none_or(|last| last < sequence), "{sequence} after {last:?}");
                    last = Some(sequence);
                }
                Item::Lagged { from, to } => prop_assert!(from < to),
                Item::Restarted(_) | Item::Sought { .. } => last = None,
            }
        }
    }
}
