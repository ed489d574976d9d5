//! Format of a journal entry, which contains the changed budgets of one commit in the order of their changes.
//!
//! An entry follows its length in octets (u32), and begins with the CRC-32 of all octets after it. A record follows for
//! each changed budget. The record contains the length of the key (u16, with three flags in its top bits), the key
//! (UTF-8), the time (i64, microseconds) and the level (f64). If the budget counts distinct values, the record ends
//! with the budget's filter in one of two forms. The flags state the form. The first form is the whole filter, after
//! its length in octets (u32). The second form has only the values that were learnt since the budget was last written,
//! after their number (u32). If the limit measures regularity, the times of the last events follow (i64), after their
//! number (u32). All numbers are little-endian. The whole filter consists of the time when its newer generation began
//! (i64), the newer generation, and the older generation.

use super::hashed_key::HashedKey;
use crate::engine::State;
use crate::engine::distinct::{Filter, Generation, Value};
use crate::engine::regularity::Times;
use crate::policy::budgets::{Budget, Key, KeyRef};
use crate::time::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;

/// Flags in the length of a key: the whole filter follows, or only the newly learnt values.
const WHOLE: u16 = 0x8000;
const LEARNT: u16 = 0x4000;

/// Flag in the length of a key: the times of the last events follow at the end of the record.
const TIMES: u16 = 0x2000;

/// Maximum octets of the buffer that an empty entry keeps for reuse.
const KEPT_CAPACITY: usize = 64 << 10;

/// Journal entry to which changes are appended.
#[derive(Default)]
pub struct Entry {
    /// Empty, or room for the length and the checksum, and the records.
    bytes: Vec<u8>,
    records: usize,
}

/// Octets of the length of an entry.
const LENGTH: usize = size_of::<u32>();

/// Octets of the length and the checksum.
const HEAD: usize = LENGTH + size_of::<u32>();

/// Part of a budget's filter that a record contains.
pub enum Seen<'a> {
    Whole,
    /// Only these newly learnt values; the file has the other values of the filter.
    Learnt(&'a [Value]),
}

impl Entry {
    pub fn push(&mut self, key: KeyRef<'_>, budget: &Budget, seen: Seen<'_>) {
        self.begin();
        write_record(key.as_str(), budget, seen, &mut self.bytes);
        self.records += 1;
    }

    /// Empties the entry and keeps its buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_CAPACITY);
        self.records = 0;
    }

    pub fn octets(&self) -> usize {
        self.bytes.len()
    }

    pub fn records(&self) -> usize {
        self.records
    }

    /// Writes the length and the checksum, and returns the octets for the file.
    pub fn seal(&mut self) -> &[u8] {
        self.begin();
        let (length, entry) = self.bytes.split_at_mut(LENGTH);
        seal(entry);
        // The length fits into a u32, because the queue has at most some megabytes.
        length.copy_from_slice(&(entry.len() as u32).to_le_bytes());
        &self.bytes
    }

    /// Makes room for the length and the checksum before the first record.
    fn begin(&mut self) {
        self.bytes.resize(self.bytes.len().max(HEAD), 0);
    }
}

/// Appends a record without a budget: only the length of the key and the key.
pub fn write_key(key: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&key_length(key).to_le_bytes());
    out.extend_from_slice(&key.as_bytes()[..usize::from(key_length(key))]);
}

/// Returns the length of a key in octets. A key is always shorter than the maximum, because it consists of the limit's
/// name, addresses and a user name, whose lengths are bounded.
fn key_length(key: &str) -> u16 {
    u16::try_from(key.len()).unwrap_or(u16::MAX) & !(WHOLE | LEARNT | TIMES)
}

