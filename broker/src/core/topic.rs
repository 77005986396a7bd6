//! A topic: its log, the batches that have a place in it and are not committed, its producers, and who wants to hear of it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use keyway_fabric::{LocalSpan, Op, RemoteSpan};
use keyway_schema::batch::BatchHeader;
use keyway_schema::record::batch_max;

use super::inspect::TopicView;
use super::log::Log;
use super::producers::Producers;
use super::slab::Place;

/// A subscription of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SubscriptionRef {
    pub(super) session: Place,
    pub(super) subscription: u32,
}

/// A topic.
#[derive(Clone, Debug)]
pub(super) struct Topic {
    pub(super) number: u32,
    pub(super) name: String,
    /// The most segments of its ring.
    pub(super) segments_max: u32,
    pub(super) record_max: u32,
    pub(super) log: Log,
    /// Segments that its ring has dropped and that are still covered.
    pub(super) limbo: u32,
    pub(super) producers: Producers,
    /// Which session publishes as which producer.
    pub(super) publishers: HashMap<u64, Place>,
    /// Batches with a place in the log, the first being the next to be committed. Empty unless an offered batch is being READ.
    pub(super) reservations: VecDeque<Reservation>,
    /// The ticket of the first reservation; they are numbered without gaps.
    pub(super) first_ticket: u64,
    /// Batches that wait for a segment, in order.
    pub(super) waiting: VecDeque<Waiting>,
    /// Whether the pool knows that it waits.
    pub(super) is_queued: bool,
    pub(super) listeners: Listeners,
}

/// A batch with a place in the log that is not committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation {
    /// The segment's number.
    pub(super) segment: u64,
    /// The byte in it.
    pub(super) at: u32,
    pub(super) len: u32,
    pub(super) producer: u64,
    /// The producer's batch number.
    pub(super) number: u64,
    /// Whom to tell.
    pub(super) session: Place,
    pub(super) state: ReservationState,
}

/// How far a reservation is.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReservationState {
    /// The batch is being READ.
    Reading,
    /// The batch is given up, but its READ may still write to its place.
    Failing,
    /// The batch is in its place and has been checked.
    Ready(BatchHeader),
    /// A filler is to stand in its place.
    Filler,
}

/// A batch that waits for a segment, in the receive slot that it came in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) session: Place,
    /// The receive's tag, to be posted again.
    pub(super) op: Op,
    pub(super) batch: Incoming,
}

/// A batch on its way into the log.
#[derive(Clone, Copy, Debug)]
pub(super) enum Incoming {
    /// In a receive slot, checked.
    Published {
        /// Its header.
        header: BatchHeader,
        /// Its bytes.
        span: LocalSpan,
    },
    /// At the producer.
    Offered {
        producer: u64,
        number: u64,
        /// Its bytes.
        from: RemoteSpan,
    },
}

impl Incoming {
    pub(super) const fn len(&self) -> u32 {
        match self {
            Self::Published { header, .. } => header.len,
            Self::Offered { from, .. } => from.len,
        }
    }

    /// Whose it is, and which of its batches.
    pub(super) const fn origin(&self) -> (u64, u64) {
        match self {
            Self::Published { header, .. } => (header.producer, header.number),
            Self::Offered { producer, number, .. } => (*producer, *number),
        }
    }
}

/// Who wants to hear of a topic. Each list holds a subscription once at most; the subscription knows in which it stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Listeners {
    /// Every subscription.
    pub(super) all: Vec<SubscriptionRef>,
    /// Who waits for the next record.
    pub(super) commits: Vec<SubscriptionRef>,
    /// Who waits for the next segment.
    pub(super) openings: Vec<SubscriptionRef>,
    /// Whose epoch ends when the tail gets to an offset.
    pub(super) offsets: BinaryHeap<Reverse<(u64, SubscriptionRef)>>,
    /// Whose epoch ends when the log gets to a sequence.
    pub(super) sequences: BinaryHeap<Reverse<(u64, SubscriptionRef)>>,
}

impl Listeners {
    /// Forgets a subscription.
    pub(super) fn remove(&mut self, subscription: SubscriptionRef) {
        let other = |entry: &SubscriptionRef| *entry != subscription;
        self.all.retain(other);
        self.commits.retain(other);
        self.openings.retain(other);
        self.offsets.retain(|Reverse((_, entry))| other(entry));
        self.sequences.retain(|Reverse((_, entry))| other(entry));
    }

    /// Takes the next subscription whose epoch ends at this tail.
    pub(super) fn pop_over(&mut self, tail: u64, sequence: u64) -> Option<SubscriptionRef> {
        let over = |heap: &mut BinaryHeap<Reverse<(u64, SubscriptionRef)>>, at: u64| {
            heap.peek().is_some_and(|Reverse((limit, _))| *limit <= at).then(|| heap.pop()).flatten()
        };
        let Reverse((_, subscription)) =
            over(&mut self.offsets, tail).or_else(|| over(&mut self.sequences, sequence))?;
        Some(subscription)
    }
}

impl Topic {
    pub(super) fn new(number: u32, name: &str, segments_max: u32, record_max: u32, log: Log) -> Self {
        Self {
            number,
            name: name.to_owned(),
            segments_max,
            record_max,
            log,
            limbo: 0,
            producers: Producers::default(),
            publishers: HashMap::new(),
            reservations: VecDeque::new(),
            first_ticket: 0,
            waiting: VecDeque::new(),
            is_queued: false,
            listeners: Listeners::default(),
        }
    }

    /// The largest batch that it takes, header included.
    pub(super) const fn batch_max(&self) -> u32 {
        batch_max(self.record_max)
    }

    /// A reservation, by its ticket.
    pub(super) fn reservation(&mut self, ticket: u64) -> Option<&mut Reservation> {
        let place = usize::try_from(ticket.checked_sub(self.first_ticket)?).ok()?;
        self.reservations.get_mut(place)
    }

    pub(super) fn view(&self) -> TopicView {
        TopicView {
            topic: self.number,
            name: self.name.clone(),
            oldest_sequence: self.log.oldest().sequence,
            next_sequence: self.log.next_sequence(),
            tail: self.log.offset(self.log.tail()),
            segments: self.log.len() as u32,
            reserved: self.reservations.len() as u32,
            waiting: self.waiting.len() as u32,
        }
    }
}
