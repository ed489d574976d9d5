//! Budgets as a store hands them over, and what a decision does to them.

use crate::engine::State;
use crate::engine::distinct::{self, Filter, Value};
use crate::time::Timestamp;
use std::sync::Arc;

/// What is remembered of a budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    pub state: State,
    /// The values seen, where only new ones count. Shared, since it may be large; a decision changes its own copy.
    pub seen: Option<Arc<Filter>>,
}

/// The budgets of a question, in the order of its keys. `None` is one that nobody has used.
#[derive(Debug, Default)]
pub struct Loaded(pub(super) Vec<Slot>);

/// A budget, and what the decision did to it.
#[derive(Debug)]
pub struct Slot {
    pub budget: Option<Budget>,
    /// `None`: nothing.
    pub change: Option<Change>,
    /// The store could not read the budget: there may be more of it.
    pub is_unread: bool,
}

/// What a decision changed beside the state, for stores that write changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Values that were learnt, in order.
    pub learnt: Vec<Value>,
    /// The filter is a new one, or was turned: to know what was learnt is not enough.
    pub turned: bool,
}

impl Loaded {
    /// The states as they are now, in the order of the keys: before and after a decision they make its receipts.
    pub fn states(&self) -> impl Iterator<Item = Option<State>> {
        self.0.iter().map(Slot::state)
    }

    /// The budget of the key at this place could not be read.
    pub fn set_unread(&mut self, place: usize) {
        if let Some(slot) = self.0.get_mut(place) {
            slot.is_unread = true;
        }
    }

    /// Whether the key at this place has a budget.
    pub fn has(&self, place: usize) -> bool {
        self.0.get(place).is_some_and(|slot| slot.budget.is_some())
    }

    /// All budgets, in the order of their keys.
    pub fn into_slots(self) -> impl Iterator<Item = Slot> {
        self.0.into_iter()
    }

    /// The budgets that the decision charged, by the places of their keys.
    pub fn into_changed(self) -> impl Iterator<Item = (usize, Budget)> {
        let changed = self.0.into_iter().enumerate().filter(|(_, slot)| slot.change.is_some());
        changed.filter_map(|(place, slot)| Some((place, slot.budget?)))
    }
}

impl Slot {
    /// A budget from the future was kept by a clock that was wrong. Nothing of it is forgotten, but from now on it decays: else it
    /// would refuse until that future has come.
    ///
    /// Values seen in that future stay known, too: their generation begins now.
    pub(super) fn heal(&mut self, now: Timestamp) {
        let Some(budget) = &mut self.budget else { return };
        if budget.state.at > now {
            budget.state.at = now;
            self.change.get_or_insert_default();
        }
        if let Some(seen) = budget.seen.as_mut().filter(|seen| seen.generation().0 > now) {
            Arc::make_mut(seen).begin_at(now);
            self.change.get_or_insert_default().turned = true;
        }
    }

    pub(super) fn state(&self) -> Option<State> {
        self.budget.as_ref().map(|budget| budget.state)
    }

    /// Keeps what an event has done. A value that was known before is learnt again, so that it stays known.
    pub(super) fn charge(&mut self, filter: Option<distinct::Rule>, state: State, now: Timestamp, values: &[Value]) {
        let change = self.change.get_or_insert_default();
        let budget = self.budget.get_or_insert(Budget { state, seen: None });
        budget.state = state;
        let Some(rule) = filter else { return };
        for value in values {
            let before = budget.seen.as_ref().map(|filter| filter.generation());
            let filter = rule.learn(budget.seen.take().map(Arc::unwrap_or_clone), now, *value);
            change.turned |= before != Some(filter.generation());
            change.learnt.push(*value);
            budget.seen = Some(Arc::new(filter));
        }
    }
}

impl FromIterator<Option<Budget>> for Loaded {
    fn from_iter<T: IntoIterator<Item = Option<Budget>>>(budgets: T) -> Self {
        Self(budgets.into_iter().map(|budget| Slot { budget, change: None, is_unread: false }).collect())
    }
}
