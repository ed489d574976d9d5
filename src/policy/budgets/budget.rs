//! Budgets that a store has loaded for a decision, and the changes that the decision makes to them.

use crate::engine::distinct::{self, Filter, Seen, Value};
use crate::engine::regularity::{self, Times};
use crate::engine::{Rule, State};
use crate::time::Timestamp;
use std::sync::Arc;

/// State of a budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    pub state: State,
    /// Filter of the values seen, if the limit counts only new values. Copies of the budget share the filter, because a
    /// filter can be large. A decision changes its own copy of the filter.
    pub seen: Option<Arc<Filter>>,
    /// Times of the last events, if the limit measures their regularity.
    pub times: Option<Arc<Times>>,
}

/// Budgets of a plan, in the order of the plan's keys. A budget is `None` if it was never charged.
#[derive(Debug, Default)]
pub struct Loaded(pub(in crate::policy) Vec<Slot>);

/// Budget, and the change that the decision made to it.
#[derive(Debug)]
pub struct Slot {
    pub budget: Option<Budget>,
    /// Change by the decision; `None` if the decision did not change the budget.
    pub change: Option<Change>,
    /// The store could not read the budget, so the true level may be higher.
    pub is_unread: bool,
}

/// Changes that a decision made to the filter of seen values, for stores that save only changes. Empty if only the
/// state has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Values that the filter learnt, in this order.
    pub learnt: Vec<Value>,
    /// The filter is new, reset or rotated, so the learnt values alone do not describe its change.
    pub turned: bool,
}

impl Change {
    /// Adds a later change of the same budget.
    pub fn extend(&mut self, later: Self) {
        self.learnt.extend(later.learnt);
        self.turned |= later.turned;
    }

    /// Returns whether the filter has changed.
    pub fn is_of_filter(&self) -> bool {
        self.turned || !self.learnt.is_empty()
    }
}

impl Budget {
    /// Returns a budget without a filter and without times.
    pub fn new(state: State) -> Self {
        Self { state, seen: None, times: None }
    }

    /// Merges two budgets of one key. `self` was stored. `counted` began at 0 while the stored budget could not be
    /// read.
    pub(in crate::policy) fn merged(self, counted: Self, rule: Rule) -> Self {
        let now = self.state.at.max(counted.state.at);
        let level = |state| rule.step(Some(state), now, 0.0).1.level;
        let state = State { at: now, level: level(self.state) + level(counted.state) };
        Self { state, ..self.united(counted) }
    }

    /// Unites the values that two budgets of one key have seen. The state is that of `self`.
    pub(in crate::policy) fn united(self, counted: Self) -> Self {
        let seen = match (self.seen, counted.seen) {
            (Some(mut stored), Some(counted)) => {
                Arc::make_mut(&mut stored).unite(&counted);
                Some(stored)
            }
            (stored, counted) => stored.or(counted),
        };
        let times = match (self.times, counted.times) {
            (Some(stored), Some(counted)) => Some(Arc::new(stored.merged(&counted))),
            (stored, counted) => stored.or(counted),
        };
        Self { state: self.state, seen, times }
    }
}

impl Budget {
    /// Returns the values and times of two copies of one budget, which may have them in common. The state is that of
    /// `self`.
    pub(in crate::policy) fn larger(self, copy: Self) -> Self {
        let seen = match (self.seen, copy.seen) {
            (Some(one), Some(other)) if one == other => Some(one),
            (Some(one), Some(other)) => {
                // The filter whose newer generation began later forgets its values in time.
                let (mut latest, other) = if one.parts().0 >= other.parts().0 { (one, other) } else { (other, one) };
                Arc::make_mut(&mut latest).unite(&other);
                Some(latest)
            }
            (one, other) => one.or(other),
        };
        let times = match (self.times, copy.times) {
            (Some(one), Some(other)) => Some(Arc::new(one.united(&other))),
            (one, other) => one.or(other),
        };
        Self { state: self.state, seen, times }
    }
}

impl Loaded {
    /// Returns the current state of each budget, in the order of the keys. The states before and after a decision form
    /// the receipts of its charges.
    pub fn states(&self) -> impl Iterator<Item = Option<State>> {
        self.0.iter().map(Slot::state)
    }

    /// Returns the budgets, in the order of the keys.
    pub fn budgets(&self) -> impl Iterator<Item = Option<&Budget>> {
        self.0.iter().map(|slot| slot.budget.as_ref())
    }

    /// Marks the budget at this index as unreadable.
    pub fn set_unread(&mut self, index: usize) {
        if let Some(slot) = self.0.get_mut(index) {
            slot.is_unread = true;
        }
    }

    /// Takes the budget at this index out, with its change; puts an unchanged budget that was never charged in its place.
    pub fn take(&mut self, index: usize) -> Slot {
        self.0.get_mut(index).map_or(Slot::from(None), |slot| std::mem::replace(slot, Slot::from(None)))
    }

    /// Puts a budget with its change at this index.
    pub fn put(&mut self, index: usize, slot: Slot) {
        if let Some(former) = self.0.get_mut(index) {
            *former = slot;
        }
    }

    /// Returns whether the budget at this index was ever charged.
    pub fn has(&self, index: usize) -> bool {
        self.0.get(index).is_some_and(|slot| slot.budget.is_some())
    }