/// Appends a record.
pub fn write_record(key: &str, budget: &Budget, seen: Seen<'_>, out: &mut Vec<u8>) {
    let mark = match (&budget.seen, &seen) {
        (None, _) => 0,
        (Some(_), Seen::Whole) => WHOLE,
        (Some(_), Seen::Learnt(_)) => LEARNT,
    } | if budget.times.is_some() { TIMES } else { 0 };
    let length = key_length(key);
    out.extend_from_slice(&(length | mark).to_le_bytes());
    out.extend_from_slice(&key.as_bytes()[..usize::from(length)]);
    out.extend_from_slice(&budget.state.at.micros().to_le_bytes());
    out.extend_from_slice(&budget.state.level.to_le_bytes());
    match (&budget.seen, seen) {
        (Some(filter), Seen::Whole) => {
            let begin = out.len();
            out.extend_from_slice(&[0; size_of::<u32>()]);
            write_seen(filter, out);
            // The length fits into a u32, because a filter has at most some megabytes.
            let length = (out.len() - begin - size_of::<u32>()) as u32;
            out[begin..][..size_of::<u32>()].copy_from_slice(&length.to_le_bytes());
        }
        (Some(_), Seen::Learnt(values)) => {
            out.extend_from_slice(&(values.len() as u32).to_le_bytes());
            values.iter().for_each(|value| out.extend_from_slice(&value.to_bytes()));
        }
        (None, _) => {}
    }
    if let Some(times) = &budget.times {
        out.extend_from_slice(&(times.iter().len() as u32).to_le_bytes());
        write_times(times, out);
    }
}

/// Returns the key at the beginning of a record. `None` if the record is damaged.
pub fn record_key(mut bytes: &[u8]) -> Option<&[u8]> {
    let length = u16::from_le_bytes(take(&mut bytes)?);
    cut(&mut bytes, usize::from(length & !(WHOLE | LEARNT | TIMES)))
}

/// Reads a budget from a record that contains the whole filter, if the budget has a filter. `None` if the record is
/// damaged, or has no budget.
pub fn read_record(mut bytes: &[u8]) -> Option<Budget> {
    let Record { state, seen, times, .. } = Record::read(&mut bytes)?;
    let seen = match seen {
        None => None,
        Some(RecordSeen::Whole(filter)) => Some(filter),
        Some(RecordSeen::Learnt(_)) => return None,
    };
    Some(Budget { state, seen, times })
}

/// Computes the checksum of all octets after the fourth, and writes it into the first four octets.
fn seal(bytes: &mut [u8]) {
    if let Some((sum, rest)) = bytes.split_first_chunk_mut() {
        *sum = crc32fast::hash(rest).to_le_bytes();
    }
}

/// Checks the checksum in the first four octets and returns the octets after it. `None` if the octets are damaged.
fn unseal(mut bytes: &[u8]) -> Option<&[u8]> {
    let sum = u32::from_le_bytes(take(&mut bytes)?);
    (crc32fast::hash(bytes) == sum).then_some(bytes)
}

/// Budgets that result from replaying the journal.
#[derive(Default)]
pub struct Replayed(pub HashMap<HashedKey, Budget, foldhash::fast::RandomState>);

/// Error: a journal entry, or a part of it, is damaged. The other parts were replayed.
#[derive(Debug, PartialEq, Eq)]
pub struct Damaged;

impl Replayed {
    /// Applies a journal entry to the budgets. `base` reads a budget from the table. It returns `None` if the budget is
    /// not in the table or cannot be read.
    pub fn apply(&mut self, bytes: &[u8], base: impl Fn(&HashedKey) -> Option<Budget>) -> Result<(), Damaged> {
        let mut bytes = unseal(bytes).ok_or(Damaged)?;
        let mut outcome = Ok(());
        while !bytes.is_empty() {
            let Record { key, state, seen, times } = Record::read(&mut bytes).ok_or(Damaged)?;
            let hashed_key = HashedKey::of(Key::from_stored(key));
            let seen = match seen {
                None => None,
                Some(RecordSeen::Whole(filter)) => Some(filter),
                Some(RecordSeen::Learnt(values)) => {
                    let before =
                        self.0.remove(&hashed_key).or_else(|| base(&hashed_key)).and_then(|budget| budget.seen);
                    if before.is_none() && !values.is_empty() {
                        // These values belong to a filter, and the rest of that filter is lost. The budget's level is
                        // not lost.
                        outcome = Err(Damaged);
                    }
                    before.map(|mut filter| {
                        values.into_iter().for_each(|value| Arc::make_mut(&mut filter).relearn(value));
                        filter
                    })
                }
            };
            self.0.insert(hashed_key, Budget { state, seen, times });
        }
        outcome
    }
}

