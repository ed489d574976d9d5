//! Slot of the cache: a budget in few octets.

use super::records::{Place, Records};
use crate::engine::State;
use crate::engine::distinct::Filter;
use crate::policy::budgets::Budget;
use crate::store::commit_queue::NEVER_WRITTEN;
use crate::store::journal::{self, Seen};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A budget in memory. Memory has room for few budgets compared with the file, so a slot takes as few octets as
/// possible: owner and budget are one record in the form of the journal, and all budgets of a limit share the beginning
/// of their keys. A decision reads the budget from the record.
pub struct Slot {
    /// Place of the budget's record: see [`write_record`].
    place: Place,
    /// Filter that is too large for the record.
    filter: Option<Arc<Filter>>,
    /// Epoch of the queue in which the budget's filter was last written to the file or read from it: see
    /// [`Queue::epoch`](crate::store::commit_queue::Queue::epoch).
    pub written_epoch: u64,
    /// Index of the beginning of the key in the shard's list.
    pub prefix: u32,
    pub stage: Stage,
    /// True if a transaction has used the budget since eviction last checked the budget.
    pub recently_used: bool,
    has_budget: bool,
}

/// A slot, with the records of its shard.
#[derive(Clone, Copy)]
pub struct SlotRef<'a> {
    slot: &'a Slot,
    records: &'a Records,
}

/// A slot that can be changed, with the records of its shard.
pub struct SlotMut<'a> {
    slot: &'a mut Slot,
    records: &'a mut Records,
}

/// Relation between a budget in memory and its row in the file's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The row equals the budget.
    Folded,
    /// The writer is writing the row.
    Folding,
    Changed,
    /// The row could not be read. The budget counts from zero, in memory only, until the row can be read. The contents
    /// of the row are then added to the budget.
    Unread,
    /// The budget counts things that exist at present, such as open sessions. The budget is never written to the file.
    Volatile,
}

/// Octets of a filter in memory above which the record does not contain it. A decision need not read a larger filter
/// from the record, and does not copy it.
const MAX_IN_RECORD: usize = 256;

/// Octets of a slot without its record: the slot itself, and its part of the hash table.
const SLOT_OCTETS: usize = size_of::<Slot>() + 16;

/// Octets of a filter beside its values: reference counts and the allocator's overhead.
const FILTER_OCTETS: usize = 2 * size_of::<usize>() + size_of::<Filter>();

impl Slot {
    /// Creates a slot, and adds its record to `records`.
    pub fn new(prefix: u32, owner: &str, budget: Option<Budget>, stage: Stage, records: &mut Records) -> Self {
        let (budget, filter) = split(budget);
        let place = records.add(|out| write_record(owner, budget.as_ref(), out));
        let has_budget = budget.is_some();
        Self { place, filter, written_epoch: NEVER_WRITTEN, prefix, stage, recently_used: false, has_budget }
    }

    pub fn has_budget(&self) -> bool {
        self.has_budget
    }

    pub fn place(&self) -> Place {
        self.place
    }

    /// Returns the place of the record, to change it when the records are packed.
    pub fn place_mut(&mut self) -> &mut Place {
        &mut self.place
    }

    /// Returns the memory that the slot takes, in octets.
    pub fn octets(&self) -> usize {
        let filter = self.filter.as_ref().map_or(0, |filter| FILTER_OCTETS + filter.octets());
        SLOT_OCTETS + self.place.octets() + filter
    }
}

impl<'a> SlotRef<'a> {
    pub fn new(slot: &'a Slot, records: &'a Records) -> Self {
        Self { slot, records }
    }

    /// Returns the part of the key after its prefix.
    pub fn owner(self) -> &'a str {
        owner_of(self.record())
    }

    pub fn is_of(self, owner: &str) -> bool {
        journal::record_key(self.record()) == Some(owner.as_bytes())
    }

    /// Returns a copy of the budget.
    pub fn budget(self) -> Option<Budget> {
        let budget = Some(()).filter(|()| self.slot.has_budget).and_then(|()| journal::read_record(self.record()))?;
        Some(Budget { seen: self.slot.filter.clone().or(budget.seen), ..budget })
    }

    pub fn state(self) -> Option<State> {
        self.budget().map(|budget| budget.state)
    }

    fn record(self) -> &'a [u8] {
        self.records.get(self.slot.place)
    }
}

impl Deref for SlotRef<'_> {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        self.slot
    }
}

impl<'a> SlotMut<'a> {
    pub fn new(slot: &'a mut Slot, records: &'a mut Records) -> Self {
        Self { slot, records }
    }

    /// Returns a copy of the budget.
    pub fn budget(&self) -> Option<Budget> {
        SlotRef::new(self.slot, self.records).budget()
    }

