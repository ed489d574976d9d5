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
    newer: Box<[u8]>,
    /// Empty without memory, and where there is nothing to be known any more.
    older: Box<[u8]>,
}

/// Where a value is in a filter of whatever size.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    hash: u32,
    step: u32,
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

    /// Its bits in a filter of this many octets: octet and mask.
    fn bits(self, size: usize) -> impl Iterator<Item = (usize, u8)> {
        (0..PROBES).map(move |n| {
            let at = self.hash.wrapping_add(self.step.wrapping_mul(n));
            ((at / 8) as usize % size, 1 << (at % 8))
        })
    }

    fn is_in(self, generation: &[u8]) -> bool {
        !generation.is_empty() && self.bits(generation.len()).all(|(octet, mask)| generation[octet] & mask != 0)
    }
}

impl Filter {
    /// A filter as a store has kept it.
    pub fn from_parts(epoch: Timestamp, newer: Box<[u8]>, older: Box<[u8]>) -> Option<Self> {
        (!newer.is_empty()).then_some(Self { epoch, newer, older })
    }

    /// When its newer generation began, the newer and the older one: for stores.
    pub fn parts(&self) -> (Timestamp, &[u8], &[u8]) {
        (self.epoch, &self.newer, &self.older)
    }

    /// How many values its newer generation has, about: from the share of the bits that are set.
    fn values(&self) -> usize {
        let set: u32 = self.newer.iter().map(|octet| octet.count_ones()).sum();
        let bits = 8.0 * self.newer.len() as f64;
        // The last bit stays out of it: of a filter that is quite full nobody knows.
        let share = (f64::from(set) / bits).min(1.0 - 1.0 / bits);
        (-bits / f64::from(PROBES) * (-share).ln_1p()) as usize
    }

    /// Its size in memory, about.
    pub fn octets(&self) -> usize {
        self.newer.len() + self.older.len()
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

    /// Whether a value is known.
    pub fn knows(&self, filter: Option<&Filter>, now: Timestamp, value: Value) -> bool {
        let Some(filter) = filter else { return false };
        match self.age(filter, now) {
            Age::Current => value.is_in(&filter.newer) || value.is_in(&filter.older),
            Age::Turned => value.is_in(&filter.newer),
            Age::Gone => false,
        }
    }

    /// Whether a filter would be another one with this value in it.
    pub fn changes(&self, filter: Option<&Filter>, now: Timestamp, value: Value) -> bool {
        filter.is_none_or(|filter| self.age(filter, now) != Age::Current || !value.is_in(&filter.newer))
    }

    /// The filter with a value in it. One that has had its time is made anew, in the size that holds now.
    pub fn learn(&self, filter: Option<Filter>, now: Timestamp, value: Value) -> Filter {
        let none = |size: usize| vec![0; size].into_boxed_slice();
        let filter = filter.map(|filter| (self.age(&filter, now), filter));
        let mut filter = match (filter, self.lasts) {
            (Some((Age::Current, filter)), _) => filter,
            (Some((Age::Turned, filter)), Lasts::Remembered(time)) => {
                // What is known comes again and is learnt again, beside what is new: there must be room for both.
                let size = (self.size + 2 * filter.values()).min(MAX_OCTETS);
                // One that is turned before its time, as it is too small, begins anew now.
                let epoch = if now < filter.epoch.after(time) { now } else { filter.epoch.after(time) };
                Filter { epoch, newer: none(size), older: filter.newer }
            }
            _ => Filter { epoch: now, newer: none(self.size), older: Box::default() },
        };
        let size = filter.newer.len();
        value.bits(size).for_each(|(octet, mask)| filter.newer[octet] |= mask);
        filter
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
                // Made when the limit, or the time to remember, was smaller; or by a clock that was wrong.
                _ if filter.newer.len() < self.size || filter.epoch.since(now) > time => Age::Turned,
                age if age < time => Age::Current,
                age if age < 2 * time => Age::Turned,
                _ => Age::Gone,
            },
        }
    }
}
