//! Offers: batches that are too large for a slot, lent to the broker through windows of the producer's own.
//!
//! The offer memory is cut into slots of one batch each, and each slot has its window:
//!
//! ```text
//! Idle -> Binding -> Offered -> Ending -> Unbinding -> Idle
//! ```
//!
//! Binding lasts until the bind's completion, Offered until the broker has withdrawn or committed the batch. The broker's READs are
//! over by then, so a slot is overwritten only after its window was unbound. A window's keys repeat after 256 binds and
//! unbinds; it is replaced before that, and with every session.

use std::collections::VecDeque;

use keyway_fabric::{Access, DomainId, LinkId, Op, SharedId, SharedSpan, Transmit, WindowId, Work};

/// The high bytes of the tags of binds, unbinds and allocations. The channel's are 0xc0 and 0xc1.
const BIND: u64 = 0xd0 << 56;
const UNBIND: u64 = 0xd1 << 56;
const ALLOCATE: u64 = 0xd2 << 56;
const KIND: u64 = 0xff << 56;

/// Binds and unbinds after which a window is replaced: two short of the 256 after which its first key would be valid again.
const STEPS_MAX: u32 = 254;

/// Memory for offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferMemory {
    /// The memory: `slots * slot_len` bytes.
    pub shared: SharedId,
    /// How many batches it holds.
    pub slots: u32,
    /// The length of one slot.
    pub slot_len: u64,
}

/// How far a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// The bind is posted; `ended` says that the broker is done already.
    Binding {
        number: u64,
        ended: bool,
    },
    Offered {
        number: u64,
    },
    /// The broker is done; the unbind is to be posted.
    Ending,
    Unbinding,
}

#[derive(Clone, Debug)]
struct Slot {
    state: State,
    window: Option<WindowId>,
    /// Whether a window was asked for and not yet given.
    allocating: bool,
    /// Binds and unbinds of the window so far.
    steps: u32,
}

/// The offers of a producer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offers {
    memory: Option<OfferMemory>,
    slots: Vec<Slot>,
    /// Windows to be freed and allocated.
    chores: VecDeque<Transmit>,
}

/// A slot that is ready to be bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    index: usize,
    window: WindowId,
    pub(crate) span: SharedSpan,
}

impl Offers {
    /// Gives it memory, in the place of any that it had. All slots must be idle: there is no session, or no offer yet.
    pub(crate) fn lend(&mut self, memory: OfferMemory) {
        self.session_lost();
        let slot = Slot { state: State::Idle, window: None, allocating: false, steps: 0 };
        self.slots = vec![slot; memory.slots as usize];
        self.memory = Some(memory);
    }

    /// The longest batch that can be offered.
    pub(crate) fn len_max(&self) -> u64 {
        self.memory.map_or(0, |memory| memory.slot_len)
    }

    /// A slot to offer a batch of `len` bytes in, if one is ready; else one is being made ready. At most `limit` are used.
    pub(crate) fn ready(&mut self, len: u64, limit: u16, domain: DomainId) -> Option<Ready> {
        let memory = self.memory?;
        debug_assert!(len <= memory.slot_len, "whoever offers a batch has made room for it");
        let busy = self.slots.iter().filter(|slot| slot.state != State::Idle).count();
        if busy >= usize::from(limit) {
            return None;
        }
        let idle = self.slots.iter().position(|slot| slot.state == State::Idle && slot.window.is_some());
        let Some(index) = idle else {
            self.allocate(domain);
            return None;
        };
        let window = self.slots[index].window?;
        let offset = index as u64 * memory.slot_len;
        Some(Ready { index, window, span: SharedSpan { shared: memory.shared, offset, len } })
    }

    fn allocate(&mut self, domain: DomainId) {
        if self.slots.iter().any(|slot| slot.allocating) {
            return;
        }
        let lacking = self.slots.iter().position(|slot| slot.state == State::Idle && slot.window.is_none());
        if let Some(index) = lacking {
            self.slots[index].allocating = true;
            self.chores.push_back(Transmit::Allocate { op: Op(ALLOCATE | index as u64), domain });
        }
    }