    /// Takes the budget out of the slot. A large filter is not copied.
    pub fn take(&mut self) -> Option<Budget> {
        let budget = self.budget();
        (self.has_budget, self.filter) = (false, None);
        budget
    }

    /// Puts a budget into the slot again that was taken out of it, and has not changed since.
    pub fn put_back(&mut self, budget: Option<Budget>) {
        debug_assert_eq!(
            budget.as_ref().map(|budget| (budget.state, &budget.times)),
            journal::read_record(self.records.get(self.place)).as_ref().map(|budget| (budget.state, &budget.times)),
        );
        self.has_budget = budget.is_some();
        self.filter = budget.and_then(|budget| budget.seen).filter(|seen| is_large(seen));
    }

    /// Puts a budget into the slot.
    pub fn put(&mut self, budget: Option<Budget>) {
        let (budget, filter) = split(budget);
        let write = |former: &[u8], out: &mut Vec<u8>| write_record(owner_of(former), budget.as_ref(), out);
        self.slot.place = self.records.replace(self.slot.place, write);
        (self.filter, self.has_budget) = (filter, budget.is_some());
    }
}

impl Deref for SlotMut<'_> {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        self.slot
    }
}

impl DerefMut for SlotMut<'_> {
    fn deref_mut(&mut self) -> &mut Slot {
        self.slot
    }
}

/// Separates a filter that is too large for the record from its budget.
fn split(mut budget: Option<Budget>) -> (Option<Budget>, Option<Arc<Filter>>) {
    let filter = budget.as_mut().and_then(|budget| budget.seen.take_if(|seen| is_large(seen)));
    (budget, filter)
}

/// Appends a record in the form of the journal, without a large filter. Its key is `owner`, the part of the budget's key
/// after its prefix. Without a budget, the record has only the key.
fn write_record(owner: &str, budget: Option<&Budget>, out: &mut Vec<u8>) {
    match budget {
        Some(budget) => journal::write_record(owner, budget, Seen::Whole, out),
        None => journal::write_key(owner, out),
    }
}

fn owner_of(record: &[u8]) -> &str {
    // The record was written with a text as its key.
    journal::record_key(record).and_then(|key| str::from_utf8(key).ok()).unwrap_or_default()
}

fn is_large(filter: &Filter) -> bool {
    filter.octets() > MAX_IN_RECORD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::distinct::{Rule, Value};
    use crate::engine::regularity::Times;
    use crate::time::Timestamp;
    use proptest::prelude::*;
    use std::time::Duration;

    const DAY: Duration = Duration::from_secs(86_400);

    /// Returns a budget with a filter that knows this many values, and with these times; with neither of them for 0.
    fn budget(level: f64, known: usize, times: usize) -> Budget {
        let (at, rule) = (Timestamp::from_micros(1_700_000_000_000_000), Rule::bounded(20_000, 180 * DAY));
        let mut seen = rule.begin(at);
        (0..known).for_each(|n| rule.learn(&mut seen, at, Value::of(&n.to_string())));
        Budget {
            state: State { at, level },
            seen: (known > 0).then(|| Arc::new(seen)),
            times: (times > 0).then(|| Arc::new(Times::new(vec![at; times]))),
        }
    }

    proptest! {
        /// A slot returns the budget that was put into it last, whether its filter is in the record or too large for it.
        #[test]
        fn a_slot_keeps_the_budget_that_was_put_last(
            puts in proptest::collection::vec((any::<bool>(), 0f64..1e9, 0usize..200, 0usize..20), 1..8),
        ) {
            let owner = "\u{1f}user=alice@example.org";
            let mut records = Records::default();
            let mut slot = Slot::new(0, owner, None, Stage::Changed, &mut records);
            let mut slot = SlotMut::new(&mut slot, &mut records);
            prop_assert_eq!(slot.budget(), None);
            for (is_some, level, known, times) in puts {
                let expected = is_some.then(|| budget(level, known, times));
                slot.put(expected.clone());
                prop_assert_eq!(slot.budget(), expected.clone());
                let taken = slot.take();
                prop_assert_eq!(taken.clone(), expected.clone());
                prop_assert!(!slot.has_budget());
                slot.put_back(taken);
                prop_assert_eq!(slot.budget(), expected);
                let slot = SlotRef::new(slot.slot, slot.records);
                prop_assert!(slot.is_of(owner) && slot.owner() == owner);
            }
        }
    }

    #[test]
    fn a_large_filter_is_not_copied_when_it_is_taken() {
        let mut records = Records::default();
        let mut slot = Slot::new(0, "", None, Stage::Changed, &mut records);
        let mut slot = SlotMut::new(&mut slot, &mut records);
        slot.put(Some(budget(1.0, 1_000, 0)));
        let mut seen = slot.take().and_then(|budget| budget.seen).unwrap();
        assert!(Arc::get_mut(&mut seen).is_some());
    }
}
