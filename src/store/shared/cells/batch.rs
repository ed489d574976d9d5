//! Batches of groups on their way to Redis.

use super::{Cell, Cells, Confirmed, Group, Inner};
use crate::engine::State;
use crate::engine::distinct::Filter;
use crate::engine::lease::Lease;
use crate::policy::Lifetime;
use crate::policy::budgets::{Budget, Change, Key, KeyRef};
use crate::store::journal;
use crate::store::shared::names::{Names, Reach};
use crate::store::shared::value::{FilterExtent, Stored};
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Groups that are sent to Redis together.
pub struct Batch {
    /// The parts of each group. The first one is that which most transactions share.
    pub groups: Vec<Vec<Part>>,
    pub sent_at: Instant,
}

/// Budgets of one group that Redis changes in one step.
pub struct Part(pub Vec<SentCell>);

/// Budget that is on its way to Redis.
pub struct SentCell {
    pub key: Key,
    pub names: Arc<Names>,
    /// Version that Redis must have; 0 if it must have no such budget.
    pub expected: u64,
    /// Change of the budget; `None` if only its version is compared.
    pub write: Option<Write>,
    /// Change in this node's terms, to be kept if Redis cannot be reached.
    pub(super) change: Option<Change>,
    /// State that Redis has afterwards.
    pub(super) after: Confirmed,
    /// State before the transactions of the group: the one that Redis had, with what this node owed.
    pub(super) before: Option<State>,
    /// True if the write contains what this node owed.
    pub(super) pays: bool,
    /// Lease that this node has afterwards.
    pub(super) lease: Option<Lease>,
    /// Amount that the transactions of the group have charged, if this node takes leases of the budget.
    pub(super) charged: f64,
}

/// Change of a budget in Redis.
pub struct Write {
    /// Encoded state.
    pub state: Vec<u8>,
    /// Time after which Redis forgets the budget.
    pub lifetime: Duration,
    pub filter: FilterWrite,
}

/// Change of a budget's filter in Redis.
pub enum FilterWrite {
    /// The budget has no filter, and had none.
    None,
    /// The budget has no filter any more.
    Remove,
    /// The filter has not changed.
    Keep,
    /// The whole filter.
    Whole(Vec<u8>),
    /// Values that the filter has learnt, to be added to its log.
    Append(Vec<u8>),
}

/// Outcome of a group, for the transactions that wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Redis has the changes, and what the transaction has seen was right.
    Valid,
    /// Another node was faster: the transaction must run again.
    Again,
    /// Redis cannot be reached. The changes are in the memory of this node only.
    InMemory,
}

/// Reply of Redis to a part.
pub enum Reply {
    Done,
    /// Some budgets have another version. The octets are the states that the budgets have now, in the order of the part.
    Conflict(Vec<Option<Vec<u8>>>),
    /// The part was not sent, because of a conflict in the first part of its group.
    NotSent,
}

/// Octets of a filter's log from which on the whole filter is written instead, unless the filter is larger.
const MAX_LOG_OCTETS: usize = 2_048;

/// Returns by how much a version grows with a write. It is random: a master that is killed can lose a write that its
/// replicas do not have, and the next write must have another version than the lost one, of which nodes have copies.
fn step() -> u64 {
    const MAX: u32 = 1 << 20;
    u64::from(getrandom::u32().unwrap_or_default() % MAX) + 1
}

impl Cells {
    /// Takes the batch that was collected. While a batch is on its way, no other is taken. `by_tag`: each part has
    /// budgets of one tag only, as a Cluster demands.
    pub fn take_batch(&self, by_tag: bool) -> Option<Batch> {
        let inner = &mut *self.lock();
        if !inner.flying.is_empty() || inner.collecting.is_empty() {
            return None;
        }
        // Mark the cells first: a group's index is its place in the list.
        inner.flying = std::mem::take(&mut inner.collecting);
        let groups = (0..inner.flying.len()).map(|index| inner.send(index, by_tag)).collect();
        Some(Batch { groups, sent_at: Instant::now() })
    }
}

impl Inner {
    /// Puts these budgets into one group of the batch that is being collected, and returns its index.
    pub(super) fn join<'k>(&mut self, keys: impl Iterator<Item = KeyRef<'k>> + Clone) -> usize {
        let present = keys.clone().find_map(|key| self.cells.get(key.text())?.group);
        let target = present.unwrap_or_else(|| {
            self.collecting.push(Group::default());
            self.collecting.len() - 1
        });
        for key in keys {
            let Some((owned, cell)) = self.cells.get_key_value(key.text()) else { continue };
            match cell.group {
                Some(group) if group == target => {}
                Some(group) => {
                    let merged = std::mem::take(&mut self.collecting[group]);
                    for key in &merged.cells {
                        self.cells.get_mut(key).into_iter().for_each(|cell| cell.group = Some(target));
                    }
                    self.collecting[target].cells.extend(merged.cells);
                    self.collecting[target].waiting.extend(merged.waiting);
                    self.collecting[target].spent.extend(merged.spent);
                }
                None => {
                    self.collecting[target].cells.push(owned.clone());
                    self.cells.get_mut(key.text()).into_iter().for_each(|cell| cell.group = Some(target));
                }
            }
        }
        target
    }

    fn send(&mut self, index: usize, by_tag: bool) -> Vec<Part> {
        let mut parts: BTreeMap<(Reach, u64), Vec<SentCell>> = BTreeMap::new();
        let Group { cells, spent, .. } = &mut self.flying[index];
        for key in &*cells {
            let Some(cell) = self.cells.get_mut(key) else { continue };
            if let Some(amount) = cell.spend_pending() {
                cell.group = None;
                spent.push((key.clone(), amount));
                continue;
            }
            (cell.group, cell.flight) = (None, Some(index));
            let part = if by_tag { (cell.names.reach, cell.names.tag) } else { (Reach::All, 0) };
            parts.entry(part).or_default().push(cell.send(key));
        }
        parts.into_values().map(Part).collect()
    }
}

