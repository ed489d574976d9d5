//! What has been seen: Tony Finch's Bloom filter of distinct values, bit for bit that of Exim's `unique=`, and one with a memory.
//!
//! 8 probes by MD5 into 16 bits for each unit of the limit. Without memory a filter is thrown away every period. With it there are
//! two generations: values go into the newer one, which becomes the older one after the time to remember; so a value stays known
//! for at least that time after it was last seen, and for at most twice as long. (Where a limit has grown beyond its filter, the
//! filter is turned at once: what was in its older generation is forgotten early.)

use crate::time::Timestamp;
use md5::{Digest as _, Md5};
use std::time::Duration;

/// How a filter is made, and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Octets of a generation; with memory, the least.
    size: usize,
    lasts: Lasts,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lasts {
    /// For a period of so many seconds; then everything is forgotten.
    Period(f64),
    Remembered(Duration),
}

/// The values seen, for one budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// When the newer generation began.
    epoch: Timestamp,
    newer: Generation,
    /// Empty without memory, and where there is nothing to be known any more.
    older: Generation,
}

/// Values of one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generation {
    /// Octets of its bits.
    size: u32,
    values: Values,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Values {
    /// One by one, as long as that takes less than the bits and is soon searched: most users write to few people.
    Few(Vec<Value>),
    Bits(Box<[u8]>),
}

impl Default for Values {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

/// Where a value is in a filter of whatever size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value {
    hash: u32,
    step: u32,
}

/// Whether a value has been seen, as far as is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Never,
    /// So long ago that it will be forgotten unless it is learnt again.
    Before,
    Lately,
}

/// What time has made of a filter's generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Current,
    /// The newer generation is the older one now.
    Turned,
    Gone,
}

const PROBES: u32 = 8;

/// As many octets of values are kept one by one.
const MAX_FEW: usize = 512;

/// Exim's least size: 320 bits.
const MIN_OCTETS: f64 = 40.0;

/// The largest filter, for half a million values: a decision may have to copy it.
pub const MAX_OCTETS: usize = 1 << 20;

impl Value {
    /// The value as it is compared: in lower case, for addresses.
    pub fn of(text: &str) -> Self {
        let digest: [u8; 16] = Md5::digest(text.as_bytes()).into();
        let word = |at: usize| u32::from_le_bytes([digest[at], digest[at + 1], digest[at + 2], digest[at + 3]]);
        Self { hash: word(0), step: word(4) }
    }

    /// As a store keeps it.
    pub fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.step) << 32 | u64::from(self.hash)).to_le_bytes()
    }

    /// A value as a store has kept it.
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        let halves = u64::from_le_bytes(bytes);
        Self { hash: halves as u32, step: (halves >> 32) as u32 }
    }

    /// Its bits in a filter of this many octets: octet and mask.
    fn bits(self, size: usize) -> impl Iterator<Item = (usize, u8)> {
        // Of 32 bits, as a division of 64 takes far longer. No filter is larger than MAX_OCTETS.
        let size = size as u32;
        (0..PROBES).map(move |n| {
            let at = self.hash.wrapping_add(self.step.wrapping_mul(n));
            ((at / 8 % size) as usize, 1 << (at % 8))
        })
    }
}

impl Generation {
    fn bits(size: usize) -> Self {
        Self { size: size as u32, values: Values::Bits(vec![0; size].into_boxed_slice()) }
    }

    fn few(size: usize) -> Self {
        Self { size: size as u32, values: Values::default() }
    }

    fn has(&self, value: Value) -> bool {
        match &self.values {
            Values::Few(values) => values.contains(&value),
            Values::Bits(bits) => value.bits(bits.len()).all(|(octet, mask)| bits[octet] & mask != 0),
        }
    }

    fn add(&mut self, value: Value) {
        match &mut self.values {
            Values::Few(values) if values.contains(&value) => {}
            Values::Few(values) if (values.len() + 1) * size_of::<Value>() < MAX_FEW.min(self.size as usize) => {
                values.push(value);
            }
            Values::Few(values) => {
                let mut full = Self::bits(self.size as usize);
                values.iter().chain([&value]).for_each(|value| full.add(*value));
                *self = full;
            }
            Values::Bits(bits) => value.bits(bits.len()).for_each(|(octet, mask)| bits[octet] |= mask),
        }
    }

