//! Space-Saving: a summary of bounded size that finds the keys with the largest weights in a stream (Metwally, Agrawal
//! and El Abbadi, "Efficient computation of frequent and top-k elements in data streams", 2005).
//!
//! Weights decay exponentially with time. Instead of decaying each counter again and again, the summary multiplies each
//! new amount by a factor that grows with time (forward decay: Cormode, Shkapenyuk, Srivastava and Xu, "Forward decay: a
//! practical time decay model for streaming systems", 2009). The order of the counters then never changes by time alone.

use crate::time::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Summary of at most `capacity` keys. `V` is what the caller keeps about each key.
///
/// Let W be the decayed sum of all amounts. Each key whose own decayed sum exceeds W / `capacity` is in the summary.
pub struct SpaceSaving<V> {
    capacity: usize,
    /// Time in which a weight decays to 1/e, in seconds.
    time_constant: f64,
    /// Time at which an amount of 1 adds a weight of 1.
    landmark: Timestamp,
    /// Latest time of an observation.
    latest: Timestamp,
    counters: Vec<Counter<V>>,
    /// Index of each key in `counters`.
    slots: HashMap<Arc<str>, usize>,
    /// Indices in `counters`, as a binary heap: the counter with the smallest weight is the first.
    heap: Vec<usize>,
    /// For each counter, its index in `heap`.
    positions: Vec<usize>,
}

/// Counter of one key. Weights are relative to the summary's landmark.
struct Counter<V> {
    key: Arc<str>,
    /// Upper bound of the key's true weight. It exceeds the true weight by at most the weight of the key that this key
    /// has replaced.
    weight: f64,
    value: V,
}

/// Key of the summary with its weight at a time.
#[derive(Debug)]
pub struct Heavy<'a, V> {
    pub key: &'a Arc<str>,
    /// Upper bound of the key's decayed sum of amounts. It exceeds the true sum by at most W / `capacity`.
    pub weight: f64,
    pub value: &'a V,
}

/// Number of time constants after which the landmark moves to the present. The factor of new amounts is then e⁵⁰, which
/// a double represents with its full precision.
const MAX_TIME_CONSTANTS: f64 = 50.0;

/// Maximum time by which an observation can be earlier than the latest one. A larger difference means that the clock
/// was set back.
const MAX_REORDERING: Duration = Duration::from_secs(10);

impl<V: Default> SpaceSaving<V> {
    /// Creates an empty summary. `capacity` must be above 0.
    pub fn new(capacity: usize, time_constant: Duration) -> Self {
        let zero = Timestamp::from_micros(0);
        Self {
            capacity,
            time_constant: time_constant.as_secs_f64(),
            landmark: zero,
            latest: zero,
            counters: Vec::new(),
            slots: HashMap::new(),
            heap: Vec::new(),
            positions: Vec::new(),
        }
    }

    /// Adds an amount (at least 0) to a key, and returns what the caller keeps about the key. If the key is new and the
    /// summary is full, the key replaces the key with the smallest weight, and its value starts anew.
    pub fn add(&mut self, key: &str, now: Timestamp, amount: f64) -> &mut V {
        let weight = amount * self.factor(now);
        let slot = match self.slots.get(key) {
            Some(slot) => *slot,
            None if self.counters.len() < self.capacity => self.insert(key),
            None => self.replace_smallest(key),
        };
        self.counters[slot].weight += weight;
        self.sift_down(self.positions[slot]);
        &mut self.counters[slot].value
    }

