//! Reading of budgets from Redis.

use super::{Cell, Cells, Confirmed, Inner};
use crate::engine::distinct::{Filter, Value};
use crate::policy::Policy;
use crate::policy::budgets::{Budget, Key};
use crate::store::shared::names::Names;
use crate::store::shared::value::{self, FilterExtent, Stored};
use std::sync::Arc;
use std::time::Instant;

/// Budget that is to be read.
pub struct Wanted {
    pub key: Key,
    pub names: Arc<Names>,
    /// Extent of the filter that the copy has; `None` if it has none, or if its filter has changed.
    pub filter: Option<FilterExtent>,
}

/// Budget as it was read.
pub struct ReadBudget {
    pub key: Key,
    pub confirmed: Confirmed,
    pub filter: ReadFilter,
}

impl ReadBudget {
    /// Returns the whole budget, if it was read without knowledge of a copy.
    pub fn stored(&self) -> Option<Budget> {
        let seen = match &self.filter {
            ReadFilter::Whole(filter) => Some(filter.clone()),
            ReadFilter::None | ReadFilter::Learnt(..) => None,
        };
        Some(Budget { seen, ..self.confirmed.budget.clone()? })
    }
}

/// Filter as it was read.
pub enum ReadFilter {
    None,
    /// The whole filter.
    Whole(Arc<Filter>),
    /// Values that the filter has learnt since the copy was made, whose filter has this extent.
    Learnt(FilterExtent, Vec<Value>),
}

impl Cells {
    /// Returns what has to be known of these budgets to read them.
    pub fn wanted(&self, keys: Vec<Key>) -> Vec<Wanted> {
        let inner = &mut *self.lock();
        let wanted = |key: Key| {
            let cell = inner.cell(key.borrowed());
            let is_whole = cell.read_at.is_some() && cell.is_settled();
            Wanted { names: cell.names.clone(), filter: cell.confirmed.filter.filter(|_| is_whole), key }
        };
        keys.into_iter().map(wanted).collect()
    }

    /// Takes budgets that were read, and wakes the transactions that wait for them. The reading began at `since`.
    pub fn take_read(&self, read: Vec<ReadBudget>, since: Instant, policy: &Policy) {
        let inner = &mut *self.lock();
        for ReadBudget { key, confirmed, filter } in read {
            // Dropping the senders wakes the transactions.
            inner.loading.remove(&key);
            // A copy that is about to change is checked when the change is sent.
            let is_away = inner.is_away;
            let cell = inner.cell(key.borrowed());
            if !is_away && cell.group.is_none() && cell.flight.is_none() {
                cell.take_read(confirmed, filter, since);
                inner.pay(&key, policy);
            }
        }
        self.work.notify_one();
    }
}

impl Inner {
    /// Adds what this node owes to a budget that was read, and puts the budget into a group.
    pub(super) fn pay(&mut self, key: &Key, policy: &Policy) {
        let Some(cell) = self.cells.get_mut(key).filter(|cell| cell.read_at.is_some()) else { return };
        if !cell.owes() {
            return;
        }
        if let Some(receipt) = &cell.refund {
            cell.working = cell.working.take().map(|budget| policy.refund(key, budget, receipt));
        }
        cell.working = match (cell.working.take(), cell.owed.clone()) {
            (Some(stored), Some(owed)) => Some(policy.merge(key, stored, owed)),
            (stored, owed) => stored.or(owed),
        };
        cell.paid = cell.working.as_ref().map(|budget| budget.state);
        let turned = cell.owed.as_ref().is_some_and(|owed| owed.seen.is_some());
        cell.change.get_or_insert_default().turned |= turned;
        self.join(std::iter::once(key.borrowed()));
    }
}

impl Cell {
    fn take_read(&mut self, confirmed: Confirmed, filter: ReadFilter, since: Instant) {
        // Between the reading and now, the copy has got a newer state.
        let is_older = confirmed.version != 0 && confirmed.version < self.confirmed.version;
        if self.read_at.is_some() && is_older {
            return;
        }
        // The copy stays as it is, so that a refund can restore the state before its charge.
        if self.read_at.is_some() && self.lease.is_some() && confirmed.version == self.confirmed.version {
            self.read_at = Some(since);
            return;
        }
        let seen = match (filter, self.working.take().and_then(|budget| budget.seen)) {
            (ReadFilter::None, _) => None,
            (ReadFilter::Whole(filter), _) => Some(filter),
            (ReadFilter::Learnt(extent, values), Some(mut filter)) if self.confirmed.filter == Some(extent) => {
                if !values.is_empty() {
                    let filter = Arc::make_mut(&mut filter);
                    values.into_iter().for_each(|value| filter.relearn(value));
                }
                Some(filter)
            }
            // The copy has another filter than when the reading began.
            (ReadFilter::Learnt(..), _) => return self.unload(),
        };
        self.confirmed = confirmed;
        self.end_lost_lease();
        self.working = self.seen().map(|budget| Budget { seen, ..budget });
        self.read_at = Some(since);
    }
}

impl Confirmed {
    /// Decodes a state of Redis. Octets that are no state count as a budget that was never charged.
    pub fn decode(state: Option<&[u8]>) -> Self {
        let Some(octets) = state else { return Self::default() };
        match Stored::decode(octets) {
            Some((stored, _)) => Self::of(Some(stored)),
            None => Self { version: value::version(octets).unwrap_or(0), ..Self::default() },
        }
    }

    pub(super) fn of(stored: Option<Stored>) -> Self {
        let Some(Stored { version, state, filter, times, began, returned }) = stored else { return Self::default() };
        Self { version, budget: Some(Budget { state, seen: None, times }), filter, began, returned }
    }
}
