//! Shard of the cache: a hash table of slots.

use super::records::Records;
use super::slot::{Slot, SlotMut, SlotRef, Stage};
use crate::policy::budgets::{Budget, Key, KeyRef};
use crate::store::hashed_key::{HashedKey, HashedKeyRef, order};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::collections::HashMap;
use std::hash::BuildHasher as _;
use tokio::sync::oneshot;

/// Part of the cache, with the budgets of a range of hashes.
#[derive(Default)]
pub struct Shard {
    /// The slots are not in the table itself, because a table is only half full after it has grown.
    slots: HashTable<Box<Slot>>,
    records: Records,
    /// The different beginnings of the keys: one for each limit, and one for each memory. The list never shrinks.
    prefixes: Vec<Box<str>>,
    /// Hashes the hashes of the keys with a secret. A client could choose keys that have the same place in the hash
    /// table without it.
    hasher: RandomState,
    /// Numbers of slots at [`Stage::Changed`] and at [`Stage::Unread`].
    changed: usize,
    unread: usize,
    /// Budgets that the loader is reading, each with the channels of the transactions that wait for it.
    pub loading: HashMap<Key, Vec<oneshot::Sender<()>>>,
    /// Number of slots without a budget. This is the number that was left when such slots were last dropped, plus the
    /// number inserted since then.
    pub empty: usize,
}

impl Shard {
    pub fn get(&self, hashed_key: HashedKeyRef<'_>) -> Option<SlotRef<'_>> {
        let (hash, key) = (self.hasher.hash_one(hashed_key.order), hashed_key.key.as_str());
        let slot = self.slots.find(hash, |slot| is_of(slot, &self.records, &self.prefixes, key))?;
        Some(SlotRef::new(slot, &self.records))
    }

    pub fn contains(&self, hashed_key: HashedKeyRef<'_>) -> bool {
        self.get(hashed_key).is_some()
    }

    /// Calls `act` with the slot of a key. Returns `None` if the key is not in memory.
    pub fn edit<R>(&mut self, hashed_key: HashedKeyRef<'_>, act: impl FnOnce(&mut SlotMut<'_>) -> R) -> Option<R> {
        let bucket = self.bucket(hashed_key)?;
        self.edit_in(bucket, act)
    }

    /// Returns the index of a key's slot in the hash table, which is valid until a slot is inserted or dropped; `None` if
    /// the key is not in memory.
    pub fn bucket(&self, hashed_key: HashedKeyRef<'_>) -> Option<usize> {
        let (hash, key) = (self.hasher.hash_one(hashed_key.order), hashed_key.key.as_str());
        self.slots.find_bucket_index(hash, |slot| is_of(slot, &self.records, &self.prefixes, key))
    }

    /// Calls `act` with the slot at this index of the hash table.
    pub fn edit_in<R>(&mut self, bucket: usize, act: impl FnOnce(&mut SlotMut<'_>) -> R) -> Option<R> {
        let slot = self.slots.get_bucket_mut(bucket)?;
        let before = slot.stage;
        let result = act(&mut SlotMut::new(slot, &mut self.records));
        let after = slot.stage;
        self.count(before, false);
        self.count(after, true);
        self.pack();
        Some(result)
    }

    /// Inserts a budget, whose key is not in memory. Returns the memory that its slot takes, in octets.
    pub fn insert(
        &mut self,
        hashed_key: HashedKeyRef<'_>,
        budget: Option<Budget>,
        stage: Stage,
        written_epoch: u64,
        recently_used: bool,
    ) -> usize {
        let (prefix, owner) = hashed_key.key.split_prefix();
        let known = self.prefixes.iter().position(|known| &**known == prefix);
        let prefix = known.unwrap_or_else(|| {
            self.prefixes.push(prefix.into());
            self.prefixes.len() - 1
        });
        let mut slot = Slot::new(prefix as u32, owner, budget, stage, &mut self.records);
        (slot.written_epoch, slot.recently_used) = (written_epoch, recently_used);
        self.empty += usize::from(!slot.has_budget());
        let octets = slot.octets();
        let hash = self.hasher.hash_one(hashed_key.order);
        self.slots.insert_unique(hash, slot.into(), |slot| hash_of(slot, &self.records, &self.prefixes, &self.hasher));
        self.count(stage, true);
        octets
    }

    /// Drops the slots for which `keep` returns false. Returns the memory that they took, in octets.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut Slot) -> bool) -> usize {
        let (mut octets, mut changed, mut unread) = (0, 0, 0);
        self.slots.retain(|slot| {
            let is_kept = keep(slot);
            if !is_kept {
                octets += slot.octets();
                self.records.drop(slot.place());
                changed += usize::from(slot.stage == Stage::Changed);
                unread += usize::from(slot.stage == Stage::Unread);
            }
            is_kept
        });
        self.changed -= changed;
        self.unread -= unread;
        self.pack();
        octets
    }

    /// Makes the hash table smaller if it is mostly empty: it does not become smaller by itself.
    pub fn shrink(&mut self) {
        if self.slots.capacity() > 4 * self.slots.len() {
            self.slots
                .shrink_to(2 * self.slots.len(), |slot| hash_of(slot, &self.records, &self.prefixes, &self.hasher));
        }
    }

    /// Packs the records if much of their memory is unused.
    fn pack(&mut self) {
        if self.records.is_loose() {
            self.records.pack(self.slots.iter_mut().map(|slot| slot.place_mut()));
        }
    }

