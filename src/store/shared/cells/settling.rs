//! End of a batch: Redis has replied, or cannot be reached.

use super::{Batch, Cell, Cells, Confirmed, Inner, Outcome, Reply, SentCell};
use crate::engine::{Receipt, State};
use crate::policy::Policy;
use crate::policy::budgets::{Budget, Change, Key};
use std::collections::BTreeSet;
use std::time::Instant;

/// Result of a batch.
pub struct Settled {
    /// Number of groups that another node was faster than.
    pub conflicts: usize,
    /// Budgets that must be read, because this node owes them something.
    pub to_load: Vec<Key>,
}

impl Cells {
    /// Takes the replies to a batch: for each part of each group.
    pub fn settle(&self, batch: Batch, replies: Vec<Vec<Reply>>, policy: &Policy) -> Settled {
        let inner = &mut *self.lock();
        let (mut failed, mut spent, mut conflicts) = (Vec::new(), Vec::new(), 0);
        let flying = std::mem::take(&mut inner.flying);
        for ((group, parts), replies) in flying.into_iter().zip(batch.groups).zip(replies) {
            let is_valid = replies.iter().all(|reply| matches!(reply, Reply::Done));
            if !is_valid {
                conflicts += 1;
                failed.extend(group.cells);
                spent.extend(group.spent);
            }
            for (part, reply) in parts.into_iter().zip(replies) {
                match reply {
                    Reply::NotSent => part.0.into_iter().for_each(|sent| inner.take_back(sent)),
                    Reply::Done => {
                        // Put back the charges to a lease's budget for transactions that run again.
                        let again = |sent: &&SentCell| !is_valid && sent.charged != 0.0;
                        spent.extend(part.0.iter().filter(again).map(|sent| (sent.key.clone(), sent.charged)));
                        part.0.into_iter().for_each(|sent| inner.confirm(sent, is_valid, (batch.sent_at, policy)));
                    }
                    Reply::Conflict(states) => {
                        let states = part.0.into_iter().zip(states);
                        states.for_each(|(sent, state)| inner.correct(sent, state.as_deref(), batch.sent_at));
                    }
                }
            }
            let outcome = if is_valid { Outcome::Valid } else { Outcome::Again };
            group.waiting.into_iter().for_each(|waiting| _ = waiting.send(outcome));
        }
        inner.roll_back(&mut failed, &mut spent);
        spent.iter().for_each(|(key, amount)| inner.unspend(key, *amount));
        for key in &failed {
            inner.pay(key, policy);
            inner.return_lease(key);
        }
        if !inner.collecting.is_empty() {
            self.work.notify_one();
        }
        failed.retain(|key| inner.cells.get(key).is_some_and(|cell| cell.read_at.is_none() && !cell.is_settled()));
        Settled { conflicts, to_load: failed }
    }

    /// Redis cannot be reached: from now on, transactions change the copies only. Transactions that wait go on.
    /// `batch`: the batch on its way, of which it is not known whether Redis has its changes. They count as changes that
    /// Redis does not have, so that they are not lost; they may be counted twice.
    pub fn set_away(&self, batch: Option<Batch>, policy: &Policy) {
        let inner = &mut *self.lock();
        inner.is_away = true;
        for sent in batch.into_iter().flat_map(|batch| batch.groups).flatten().flat_map(|part| part.0) {
            if let Some(cell) = inner.cells.get_mut(&sent.key) {
                cell.put_back(sent.change);
            }
        }
        for (key, cell) in &mut inner.cells {
            (cell.group, cell.flight, cell.pending) = (None, None, 0.0);
            // It is not known whether Redis still has the lease when it is back.
            cell.give_up_lease();
            cell.use_last_seen(key, policy);
        }
        let groups = std::mem::take(&mut inner.flying).into_iter().chain(std::mem::take(&mut inner.collecting));
        groups.flat_map(|group| group.waiting).for_each(|waiting| _ = waiting.send(Outcome::InMemory));
        inner.loading.clear();
    }

    /// Redis can be reached again. What this node has counted meanwhile is owed: it is added to the budgets when they
    /// have been read. Returns the keys of these budgets.
    pub fn set_back(&self, policy: &Policy) -> Vec<Key> {
        let inner = &mut *self.lock();
        inner.is_away = false;
        let mut owing = Vec::new();
        for (key, cell) in &mut inner.cells {
            cell.owe(key, policy);
            cell.unload();
            owing.extend((!cell.is_settled()).then(|| key.clone()));
        }
        owing
    }
}

