//! Levels of the budgets of top senders in the past, for charts: of the last hour, and of the last day.
//!
//! The memory is bounded: [`MAX_SERIES`] series, each with a fixed number of samples.

use crate::time::Timestamp;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of series. Each has at most [`Span::samples`] of 12 octets for each span, so all have at most 7 MB.
pub const MAX_SERIES: usize = 900;

/// Maximum length in octets of an owner's name. Owners with longer names have no history.
const MAX_OWNER: usize = 512;

/// Time that a chart shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    Hour,
    Day,
}

impl Span {
    /// Returns the seconds between two samples.
    pub fn interval(self) -> u32 {
        match self {
            Self::Hour => 10,
            Self::Day => 300,
        }
    }

    /// Returns the number of samples that are kept.
    fn samples(self) -> usize {
        match self {
            Self::Hour => 360,
            Self::Day => 288,
        }
    }

    /// Returns the number of the interval that contains this time.
    fn slot(self, now: Timestamp) -> u32 {
        u32::try_from(now.whole_seconds() / i64::from(self.interval())).unwrap_or(0)
    }
}

/// Level of a budget at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    pub limit: Arc<str>,
    /// Index of the rate among the rates of the limit.
    pub ordinal: usize,
    pub level: f64,
    /// Number with which the level is compared; infinite if the quota is unlimited.
    pub allowed: f64,
}

/// Levels of one budget in the past.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelSeries {
    pub limit: Arc<str>,
    pub ordinal: usize,
    /// Begin of each interval, the highest level in it, and the number with which the level is compared. The oldest is
    /// the first. Intervals in which the sender was no top sender are missing.
    pub points: Vec<(Timestamp, f64, f64)>,
}

/// Levels of the past by owners.
#[derive(Default)]
pub struct LevelHistory {
    /// The lock is held to add the samples of one owner or to copy them, never across an `.await`. Mail does not need it.
    owners: Mutex<HashMap<Box<str>, OwnerLevels>>,
}

struct OwnerLevels {
    /// Time of the last sample.
    last: Timestamp,
    series: Vec<Series>,
}

struct Series {
    limit: Arc<str>,
    ordinal: usize,
    hour: Samples,
    day: Samples,
}

/// Samples of one span, the oldest first.
struct Samples {
    span: Span,
    samples: VecDeque<Sample>,
}

#[derive(Clone, Copy)]
struct Sample {
    slot: u32,
    level: f32,
    allowed: f32,
}

impl LevelHistory {
    /// Adds the present levels of an owner's budgets. If there is no room, the owner whose last sample is the oldest is
    /// forgotten, unless it is of the present round.
    pub fn add(&self, owner: &str, levels: &[Level], now: Timestamp) {
        if owner.len() > MAX_OWNER || levels.is_empty() {
            return;
        }
        let mut owners = self.lock();
        let known = owners.get(owner).map_or(&[][..], |owner| &owner.series);
        let new = levels.iter().filter(|level| !known.iter().any(|series| series.is_of(level))).count();
        let has_room = make_room(&mut owners, owner, new, now);
        if has_room || owners.contains_key(owner) {
            let begin = || OwnerLevels { last: now, series: Vec::new() };
            let owner = owners.entry(owner.into()).or_insert_with(begin);
            owner.last = now;
            levels.iter().for_each(|level| owner.add(level, has_room, now));
        }
    }

