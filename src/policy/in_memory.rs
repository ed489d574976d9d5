//! Store in memory, for replays, rehearsals and tests: plans a request, loads its budgets, decides, and keeps the
//! budgets.

use super::budgets::{Budget, Key, KeyRef, Loaded, RefundableCharge, SessionCounters, Slot};
use super::exception::Suspension;
use super::request::PolicyRequest;
use super::verdict::Verdict;
use super::{Explained, Learnt, Lessons, Memory, Plan, Policy, decide, explain};
use crate::engine::State;
use crate::engine::distinct::{Seen, Value};
use crate::time::Timestamp;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::sync::Arc;

/// Policy with its budgets in memory.
#[derive(Clone)]
pub struct InMemoryStore {
    /// Policy, including the suspensions that decisions have started.
    pub policy: Policy,
    budgets: Budgets,
}

/// Budgets by key.
#[derive(Clone, Default)]
struct Budgets {
    /// Index of each key in `all`.
    indices: HashMap<Key, usize, RandomState>,
    /// `None` while a decision uses the budget, and for a budget that was never charged.
    all: Vec<Option<Budget>>,
}

/// Recipient of a replayed event. If the message is delivered, a memory learns this recipient.
pub struct ReplayedRecipient {
    /// Index of the event in its request.
    pub event: usize,
    memory: Memory,
    /// Index of the memory's budget.
    index: usize,
    value: Value,
}

impl InMemoryStore {
    pub fn new(policy: Policy) -> Self {
        Self { policy, budgets: Budgets::default() }
    }

    /// Adds a budget that was read from another store. `budget` is `None` if the other store has no budget with this
    /// key.
    pub fn insert(&mut self, key: Key, budget: Option<Budget>) {
        let index = self.budgets.index(key.borrowed());
        self.budgets.all[index] = budget;
    }

    /// Returns the state of a budget; `None` if it was never charged.
    pub fn state(&self, key: &Key) -> Option<State> {
        Some(self.budgets.get(key.borrowed())?.state)
    }

    /// Returns all budgets that were charged.
    pub fn into_budgets(self) -> impl Iterator<Item = (Key, Budget)> {
        let Budgets { indices, mut all } = self.budgets;
        indices.into_iter().filter_map(move |(key, index)| Some((key, all[index].take()?)))
    }

    /// Decides on a list of events, and charges the events that pass. `counters`: the session's own counters.
    pub fn admit(&mut self, now: Timestamp, request: &PolicyRequest, counters: &mut SessionCounters) -> Vec<Verdict> {
        let plan = Plan::new(&self.policy, request, now);
        let (verdicts, _) = self.budgets.decide(&self.policy, now, request, &plan, counters);
        self.begin_suspensions(&verdicts, now);
        verdicts
    }

    /// Decides like [`InMemoryStore::admit`] in less time, for replays of many messages: verdicts lack the evaluations of
    /// limits whose memories know the recipient. Calls `inspect` with the plan. Also returns the recipients for
    /// [`InMemoryStore::deliver`].
    pub fn replay(
        &mut self,
        now: Timestamp,
        request: &PolicyRequest,
        counters: &mut SessionCounters,
        inspect: impl FnOnce(&Plan<'_>),
    ) -> (Vec<Verdict>, Vec<ReplayedRecipient>) {
        let is_known = |key: KeyRef<'_>, memory: &Memory, value| {
            let seen = self.budgets.get(key).and_then(|budget| budget.seen.as_deref());
            memory.rule().look(seen, now, value) != Seen::Never
        };
        let plan = Plan::without_known(&self.policy, request, now, &is_known);
        inspect(&plan);
        let (verdicts, indices) = self.budgets.decide(&self.policy, now, request, &plan, counters);
        let recipients = plan.memory_entries.iter().map(|entry| ReplayedRecipient {
            event: entry.event,
            memory: entry.memory,
            index: indices[entry.key],
            value: entry.value,
        });
        let recipients = recipients.collect();
        self.begin_suspensions(&verdicts, now);
        (verdicts, recipients)
    }

