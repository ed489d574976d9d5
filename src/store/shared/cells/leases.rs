//! Leases that this node has of shared budgets: see [`lease`](crate::engine::lease).
//!
//! A transaction whose charge the lease covers changes nothing in Redis. Otherwise, the charge joins a group like any
//! other, and the state that is sent contains a new lease.

use super::{Cell, Cells, Inner, lifetimes};
use crate::engine::State;
use crate::engine::lease::{Bucket, Lease, Terms};
use crate::policy::budgets::{Budget, Change, Key, KeyRef};
use crate::policy::{Lifetime, Policy};
use crate::time::Timestamp;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time after which a lease that is not used is returned.
const IDLE: Duration = Duration::from_secs(10);

/// Returns the terms of the leases of each budget.
pub fn terms(policy: &Policy) -> HashMap<Key, Terms, RandomState> {
    policy.leases().map(|(_, key, terms)| (key.owned(), terms)).collect()
}

impl Cells {
    /// Takes the lifetimes of budgets and the terms of leases from a new policy. A lease that the policy does not want any
    /// more keeps terms with the amount 0 until it is returned.
    pub fn set_policy(&self, policy: &Policy) {
        let lifetimes = lifetimes(policy);
        let inner = &mut *self.lock();
        for (key, cell) in &mut inner.cells {
            cell.lifetime = lifetimes.get(&key.kind()).copied().unwrap_or(Lifetime::UNKNOWN);
        }
        inner.lifetimes = lifetimes;
        let former = std::mem::replace(&mut inner.leased, terms(policy));
        for (key, terms) in former {
            let is_used = inner.cells.get(&key).is_some_and(|cell| cell.lease.is_some() || !cell.is_settled());
            if is_used {
                inner.leased.entry(key).or_insert(Terms { amount: 0.0, ..terms });
            } else if !inner.leased.contains_key(&key) {
                inner.cells.get_mut(&key).into_iter().for_each(|cell| cell.terms = None);
            }
        }
        for (key, terms) in &inner.leased {
            let Some(cell) = inner.cells.get_mut(key).filter(|cell| cell.terms.is_some()) else { continue };
            if cell.terms.is_some_and(|former| former.rule != terms.rule) {
                // With another rate, the place of the lease in the bucket would be unknown.
                cell.give_up_lease();
            }
            cell.terms = Some(*terms);
        }
    }

    /// Returns the rests of leases that were not used for a while, or are not wanted any more. `is_all`: returns all.
    pub fn return_leases(&self, is_all: bool) {
        let inner = &mut *self.lock();
        let keys: Vec<Key> = inner.leased.keys().cloned().collect();
        if inner.is_away {
            return;
        }
        for key in &keys {
            let Some(cell) = inner.cells.get_mut(key) else { continue };
            let is_unwanted = is_all || cell.terms.is_some_and(|terms| terms.amount == 0.0);
            let is_idle = cell.lease_used_at.is_none_or(|used| used.elapsed() > IDLE);
            if is_unwanted || is_idle {
                // A lease that is used up needs no write.
                cell.lease = cell.lease.filter(|lease| lease.left() > 0.0 || !cell.is_settled());
                cell.returns = cell.lease.is_some();
                inner.return_lease(key);
                inner.forget_terms(key);
            }
        }
        self.work.notify_one();
    }

    /// Returns the keys of the budgets of which this node has a lease.
    pub fn leased(&self) -> Vec<Key> {
        let inner = self.lock();
        let has_lease = |key: &&Key| inner.cells.get(*key).is_some_and(|cell| cell.lease.is_some());
        inner.leased.keys().filter(has_lease).cloned().collect()
    }

    /// Returns the amount of a lease that this node has not spent; `None` if it takes no lease of this budget.
    pub fn rest_of_lease(&self, key: KeyRef<'_>, now: Timestamp) -> Option<f64> {
        let inner = self.lock();
        let terms = inner.leased.get(key.text())?;
        Some(terms.left(inner.cells.get(key.text()).and_then(|cell| cell.lease), now))
    }
}

