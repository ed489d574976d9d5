//! Lessons: recipients of the past, from the logs of a mail server or from a list of correspondents, which memories
//! learn at once.

use super::Policy;
use super::budgets::{Key, Loaded, Owner};
use super::matching::NormalizedFacts;
use super::memory::{KnownTo, Memory};
use super::request::Facts;
use crate::engine::distinct::Value;
use crate::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Recipient of the past: mail of these owners was delivered to the recipient, or the recipient wrote to the user.
#[derive(Clone, Debug)]
pub struct PastRecipient {
    pub at: Timestamp,
    pub user: Option<Arc<str>>,
    pub client: Option<IpAddr>,
    pub sender: Option<Arc<str>>,
    pub recipient: Arc<str>,
}

/// Recipients that memories learn, by the key of the memory's shard.
#[derive(Default)]
pub struct Lessons {
    lessons: BTreeMap<Key, Lesson>,
    /// Number of recipients that are left out because they were last seen too long ago.
    pub too_old: u64,
    /// Number of recipients that no memory learns because the owners of all memories are unknown.
    pub without_owner: u64,
}

/// Recipients that one shard of a memory learns, each with the time when it was last seen.
struct Lesson {
    memory: Memory,
    owner: Arc<str>,
    past: Vec<(Timestamp, Value)>,
}

/// Recipients that a memory has learnt for an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learnt {
    pub known_to: KnownTo,
    /// Owner of the memory; empty for the memory of the whole site.
    pub owner: Arc<str>,
    /// Number of recipients that the memory did not know.
    pub new: usize,
}

/// Maximum number of shards that one transaction of a store changes. The transaction holds locks, on which mail waits.
const MAX_SHARDS: usize = 32;

impl Lessons {
    /// Sorts recipients of the past by the memories of a policy. A recipient that was last seen before a memory's time to
    /// remember is left out.
    pub fn new<'r>(policy: &Policy, recipients: impl Iterator<Item = &'r PastRecipient>, now: Timestamp) -> Self {
        let mut lessons = Self::default();
        for recipient in recipients {
            lessons.add(policy, recipient, now);
        }
        for lesson in lessons.lessons.values_mut() {
            lesson.past.sort_unstable_by_key(|(at, _)| *at);
        }
        lessons
    }

    fn add(&mut self, policy: &Policy, past: &PastRecipient, now: Timestamp) {
        let facts = Facts {
            user: past.user.clone(),
            authenticated: past.user.is_some(),
            client: past.client,
            sender: past.sender.clone(),
            ..Facts::default()
        };
        let facts = NormalizedFacts::new(&facts, &policy.normalizer, &policy.senders, &policy.zone, now);
        let value = Value::of(&policy.normalizer.address(&past.recipient));
        let at = past.at.min(now);
        let (mut buffer, mut is_old, mut is_learnt) = (String::new(), false, false);
        for memory in policy.memories() {
            let Ok(key) = memory.key(&facts, value, &mut buffer) else { continue };
            if now.since(at) >= memory.remember() {
                is_old = true;
                continue;
            }
            is_learnt = true;
            let key = key.owned();
            let lesson = self.lessons.entry(key).or_insert_with_key(|key| {
                let owner = memory.owner_of(&key.owner());
                Lesson { memory: *memory, owner, past: Vec::new() }
            });
            lesson.past.push((at, value));
        }
        self.too_old += u64::from(is_old && !is_learnt);
        self.without_owner += u64::from(!is_old && !is_learnt);
    }

    /// Returns the keys of the shards that change, in parts for one transaction each.
    pub fn parts(&self) -> Vec<Vec<Key>> {
        let keys: Vec<Key> = self.lessons.keys().cloned().collect();
        keys.chunks(MAX_SHARDS).map(<[Key]>::to_vec).collect()
    }

    /// Makes the loaded shards learn. `keys` is one part of [`Lessons::parts`], in the order of the shards.
    pub fn learn(&self, keys: &[Key], loaded: &mut Loaded) -> Vec<Learnt> {
        let learnt = keys.iter().zip(&mut loaded.0).filter_map(|(key, slot)| {
            let Lesson { memory, owner, past } = self.lessons.get(key)?;
            let new = slot.learn_past(memory.rule(), past);
            Some(Learnt { known_to: memory.known_to, owner: owner.clone(), new })
        });
        learnt.collect()
    }
}

/// Sums of what memories have learnt, by `known-to`.
#[derive(Default)]
pub struct LearntSums(BTreeMap<&'static str, (usize, BTreeSet<Arc<str>>)>);

impl LearntSums {
    pub fn add(&mut self, known_to: KnownTo, owner: Arc<str>, new: usize) {
        let (sum, owners) = self.0.entry(known_to.name()).or_default();
        *sum += new;
        owners.insert(owner);
    }

    /// Returns the word of `known-to`, the number of new recipients, and the owners, for each memory that has learnt.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, usize, &BTreeSet<Arc<str>>)> {
        self.0.iter().map(|(known_to, (new, owners))| (*known_to, *new, owners))
    }
}

impl FromIterator<Learnt> for LearntSums {
    fn from_iter<T: IntoIterator<Item = Learnt>>(learnt: T) -> Self {
        let mut sums = Self::default();
        learnt.into_iter().for_each(|Learnt { known_to, owner, new }| sums.add(known_to, owner, new));
        sums
    }
}

impl Memory {
    /// Returns the value of the memory's owner in a key; empty for the memory of the whole site.
    fn owner_of(&self, owner: &Owner) -> Arc<str> {
        let value = |(field, value): (&str, &str)| (field == self.known_to.name()).then(|| value.into());
        owner.parts().find_map(value).unwrap_or_default()
    }
}