struct Record<'a> {
    key: &'a str,
    state: State,
    seen: Option<RecordSeen>,
    times: Option<Arc<Times>>,
}

enum RecordSeen {
    Whole(Arc<Filter>),
    Learnt(Vec<Value>),
}

impl<'a> Record<'a> {
    /// Reads a record from the beginning of `bytes`, and removes it from `bytes`. `None` if the record is damaged.
    fn read(bytes: &mut &'a [u8]) -> Option<Self> {
        let length = u16::from_le_bytes(take(bytes)?);
        let key = cut(bytes, usize::from(length & !(WHOLE | LEARNT | TIMES)))?;
        let key = str::from_utf8(key).ok()?;
        let at = Timestamp::from_micros(i64::from_le_bytes(take(bytes)?));
        let level = f64::from_le_bytes(take(bytes)?);
        let seen = match length & (WHOLE | LEARNT) {
            0 => None,
            WHOLE => {
                let length = u32::from_le_bytes(take(bytes)?);
                Some(RecordSeen::Whole(read_seen(cut(bytes, length as usize)?)?))
            }
            LEARNT => {
                let count = u32::from_le_bytes(take(bytes)?) as usize;
                let (values, rest) = cut(bytes, count.checked_mul(size_of::<Value>())?)?.as_chunks();
                debug_assert!(rest.is_empty());
                Some(RecordSeen::Learnt(values.iter().map(|value| Value::from_bytes(*value)).collect()))
            }
            _ => return None,
        };
        let times = match length & TIMES {
            0 => None,
            _ => {
                let count = u32::from_le_bytes(take(bytes)?) as usize;
                Some(read_times(cut(bytes, count.checked_mul(size_of::<i64>())?)?)?)
            }
        };
        Some(Self { key, state: State { at, level }, seen, times })
    }
}

/// Appends the times of the last events: microseconds since 1970, each as i64, little-endian.
fn write_times(times: &Times, out: &mut Vec<u8>) {
    times.iter().for_each(|time| out.extend_from_slice(&time.micros().to_le_bytes()));
}

/// Reads all times of the last events; `None` if they are damaged.
pub fn read_times(bytes: &[u8]) -> Option<Arc<Times>> {
    let (times, rest) = bytes.as_chunks();
    let times = times.iter().map(|time| Timestamp::from_micros(i64::from_le_bytes(*time))).collect();
    rest.is_empty().then(|| Arc::new(Times::new(times)))
}

/// Encodes the times of the last events for the table.
pub fn times_bytes(times: &Times) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_times(times, &mut bytes);
    bytes
}

fn write_seen(seen: &Filter, out: &mut Vec<u8>) {
    let (epoch, newer, older) = seen.parts();
    out.extend_from_slice(&epoch.micros().to_le_bytes());
    newer.write(out);
    older.write(out);
}

/// Reads a whole filter; `None` if it is damaged.
fn read_seen(mut bytes: &[u8]) -> Option<Arc<Filter>> {
    let epoch = Timestamp::from_micros(i64::from_le_bytes(take(&mut bytes)?));
    let (newer, older) = (Generation::read(&mut bytes)?, Generation::read(&mut bytes)?);
    Filter::from_parts(epoch, newer, older).filter(|_| bytes.is_empty()).map(Arc::new)
}

/// Encodes a filter for the table: its CRC-32, then the filter in the form of the journal.
pub fn seal_seen(seen: &Filter) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<u32>()];
    write_seen(seen, &mut bytes);
    seal(&mut bytes);
    bytes
}

/// Decodes a filter that [`seal_seen`] has encoded; `None` if it is damaged.
pub fn unseal_seen(bytes: &[u8]) -> Option<Arc<Filter>> {
    unseal(bytes).and_then(read_seen)
}

/// Octets at the beginning of an encoded filter that hold the CRC-32 and the time when the newer generation began.
pub const SEEN_HEAD: usize = 12;

