//! Filters that tell whether a limit has counted a value (such as an address) before. There are two kinds. The first
//! kind is Tony Finch's Bloom filter, with the same bits as the filter of Exim's `unique=`. The second kind remembers
//! values for longer than the limit's period.
//!
//! Each value sets 8 bits, at positions that its MD5 hash gives. A filter has 16 bits for each unit of the limit.
//! Exim's filter is discarded at the end of each period. The remembering filter has two generations, and values are
//! added to the newer generation. After the time to remember, the newer generation becomes the older generation. So
//! after a value was last seen, the filter knows the value for at least the time to remember, and for at most twice
//! that time. (If the limit was raised, the filter may be too small. The generations are then rotated at once, and the
//! values of the older generation are forgotten early.)

mod generation;

use crate::time::Timestamp;
pub use generation::{Generation, MAX_OCTETS, Value};
use std::time::Duration;

/// Rule of a filter: its size and lifetime.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Size of a generation's bits in octets. For a remembering filter, this is the minimum.
    size: usize,
    lasts: Lasts,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lasts {
    /// Exim's filter, which forgets all values after a period. The number is the length of the period in seconds.
    Period(f64),
    Remembered(Duration),
    /// Like `Remembered`, but the filter is of constant size. When the newer generation is full, the generations are
    /// rotated early.
    Bounded(Duration),
}

/// Values that one budget has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Time when the newer generation began.
    epoch: Timestamp,
    newer: Generation,
    /// Older generation. It is always empty in Exim's filter. In a remembering filter, it is empty after its values
    /// were forgotten.
    older: Generation,
}

/// Result of looking up a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Never,
    /// The value is only in the older generation. The filter will forget the value unless it is added again.
    Before,
    Lately,
}

/// Age of a filter's generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Current,
    /// The time of the newer generation has ended. The values of this generation now count as values of the older
    /// generation.
    Turned,
    Gone,
}

/// Size of a generation for each value: 16 bits.
const OCTETS_PER_VALUE: usize = 2;

/// Exim's minimum: 320 bits.
const MIN_OCTETS: f64 = 40.0;

impl Filter {
    /// Restores a filter from its stored parts. `None` if the newer generation has no bits: Weir never writes such a
    /// filter.
    pub fn from_parts(epoch: Timestamp, newer: Generation, older: Generation) -> Option<Self> {
        (newer.size > 0).then_some(Self { epoch, newer, older })
    }

    /// Returns the parts to be stored: the time when the newer generation began, the newer generation, the older
    /// generation.
    pub fn parts(&self) -> (Timestamp, &Generation, &Generation) {
        (self.epoch, &self.newer, &self.older)
    }

    /// Returns an identity of the newer generation: the time when the generation began and the octets of its bits. The
    /// identity changes when the generations are rotated.
    pub fn generation(&self) -> (Timestamp, u32) {
        (self.epoch, self.newer.size)
    }

    /// Corrects the time when the newer generation began, if the clock was wrong at that time.
    pub fn begin_at(&mut self, epoch: Timestamp) {
        self.epoch = epoch;
    }

    /// Makes the newer generation the older one, and begins a new generation with a size in octets.
    fn turn(&mut self, epoch: Timestamp, size: usize) {
        let newer = std::mem::replace(&mut self.newer, Generation::few(size));
        (self.epoch, self.older) = (epoch, newer);
    }

    /// Adds a value to the newer generation again, after the store has lost this value.
    pub fn relearn(&mut self, value: Value) {
        self.newer.add(value);
    }

    /// Adds the values of another filter of the same budget. If the newer generations of both began at the same time, the
    /// older values stay in the older generation; otherwise all values are added to the newer one. If a generation of the
    /// other filter has another size, its bits are ignored.
    pub fn unite(&mut self, other: &Self) {
        self.newer.unite(&other.newer);
        if self.epoch != other.epoch {
            self.newer.unite(&other.older);
        } else if self.older.size == 0 {
            self.older = other.older.clone();
        } else {
            self.older.unite(&other.older);
        }
    }

    /// Returns the approximate size of the filter in memory, in octets.
    pub fn octets(&self) -> usize {
        self.newer.octets() + self.older.octets()
    }
}

impl Rule {
    /// Builds a rule for `limit` distinct values at once and in each `period`. The filter remembers values for at least
    /// `remember`. If `remember` is `None`, the filter forgets all values at the end of each period. Returns `None` if
    /// the filter would be larger than [`MAX_OCTETS`].
    pub fn new(limit: f64, period: Duration, remember: Option<Duration>) -> Option<Self> {
        Self::with_burst(limit, limit, period, remember)
    }

    /// Builds a rule like [`Rule::new`], but for `burst` distinct values at once, if `burst` is more than `limit`.
    pub fn with_burst(burst: f64, limit: f64, period: Duration, remember: Option<Duration>) -> Option<Self> {
        let (period, burst) = (period.as_secs_f64(), burst.max(limit));
        let (values, lasts) = match remember {
            None => (burst, Lasts::Period(period)),
            Some(time) => (burst + limit * time.as_secs_f64() / period, Lasts::Remembered(time)),
        };
        // Two octets for each value. A limit of 2.5 admits 2 values.
        let size = (OCTETS_PER_VALUE as f64 * values.trunc()).max(MIN_OCTETS);
        (size <= MAX_OCTETS as f64).then_some(Self { size: size as usize, lasts })
    }

