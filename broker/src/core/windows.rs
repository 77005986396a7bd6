//! Every window of the core: in which state, bound to what, how many keys it has used up.

use keyway_fabric::{Key, Op, SharedSpan, Time, WindowId};

use super::inspect::{GrantView, WindowView};
use super::notice::SessionId;
use super::slab::{Place, Slab};
use super::window::{Event, State};

/// The high byte of the tags of binds and unbinds.
const TAG: u64 = 0xb0 << 56;

/// Binds and unbinds of a window at most. Each moves its key on by one of 256 values; one is left for the key that it began with,
/// one so that a bind always has its unbind.
const USES_MAX: u16 = 254;

/// The use after which its replacement is allocated, well before it is needed.
const RENEW_AT: u16 = 224;

/// A window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) id: WindowId,
    /// Whose it is.
    pub(super) session_id: SessionId,
    pub(super) state: State,
    /// Binds and unbinds so far.
    uses: u16,
    /// What its key opens, from the bind to the end of the unbind.
    pub(super) grant: Option<Grant>,
}

/// What a key opens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) subscription: u32,
    pub(super) epoch: u64,
    pub(super) key: Key,
    /// Whether the key was told to the consumer, or could have been.
    pub(super) is_issued: bool,
    /// The segment's place in the pool.
    pub(super) segment: u32,
    pub(super) span: SharedSpan,
    pub(super) granted_at: Time,
    pub(super) deadline: Time,
}

impl Window {
    /// Takes an event; returns whether it was possible.
    pub(super) fn take(&mut self, event: Event) -> bool {
        match self.state.after(event) {
            Some(state) => {
                self.state = state;
                true
            }
            None => false,
        }
    }

    /// Whether it can be bound and unbound once more.
    pub(super) const fn has_uses(&self) -> bool {
        self.uses + 2 <= USES_MAX
    }

    /// Whether its replacement should be on its way.
    pub(super) const fn is_old(&self) -> bool {
        self.uses >= RENEW_AT
    }

    /// Counts a bind or unbind.
    pub(super) const fn use_key(&mut self) {
        self.uses = self.uses.saturating_add(1);
    }

    fn view(&self) -> WindowView {
        WindowView {
            window: self.id,
            session: self.session_id,
            state: self.state,
            grant: self.grant.map(|grant| GrantView {
                subscription: grant.subscription,
                epoch: grant.epoch,
                key: grant.key,
                span: grant.span,
                granted_at: grant.granted_at,
                deadline: grant.deadline,
            }),
        }
    }
}

/// The windows.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    slab: Slab<Window>,
}

impl Windows {
    pub(super) const fn new() -> Self {
        Self { slab: Slab::new() }
    }

    pub(super) fn insert(&mut self, id: WindowId, session_id: SessionId) -> Place {
        self.slab.insert(Window { id, session_id, state: State::Idle, uses: 0, grant: None })
    }

    pub(super) fn get(&self, place: Place) -> &Window {
        self.slab.get(place).expect("a session forgets a window before it is freed")
    }

    pub(super) fn get_mut(&mut self, place: Place) -> &mut Window {
        self.slab.get_mut(place).expect("a session forgets a window before it is freed")
    }

    /// A window that may have been freed.
    pub(super) fn find_mut(&mut self, place: Place) -> Option<&mut Window> {
        self.slab.get_mut(place)
    }

    pub(super) fn remove(&mut self, place: Place) -> Option<Window> {
        self.slab.remove(place)
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// The tag of a window's bind or unbind.
    pub(super) const fn op(place: Place) -> Op {
        Op(TAG | place.tag())
    }

    /// The window of a tag, if it is one of a bind or unbind.
    pub(super) fn of_op(&self, op: Op) -> Option<Place> {
        if op.0 & 0xff << 56 == TAG { self.slab.of_tag(op.0) } else { None }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = WindowView> + '_ {
        self.slab.iter().map(|(_, window)| window.view())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_gives_up_before_its_first_key_comes_round() {
        let mut windows = Windows::new();
        let place = windows.insert(WindowId { index: 0, generation: 0 }, SessionId(1));
        let window = windows.get_mut(place);
        let (first, mut key) = (Key(0x100).next(), Key(0x100));
        while window.has_uses() {
            for event in [Event::Bind, Event::Bound, Event::Release, Event::Unbind, Event::Unbound] {
                assert!(window.take(event));
            }
            window.use_key();
            window.use_key();
            key = key.next().next();
        }
        assert!(window.is_old());
        assert_ne!(key, first);
        assert_ne!(key.next(), first);
        assert_eq!(windows.of_op(Windows::op(place)), Some(place));
        assert_eq!(windows.of_op(Op(place.tag())), None);
    }
}