    /// A window was allocated, or not. Returns whether the tag was one of these.
    pub(crate) fn allocated(&mut self, op: Op, window: Option<WindowId>) -> bool {
        if op.0 & KIND != ALLOCATE {
            return false;
        }
        match self.slots.get_mut(index(op)) {
            Some(slot) if slot.allocating => {
                slot.allocating = false;
                slot.window = window;
                slot.steps = 0;
            }
            // The memory was replaced meanwhile.
            _ => self.chores.extend(window.map(|window| Transmit::FreeWindow { window })),
        }
        true
    }

    /// Binds a slot to the batch that lies in it.
    pub(crate) fn bind(&mut self, link: LinkId, ready: Ready, number: u64) -> (Transmit, WindowId) {
        let slot = &mut self.slots[ready.index];
        slot.state = State::Binding { number, ended: false };
        slot.steps += 1;
        let work = Work::Bind { window: ready.window, span: ready.span, access: Access::Read };
        (Transmit::Post { link, op: Op(BIND | ready.index as u64), work }, ready.window)
    }

    /// The broker is done with every offered batch up to `number`: it has READ or committed them.
    pub(crate) fn ended(&mut self, number: u64) {
        for slot in &mut self.slots {
            match &mut slot.state {
                State::Binding { number: offered, ended } if *offered <= number => *ended = true,
                State::Offered { number: offered } if *offered <= number => slot.state = State::Ending,
                _ => {}
            }
        }
    }

    /// A piece of work was completed. Returns whether the tag was one of these. A failure needs nothing here: the endpoint goes
    /// down, and everything is given back then.
    pub(crate) fn done(&mut self, op: Op, succeeded: bool) -> bool {
        let kind = op.0 & KIND;
        if kind != BIND && kind != UNBIND {
            return false;
        }
        let Some(slot) = self.slots.get_mut(index(op)) else { return true };
        if !succeeded {
            return true;
        }
        slot.state = match slot.state {
            State::Binding { ended: true, .. } => State::Ending,
            State::Binding { number, ended: false } => State::Offered { number },
            State::Unbinding => State::Idle,
            other => other,
        };
        if slot.state == State::Idle && slot.steps >= STEPS_MAX {
            self.chores.extend(slot.window.take().map(|window| Transmit::FreeWindow { window }));
        }
        true
    }

    /// The next thing to do besides binding.
    pub(crate) fn transmit(&mut self, link: Option<LinkId>) -> Option<Transmit> {
        if let Some(chore) = self.chores.pop_front() {
            return Some(chore);
        }
        let link = link?;
        let index = self.slots.iter().position(|slot| slot.state == State::Ending)?;
        let slot = &mut self.slots[index];
        let window = slot.window.expect("a slot that was bound has a window");
        slot.state = State::Unbinding;
        slot.steps += 1;
        Some(Transmit::Post { link, op: Op(UNBIND | index as u64), work: Work::Unbind { window } })
    }

    /// The session is gone, with every piece of work completed: what is still bound is freed, which kills its key.
    pub(crate) fn session_lost(&mut self) {
        for slot in &mut self.slots {
            slot.state = State::Idle;
            self.chores.extend(slot.window.take().map(|window| Transmit::FreeWindow { window }));
        }
    }

    /// How many windows it has.
    #[cfg(test)]
    pub(crate) fn windows(&self) -> usize {
        self.slots.iter().filter(|slot| slot.window.is_some()).count()
    }

    /// Whether nothing is lent.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.iter().all(|slot| slot.state == State::Idle)
    }
}

