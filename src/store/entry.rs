//! The form of a journal entry: the changed budgets of one commit, one after the other.
//!
//! Each is a key's length (u16; its top bit says that seen values follow), the key (UTF-8), the time (i64, microseconds), the level
//! (f64), and if so the length of the seen values (u32) and these; all little-endian. Seen values are the time of the newer generation
//! (i64), that generation, and the older one.

use crate::engine::State;
use crate::engine::distinct::{Filter, Generation};
use crate::policy::Budget;
use crate::policy::key::Key;
use crate::time::Timestamp;
use std::sync::Arc;

/// Marks a key's length when seen values follow.
const HAS_SEEN: u16 = 0x8000;

/// Appends one changed budget.
pub fn write(out: &mut Vec<u8>, key: &Key, budget: &Budget) {
    let key = key.as_str().as_bytes();
    // Keys are made of a configured name, an address and a login of at most 1024 octets.
    let length = u16::try_from(key.len()).unwrap_or(u16::MAX) & !HAS_SEEN;
    let mark = if budget.seen.is_some() { HAS_SEEN } else { 0 };
    out.extend_from_slice(&(length | mark).to_le_bytes());
    out.extend_from_slice(&key[..usize::from(length)]);
    out.extend_from_slice(&budget.state.at.micros().to_le_bytes());
    out.extend_from_slice(&budget.state.level.to_le_bytes());
    if let Some(seen) = &budget.seen {
        let bytes = seen_bytes(seen);
        // A filter has at most some megabytes.
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(&bytes);
    }
}

/// Reads an entry; `None` if it is damaged.
pub fn read(mut bytes: &[u8]) -> Option<Vec<(Key, Budget)>> {
    let mut changes = Vec::new();
    while !bytes.is_empty() {
        let length = u16::from_le_bytes(take(&mut bytes)?);
        let key = cut(&mut bytes, usize::from(length & !HAS_SEEN))?;
        let key = Key::from_stored(String::from_utf8(key.to_vec()).ok()?);
        let at = Timestamp::from_micros(i64::from_le_bytes(take(&mut bytes)?));
        let level = f64::from_le_bytes(take(&mut bytes)?);
        let seen = match length & HAS_SEEN {
            0 => None,
            _ => {
                let length = u32::from_le_bytes(take(&mut bytes)?);
                Some(read_seen(cut(&mut bytes, length as usize)?)?)
            }
        };
        changes.push((key, Budget { state: State { at, level }, seen }));
    }
    Some(changes)
}

/// The form of seen values, in the journal and in the budgets table.
pub fn seen_bytes(seen: &Filter) -> Vec<u8> {
    let (epoch, newer, older) = seen.parts();
    let mut bytes = epoch.micros().to_le_bytes().to_vec();
    newer.write(&mut bytes);
    older.write(&mut bytes);
    bytes
}

/// Reads seen values; `None` if they are damaged.
pub fn read_seen(mut bytes: &[u8]) -> Option<Arc<Filter>> {
    let epoch = Timestamp::from_micros(i64::from_le_bytes(take(&mut bytes)?));
    let (newer, older) = (Generation::read(&mut bytes)?, Generation::read(&mut bytes)?);
    Filter::from_parts(epoch, newer, older).filter(|_| bytes.is_empty()).map(Arc::new)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}

fn cut<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::distinct::{self, Value};
    use proptest::prelude::*;

    type Change = (String, i64, f64, Option<(bool, usize)>);

    fn any_change() -> impl Strategy<Value = Change> {
        ("\\PC{0,40}", any::<i64>(), -1e300f64..1e300, proptest::option::of((any::<bool>(), 1usize..60)))
    }

    /// A filter that has learnt some values, over some time.
    fn filter(remembers: bool, values: usize) -> Filter {
        let day = std::time::Duration::from_secs(86_400);
        let rule = distinct::Rule::new(20.0, day, remembers.then_some(day)).unwrap();
        let learn = |filter, n: usize| {
            Some(rule.learn(filter, Timestamp::from_micros(n as i64 * 3_000_000_000), Value::of(&n.to_string())))
        };
        (0..values).fold(None, learn).unwrap()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(changes in proptest::collection::vec(any_change(), 0..5)) {
            let budget = |(key, at, level, seen): Change| {
                let at = Timestamp::from_micros(at);
                let seen = seen.map(|(remembers, values)| Arc::new(filter(remembers, values)));
                (Key::from_stored(key), Budget { state: State { at, level }, seen })
            };
            let changes: Vec<_> = changes.into_iter().map(budget).collect();
            let mut bytes = Vec::new();
            changes.iter().for_each(|(key, budget)| write(&mut bytes, key, budget));
            prop_assert_eq!(read(&bytes), Some(changes));
        }

        #[test]
        fn whatever_is_read_can_learn(epoch in any::<[u8; 8]>(), size in 0u32..50, count in prop_oneof![0u32..5, Just(u32::MAX)],
                                      octets in proptest::collection::vec(any::<u8>(), 0..100)) {
            let older = [0; 8];
            let bytes = [&epoch[..], &size.to_le_bytes(), &count.to_le_bytes(), &octets, &older].concat();
            if let Some(seen) = read_seen(&bytes) {
                let day = std::time::Duration::from_secs(86_400);
                let rule = distinct::Rule::new(20.0, day, None).unwrap();
                rule.learn(Some(Arc::unwrap_or_clone(seen)), Timestamp::from_micros(i64::from_le_bytes(epoch)), Value::of("x"));
            }
        }

        #[test]
        fn damage_is_seen_and_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Some(changes) = read(&bytes) {
                let mut again = Vec::new();
                changes.iter().for_each(|(key, budget)| write(&mut again, key, budget));
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