impl Inner {
    /// Returns the states of the budgets with leases before a transaction, each with the index of its key. A budget begins
    /// to have leases when no change of it is on its way.
    pub(super) fn before_lease(&mut self, keys: &[KeyRef<'_>], now: Timestamp) -> Vec<(usize, Option<State>)> {
        let mut before = Vec::new();
        if self.leased.is_empty() {
            return before;
        }
        for (index, key) in keys.iter().enumerate() {
            let Some(cell) = self.cells.get_mut(key.text()) else { continue };
            if cell.terms.is_none() && cell.is_settled() {
                cell.terms = self.leased.get(key.text()).copied();
            }
            if cell.terms.is_some() {
                cell.follow_drain(now);
                before.push((index, cell.working.as_ref().map(|budget| budget.state)));
            }
        }
        before
    }

    /// Charges to leases what a transaction has charged to their budgets. Takes the budgets whose lease covers this out of
    /// `changed`, and returns their indices with the amounts.
    pub(super) fn spend(
        &mut self,
        keys: &[KeyRef<'_>],
        before: &[(usize, Option<State>)],
        changed: &mut Vec<usize>,
        (now, began): (Timestamp, Instant),
    ) -> Vec<(usize, f64)> {
        let mut spent = Vec::new();
        for (index, state) in before.iter().filter(|(index, _)| changed.contains(index)) {
            spent.extend(self.cell(keys[*index]).spend(*state, now, began).map(|amount| (*index, amount)));
        }
        changed.retain(|index| spent.iter().all(|(other, _)| other != index));
        spent
    }

    /// Puts back what a transaction that runs again has spent of a lease. If Redis has to be told, and another node is
    /// faster, it is put back again.
    pub(super) fn unspend(&mut self, key: &Key, amount: f64) {
        let Some(cell) = self.cells.get_mut(key) else { return };
        let is_settled = cell.is_settled();
        let Some(terms) = cell.terms else { return };
        let Some(budget) = &mut cell.working else {
            // The budget is read again, and its state then follows from the lease.
            let now = cell.confirmed.budget.as_ref().map(|budget| budget.state.at);
            cell.lease = cell.lease.map(|lease| {
                let now = now.map_or(lease.at(), |now| now.max(lease.at()));
                terms.with_rest(lease, terms.left(Some(lease), now) + amount, now)
            });
            return;
        };
        budget.state.level = (budget.state.level - amount).max(0.0);
        match terms.spend(cell.lease, -amount, budget.state.at) {
            Some(lease) if is_settled => cell.lease = Some(lease),
            _ => {
                cell.pending -= amount;
                cell.change.get_or_insert_default();
                let group = self.join(std::iter::once(key.borrowed()));
                self.collecting[group].spent.push((key.clone(), amount));
            }
        }
    }

    /// Puts a budget into a group if the rest of its lease is to be returned.
    pub(super) fn return_lease(&mut self, key: &Key) {
        let Some(cell) = self.cells.get_mut(key) else { return };
        if cell.returns && cell.flight.is_none() && cell.read_at.is_some() && cell.working.is_some() {
            cell.change.get_or_insert_default();
            self.join(std::iter::once(key.borrowed()));
        }
    }

    /// Forgets the terms of a lease that is returned, if no further leases are wanted.
    pub(super) fn forget_terms(&mut self, key: &Key) {
        let is_free = |cell: &&mut Cell| cell.lease.is_none() && cell.is_settled();
        let Some(cell) = self.cells.get_mut(key).filter(is_free) else { return };
        if cell.terms.is_some_and(|terms| terms.amount == 0.0) {
            cell.terms = None;
            self.leased.remove(key);
        }
    }
}

impl Cell {
    /// Returns the budget as this node sees it: Redis counts the rest of this node's lease, and what nodes have returned,
    /// as charged.
    pub(super) fn seen(&self) -> Option<Budget> {
        let mut budget = self.confirmed.budget.clone()?;
        let bucket = Bucket { state: budget.state, returned: self.confirmed.returned };
        match (self.terms, self.lease) {
            (Some(terms), Some(lease)) => {
                let at = budget.state.at.max(lease.at());
                budget.state = State { at, level: terms.level_for(&bucket, self.lease, at) };
            }
            _ => budget.state.level -= bucket.returned.map_or(0.0, |returned| returned.left()),
        }
        Some(budget)
    }

    /// Corrects the state for rests that have drained since. Without this, they would seem to be still there.
    fn follow_drain(&mut self, now: Timestamp) {
        let (Some(terms), Some(confirmed), true) = (self.terms, &self.confirmed.budget, self.is_settled()) else {
            return;
        };
        let bucket = Bucket { state: confirmed.state, returned: self.confirmed.returned };
        let level = terms.level_for(&bucket, self.lease, now);
        let is_lower = |budget: &&mut Budget| terms.level(budget.state, now) < level - terms.rounding();
        if let Some(budget) = self.working.as_mut().filter(is_lower) {
            budget.state = State { at: now, level };
        }
    }

    /// Charges to the lease what a transaction has charged since this state. Returns the amount, if the lease covers it.
    fn spend(&mut self, before: Option<State>, now: Timestamp, began: Instant) -> Option<f64> {
        if self.flight.is_none() {
            self.heal(now);
        }
        let (terms, change) = (self.terms?, self.change.as_ref()?);
        let level = |state: Option<State>| state.map_or(0.0, |state| terms.level(state, now));
        let amount = level(self.working.as_ref().map(|budget| budget.state)) - level(before);
        let is_alone = self.group.is_none() && self.flight.is_none() && !self.owes() && !change.turned;
        self.lease_used_at = Some(began);
        match terms.spend(self.lease, amount, now) {
            Some(lease) if is_alone => {
                (self.lease, self.change) = (Some(lease), None);
                Some(amount)
            }
            _ => {
                self.pending += amount;
                None
            }
        }
    }

    /// Charges to the lease what waits to be sent, if a lease that has come meanwhile covers it. Returns the amount.
    pub(super) fn spend_pending(&mut self) -> Option<f64> {
        let (terms, change, working) = (self.terms?, self.change.as_ref()?, self.working.as_ref()?);
        if self.returns || self.owes() || change.turned {
            return None;
        }
        self.lease = Some(terms.spend(self.lease, self.pending, working.state.at)?);
        self.change = None;
        Some(std::mem::take(&mut self.pending))
    }

    /// Returns the bucket that Redis has after a change that has charged this amount, and the lease of this node.
    pub(super) fn bucket_after(&self, working: State, change: &Change, charged: f64) -> (Bucket, Option<Lease>) {
        // After a reset, nothing of a lease is in the bucket.
        let Some(terms) = self.terms.filter(|_| !change.turned) else {
            return (Bucket { state: working, returned: None }, None);
        };
        let state = self.confirmed.budget.as_ref().map_or(State { level: 0.0, ..working }, |budget| budget.state);
        let bucket = Bucket { state, returned: self.confirmed.returned };
        let now = working.at.max(state.at);
        let (bucket, lease) = terms.charge(&bucket, self.lease, charged, now);
        if self.returns { (terms.give_back(&bucket, lease, now), None) } else { (bucket, lease) }
    }

    /// Ends the lease if the bucket has begun anew: it was reset, or Redis has lost it.
    pub(super) fn end_lost_lease(&mut self) {
        self.lease = self.lease.filter(|_| self.confirmed.began == self.lease_began);
    }

    /// Returns what this node owes, as an amount to be charged at this time.
    pub(super) fn owed_amount(&self, now: Timestamp) -> f64 {
        let (Some(terms), Some(owed)) = (self.terms, &self.owed) else { return 0.0 };
        terms.level(owed.state, now)
    }

    /// Gives up the lease: its rest stays charged in Redis, and counts as charged for this node, too.
    pub(super) fn give_up_lease(&mut self) {
        let (Some(terms), Some(lease)) = (self.terms, self.lease.take()) else { return };
        self.returns = false;
        if let Some(budget) = &mut self.working {
            budget.state.level += terms.left(Some(lease), budget.state.at);
        }
    }

    /// Lets no time be ahead of `now`: a clock was wrong, and the bucket would not drain until that time.
    fn heal(&mut self, now: Timestamp) {
        let Some(budget) = self.confirmed.budget.as_mut().filter(|budget| budget.state.at > now) else { return };
        budget.state.at = now;
        for lease in [&mut self.lease, &mut self.confirmed.returned] {
            *lease = lease.map(|lease| lease.not_after(now));
        }
    }
}
