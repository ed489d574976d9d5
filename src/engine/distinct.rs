//! What has been seen: Tony Finch's Bloom filter of distinct values, bit for bit that of Exim's `unique=`, and one with a memory.
//!
//! 8 probes by MD5 into 16 bits for each unit of the limit. Without memory a filter is thrown away every period. With it there are
//! two generations: values go into the newer one, which becomes the older one after the time to remember; so a value stays known
//! for at least that time after it was last seen, and for at most twice as long. (Where a limit has grown beyond its filter, the
//! filter is turned at once: what was in its older generation is forgotten early.)

mod generation;

use crate::time::Timestamp;
pub use generation::{Generation, MAX_OCTETS, Value};
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

/// Exim's least size: 320 bits.
const MIN_OCTETS: f64 = 40.0;

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

    /// Octets of a generation of bits: with memory, the least.
    pub fn octets(&self) -> usize {
        self.size
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
            // Exim's decides by bits from the start: its false positives are part of its decisions.
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