    /// Resets all budgets to 0, and forgets all values seen. Returns the states before the reset, in the order of the
    /// keys.
    pub fn reset(&mut self, now: Timestamp) -> Vec<Option<State>> {
        let reset = |slot: &mut Slot| {
            let budget = slot.budget.as_mut()?;
            let before = budget.state;
            // A budget with level 0 is equivalent to a budget that was never charged. The filter starts empty.
            *budget = Budget::new(State { at: now, level: 0.0 });
            slot.change = Some(Change { learnt: Vec::new(), turned: true });
            Some(before)
        };
        self.0.iter_mut().map(reset).collect()
    }

    /// Resets the levels of all budgets to 0. The filters keep the values seen. Returns the states before the reset, in
    /// the order of the keys.
    pub fn reset_levels(&mut self, now: Timestamp) -> Vec<Option<State>> {
        let reset = |slot: &mut Slot| {
            let budget = slot.budget.as_mut()?;
            slot.change.get_or_insert_default();
            budget.times = None;
            Some(std::mem::replace(&mut budget.state, State { at: now, level: 0.0 }))
        };
        self.0.iter_mut().map(reset).collect()
    }

    /// Builds the list from budgets with their changes.
    pub fn from_slots(slots: impl Iterator<Item = Slot>) -> Self {
        Self(slots.collect())
    }

    /// Returns all budgets and their changes, in the order of the keys.
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
    /// Corrects a state whose time is in the future: sets this time to `now`. A wrong clock wrote the future time. The
    /// level stays, and decays from now on. Otherwise the budget would refuse until that future time.
    ///
    /// The filter keeps values that it learnt at future times: the filter's generation begins now.
    pub(in crate::policy) fn heal(&mut self, now: Timestamp) {
        let Some(budget) = &mut self.budget else { return };
        if budget.state.at > now {
            budget.state.at = now;
            self.change.get_or_insert_default();
        }
        if let Some(times) = budget.times.as_mut().filter(|times| times.iter().any(|time| time > now)) {
            Arc::make_mut(times).heal(now);
            self.change.get_or_insert_default();
        }
        if let Some(seen) = budget.seen.as_mut().filter(|seen| seen.generation().0 > now) {
            Arc::make_mut(seen).begin_at(now);
            self.change.get_or_insert_default().turned = true;
        }
    }

    /// Adds the time of an event, by which the regularity of the next event is measured.
    pub(in crate::policy) fn add_time(&mut self, rule: regularity::Rule, now: Timestamp) {
        if let Some(budget) = &mut self.budget {
            budget.times = Some(Arc::new(rule.add(budget.times.as_deref(), now)));
        }
    }

    pub(in crate::policy) fn state(&self) -> Option<State> {
        self.budget.as_ref().map(|budget| budget.state)
    }

    /// Stores the state after an event, and adds the event's values to the filter. A known value is added again, so
    /// that the filter does not forget it.
    pub(in crate::policy) fn charge(
        &mut self,
        filter: Option<distinct::Rule>,
        state: State,
        now: Timestamp,
        values: &[Value],
    ) {
        let change = self.change.get_or_insert_default();
        let budget = self.budget.get_or_insert(Budget::new(state));
        budget.state = state;
        let Some(rule) = filter else { return };
        for value in values {
            let before = budget.seen.as_ref().map(|filter| filter.generation());
            let filter = Arc::make_mut(budget.seen.get_or_insert_with(|| Arc::new(rule.begin(now))));
            rule.learn(filter, now, *value);
            change.turned |= before != Some(filter.generation());
            change.learnt.push(*value);
        }
    }
}

impl Slot {
    /// Makes the filter of a memory learn a value. A filter that has seen the value lately does not change.
    pub(in crate::policy) fn learn(&mut self, rule: distinct::Rule, now: Timestamp, value: Value) {
        let seen = self.budget.as_ref().and_then(|budget| budget.seen.as_deref());
        if rule.look(seen, now, value) != Seen::Lately {
            self.charge(Some(rule), State { at: now, level: 0.0 }, now, &[value]);
        }
    }

    /// Adds values that were last seen at times in the past to the filter of a memory. Returns the number of values that
    /// the filter did not know.
    pub(in crate::policy) fn learn_past(&mut self, rule: distinct::Rule, past: &[(Timestamp, Value)]) -> usize {
        let mut new = 0;
        for &(at, value) in past {
            let filter = self.budget.as_ref().and_then(|budget| budget.seen.as_deref());
            let began = filter.map(|filter| filter.generation().0);
            let is_before = began.is_some_and(|began| at < began);
            match rule.look(filter, at, value) {
                Seen::Lately => continue,
                Seen::Before if is_before => continue,
                Seen::Before => {}
                Seen::Never => new += 1,
            }
            let (before, change) = (filter.map(Filter::generation), self.change.get_or_insert_default());
            let budget = self.budget.get_or_insert(Budget::new(State { at, level: 0.0 }));
            budget.state.at = budget.state.at.max(at);
            let filter = Arc::make_mut(budget.seen.get_or_insert_with(|| Arc::new(rule.begin(at))));
            rule.learn_past(filter, at, value);
            // The learnt values alone describe changes of the newer generation only.
            change.turned |= is_before || before != Some(filter.generation());
            change.learnt.push(value);
        }
        new
    }
}

impl FromIterator<Option<Budget>> for Loaded {
    fn from_iter<T: IntoIterator<Item = Option<Budget>>>(budgets: T) -> Self {
        Self(budgets.into_iter().map(Slot::from).collect())
    }
}

impl From<Option<Budget>> for Slot {
    fn from(budget: Option<Budget>) -> Self {
        Self { budget, change: None, is_unread: false }
    }
}