impl Inner {
    /// Takes the confirmation of a budget's change. If another part of the group has failed (`is_valid` is false), its
    /// transactions run again, so that the charges of this part are refunded, and what it has refunded is owed.
    fn confirm(&mut self, sent: SentCell, is_valid: bool, (at, policy): (Instant, &Policy)) {
        let Some(cell) = self.cells.get_mut(&sent.key) else { return };
        cell.confirmed = sent.after;
        (cell.flight, cell.read_at) = (None, Some(at));
        if sent.pays {
            (cell.owed, cell.refund) = (None, None);
        }
        if cell.terms.is_some() {
            (cell.lease, cell.lease_began) = (sent.lease, cell.confirmed.began);
            cell.returns &= cell.lease.is_some();
            return self.forget_terms(&sent.key);
        }
        // A filter cannot forget a value: the transaction then finds its value known, and this charge stays.
        let is_of_filter = sent.change.is_some_and(|change| change.is_of_filter());
        let Some(after) = cell.confirmed.budget.as_ref().map(|budget| budget.state) else { return };
        if is_valid || is_of_filter || sent.write.is_none() || sent.before == Some(after) {
            return;
        }
        match sent.before.map(|before| policy.rise(&sent.key, before, after)) {
            Some(fall) if fall < 0.0 => {
                let owed = Budget::new(State { level: -fall, ..after });
                cell.owed = Some(match cell.owed.take() {
                    Some(before) => policy.merge(&sent.key, before, owed),
                    None => owed,
                });
            }
            _ => cell.refund = Some(Receipt { before: sent.before, after }),
        }
    }

    /// Takes back a change that was not sent, because another node was faster with the first part of the group. That node
    /// perhaps changes the other parts right now, so they are read again.
    fn take_back(&mut self, sent: SentCell) {
        let Some(cell) = self.cells.get_mut(&sent.key) else { return };
        (cell.flight, cell.read_at) = (None, None);
        cell.put_back(sent.change);
    }

    /// Takes the state that Redis has instead of the expected one.
    fn correct(&mut self, sent: SentCell, state: Option<&[u8]>, at: Instant) {
        let Some(cell) = self.cells.get_mut(&sent.key) else { return };
        let confirmed = Confirmed::decode(state);
        let is_same_filter = confirmed.filter == cell.confirmed.filter;
        cell.put_back(sent.change);
        (cell.confirmed, cell.flight, cell.read_at) = (confirmed, None, Some(at));
        cell.end_lost_lease();
        if !is_same_filter {
            cell.unload();
        }
    }

    /// Discards what was computed with wrong states of these budgets. Adds the budgets that depend on them,
    /// and what the transactions of these groups have spent of leases.
    fn roll_back(&mut self, failed: &mut Vec<Key>, spent: &mut Vec<(Key, f64)>) {
        let group = |key: &Key| self.cells.get(key)?.group;
        let groups: BTreeSet<usize> = failed.iter().filter_map(group).collect();
        for group in groups {
            let group = std::mem::take(&mut self.collecting[group]);
            failed.extend(group.cells);
            spent.extend(group.spent);
            group.waiting.into_iter().for_each(|waiting| _ = waiting.send(Outcome::Again));
        }
        failed.sort_unstable();
        failed.dedup();
        for key in &*failed {
            if let Some(cell) = self.cells.get_mut(key) {
                cell.group = None;
                cell.roll_back();
            }
        }
        if self.collecting.iter().all(|group| group.cells.is_empty()) {
            self.collecting.clear();
        }
    }
}

impl Cell {
    /// Puts back a change that was on its way. It came before the changes since.
    fn put_back(&mut self, change: Option<Change>) {
        let Some(mut change) = change else { return };
        if let Some(later) = self.change.take() {
            change.extend(later);
        }
        self.change = Some(change);
    }

    /// Makes transactions go on with the state that Redis had when this node last heard of it.
    fn use_last_seen(&mut self, key: &Key, policy: &Policy) {
        if self.read_at.is_some() {
            return;
        }
        self.working = self.refunded(key, policy);
        if let Some(owed) = self.owed.take() {
            self.working = Some(match self.working.take() {
                Some(seen) => policy.merge(key, seen, owed),
                None => owed,
            });
            self.change = Some(Change { turned: true, ..Change::default() });
        }
    }

    /// Notes what this node has counted and Redis does not have.
    fn owe(&mut self, key: &Key, policy: &Policy) {
        let Some(working) = self.working.take().filter(|_| self.change.is_some()) else { return };
        self.owed = Some(match self.refunded(key, policy) {
            Some(base) => policy.counted_since(key, &base, working),
            None => working,
        });
    }

    /// Returns the budget as last seen, without the charge that is to be refunded.
    fn refunded(&self, key: &Key, policy: &Policy) -> Option<Budget> {
        let budget = self.seen()?;
        Some(match &self.refund {
            Some(receipt) => policy.refund(key, budget, receipt),
            None => budget,
        })
    }

    /// Discards the changes that Redis has not confirmed. If the filter has changed, the budget must be read again.
    fn roll_back(&mut self) {
        let is_filter_changed = self.change.take().is_some_and(|change| change.is_of_filter());
        self.pending = 0.0;
        let seen = self.working.take().and_then(|budget| budget.seen);
        if self.read_at.is_none() || is_filter_changed || seen.is_some() != self.confirmed.filter.is_some() {
            return self.unload();
        }
        self.working = self.seen().map(|budget| Budget { seen, ..budget });
    }
}