    /// Explains the response of every limit to the single event of `request`. Charges nothing.
    pub fn explain(&self, now: Timestamp, request: &PolicyRequest, counters: &mut SessionCounters) -> Vec<Explained> {
        let plan = Plan::new(&self.policy, request, now);
        let mut loaded = plan.keys().map(|key| self.budgets.get(key).cloned()).collect();
        explain(&self.policy, now, request, &plan, &mut loaded, counters)
    }

    /// Returns the keys that `request` needs and that were neither inserted nor charged. A decision starts the budgets
    /// of these keys at 0.
    pub fn missing(&self, now: Timestamp, request: &PolicyRequest) -> Vec<Key> {
        let plan = Plan::new(&self.policy, request, now);
        let missing = plan.keys().filter(|key| !self.budgets.indices.contains_key(key.as_str()));
        missing.map(|key| key.owned()).collect()
    }

    /// Makes memories learn these recipients of a replayed message, which was delivered.
    pub fn deliver<'r>(&mut self, now: Timestamp, recipients: impl IntoIterator<Item = &'r ReplayedRecipient>) {
        for recipient in recipients {
            let budget = &mut self.budgets.all[recipient.index];
            let mut slot = Slot::from(budget.take());
            slot.heal(now);
            slot.learn(recipient.memory.rule(), now, recipient.value);
            *budget = slot.budget;
        }
    }

    /// Makes memories learn recipients of the past.
    pub fn teach(&mut self, lessons: &Lessons) -> Vec<Learnt> {
        let mut learnt = Vec::new();
        for keys in lessons.parts() {
            let (indices, mut loaded) = self.budgets.take(keys.iter().map(Key::borrowed));
            learnt.extend(lessons.learn(&keys, &mut loaded));
            self.budgets.keep(&indices, loaded);
        }
        learnt
    }

    /// Refunds charges.
    pub fn give_back(&mut self, charges: &[RefundableCharge]) {
        let mut keys: Vec<Key> = charges.iter().map(|charged| charged.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        let (indices, mut loaded) = self.budgets.take(keys.iter().map(Key::borrowed));
        loaded.give_back(charges, &keys);
        self.budgets.keep(&indices, loaded);
    }

    fn begin_suspensions(&mut self, verdicts: &[Verdict], now: Timestamp) {
        let begun = verdicts.iter().flat_map(|verdict| &verdict.suspensions);
        begun.for_each(|suspension| self.suspend(suspension.clone(), now));
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

impl Budgets {
    fn get(&self, key: KeyRef<'_>) -> Option<&Budget> {
        self.all[*self.indices.get(key.as_str())?].as_ref()
    }

    /// Returns the index of a key's budget. A new key gets a budget that was never charged.
    fn index(&mut self, key: KeyRef<'_>) -> usize {
        if let Some(index) = self.indices.get(key.as_str()) {
            return *index;
        }
        self.all.push(None);
        self.indices.insert(key.owned(), self.all.len() - 1);
        self.all.len() - 1
    }

    /// Returns the verdicts, and the indices of the plan's budgets.
    fn decide(
        &mut self,
        policy: &Policy,
        now: Timestamp,
        request: &PolicyRequest,
        plan: &Plan<'_>,
        counters: &mut SessionCounters,
    ) -> (Vec<Verdict>, Vec<usize>) {
        let (indices, mut loaded) = self.take(plan.keys());
        let verdicts = decide(policy, now, request, plan, &mut loaded, counters);
        self.keep(&indices, loaded);
        (verdicts, indices)
    }

    /// Moves budgets out of the store, and returns their indices. Copying the budgets would take too long, because a
    /// replay decides on millions of requests.
    fn take<'a>(&mut self, keys: impl Iterator<Item = KeyRef<'a>>) -> (Vec<usize>, Loaded) {
        let indices: Vec<usize> = keys.map(|key| self.index(key)).collect();
        let loaded = indices.iter().map(|index| self.all[*index].take()).collect();
        (indices, loaded)
    }

    fn keep(&mut self, indices: &[usize], loaded: Loaded) {
        for (index, slot) in indices.iter().zip(loaded.into_slots()) {
            self.all[*index] = slot.budget;
        }
    }
}