impl Cell {
    fn send(&mut self, key: &Key) -> SentCell {
        let (change, charged) = (self.change.take(), std::mem::take(&mut self.pending));
        let mut lease = self.lease;
        let (write, after) = match (&change, &self.working) {
            (Some(change), Some(budget)) => {
                let version = self.confirmed.next_version(budget.state.at);
                let (filter, extent) = self.filter_write(version, budget, change);
                let all_charged = charged + self.owed_amount(budget.state.at);
                let (bucket, after) = self.bucket_after(budget.state, change, all_charged);
                lease = after;
                let (state, times) = (bucket.state, budget.times.clone());
                let began = match self.terms {
                    None => 0,
                    Some(_) if change.turned || self.confirmed.began == 0 => version,
                    Some(_) => self.confirmed.began,
                };
                let stored = Stored { version, state, filter: extent, times, began, returned: bucket.returned };
                let lifetime = self.lifetime.of(state.level);
                let write = Write { state: stored.encode(&self.names.text), lifetime, filter };
                (Some(write), Confirmed::of(Some(stored)))
            }
            _ => (None, self.confirmed.clone()),
        };
        let pays = write.is_some() && self.owes();
        SentCell {
            before: if pays { self.paid } else { self.confirmed.budget.as_ref().map(|budget| budget.state) },
            key: key.clone(),
            names: self.names.clone(),
            expected: self.confirmed.version,
            pays,
            write,
            change,
            after,
            lease,
            charged,
        }
    }

    /// Returns how the filter changes in Redis, and the extent of the filter afterwards.
    fn filter_write(&self, version: u64, budget: &Budget, change: &Change) -> (FilterWrite, Option<FilterExtent>) {
        let before = self.confirmed.filter;
        let Some(filter) = &budget.seen else {
            return (if before.is_some() { FilterWrite::Remove } else { FilterWrite::None }, None);
        };
        let values: Vec<u8> = change.learnt.iter().flat_map(|value| value.to_bytes()).collect();
        match before {
            Some(extent) if !change.is_of_filter() => (FilterWrite::Keep, Some(extent)),
            Some(FilterExtent { base, log })
                if !change.turned && log as usize + values.len() <= MAX_LOG_OCTETS.max(filter.octets()) =>
            {
                // The sum is at most some megabytes.
                let log = log + values.len() as u32;
                (FilterWrite::Append(values), Some(FilterExtent { base, log }))
            }
            _ => FilterWrite::whole(filter, version),
        }
    }
}

impl SentCell {
    /// Returns a write of a whole budget, in whose place Redis must have what was `read`. `now` is the time of the write.
    pub fn whole(
        (key, names): (&Key, Arc<Names>),
        read: &Confirmed,
        budget: &Budget,
        lifetime: Lifetime,
        now: Timestamp,
    ) -> Self {
        let version = read.next_version(now);
        let (filter, extent) = match &budget.seen {
            Some(filter) => FilterWrite::whole(filter, version),
            None if read.filter.is_some() => (FilterWrite::Remove, None),
            None => (FilterWrite::None, None),
        };
        let (state, times) = (budget.state, budget.times.clone());
        let stored = Stored { version, state, filter: extent, times, began: 0, returned: None };
        let write = Write { state: stored.encode(&names.text), lifetime: lifetime.of(budget.state.level), filter };
        let (write, after) = (Some(write), Confirmed::of(Some(stored)));
        let (change, before, lease) = (None, None, None);
        let expected = read.version;
        Self { key: key.clone(), names, expected, write, change, before, after, pays: false, lease, charged: 0.0 }
    }
}

impl FilterWrite {
    /// Returns a write of a whole filter with the state of this version, and the filter's extent afterwards.
    fn whole(filter: &Filter, version: u64) -> (Self, Option<FilterExtent>) {
        let whole = [&version.to_le_bytes()[..], &journal::seal_seen(filter)].concat();
        (Self::Whole(whole), Some(FilterExtent { base: version, log: 0 }))
    }
}

impl Confirmed {
    /// Returns the version of the next write. `now` is its time, with which the versions of a new budget begin.
    fn next_version(&self, now: Timestamp) -> u64 {
        match self.version {
            0 => now.micros().max(1).cast_unsigned(),
            version => version.wrapping_add(step()).max(1),
        }
    }
}