    /// Drops the slot of a key. Returns the memory that it took, in octets.
    pub fn remove(&mut self, hashed_key: HashedKeyRef<'_>) -> usize {
        let (hash, key) = (self.hasher.hash_one(hashed_key.order), hashed_key.key.as_str());
        let found = self.slots.find_entry(hash, |slot| is_of(slot, &self.records, &self.prefixes, key));
        let Ok(entry) = found else { return 0 };
        let (slot, _) = entry.remove();
        self.count(slot.stage, false);
        self.records.drop(slot.place());
        self.pack();
        slot.octets()
    }

    /// Calls `take` with each slot and its key.
    pub fn for_each(&self, mut take: impl FnMut(KeyRef<'_>, SlotRef<'_>)) {
        let mut text = String::new();
        for slot in &self.slots {
            let slot = SlotRef::new(slot, &self.records);
            text.clear();
            text.push_str(&self.prefixes[slot.prefix as usize]);
            text.push_str(slot.owner());
            take(KeyRef::of_text(&text), slot);
        }
    }

    /// Returns the keys of the slots at this stage, sorted.
    pub fn keys_at(&self, stage: Stage) -> Vec<HashedKey> {
        let mut keys = Vec::new();
        self.for_each(|key, slot| keys.extend((slot.stage == stage).then(|| HashedKey::of(key.owned()))));
        keys.sort_unstable();
        keys
    }

    pub fn has_changed(&self) -> bool {
        self.changed > 0
    }

    pub fn has_unread(&self) -> bool {
        self.unread > 0
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of slots, and how many of them have changed.
    pub fn counts(&self) -> (usize, usize) {
        (self.slots.len(), self.changed)
    }

    fn count(&mut self, stage: Stage, is_added: bool) {
        let number = match stage {
            Stage::Changed => &mut self.changed,
            Stage::Unread => &mut self.unread,
            Stage::Folded | Stage::Folding | Stage::Volatile => return,
        };
        *number = if is_added { *number + 1 } else { *number - 1 };
    }
}

/// Returns whether a slot has this key.
fn is_of(slot: &Slot, records: &Records, prefixes: &[Box<str>], key: &str) -> bool {
    let owner = key.strip_prefix(&*prefixes[slot.prefix as usize]);
    owner.is_some_and(|owner| SlotRef::new(slot, records).is_of(owner))
}

/// Returns the hash of a slot in the hash table.
fn hash_of(slot: &Slot, records: &Records, prefixes: &[Box<str>], hasher: &RandomState) -> u64 {
    hasher.hash_one(order([&prefixes[slot.prefix as usize], SlotRef::new(slot, records).owner()]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::State;
    use crate::engine::regularity::Times;
    use crate::time::Timestamp;
    use proptest::prelude::*;
    use std::sync::Arc;

    const STAGES: [Stage; 5] = [Stage::Folded, Stage::Folding, Stage::Changed, Stage::Unread, Stage::Volatile];

    fn key(limit: u8, user: u8) -> HashedKey {
        HashedKey::of(Key::from_stored(&format!("limit{limit}\u{1f}recipients\u{1f}ewma\u{1f}user={user}")))
    }

    proptest! {
        /// Slots are inserted, change their stages and budgets, and are dropped. The shard finds each slot by its key,
        /// with its last budget, and counts the changed and unread ones.
        #[test]
        fn a_shard_finds_and_counts_its_slots(acts in proptest::collection::vec((0u8..3, 0u8..40, 0usize..7), 0..600)) {
            let (mut shard, mut expected) = (Shard::default(), HashMap::new());
            for (n, (limit, user, act)) in acts.into_iter().enumerate() {
                let hashed_key = key(limit, user);
                // Most budgets have records of another length than the budgets before them.
                let at = Timestamp::from_micros(n as i64);
                let times = Some(Arc::new(Times::new(vec![at; n % 5])));
                let budget = Budget { times, ..Budget::new(State { at, level: 1.0 }) };
                match STAGES.get(act) {
                    Some(stage) if expected.contains_key(&hashed_key) => {
                        shard.edit(hashed_key.borrowed(), |slot| {
                            slot.stage = *stage;
                            slot.put(Some(budget.clone()));
                        });
                        expected.insert(hashed_key, (*stage, budget));
                    }
                    Some(stage) => {
                        shard.insert(hashed_key.borrowed(), Some(budget.clone()), *stage, 0, false);
                        expected.insert(hashed_key, (*stage, budget));
                    }
                    None if act == 5 => {
                        shard.remove(hashed_key.borrowed());
                        expected.remove(&hashed_key);
                    }
                    None => {
                        shard.retain(|slot| slot.stage != Stage::Unread);
                        expected.retain(|_, (stage, _)| *stage != Stage::Unread);
                        shard.shrink();
                    }
                }
                let of = |stage| expected.values().filter(|(of, _)| *of == stage).count();
                prop_assert_eq!(shard.counts(), (expected.len(), of(Stage::Changed)));
                prop_assert_eq!(shard.has_unread(), of(Stage::Unread) > 0);
            }
            for stage in STAGES {
                let mut keys: Vec<HashedKey> =
                    expected.iter().filter(|(_, (of, _))| *of == stage).map(|(key, _)| key.clone()).collect();
                keys.sort_unstable();
                prop_assert_eq!(shard.keys_at(stage), keys);
            }
            for (hashed_key, expected) in expected {
                let slot = shard.get(hashed_key.borrowed());
                prop_assert_eq!(slot.and_then(|slot| Some((slot.stage, slot.budget()?))), Some(expected));
            }
        }
    }
}