    /// Returns all keys, in no order, with their weights at `now`.
    pub fn iter(&self, now: Timestamp) -> impl Iterator<Item = Heavy<'_, V>> {
        let scale = (-self.age(now.max(self.latest))).exp();
        self.counters.iter().map(move |counter| Heavy {
            key: &counter.key,
            weight: counter.weight * scale,
            value: &counter.value,
        })
    }

    /// Returns the weight that an amount of 1 has at `now`.
    fn factor(&mut self, now: Timestamp) -> f64 {
        if self.latest.since(now) > MAX_REORDERING {
            // The clock was set back. The landmark moves by the same time, so that the weights stay as they are now.
            let back = self.latest.micros() - now.micros();
            self.landmark = Timestamp::from_micros(self.landmark.micros().saturating_sub(back));
            self.latest = now;
        }
        self.latest = self.latest.max(now);
        let age = self.age(self.latest);
        if age <= MAX_TIME_CONSTANTS {
            return age.exp();
        }
        let scale = (-age).exp();
        for counter in &mut self.counters {
            counter.weight *= scale;
        }
        self.landmark = self.latest;
        1.0
    }

    /// Returns the time since the landmark, in time constants.
    fn age(&self, now: Timestamp) -> f64 {
        now.since(self.landmark).as_secs_f64() / self.time_constant
    }

    /// Adds a counter with the weight 0. Returns its index.
    fn insert(&mut self, key: &str) -> usize {
        let (slot, key) = (self.counters.len(), Arc::<str>::from(key));
        self.slots.insert(key.clone(), slot);
        self.counters.push(Counter { key, weight: 0.0, value: V::default() });
        self.heap.push(slot);
        self.positions.push(slot);
        // No weight is below 0, so the new counter belongs to the front.
        self.sift_up(slot);
        slot
    }

    /// Gives the counter with the smallest weight to another key. Returns the counter's index.
    fn replace_smallest(&mut self, key: &str) -> usize {
        let (slot, key) = (self.heap[0], Arc::<str>::from(key));
        let counter = &mut self.counters[slot];
        self.slots.remove(&counter.key);
        counter.key = key.clone();
        counter.value = V::default();
        self.slots.insert(key, slot);
        slot
    }

    fn weight_at(&self, position: usize) -> f64 {
        self.counters[self.heap[position]].weight
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.positions[self.heap[one]] = one;
        self.positions[self.heap[other]] = other;
    }

    fn sift_up(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.weight_at(parent) <= self.weight_at(position) {
                break;
            }
            self.swap(parent, position);
            position = parent;
        }
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let left = 2 * position + 1;
            if left >= self.heap.len() {
                break;
            }
            let right = left + 1;
            let is_right = right < self.heap.len() && self.weight_at(right) < self.weight_at(left);
            let child = if is_right { right } else { left };
            if self.weight_at(position) <= self.weight_at(child) {
                break;
            }
            self.swap(position, child);
            position = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + (seconds * 1e6) as i64)
    }

    /// Returns the exact decayed sum of each key at `now`.
    fn exact(stream: &[(u8, f64, f64)], now: f64) -> HashMap<u8, f64> {
        let mut sums = HashMap::new();
        for (key, seconds, amount) in stream {
            *sums.entry(*key).or_default() += amount * ((seconds - now) / MINUTE.as_secs_f64()).exp();
        }
        sums
    }

    proptest! {
        #[test]
        fn weights_are_within_the_error_bound_and_no_heavy_key_is_missing(
            capacity in 1usize..12,
            steps in prop::collection::vec((0u8..40, 0.0..90.0f64, 0.0..50.0f64), 1..300),
        ) {
            let mut seconds = 0.0;
            let stream: Vec<_> = steps.into_iter().map(|(key, pause, amount)| {
                seconds += (pause * 1e3f64).round() / 1e3;
                // Few keys are frequent, as among senders.
                (key / (1 + key % 7), seconds, amount)
            }).collect();
            let mut summary = SpaceSaving::<()>::new(capacity, MINUTE);
            for (key, seconds, amount) in &stream {
                summary.add(&key.to_string(), at(*seconds), *amount);
            }
            let exact = exact(&stream, seconds);
            let total: f64 = exact.values().sum();
            let slack = 1e-6 * total + 1e-9;
            let found: HashMap<u8, f64> =
                summary.iter(at(seconds)).map(|heavy| (heavy.key.parse().unwrap(), heavy.weight)).collect();
            prop_assert!(found.len() <= capacity);
            for (key, weight) in &found {
                let (truth, bound) = (exact[key], total / capacity as f64);
                prop_assert!(truth <= weight + slack && *weight <= truth + bound + slack, "{key}: {truth} {weight} {bound}");
            }
            for (key, truth) in exact {
                prop_assert!(found.contains_key(&key) || truth <= total / capacity as f64 + slack, "{key}: {truth} of {total}");
            }
        }

        #[test]
        fn no_clock_makes_a_weight_invalid(steps in prop::collection::vec((0u8..9, any::<i64>()), 1..60)) {
            let mut summary = SpaceSaving::<u32>::new(3, MINUTE);
            for (key, micros) in steps {
                let now = Timestamp::from_micros(micros / 4);
                *summary.add(&key.to_string(), now, 1.0) += 1;
                prop_assert!(summary.iter(now).all(|heavy| heavy.weight.is_finite() && heavy.weight >= 0.0));
            }
        }
    }

    #[test]
    fn a_sender_of_yesterday_loses_its_place_to_one_of_today() {
        let mut summary = SpaceSaving::<u32>::new(2, MINUTE);
        for _ in 0..1_000 {
            *summary.add("yesterday", at(0.0), 1.0) += 1;
        }
        for key in ["a", "b", "a", "b"] {
            *summary.add(key, at(86_400.0), 1.0) += 1;
        }
        let mut keys: Vec<_> = summary.iter(at(86_400.0)).map(|heavy| (heavy.key.to_string(), *heavy.value)).collect();
        keys.sort();
        assert_eq!(keys, [("a".to_owned(), 2), ("b".to_owned(), 2)]);
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_the_weights_and_counts_on() {
        let mut summary = SpaceSaving::<()>::new(2, MINUTE);
        summary.add("a", at(36_000.0), 5.0);
        summary.add("a", at(0.0), 5.0);
        let weight = |seconds| summary.iter(at(seconds)).next().unwrap().weight;
        assert!((weight(0.0) - 10.0).abs() < 1e-9, "{}", weight(0.0));
        assert!((weight(60.0) - 10.0 * (-1.0f64).exp()).abs() < 1e-9, "{}", weight(60.0));
    }
}
