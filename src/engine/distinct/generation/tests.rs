use super::*;
use crate::engine::distinct::{Filter, Rule, Seen};
use crate::time::Timestamp;
use proptest::prelude::*;
use std::time::Duration;

/// Plain dense Bloom filter. Weir stored all filters in this form before it had sparse filters.
#[derive(Clone)]
struct Dense(Vec<u8>);

impl Dense {
    fn of(size: usize) -> Self {
        Self(vec![0; size])
    }

    fn has(&self, value: Value) -> bool {
        value.bits(self.0.len()).all(|(octet, mask)| self.0[octet] & mask != 0)
    }

    fn add(&mut self, value: Value) {
        value.bits(self.0.len()).for_each(|(octet, mask)| self.0[octet] |= mask);
    }

    fn count(&self) -> usize {
        let set: u32 = self.0.iter().map(|octet| octet.count_ones()).sum();
        let bits = 8.0 * self.0.len() as f64;
        let share = (f64::from(set) / bits).min(1.0 - 1.0 / bits);
        (-bits / 8.0 * (-share).ln_1p()) as usize
    }

    fn write(&self) -> Vec<u8> {
        [&(self.0.len() as u32).to_le_bytes(), &u32::MAX.to_le_bytes(), &self.0[..]].concat()
    }
}

fn value(n: u32) -> Value {
    Value::of(&format!("{n}@example.net"))
}

fn rewritten(generation: &Generation) -> Option<Generation> {
    let mut bytes = Vec::new();
    generation.write(&mut bytes);
    let mut rest = &bytes[..];
    Generation::read(&mut rest).filter(|_| rest.is_empty())
}

/// Action on a filter: learn values, unite the filter with another, write and read it, or let some seconds pass.
#[derive(Clone, Debug)]
enum Act {
    Learn(Vec<u32>),
    Unite(Vec<u32>),
    Write,
    ReadDense,
    Wait(i64),
}

fn any_act() -> impl Strategy<Value = Act> {
    let values = |most| proptest::collection::vec(0u32..2_000, 0..most);
    prop_oneof![
        4 => values(40).prop_map(Act::Learn),
        1 => values(400).prop_map(Act::Unite),
        1 => Just(Act::Write),
        1 => Just(Act::ReadDense),
        1 => (0i64..40_000).prop_map(Act::Wait),
    ]
}

/// Reference to compare with: Exim's rule on a dense filter that began at `epoch`.
struct Reference {
    filter: Dense,
    epoch: i64,
}

const DAY: i64 = 86_400;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros((1_700_000_000 + seconds) * 1_000_000)
}

fn learnt(rule: Rule, filter: Option<Filter>, now: i64, values: &[u32]) -> Option<Filter> {
    if values.is_empty() {
        return filter;
    }
    let mut filter = filter.unwrap_or_else(|| rule.begin(at(now)));
    values.iter().for_each(|n| rule.learn(&mut filter, at(now), value(*n)));
    Some(filter)
}