    /// Returns the levels of an owner's budgets within a span up to `now`.
    pub fn of(&self, owner: &str, span: Span, now: Timestamp) -> Vec<LevelSeries> {
        let owners = self.lock();
        let series = owners.get(owner).into_iter().flat_map(|owner| &owner.series);
        let series = series.map(|series| LevelSeries {
            limit: series.limit.clone(),
            ordinal: series.ordinal,
            points: series.of(span).points(now),
        });
        series.filter(|series| !series.points.is_empty()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, OwnerLevels>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets owners until there is room for `new` series. Returns false if there is no room.
fn make_room(owners: &mut HashMap<Box<str>, OwnerLevels>, owner: &str, new: usize, now: Timestamp) -> bool {
    let count = |owners: &HashMap<_, OwnerLevels>| owners.values().map(|owner| owner.series.len()).sum::<usize>();
    while new > 0 && count(owners) + new > MAX_SERIES {
        let others = owners.iter().filter(|(name, other)| &***name != owner && other.last != now);
        let Some(oldest) = others.min_by_key(|(_, other)| other.last).map(|(name, _)| name.clone()) else {
            return false;
        };
        owners.remove(&oldest);
    }
    true
}

impl OwnerLevels {
    /// Adds a level to its series, which begins if `may_begin`.
    fn add(&mut self, level: &Level, may_begin: bool, now: Timestamp) {
        let index = match self.series.iter().position(|series| series.is_of(level)) {
            Some(index) => index,
            None if may_begin => {
                self.series.push(Series::new(level));
                self.series.len() - 1
            }
            None => return,
        };
        let series = &mut self.series[index];
        series.hour.add(level, now);
        series.day.add(level, now);
    }
}

impl Series {
    fn new(Level { limit, ordinal, .. }: &Level) -> Self {
        let (hour, day) = (Samples::new(Span::Hour), Samples::new(Span::Day));
        Self { limit: limit.clone(), ordinal: *ordinal, hour, day }
    }

    fn is_of(&self, level: &Level) -> bool {
        self.limit == level.limit && self.ordinal == level.ordinal
    }

    fn of(&self, span: Span) -> &Samples {
        match span {
            Span::Hour => &self.hour,
            Span::Day => &self.day,
        }
    }
}

impl Samples {
    fn new(span: Span) -> Self {
        Self { span, samples: VecDeque::new() }
    }

    fn add(&mut self, level: &Level, now: Timestamp) {
        let mut sample = Sample { slot: self.span.slot(now), level: level.level as f32, allowed: level.allowed as f32 };
        // If the clock was set back, samples of the future are wrong.
        while let Some(last) = self.samples.back().filter(|last| last.slot >= sample.slot).copied() {
            if last.slot == sample.slot {
                sample.level = sample.level.max(last.level);
            }
            self.samples.pop_back();
        }
        if self.samples.len() >= self.span.samples() {
            self.samples.pop_front();
        }
        if self.samples.len() == self.samples.capacity() {
            // Most senders are top senders only for a short time. A series gets memory for more samples as it needs them.
            let more = self.samples.len().max(8).min(self.span.samples() - self.samples.len());
            self.samples.reserve_exact(more);
        }
        self.samples.push_back(sample);
    }

    fn points(&self, now: Timestamp) -> Vec<(Timestamp, f64, f64)> {
        let (present, interval) = (self.span.slot(now), i64::from(self.span.interval()));
        let is_of_span =
            |sample: &&Sample| sample.slot <= present && present - sample.slot < self.span.samples() as u32;
        let point = |sample: &Sample| {
            let begin = Timestamp::from_micros(i64::from(sample.slot) * interval * 1_000_000);
            (begin, f64::from(sample.level), f64::from(sample.allowed))
        };
        self.samples.iter().filter(is_of_span).map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros((1_700_000_100 + seconds) * 1_000_000)
    }

    fn level(limit: &str, level: f64) -> Level {
        Level { limit: limit.into(), ordinal: 0, level, allowed: 100.0 }
    }

    fn levels(history: &LevelHistory, owner: &str, span: Span, now: i64) -> Vec<f64> {
        let series = history.of(owner, span, at(now));
        series.first().map_or(Vec::new(), |series| series.points.iter().map(|(_, level, _)| *level).collect())
    }

    #[test]
    fn an_hour_has_a_sample_every_ten_seconds_and_a_day_the_highest_of_five_minutes() {
        let history = LevelHistory::default();
        for second in (0..7_200).step_by(10) {
            history.add("user=alice", &[level("a", f64::from(second))], at(i64::from(second)));
        }
        let hour = levels(&history, "user=alice", Span::Hour, 7_190);
        assert_eq!((hour.len(), hour[0], hour[359]), (360, 3_600.0, 7_190.0));
        let day = levels(&history, "user=alice", Span::Day, 7_190);
        assert_eq!((day.len(), day[0], day[1], day[23]), (24, 290.0, 590.0, 7_190.0));
        assert_eq!(levels(&history, "user=alice", Span::Hour, 7_190 + 1_800).len(), 180);
        assert_eq!(levels(&history, "user=alice", Span::Hour, 20_000), [0.0; 0]);
        assert_eq!(levels(&history, "user=bob", Span::Hour, 7_190), [0.0; 0]);
        let first = &history.of("user=alice", Span::Hour, at(7_190))[0].points[0];
        assert_eq!(*first, (at(3_600), 3_600.0, 100.0));
    }

    #[test]
    fn a_clock_that_was_set_back_leaves_no_samples_of_the_future() {
        let history = LevelHistory::default();
        for second in [0, 10, 1_000, 1_010, 20, 30] {
            history.add("user=alice", &[level("a", f64::from(second))], at(i64::from(second)));
        }
        assert_eq!(levels(&history, "user=alice", Span::Hour, 1_020), [0.0, 10.0, 20.0, 30.0]);
    }

    #[test]
    fn the_memory_is_bounded_and_the_oldest_owner_is_forgotten_first() {
        let history = LevelHistory::default();
        let name = |n: usize| format!("user=u{n}");
        let both = [level("a", 1.0), level("b", 2.0)];
        for n in 0..2 * MAX_SERIES {
            history.add(&name(n), &both, at(n as i64));
        }
        let count = |history: &LevelHistory| history.lock().values().map(|owner| owner.series.len()).sum::<usize>();
        assert_eq!(count(&history), MAX_SERIES);
        let now = 2 * MAX_SERIES as i64 - 1;
        assert_eq!(history.of(&name(2 * MAX_SERIES - 1), Span::Day, at(now)).len(), 2);
        assert!(history.of(&name(MAX_SERIES), Span::Day, at(now)).is_empty());
        // Owners of one round do not replace one another, and those that are known get their samples.
        for n in 0..2 * MAX_SERIES {
            history.add(&name(n), &both, at(now + 10));
        }
        assert_eq!(count(&history), MAX_SERIES);
        assert_eq!(history.of(&name(0), Span::Day, at(now + 10)).len(), 2);
        history.add(&name(0), &[level("a", 1.0), level("b", 2.0), level("c", 3.0)], at(now + 10));
        assert_eq!((count(&history), history.of(&name(0), Span::Day, at(now + 10)).len()), (MAX_SERIES, 2));
        history.add(&"x".repeat(MAX_OWNER + 1), &both, at(now + 20));
        history.add("user=none", &[], at(now + 20));
        assert_eq!(count(&history), MAX_SERIES);
        let samples = MAX_SERIES * (Span::Hour.samples() + Span::Day.samples());
        assert!(samples * size_of::<Sample>() + MAX_SERIES * (MAX_OWNER + size_of::<Series>()) < 8_000_000);
    }
}
