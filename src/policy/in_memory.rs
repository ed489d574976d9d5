//! Store in memory, for replays, rehearsals and tests: plans a request, loads its budgets, decides, and keeps the
//! budgets.

use super::budgets::RefundableCharge;
use super::budgets::SessionCounters;
use super::budgets::{Budget, Loaded};
use super::budgets::{Key, KeyRef};
use super::exception::Suspension;
use super::request::{Facts, PolicyRequest};
use super::verdict::Verdict;
use super::{Explained, Learnt, Lessons, Plan, Policy, decide, explain};
use crate::engine::State;
use crate::time::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;

/// Policy with its budgets in memory.
#[derive(Clone)]
pub struct InMemoryStore {
    /// Policy, including the suspensions that decisions have started.
    pub policy: Policy,
    budgets: Budgets,
}

/// Budgets by key. `None` while a decision uses the budget, and for a budget that was never charged.
type Budgets = HashMap<Key, Option<Budget>>;

impl InMemoryStore {
    pub fn new(policy: Policy) -> Self {
        Self { policy, budgets: HashMap::new() }
    }

    /// Adds a budget that was read from another store. `budget` is `None` if the other store has no budget with this
    /// key.
    pub fn insert(&mut self, key: Key, budget: Option<Budget>) {
        self.budgets.insert(key, budget);
    }

    /// Returns the state of a budget; `None` if it was never charged.
    pub fn state(&self, key: &Key) -> Option<State> {
        Some(self.budgets.get(key)?.as_ref()?.state)
    }

    /// Returns all budgets that were charged.
    pub fn into_budgets(self) -> impl Iterator<Item = (Key, Budget)> {
        self.budgets.into_iter().filter_map(|(key, budget)| Some((key, budget?)))
    }

    /// Decides on a list of events, and charges the events that pass. `counters`: the session's own counters.
    pub fn admit(&mut self, now: Timestamp, request: &PolicyRequest, counters: &mut SessionCounters) -> Vec<Verdict> {
        self.admit_planned(now, request, counters, |_| {})
    }

    /// Does the same as [`InMemoryStore::admit`], but first calls `inspect` with the plan.
    pub fn admit_planned(
        &mut self,
        now: Timestamp,
        request: &PolicyRequest,
        counters: &mut SessionCounters,
        inspect: impl FnOnce(&Plan<'_>),
    ) -> Vec<Verdict> {
        let plan = Plan::new(&self.policy, request, now);
        inspect(&plan);
        let mut loaded = take(&mut self.budgets, plan.keys());
        let verdicts = decide(&self.policy, now, request, &plan, &mut loaded, counters);
        keep(&mut self.budgets, plan.keys(), loaded);
        let begun = verdicts.iter().flat_map(|verdict| &verdict.suspensions);
        begun.for_each(|suspension| self.suspend(suspension.clone(), now));
        verdicts
    }

    /// Explains the response of every limit to the single event of `request`. Charges nothing.
    pub fn explain(&self, now: Timestamp, request: &PolicyRequest, counters: &mut SessionCounters) -> Vec<Explained> {
        let plan = Plan::new(&self.policy, request, now);
        let mut loaded = plan.keys().map(|key| self.budgets.get(key.as_str()).cloned().flatten()).collect();
        explain(&self.policy, now, request, &plan, &mut loaded, counters)
    }

    /// Returns the keys that `request` needs and that were neither inserted nor charged. A decision starts the budgets
    /// of these keys at 0.
    pub fn missing(&self, now: Timestamp, request: &PolicyRequest) -> Vec<Key> {
        let plan = Plan::new(&self.policy, request, now);
        let missing = plan.keys().filter(|key| !self.budgets.contains_key(key.as_str()));
        missing.map(|key| key.owned()).collect()
    }

    /// Makes memories learn the recipients of a message that was delivered. `facts` are those of the message, with its
    /// accepted recipients.
    pub fn deliver(&mut self, now: Timestamp, facts: &Facts) {
        if self.policy.has_memories() && !facts.recipients.is_empty() {
            let request = PolicyRequest::delivered(facts.clone(), facts.recipients.iter().cloned());
            self.admit(now, &request, &mut SessionCounters::default());
        }
    }

    /// Makes memories learn recipients of the past.
    pub fn teach(&mut self, lessons: &Lessons) -> Vec<Learnt> {
        let mut learnt = Vec::new();
        for keys in lessons.parts() {
            let mut loaded = take(&mut self.budgets, keys.iter().map(Key::borrowed));
            learnt.extend(lessons.learn(&keys, &mut loaded));
            keep(&mut self.budgets, keys.iter().map(Key::borrowed), loaded);
        }
        learnt
    }

    /// Refunds charges.
    pub fn give_back(&mut self, charges: &[RefundableCharge]) {
        let mut keys: Vec<Key> = charges.iter().map(|charged| charged.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut loaded = take(&mut self.budgets, keys.iter().map(Key::borrowed));
        loaded.give_back(charges, &keys);
        keep(&mut self.budgets, keys.iter().map(Key::borrowed), loaded);
    }

    fn suspend(&mut self, suspension: Arc<Suspension>, now: Timestamp) {
        let exceptions = Arc::make_mut(&mut self.policy.exceptions);
        let former = exceptions.suspension_of(&suspension.owner).filter(|former| former.term.holds(now));
        let next = match former {
            None => Some(suspension),
            Some(former) => suspension.following(former).map(Arc::new),
        };
        let Some(suspension) = next else { return };
        if !exceptions.has_room() {
            exceptions.forget(now, None);
        }
        if exceptions.has_room() {
            exceptions.suspend(suspension);
        }
    }
}

/// Moves budgets out of the map. Copying them would take too long, because a replay decides on millions of requests.
fn take<'a>(budgets: &mut Budgets, keys: impl Iterator<Item = KeyRef<'a>>) -> Loaded {
    keys.map(|key| budgets.get_mut(key.as_str()).and_then(Option::take)).collect()
}

fn keep<'a>(budgets: &mut Budgets, keys: impl Iterator<Item = KeyRef<'a>>, loaded: Loaded) {
    for (key, slot) in keys.zip(loaded.into_slots()) {
        match budgets.get_mut(key.as_str()) {
            Some(budget) => *budget = slot.budget,
            None => drop(budgets.insert(key.owned(), slot.budget)),
        }
    }
}