fn index(op: Op) -> usize {
    (op.0 & !KIND) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: DomainId = DomainId { index: 0, generation: 0 };
    const LINK: LinkId = LinkId { index: 1, generation: 0 };
    const SHARED: SharedId = SharedId { index: 2, generation: 0 };

    fn window(index: u32) -> WindowId {
        WindowId { index, generation: 0 }
    }

    /// Does what is to be done: gives windows, completes unbinds. Returns what was freed.
    fn settle(offers: &mut Offers, next_window: &mut u32) -> Vec<WindowId> {
        let mut freed = Vec::new();
        while let Some(transmit) = offers.transmit(Some(LINK)) {
            match transmit {
                Transmit::Allocate { op, .. } => {
                    *next_window += 1;
                    assert!(offers.allocated(op, Some(window(*next_window))));
                }
                Transmit::Post { op, work: Work::Unbind { .. }, .. } => assert!(offers.done(op, true)),
                Transmit::FreeWindow { window } => freed.push(window),
                other => panic!("not expected: {other:?}"),
            }
        }
        freed
    }

    fn lent(slots: u32) -> (Offers, u32) {
        let mut offers = Offers::default();
        offers.lend(OfferMemory { shared: SHARED, slots, slot_len: 100 });
        (offers, 0)
    }

    fn offer(offers: &mut Offers, windows: &mut u32, number: u64) -> Op {
        if offers.ready(10, 9, DOMAIN).is_none() {
            settle(offers, windows);
        }
        let ready = offers.ready(10, 9, DOMAIN).expect("a slot is free");
        let (Transmit::Post { op, .. }, _) = offers.bind(LINK, ready, number) else { panic!("a bind is posted") };
        op
    }

    #[test]
    fn a_slot_is_offered_again_only_after_its_window_was_unbound() {
        let (mut offers, mut windows) = lent(1);
        let bind = offer(&mut offers, &mut windows, 1);
        assert!(offers.ready(10, 9, DOMAIN).is_none());
        assert!(offers.done(bind, true));
        assert!(offers.ready(10, 9, DOMAIN).is_none());
        offers.ended(1);
        let Some(Transmit::Post { op, work: Work::Unbind { .. }, .. }) = offers.transmit(Some(LINK)) else {
            panic!("the window is unbound")
        };
        assert!(offers.ready(10, 9, DOMAIN).is_none(), "the unbind is not completed");
        assert!(offers.done(op, true));
        assert!(offers.ready(10, 9, DOMAIN).is_some());
    }

    #[test]
    fn a_withdrawal_that_overtakes_the_bind_is_not_forgotten() {
        let (mut offers, mut windows) = lent(1);
        let bind = offer(&mut offers, &mut windows, 1);
        offers.ended(1);
        assert!(offers.transmit(Some(LINK)).is_none(), "one bind or unbind of a window at a time");
        assert!(offers.done(bind, true));
        settle(&mut offers, &mut windows);
        assert!(offers.is_idle());
    }

    #[test]
    fn no_more_is_offered_than_the_broker_allows() {
        let (mut offers, mut windows) = lent(4);
        offer(&mut offers, &mut windows, 1);
        assert!(offers.ready(10, 1, DOMAIN).is_none());
        assert!(offers.ready(10, 2, DOMAIN).is_none(), "a second window is asked for");
        settle(&mut offers, &mut windows);
        assert!(offers.ready(10, 2, DOMAIN).is_some());
    }

    #[test]
    fn a_window_is_replaced_before_its_keys_come_round() {
        let (mut offers, mut windows) = lent(1);
        let mut freed = Vec::new();
        for number in 1..=300 {
            let bind = offer(&mut offers, &mut windows, number);
            offers.done(bind, true);
            offers.ended(number);
            freed.extend(settle(&mut offers, &mut windows));
        }
        // 300 offers are 600 steps, and a window makes 254 of them.
        assert_eq!(freed, [window(1), window(2)]);
    }

    #[test]
    fn a_lost_session_gives_every_window_back() {
        let (mut offers, mut windows) = lent(2);
        let bind = offer(&mut offers, &mut windows, 1);
        offer(&mut offers, &mut windows, 2);
        offers.done(bind, true);
        offers.session_lost();
        assert!(offers.is_idle() && offers.windows() == 0);
        assert_eq!(settle(&mut offers, &mut windows), [window(1), window(2)]);
    }
}