/// Reads the time when the newer generation began from the first [`SEEN_HEAD`] octets of an encoded filter.
pub fn seen_epoch(head: &[u8]) -> Option<Timestamp> {
    let bytes = head.get(size_of::<u32>()..SEEN_HEAD)?;
    Some(Timestamp::from_micros(i64::from_le_bytes(bytes.try_into().ok()?)))
}

/// Returns the checksum of the octets, followed by the octets. Used to migrate files up to version 2, which had no
/// checksums.
pub fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = [&[0; 4], bytes].concat();
    seal(&mut sealed);
    sealed
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
    use crate::engine::distinct;
    use proptest::prelude::*;
    use std::time::Duration;

    const DAY: Duration = Duration::from_secs(86_400);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros((1_700_000_000 + seconds) * 1_000_000)
    }

    /// Generates changes to a few budgets. Each change has the index of the user, the seconds since the previous
    /// change, the new level, and the value that the filter learns, if any.
    fn any_changes() -> impl Strategy<Value = Vec<(usize, i64, f64, Option<u8>)>> {
        proptest::collection::vec((0usize..4, 0i64..1_000_000, 0.0f64..1e9, proptest::option::of(any::<u8>())), 0..60)
    }

    proptest! {
        /// Budgets change one after the other, and sometimes a filter begins a new generation. Replaying the entry
        /// gives the same budgets, even if some of the changes are already in the table.
        #[test]
        fn an_entry_is_replayed_as_written(changes in any_changes(), in_rows in 0usize..60) {
            let rule = distinct::Rule::new(20.0, DAY, Some(DAY)).unwrap();
            let (mut budgets, mut rows, mut now) = (HashMap::new(), HashMap::new(), 0);
            let mut entry = Entry::default();
            for (n, (user, later, level, value)) in changes.into_iter().enumerate() {
                if n == in_rows {
                    rows = budgets.clone();
                    entry = Entry::default();
                }
                now += later;
                let key = format!("l\u{1f}recipients\u{1f}ewma\u{1f}user={user}");
                let hashed_key = HashedKey::of(Key::from_stored(&key));
                let before = budgets.get(&hashed_key).and_then(|budget: &Budget| budget.seen.clone());
                let learnt: Vec<Value> = value.map(|value| Value::of(&value.to_string())).into_iter().collect();
                let learn = |value: &Value| {
                    let mut filter = before.as_deref().cloned().unwrap_or_else(|| rule.begin(at(now)));
                    rule.learn(&mut filter, at(now), *value);
                    Arc::new(filter)
                };
                let seen = learnt.first().map(learn).or(before.clone());
                let turned = before.map(|filter| filter.generation()) != seen.as_ref().map(|filter| filter.generation());
                let budget = Budget { seen, ..Budget::new(State { at: at(now), level }) };
                entry.push(hashed_key.key.borrowed(), &budget, if turned { Seen::Whole } else { Seen::Learnt(&learnt) });
                budgets.insert(hashed_key, budget);
            }
            let mut replayed = Replayed::default();
            let applied = replayed.apply(&entry.seal()[LENGTH..], |hashed_key| rows.get(hashed_key).cloned());
            prop_assert!(applied.is_ok());
            rows.extend(replayed.0);
            prop_assert_eq!(rows, budgets);
        }

        #[test]
        fn one_flipped_bit_is_detected(level in any::<f64>(), bit in 0usize..400) {
            let mut entry = Entry::default();
            let key = Key::from_stored("l\u{1f}recipients\u{1f}ewma\u{1f}user=alice");
            entry.push(key.borrowed(), &Budget::new(State { at: at(0), level }), Seen::Learnt(&[]));
            let mut bytes = entry.seal()[LENGTH..].to_vec();
            let bit = bit % (8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
            let outcome = Replayed::default().apply(&bytes, |_| None);
            prop_assert_eq!(outcome, Err(Damaged));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let sealed = sealed(&bytes);
            let _ = Replayed::default().apply(&sealed, |_| None);
            if let Some(mut seen) = unseal_seen(&sealed) {
                let rule = distinct::Rule::new(20.0, DAY, None).unwrap();
                rule.learn(Arc::make_mut(&mut seen), at(0), Value::of("x"));
            }
        }
    }
}