    fn unite(&mut self, other: &Self) {
        match (&mut self.values, &other.values) {
            (_, Values::Few(values)) => values.iter().for_each(|value| self.add(*value)),
            (Values::Bits(bits), Values::Bits(others)) if bits.len() == others.len() => {
                bits.iter_mut().zip(others).for_each(|(octet, other)| *octet |= other);
            }
            // Few values can be learnt one by one; others only by whoever has the same bits.
            (Values::Few(values), Values::Bits(_)) if self.size == other.size => {
                let few = std::mem::take(values);
                self.values = other.values.clone();
                few.into_iter().for_each(|value| self.add(value));
            }
            (_, Values::Bits(_)) => {}
        }
    }

    /// How many values it has; about, where it has bits: from the share that is set.
    fn count(&self) -> usize {
        match &self.values {
            Values::Few(values) => values.len(),
            Values::Bits(octets) => {
                let set: u32 = octets.iter().map(|octet| octet.count_ones()).sum();
                let bits = 8.0 * octets.len() as f64;
                // The last bit stays out of it: of a filter that is quite full nobody knows.
                let share = (f64::from(set) / bits).min(1.0 - 1.0 / bits);
                (-bits / f64::from(PROBES) * (-share).ln_1p()) as usize
            }
        }
    }

    fn octets(&self) -> usize {
        match &self.values {
            Values::Few(values) => values.capacity() * size_of::<Value>(),
            Values::Bits(bits) => bits.len(),
        }
    }

    /// As a store keeps it: the size of its bits, the number of its values (u32 each; [`u32::MAX`]: bits follow), and these; all
    /// little-endian.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.size.to_le_bytes());
        match &self.values {
            Values::Few(values) => {
                out.extend_from_slice(&(values.len() as u32).to_le_bytes());
                values.iter().for_each(|value| out.extend(value.to_bytes()));
            }
            Values::Bits(bits) => {
                out.extend_from_slice(&u32::MAX.to_le_bytes());
                out.extend_from_slice(bits);
            }
        }
    }

    /// Reads one from the beginning of what a store has kept, which goes on after it; `None` if it is damaged.
    pub fn read(bytes: &mut &[u8]) -> Option<Self> {
        let (size, count) = (word(bytes)?, word(bytes)?);
        if size as usize > MAX_OCTETS {
            return None;
        }
        let octets = if count == u32::MAX { size as usize } else { count as usize * size_of::<Value>() };
        let (mut these, rest) = bytes.split_at_checked(octets)?;
        *bytes = rest;
        let values = if count == u32::MAX {
            Values::Bits(Some(these).filter(|bits| !bits.is_empty())?.into())
        } else {
            let mut values = Vec::with_capacity(count as usize);
            while let Some((value, rest)) = these.split_first_chunk() {
                values.push(Value::from_bytes(*value));
                these = rest;
            }
            Values::Few(values)
        };
        Some(Self { size, values })
    }
}

fn word(bytes: &mut &[u8]) -> Option<u32> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*head))
}

impl Filter {
    /// A filter as a store has kept it; `None` if there is no room for what it has to learn, as in none of ours.
    pub fn from_parts(epoch: Timestamp, newer: Generation, older: Generation) -> Option<Self> {
        (newer.size > 0).then_some(Self { epoch, newer, older })
    }

    /// When its newer generation began, the newer and the older one: for stores.
    pub fn parts(&self) -> (Timestamp, &Generation, &Generation) {
        (self.epoch, &self.newer, &self.older)
    }

    /// Names its newer generation: when that began, and the octets of its bits. It is another one after the filter was turned.
    pub fn generation(&self) -> (Timestamp, u32) {
        (self.epoch, self.newer.size)
    }

    /// Has the newer generation begin then: a clock that was wrong has said when it began.
    pub fn begin_at(&mut self, epoch: Timestamp) {
        self.epoch = epoch;
    }

    /// Learns once more what it had learnt before a store lost it, in the same generation.
    pub fn relearn(&mut self, value: Value) {
        self.newer.add(value);
    }

    /// Learns what another filter of the same budget knows, as far as their bits can be laid over each other.
    pub fn unite(&mut self, other: &Self) {
        self.newer.unite(&other.newer);
        self.newer.unite(&other.older);
    }

