//! Map of bounded size: if the map is full, a new entry replaces the oldest entry.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Deref;

/// Map of at most `MAX` entries.
pub struct BoundedMap<K, V, const MAX: usize>(HashMap<K, V>);

impl<K, V, const MAX: usize> Default for BoundedMap<K, V, MAX> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Clone + Eq + Hash, V, const MAX: usize> BoundedMap<K, V, MAX> {
    /// Inserts or replaces an entry. If the key is new and the map is full, first removes the entry with the lowest
    /// `time`. To find that entry, searches all entries.
    pub fn insert<T: Ord>(&mut self, key: K, value: V, time: impl Fn(&V) -> T) {
        if self.is_full()
            && !self.0.contains_key(&key)
            && let Some(oldest) = self.0.iter().min_by_key(|(_, value)| time(value)).map(|(key, _)| key.clone())
        {
            self.0.remove(&oldest);
        }
        self.0.insert(key, value);
    }

    pub fn is_full(&self) -> bool {
        self.0.len() >= MAX
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.get_mut(key)
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.0.remove(key)
    }

    pub fn retain(&mut self, mut stays: impl FnMut(&V) -> bool) {
        self.0.retain(|_, value| stays(value));
    }
}

/// Gives access to the methods that only read the map.
impl<K, V, const MAX: usize> Deref for BoundedMap<K, V, MAX> {
    type Target = HashMap<K, V>;

    fn deref(&self) -> &HashMap<K, V> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_entry_without_room_takes_the_place_of_the_oldest_and_a_replaced_one_of_none() {
        let mut map = BoundedMap::<&str, u64, 2>::default();
        for (key, at, expected) in
            [("b", 2, "b"), ("a", 1, "a b"), ("c", 3, "b c"), ("b", 4, "b c"), ("d", 0, "b d"), ("e", 5, "b e")]
        {
            map.insert(key, at, |at| *at);
            let mut keys: Vec<_> = map.keys().copied().collect();
            keys.sort();
            assert_eq!(keys.join(" "), expected, "after {key}");
        }
    }
}