/// Applies an action to the filter and to the reference.
fn act(rule: Rule, act: &Act, filter: Option<Filter>, plain: &mut Reference, now: &mut i64) -> Option<Filter> {
    let parts = |filter: &Filter| (filter.epoch, filter.newer.clone(), filter.older.clone());
    match act {
        Act::Learn(values) => {
            if *now > plain.epoch + DAY && !values.is_empty() {
                *plain = Reference { filter: Dense::of(plain.filter.0.len()), epoch: *now };
            }
            values.iter().for_each(|n| plain.filter.add(value(*n)));
            learnt(rule, filter, *now, values)
        }
        Act::Unite(values) => {
            let (mut filter, other) = (filter?, learnt(rule, None, *now, values));
            if let Some(other) = other {
                filter.unite(&other);
                values.iter().for_each(|n| plain.filter.add(value(*n)));
            }
            Some(filter)
        }
        Act::Write => {
            let (epoch, newer, older) = parts(&filter?);
            Filter::from_parts(epoch, rewritten(&newer).unwrap(), rewritten(&older).unwrap())
        }
        // A state file of an earlier version of Weir has only dense filters.
        Act::ReadDense => {
            let (epoch, _, older) = parts(&filter?);
            Filter::from_parts(epoch, Generation::read(&mut &plain.filter.write()[..]).unwrap(), older)
        }
        Act::Wait(seconds) => {
            *now += seconds;
            filter
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// A filter is sparse at first and dense later; in both forms it knows the same values as a filter that is always
    /// dense.
    #[test]
    fn a_sparse_filter_decides_like_a_dense_one(limit in 1u32..3_000, acts in proptest::collection::vec(any_act(), 1..12)) {
        let rule = Rule::new(f64::from(limit), Duration::from_secs(DAY as u64), None).unwrap();
        let size = (2 * limit as usize).max(40);
        let (mut now, mut filter) = (0, None);
        let mut plain = Reference { filter: Dense::of(size), epoch: 0 };
        for one in &acts {
            let is_first = filter.is_none();
            filter = act(rule, one, filter, &mut plain, &mut now);
            if is_first && filter.is_some() {
                plain.epoch = now;
            }
            let Some(filter) = &filter else { continue };
            let is_over = now > plain.epoch + DAY;
            for n in (0..4_000).step_by(7) {
                let knows = rule.look(Some(filter), at(now), value(n)) != Seen::Never;
                prop_assert_eq!(knows, !is_over && plain.filter.has(value(n)), "value {} after {:?}", n, one);
            }
            prop_assert_eq!(filter.newer.count(), plain.filter.count());
            prop_assert_eq!(&*filter.newer.to_octets(), &plain.filter.0[..]);
            // A filter has the same form, whether its values were learnt, united or read.
            prop_assert_eq!(Some(filter.newer.clone()), Generation::read(&mut &plain.filter.write()[..]));
            prop_assert!(filter.octets() <= size, "{} octets", filter.octets());
        }
    }

    /// A generation that begins with exact values has the same bits as a dense filter, once it has changed to bits.
    #[test]
    fn few_values_become_sparse_bits(limit in 30u32..3_000, values in proptest::collection::vec(0u32..2_000, 1..300)) {
        let size = 2 * limit as usize;
        let (mut generation, mut plain) = (Generation::few(size), Dense::of(size));
        for n in values {
            generation.add(value(n));
            plain.add(value(n));
            if matches!(generation.values, Values::Few(_)) {
                prop_assert!(generation.has(value(n)));
                continue;
            }
            prop_assert_eq!(&*generation.to_octets(), &plain.0[..]);
            prop_assert_eq!(rewritten(&generation), Some(generation.clone()));
        }
    }

    #[test]
    fn damaged_bytes_are_never_read_as_a_sparse_filter(size in 0u32..100, count in 0u32..30, rest in proptest::collection::vec(any::<u8>(), 0..60)) {
        let bytes = [&size.to_le_bytes(), &SPARSE.to_le_bytes(), &count.to_le_bytes(), &rest[..]].concat();
        if let Some(read) = Generation::read(&mut &bytes[..]) {
            prop_assert!(matches!(&read.values, Values::Sparse(set) if set.len() == count as usize));
            let dense = Dense(read.to_octets().to_vec()).write();
            prop_assert_eq!(Generation::read(&mut &dense[..]), Some(read));
        }
    }
}

#[test]
fn a_value_takes_no_more_than_its_bits() {
    let rule = Rule::new(10_000.0, Duration::from_secs(DAY as u64), None).unwrap();
    let filter = learnt(rule, None, 0, &[1]).unwrap();
    let mut bytes = Vec::new();
    filter.newer.write(&mut bytes);
    assert!(filter.octets() <= 32, "{} octets in memory", filter.octets());
    assert!(bytes.len() <= 12 + 3 * 8, "{} octets written", bytes.len());
}

/// Uniting copies of one filter does not make it remember older values for longer.
#[test]
fn values_stay_in_their_generation_if_copies_are_united() {
    let days = |days: u64| Duration::from_secs(days * DAY as u64);
    let rule = Rule::new(100.0, days(1), Some(days(20))).unwrap();
    let mut filter = learnt(rule, None, 0, &[1]);
    filter = learnt(rule, filter, 25 * DAY, &[2]);
    let copy = learnt(rule, filter.clone(), 25 * DAY, &[3]).unwrap();
    let mut united = filter.clone().unwrap();
    united.unite(&copy);
    assert_eq!(united, copy);
    let seen = |n| rule.look(Some(&united), at(25 * DAY), value(n));
    assert_eq!([seen(1), seen(2), seen(3), seen(4)], [Seen::Before, Seen::Lately, Seen::Lately, Seen::Never]);
    // A filter whose older generation has no bits yet takes that of the other.
    let mut young =
        Filter::from_parts(united.epoch, Generation::few(united.newer.size as usize), Generation::default()).unwrap();
    young.unite(&united);
    assert_eq!(rule.look(Some(&young), at(25 * DAY), value(1)), Seen::Before);
}
