//! Filters of distinct values: Tony Finch's Bloom filter, bit for bit that of Exim's `unique=`, and one that remembers
//! beyond the period.
//!
//! Each value sets 8 bits, probed by MD5; a filter has 16 bits for each unit of the limit. Without memory the filter is
//! discarded every period. With memory it has two generations: values are added to the newer one, which becomes the
//! older one after the time to remember. So a value stays known for at least that time after it was last seen, and for
//! at most twice as long. (If a limit has outgrown its filter, the filter is rotated at once: the older generation is
//! forgotten early.)

mod generation;

use crate::time::Timestamp;
pub use generation::{Generation, MAX_OCTETS, Value};
use std::time::Duration;

/// Rule of a filter: its size and lifetime.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Octets of a generation; with memory, the minimum.
    size: usize,
    lasts: Lasts,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lasts {
    /// Seconds of a period, after which everything is forgotten.
    Period(f64),
    Remembered(Duration),
}

/// Values seen, for one budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Beginning of the newer generation.
    epoch: Timestamp,
    newer: Generation,
    /// Empty without memory, and after everything in it was forgotten.
    older: Generation,
}

/// Result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Never,
    /// So long ago that it will be forgotten unless it is learnt again.
    Before,
    Lately,
}

/// Age of a filter's generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Current,
    /// The newer generation has become the older one.
    Turned,
    Gone,
}

/// Exim's minimum: 320 bits.
const MIN_OCTETS: f64 = 40.0;

impl Filter {
    /// Restores a filter from a store; `None` if it has no room for values, which never happens in a filter of ours.
    pub fn from_parts(epoch: Timestamp, newer: Generation, older: Generation) -> Option<Self> {
        (newer.size > 0).then_some(Self { epoch, newer, older })
    }

    /// Returns the beginning of the newer generation, the newer and the older one, for stores.
    pub fn parts(&self) -> (Timestamp, &Generation, &Generation) {
        (self.epoch, &self.newer, &self.older)
    }

    /// Identifies the newer generation, by its beginning and the octets of its bits. Rotation changes it.
    pub fn generation(&self) -> (Timestamp, u32) {
        (self.epoch, self.newer.size)
    }

    /// Sets the beginning of the newer generation, which came from a wrong clock.
    pub fn begin_at(&mut self, epoch: Timestamp) {
        self.epoch = epoch;
    }

    /// Learns a value again, in the same generation, after a store lost it.
    pub fn relearn(&mut self, value: Value) {
        self.newer.add(value);
    }

    /// Adds the values of another filter of the same budget, as far as their bits are compatible.
    pub fn unite(&mut self, other: &Self) {
        self.newer.unite(&other.newer);
        self.newer.unite(&other.older);
    }

    /// Returns the approximate size in memory.
    pub fn octets(&self) -> usize {
        self.newer.octets() + self.older.octets()
    }
}

impl Rule {
    /// Builds a rule for `limit` distinct values at once and in each `period`. They stay known for `remember`, or are
    /// forgotten each period. `None` if the filter would be larger than [`MAX_OCTETS`].
    pub fn new(limit: f64, period: Duration, remember: Option<Duration>) -> Option<Self> {
        Self::with_burst(limit, limit, period, remember)
    }

    /// Like [`Rule::new`], for a bucket of size `burst`, if that is more.
    pub fn with_burst(burst: f64, limit: f64, period: Duration, remember: Option<Duration>) -> Option<Self> {
        let (period, burst) = (period.as_secs_f64(), burst.max(limit));
        let (values, lasts) = match remember {
            None => (burst, Lasts::Period(period)),
            Some(time) => (burst + limit * time.as_secs_f64() / period, Lasts::Remembered(time)),
        };
        // Two octets for each value; only whole values count.
        let size = (2.0 * values.trunc()).max(MIN_OCTETS);
        (size <= MAX_OCTETS as f64).then_some(Self { size: size as usize, lasts })
    }

    /// Returns the octets of a generation of bits; with memory, the minimum.
    pub fn octets(&self) -> usize {
        self.size
    }

    /// Returns whether values outlive the period.
    pub fn remembers(&self) -> bool {
        matches!(self.lasts, Lasts::Remembered(_))
    }

    /// Looks up a value.
    pub fn look(&self, filter: Option<&Filter>, now: Timestamp, value: Value) -> Seen {
        let Some(filter) = filter else { return Seen::Never };
        match self.age(filter, now) {
            Age::Current if filter.newer.has(value) => Seen::Lately,
            Age::Current if filter.older.has(value) => Seen::Before,
            Age::Turned if filter.newer.has(value) => Seen::Before,
            Age::Current | Age::Turned | Age::Gone => Seen::Never,
        }
    }

    /// Adds a value. An expired filter is replaced by a new one, in the present size.
    pub fn learn(&self, filter: Option<Filter>, now: Timestamp, value: Value) -> Filter {
        let filter = filter.map(|filter| (self.age(&filter, now), filter));
        let mut filter = match (filter, self.lasts) {
            (Some((Age::Current, filter)), _) => filter,
            (Some((Age::Turned, filter)), Lasts::Remembered(time)) => {
                // Known values return and are learnt again, beside new ones: there must be room for both.
                let size = (self.size + 2 * filter.newer.count()).min(MAX_OCTETS);
                // If rotated early, since it is too small, the new generation begins now.
                let epoch = if now < filter.epoch.after(time) { now } else { filter.epoch.after(time) };
                Filter { epoch, newer: Generation::few(size), older: filter.newer }
            }
            (_, Lasts::Remembered(_)) => {
                Filter { epoch: now, newer: Generation::few(self.size), older: Generation::default() }
            }
            // Exim's filter consists of bits from the start: its false positives are part of its decisions.
            (_, Lasts::Period(_)) => {
                Filter { epoch: now, newer: Generation::bits(self.size), older: Generation::default() }
            }
        };
        filter.newer.add(value);
        filter
    }

    /// Returns whether a filter has forgotten everything; `epoch` is the beginning of its newer generation.
    pub fn is_over(&self, epoch: Timestamp, now: Timestamp) -> bool {
        match self.lasts {
            Lasts::Period(period) => (now.whole_seconds() as f64) > epoch.whole_seconds() as f64 + period,
            Lasts::Remembered(time) => now.since(epoch) >= 2 * time,
        }
    }

    fn age(&self, filter: &Filter, now: Timestamp) -> Age {
        match self.lasts {
            // In whole seconds, as in Exim.
            Lasts::Period(period) => {
                let (now, epoch) = (now.whole_seconds() as f64, filter.epoch.whole_seconds() as f64);
                // An epoch far in the future comes from a wrong clock: the filter would last until then.
                if now > epoch + period || now < epoch - period { Age::Gone } else { Age::Current }
            }
            Lasts::Remembered(time) => match now.since(filter.epoch) {
                age if age >= 2 * time => Age::Gone,
                // Made when the limit, or the time to remember, was smaller; or by a wrong clock.
                _ if (filter.newer.size as usize) < self.size || filter.epoch.since(now) > time => Age::Turned,
                age if age < time => Age::Current,
                _ => Age::Turned,
            },
        }
    }
}