    /// Its size in memory, about.
    pub fn octets(&self) -> usize {
        self.newer.octets() + self.older.octets()
    }
}

impl Rule {
    /// For `limit` distinct values at once and in each `period`, known for `remember` or forgotten each period. `None` if the filter
    /// would be larger than [`MAX_OCTETS`].
    pub fn new(limit: f64, period: Duration, remember: Option<Duration>) -> Option<Self> {
        Self::with_burst(limit, limit, period, remember)
    }

    /// As [`Rule::new`], for a bucket that holds `burst`, where that is more.
    pub fn with_burst(burst: f64, limit: f64, period: Duration, remember: Option<Duration>) -> Option<Self> {
        let (period, burst) = (period.as_secs_f64(), burst.max(limit));
        let (values, lasts) = match remember {
            None => (burst, Lasts::Period(period)),
            Some(time) => (burst + limit * time.as_secs_f64() / period, Lasts::Remembered(time)),
        };
        // Two octets for each value, of which there are whole ones.
        let size = (2.0 * values.trunc()).max(MIN_OCTETS);
        (size <= MAX_OCTETS as f64).then_some(Self { size: size as usize, lasts })
    }

    /// Whether values outlive the period.
    pub fn remembers(&self) -> bool {
        matches!(self.lasts, Lasts::Remembered(_))
    }

    /// Whether a value has been seen.
    pub fn look(&self, filter: Option<&Filter>, now: Timestamp, value: Value) -> Seen {
        let Some(filter) = filter else { return Seen::Never };
        match self.age(filter, now) {
            Age::Current if filter.newer.has(value) => Seen::Lately,
            Age::Current if filter.older.has(value) => Seen::Before,
            Age::Turned if filter.newer.has(value) => Seen::Before,
            Age::Current | Age::Turned | Age::Gone => Seen::Never,
        }
    }

    /// The filter with a value in it. One that has had its time is made anew, in the size that holds now.
    pub fn learn(&self, filter: Option<Filter>, now: Timestamp, value: Value) -> Filter {
        let filter = filter.map(|filter| (self.age(&filter, now), filter));
        let mut filter = match (filter, self.lasts) {
            (Some((Age::Current, filter)), _) => filter,
            (Some((Age::Turned, filter)), Lasts::Remembered(time)) => {
                // What is known comes again and is learnt again, beside what is new: there must be room for both.
                let size = (self.size + 2 * filter.newer.count()).min(MAX_OCTETS);
                // One that is turned before its time, as it is too small, begins anew now.
                let epoch = if now < filter.epoch.after(time) { now } else { filter.epoch.after(time) };
                Filter { epoch, newer: Generation::few(size), older: filter.newer }
            }
            (_, Lasts::Remembered(_)) => {
                Filter { epoch: now, newer: Generation::few(self.size), older: Generation::default() }
            }
            // Exim's has its bits from the start: its false positives are part of its decisions.
            (_, Lasts::Period(_)) => {
                Filter { epoch: now, newer: Generation::bits(self.size), older: Generation::default() }
            }
        };
        filter.newer.add(value);
        filter
    }

    /// Whether a filter whose newer generation began then knows nothing any more.
    pub fn is_over(&self, epoch: Timestamp, now: Timestamp) -> bool {
        match self.lasts {
            Lasts::Period(period) => (now.whole_seconds() as f64) > epoch.whole_seconds() as f64 + period,
            Lasts::Remembered(time) => now.since(epoch) >= 2 * time,
        }
    }

    fn age(&self, filter: &Filter, now: Timestamp) -> Age {
        match self.lasts {
            // In whole seconds, as Exim does.
            Lasts::Period(period) => {
                let (now, epoch) = (now.whole_seconds() as f64, filter.epoch.whole_seconds() as f64);
                // An epoch far in the future is that of a clock that was wrong: it would last until then.
                if now > epoch + period || now < epoch - period { Age::Gone } else { Age::Current }
            }
            Lasts::Remembered(time) => match now.since(filter.epoch) {
                age if age >= 2 * time => Age::Gone,
                // Made when the limit, or the time to remember, was smaller; or by a clock that was wrong.
                _ if (filter.newer.size as usize) < self.size || filter.epoch.since(now) > time => Age::Turned,
                age if age < time => Age::Current,
                _ => Age::Turned,
            },
        }
    }
}
