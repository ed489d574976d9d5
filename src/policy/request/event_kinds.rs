//! Set of kinds of events.

use super::event::Event;

/// Set of kinds of events: one bit for each kind, see [`Event::kind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventKinds(u16);

impl EventKinds {
    pub const ALL: Self = Self((1 << Event::KINDS) - 1);
    /// Deliveries, from which memories learn.
    pub const DELIVERED: Self = Self(1 << Event::DELIVERED);
    pub(in crate::policy) const NONE: Self = Self(0);

    /// Returns the kinds of these events.
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        events.into_iter().fold(Self::NONE, |kinds, event| kinds.union(Self(1 << event.kind())))
    }

    /// Returns the kinds that are in either set.
    pub(in crate::policy) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether any kind is in both sets.
    pub fn has_any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}
