//! Budgets as a store loads them, with the changes that a decision makes.

use crate::engine::distinct::{self, Filter, Value};
use crate::engine::{Rule, State};
use crate::time::Timestamp;
use std::sync::Arc;

/// State of a budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    pub state: State,
    /// Values seen, if only new ones count. Shared, since it may be large; a decision changes its own copy.
    pub seen: Option<Arc<Filter>>,
}

/// Budgets of a plan, in the order of its keys. `None` is an unused budget.
#[derive(Debug, Default)]
pub struct Loaded(pub(in crate::policy) Vec<Slot>);

/// Budget, and the change that the decision made.
#[derive(Debug)]
pub struct Slot {
    pub budget: Option<Budget>,
    /// `None`: unchanged.
    pub change: Option<Change>,
    /// The store could not read the budget: it may contain more.
    pub is_unread: bool,
}

/// Change that a decision made beside the state, for stores that write changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Values learnt, in order.
    pub learnt: Vec<Value>,
    /// The filter is new or was rotated: the learnt values alone do not describe it.
    pub turned: bool,
}

impl Budget {
    /// Merges the stored state with the state that was `counted` from 0 while the stored one was out of reach.
    pub(in crate::policy) fn merged(self, counted: Self, rule: Rule) -> Self {
        let now = self.state.at.max(counted.state.at);
        let level = |state| rule.step(Some(state), now, 0.0).1.level;
        let state = State { at: now, level: level(self.state) + level(counted.state) };
        let seen = match (self.seen, counted.seen) {
            (Some(mut stored), Some(counted)) => {
                Arc::make_mut(&mut stored).unite(&counted);
                Some(stored)
            }
            (stored, counted) => stored.or(counted),
        };
        Self { state, seen }
    }
}

impl Loaded {
    /// Returns the current states, in the order of the keys. Taken before and after a decision, they are its receipts.
    pub fn states(&self) -> impl Iterator<Item = Option<State>> {
        self.0.iter().map(Slot::state)
    }

    /// Marks the budget at this index as unreadable.
    pub fn set_unread(&mut self, index: usize) {
        if let Some(slot) = self.0.get_mut(index) {
            slot.is_unread = true;
        }
    }

    /// Returns whether there is a budget at this index.
    pub fn has(&self, index: usize) -> bool {
        self.0.get(index).is_some_and(|slot| slot.budget.is_some())
    }

    /// Resets all budgets, with all values seen. Returns the former states, in order.
    pub fn reset(&mut self, now: Timestamp) -> Vec<Option<State>> {
        let reset = |slot: &mut Slot| {
            let budget = slot.budget.as_mut()?;
            let before = budget.state;
            // A level of 0 equals an unused budget; the filter starts empty.
            *budget = Budget { state: State { at: now, level: 0.0 }, seen: None };
            slot.change = Some(Change { learnt: Vec::new(), turned: true });
            Some(before)
        };
        self.0.iter_mut().map(reset).collect()
    }

    /// Returns all budgets, in the order of their keys.
    pub fn into_slots(self) -> impl Iterator<Item = Slot> {
        self.0.into_iter()
    }

    /// Returns the budgets that the decision changed, each with the index of its key.
    pub fn into_changed(self) -> impl Iterator<Item = (usize, Budget)> {
        let changed = self.0.into_iter().enumerate().filter(|(_, slot)| slot.change.is_some());
        changed.filter_map(|(index, slot)| Some((index, slot.budget?)))
    }
}

impl Slot {
    /// Moves a budget from the future to `now`: a wrong clock stored it. The level stays and decays from now on;
    /// otherwise the budget would refuse until that future time.
    ///
    /// Values seen in that future stay known: their generation begins now.
    pub(in crate::policy) fn heal(&mut self, now: Timestamp) {
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

    pub(in crate::policy) fn state(&self) -> Option<State> {
        self.budget.as_ref().map(|budget| budget.state)
    }

    /// Stores the state after an event. A value that was known already is learnt again, so that it stays known.
    pub(in crate::policy) fn charge(
        &mut self,
        filter: Option<distinct::Rule>,
        state: State,
        now: Timestamp,
        values: &[Value],
    ) {
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
