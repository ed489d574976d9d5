//! The form of a journal entry: the changed budgets of one commit, one after the other.
//!
//! Each is a key's length (u16; its top bit says that seen values follow), the key (UTF-8), the time (i64, microseconds), the level
//! (f64), and if so the length of the seen values (u32) and these; all little-endian. Seen values are the time of the newer generation
//! (i64), its length (u32), its octets, and those of the older one.

use crate::engine::State;
use crate::engine::distinct::Filter;
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
    let head = [&epoch.micros().to_le_bytes()[..], &(newer.len() as u32).to_le_bytes()].concat();
    [&head, newer, older].concat()
}

/// Reads seen values; `None` if they are damaged.
pub fn read_seen(mut bytes: &[u8]) -> Option<Arc<Filter>> {
    let epoch = Timestamp::from_micros(i64::from_le_bytes(take(&mut bytes)?));
    let length = u32::from_le_bytes(take(&mut bytes)?);
    let newer = cut(&mut bytes, length as usize)?;
    Filter::from_parts(epoch, newer.into(), bytes.into()).map(Arc::new)
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
    use proptest::prelude::*;

    type Change = (String, i64, f64, Option<(Vec<u8>, Vec<u8>)>);

    fn any_change() -> impl Strategy<Value = Change> {
        let octets = |least| proptest::collection::vec(any::<u8>(), least..50);
        ("\\PC{0,40}", any::<i64>(), -1e300f64..1e300, proptest::option::of((octets(1), octets(0))))
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(changes in proptest::collection::vec(any_change(), 0..5)) {
            let budget = |(key, at, level, seen): Change| {
                let at = Timestamp::from_micros(at);
                let seen = seen.and_then(|(newer, older)| Filter::from_parts(at, newer.into(), older.into()));
                (Key::from_stored(key), Budget { state: State { at, level }, seen: seen.map(Arc::new) })
            };
            let changes: Vec<_> = changes.into_iter().map(budget).collect();
            let mut bytes = Vec::new();
            changes.iter().for_each(|(key, budget)| write(&mut bytes, key, budget));
            prop_assert_eq!(read(&bytes), Some(changes));
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