    /// Builds a rule of a filter that remembers at least `most` values for at least `remember`. If there are more
    /// values, the filter forgets values earlier. Values beyond half of [`MAX_OCTETS`] have no room.
    pub fn bounded(most: usize, remember: Duration) -> Self {
        let size = most.saturating_mul(OCTETS_PER_VALUE).clamp(MIN_OCTETS as usize, MAX_OCTETS);
        Self { size, lasts: Lasts::Bounded(remember) }
    }

    /// Returns the time for which the filter remembers values; `None` for the period of a limit.
    pub fn remember(&self) -> Option<Duration> {
        match self.lasts {
            Lasts::Period(_) => None,
            Lasts::Remembered(time) | Lasts::Bounded(time) => Some(time),
        }
    }

    /// Returns the time after which a filter knows no value any more, if it learns nothing meanwhile. The time is at most
    /// two seconds longer than necessary.
    pub fn lasts(&self) -> Duration {
        match self.lasts {
            Lasts::Period(period) => Duration::try_from_secs_f64(period + 2.0).unwrap_or(Duration::MAX),
            Lasts::Remembered(time) | Lasts::Bounded(time) => time.saturating_mul(2),
        }
    }

    /// Returns the size of a generation's bits in octets. For a remembering filter, this is the minimum.
    pub fn octets(&self) -> usize {
        self.size
    }

    /// Returns whether the filter can remember values for longer than the period.
    pub fn remembers(&self) -> bool {
        self.remember().is_some()
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

    /// Returns an empty filter that begins at `now`.
    pub fn begin(&self, now: Timestamp) -> Filter {
        let newer = match self.lasts {
            Lasts::Remembered(_) | Lasts::Bounded(_) => Generation::few(self.size),
            // Exim's filter has bits from its first value on, instead of exact values. This gives Weir the same false
            // positives as Exim.
            Lasts::Period(_) => Generation::bits(self.size),
        };
        Filter { epoch: now, newer, older: Generation::default() }
    }

    /// Adds a value. If the filter has expired, it first becomes empty and gets the rule's present size.
    pub fn learn(&self, filter: &mut Filter, now: Timestamp, value: Value) {
        match (self.age(filter, now), self.lasts) {
            (Age::Current, Lasts::Bounded(_)) if filter.newer.is_full() => filter.turn(now, self.size),
            (Age::Current, _) => {}
            // If the generations are rotated early because the newer generation is too small, the new generation begins
            // now.
            (Age::Turned, Lasts::Bounded(time)) => filter.turn(now.min(filter.epoch.after(time)), self.size),
            (Age::Turned, Lasts::Remembered(time)) => {
                // The newer generation must have room for new values and also for known values, which are added again
                // when they are seen again.
                let size = (self.size + 2 * filter.newer.count()).min(MAX_OCTETS);
                filter.turn(now.min(filter.epoch.after(time)), size);
            }
            (Age::Turned, Lasts::Period(_)) | (Age::Gone, _) => *filter = self.begin(now),
        }
        filter.newer.add(value);
    }

    /// Adds a value that was last seen at `at`, a time in the past. A value from before the newer generation began is
    /// added to the older generation, as long as that has room, so that it is not remembered for too long.
    pub fn learn_past(&self, filter: &mut Filter, at: Timestamp, value: Value) {
        if at >= filter.epoch {
            return self.learn(filter, at, value);
        }
        if filter.older.size == 0 {
            filter.older = Generation::few(self.size);
        }
        if !filter.older.is_full() {
            filter.older.add(value);
        }
    }

    /// Returns whether all values in a filter have expired at `now`. The newer generation of the filter began at `epoch`.
    pub fn is_over(&self, epoch: Timestamp, now: Timestamp) -> bool {
        match self.lasts {
            Lasts::Period(period) => (now.whole_seconds() as f64) > epoch.whole_seconds() as f64 + period,
            Lasts::Remembered(time) | Lasts::Bounded(time) => now.since(epoch) >= 2 * time,
        }
    }

    fn age(&self, filter: &Filter, now: Timestamp) -> Age {
        match self.lasts {
            // In whole seconds, as in Exim.
            Lasts::Period(period) => {
                let (now, epoch) = (now.whole_seconds() as f64, filter.epoch.whole_seconds() as f64);
                // An epoch that is more than a period in the future comes from a wrong clock. Without this check, the
                // filter would not expire until that future time.
                if now > epoch + period || now < epoch - period { Age::Gone } else { Age::Current }
            }
            Lasts::Remembered(time) | Lasts::Bounded(time) => match now.since(filter.epoch) {
                age if age >= 2 * time => Age::Gone,
                // The filter was made when the limit or the time to remember was smaller, or while the clock was wrong.
                _ if (filter.newer.size as usize) < self.size || filter.epoch.since(now) > time => Age::Turned,
                age if age < time => Age::Current,
                _ => Age::Turned,
            },
        }
    }
}
