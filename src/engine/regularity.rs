//! Regularity of the times at which events come. People send at irregular times, and programs often at regular ones.
//!
//! The regularity is m / (m + s), where m is the mean of the last n gaps between events, and s their standard deviation
//! (with the divisor n). With the coefficient of variation v = s/m this is 1 / (1 + v). Equal gaps have the regularity 1,
//! and many gaps of a Poisson process have on average about 1/2; 15 gaps have 0.53, and 3 gaps 0.62. The lowest regularity
//! of n gaps is 1 / (1 + √(n − 1)): it is that of one gap after n events at the same time.
//!
//! People send in bursts, so over some hours their gaps vary more than those of a Poisson process. Within one hour, a person
//! who writes one message after the other can be as steady as a program. So a rule with an amount a little below 1/2, and
//! with a least and a longest time for all gaps together, finds a program that sends at random times.

use super::Wait;
use super::wait;
use crate::time::Timestamp;
use std::time::Duration;

/// Rule: the regularity of a number of gaps must not exceed an amount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Highest allowed regularity, above 0 and below 1.
    most: f64,
    gaps: usize,
    /// Shortest time of all gaps together: the regularity of faster events is 0.
    least: Duration,
    /// Longest time of all gaps together: the regularity of slower events is 0.
    within: Option<Duration>,
}

/// Times of the last counted events, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times(Vec<Timestamp>);

/// Numbers of gaps that a rule can have. Fewer gaps are often regular by chance.
pub const GAPS: std::ops::RangeInclusive<usize> = 3..=100;

/// Returns the lowest regularity of this number of gaps, unless all events come at the same time. No wait makes it lower.
pub fn lowest(gaps: usize) -> f64 {
    1.0 / (1.0 + (gaps as f64 - 1.0).sqrt())
}

/// Time after which the last counted events are forgotten.
pub const REMEMBERED: Duration = Duration::from_secs(366 * 86_400);

impl Times {
    pub fn new(times: Vec<Timestamp>) -> Self {
        Self(times)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = Timestamp> {
        self.0.iter().copied()
    }

    /// Merges the times of two budgets of one owner. `self` was stored, and `counted` began empty while the stored times
    /// could not be read. Keeps the newest times, as many as the longer list has.
    pub fn merged(&self, counted: &Self) -> Self {
        let most = self.0.len().max(counted.0.len());
        let mut all: Vec<Timestamp> = self.iter().chain(counted.iter()).collect();
        all.sort_unstable();
        Self(all.split_off(all.len() - most))
    }

    /// Unites two copies of the times of one budget, which may have times in common. Keeps the newest times, as many as the
    /// longer list has.
    pub fn united(&self, copy: &Self) -> Self {
        let most = self.0.len().max(copy.0.len());
        let mut rest = self.0.clone();
        let mut is_new = |time: &Timestamp| match rest.iter().position(|known| known == time) {
            Some(index) => {
                rest.swap_remove(index);
                false
            }
            None => true,
        };
        let mut all: Vec<Timestamp> = copy.iter().filter(|time| is_new(time)).chain(self.iter()).collect();
        all.sort_unstable();
        Self(all.split_off(all.len() - most))
    }

    /// Replaces times after `now`, which a wrong clock gave, by `now`.
    pub fn heal(&mut self, now: Timestamp) {
        self.0.iter_mut().for_each(|time| *time = now.min(*time));
    }
}

impl Rule {
    /// `most` is above 0 and below 1; `gaps` is within [`GAPS`].
    pub fn new(most: f64, gaps: usize, within: Option<Duration>) -> Self {
        Self { most, gaps, least: Duration::ZERO, within }
    }

    /// Returns the rule that measures only gaps that take at least this time together.
    pub fn at_least(self, least: Duration) -> Self {
        Self { least, ..self }
    }

    /// Returns the highest allowed regularity, between 0 and 1.
    pub fn most(&self) -> f64 {
        self.most
    }

    pub fn gaps(&self) -> usize {
        self.gaps
    }

    /// Returns the shortest time of all gaps together.
    pub fn least(&self) -> Duration {
        self.least
    }

    /// Returns the longest time of all gaps together, if they have one.
    pub fn within(&self) -> Option<Duration> {
        self.within
    }

    /// Returns the rule with another amount.
    pub fn scaled(&self, factor: f64) -> Self {
        Self { most: (self.most * factor).min(1.0), ..*self }
    }

    /// Returns the regularity of the last gaps, if an event comes at `now`. It is 0 if there are too few gaps, if all of
    /// them together take less than the rule's shortest or more than its longest time, or if all events came at the same
    /// time.
    pub fn level(&self, times: Option<&Times>, now: Timestamp) -> f64 {
        let times = times.map_or(&[][..], |times| &times.0);
        let Some(first) = times.len().checked_sub(self.gaps) else { return 0.0 };
        let time = now.since(times[first]);
        if time < self.least || self.within.is_some_and(|within| time > within) {
            return 0.0;
        }
        let later = times[first + 1..].iter().copied().chain([now]);
        let gaps = times[first..].iter().zip(later).map(|(time, next)| next.since(*time).as_secs_f64());
        let (sum, squares) = gaps.fold((0.0, 0.0), |(sum, squares), gap| (sum + gap, squares + gap * gap));
        let mean = sum / self.gaps as f64;
        if mean <= 0.0 {
            return 0.0;
        }
        let variance = (squares / self.gaps as f64 - mean * mean).max(0.0);
        mean / (mean + variance.sqrt())
    }

    /// Returns whether a level exceeds `times` times the allowed regularity.
    pub fn is_over(&self, level: f64, times: f64) -> bool {
        level > self.most * times
    }

    /// Returns the time from `now` until an event no longer exceeds `times` times the allowed regularity, if no other
    /// event comes earlier: the wait itself makes the gaps irregular.
    pub fn wait(&self, known: Option<&Times>, now: Timestamp, times: f64) -> Wait {
        wait::until_under(|after| self.is_over(self.level(known, now.after(after)), times))
    }

    /// Returns the times after an event at `now`.
    pub fn add(&self, times: Option<&Times>, now: Timestamp) -> Times {
        let times = times.map_or(&[][..], |times| &times.0);
        let kept = &times[times.len().saturating_sub(self.gaps - 1)..];
        Times(kept.iter().copied().chain([now]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_micros((seconds * 1e6) as i64)
    }

    /// Returns the regularity of the last gaps, directly from the definition.
    fn expected(times: &[f64], gaps: usize) -> f64 {
        let all: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let Some(last) = all.len().checked_sub(gaps).map(|first| &all[first..]) else { return 0.0 };
        let mean = last.iter().sum::<f64>() / gaps as f64;
        let variance = last.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps as f64;
        if mean > 0.0 { 1.0 / (1.0 + variance.sqrt() / mean) } else { 0.0 }
    }

    proptest! {
        #[test]
        fn the_level_is_the_regularity_of_the_last_gaps(
            gaps in 3usize..20,
            steps in prop::collection::vec(0u32..100_000, 1..60),
        ) {
            let rule = Rule::new(0.74, gaps, None);
            let (mut known, mut sent, mut now) = (None, Vec::new(), 0.0);
            for step in steps {
                now += f64::from(step) / 10.0;
                sent.push(now);
                let level = rule.level(known.as_ref(), at(now));
                prop_assert!((level - expected(&sent, gaps)).abs() < 1e-6, "{level} {}", expected(&sent, gaps));
                let times = rule.add(known.as_ref(), at(now));
                prop_assert!(times.iter().len() <= gaps);
                known = Some(times);
            }
        }

        #[test]
        fn the_wait_is_exact_to_a_millisecond(gap in 1u32..100_000, spread in 0u32..20, within in prop::option::of(0u64..100_000), least in 0u64..600_000) {
            let rule = Rule::new(0.74, 5, within.map(|seconds| Duration::from_secs(5 * u64::from(gap) + seconds)));
            let rule = rule.at_least(Duration::from_secs(least.min(5 * u64::from(gap))));
            let times = (0..5).map(|n| at(f64::from(n * gap) + f64::from(spread * (n % 2)) / 100.0)).collect();
            let (times, now) = (Times::new(times), at(f64::from(5 * gap)));
            let Wait::For(wait) = rule.wait(Some(&times), now, 1.0) else { panic!("the wait ends") };
            let is_over = |after| rule.is_over(rule.level(Some(&times), now.after(after)), 1.0);
            prop_assert!(!is_over(wait));
            prop_assert!(wait.is_zero() || is_over(wait - Duration::from_millis(1)));
        }
    }

    #[test]
    fn merged_times_are_the_newest_of_both() {
        let (stored, counted) = (Times::new(vec![at(1.0), at(2.0), at(9.0)]), Times::new(vec![at(5.0), at(12.0)]));
        assert_eq!(stored.merged(&counted), Times::new(vec![at(5.0), at(9.0), at(12.0)]));
        assert_eq!(counted.merged(&Times::default()), counted);
    }

    #[test]
    fn united_times_count_common_times_once() {
        let (one, other) = (Times::new(vec![at(1.0), at(2.0), at(2.0)]), Times::new(vec![at(2.0), at(5.0)]));
        let united = one.united(&other);
        assert_eq!(united, Times::new(vec![at(2.0), at(2.0), at(5.0)]));
        assert_eq!((united.united(&one), united.united(&other)), (united.clone(), united));
    }

    #[test]
    fn one_gap_after_events_at_the_same_time_has_the_lowest_regularity() {
        for gaps in GAPS {
            let level = Rule::new(0.74, gaps, None).level(Some(&Times::new(vec![at(5.0); gaps])), at(905.0));
            assert!((level - lowest(gaps)).abs() < 1e-9, "{gaps}: {level}");
        }
    }

    #[test]
    fn equal_gaps_are_regular_and_equal_times_are_not() {
        let rule = Rule::new(0.74, 3, None);
        let regular = Times::new(vec![at(0.0), at(10.0), at(20.0)]);
        assert_eq!(rule.level(Some(&regular), at(30.0)), 1.0);
        assert_eq!(rule.level(Some(&Times::new(vec![at(5.0); 3])), at(5.0)), 0.0);
        assert_eq!(rule.level(Some(&Times::new(vec![at(0.0), at(10.0)])), at(20.0)), 0.0);
        assert_eq!(rule.level(None, at(0.0)), 0.0);
    }

    #[test]
    fn gaps_that_take_longer_than_the_time_of_the_rule_are_not_regular() {
        let rule = Rule::new(0.74, 3, Some(Duration::from_secs(30)));
        let times = Times::new(vec![at(0.0), at(10.0), at(20.0)]);
        assert_eq!(rule.level(Some(&times), at(30.0)), 1.0);
        assert_eq!(rule.level(Some(&times), at(30.1)), 0.0);
        assert_eq!(rule.wait(Some(&times), at(30.0), 1.0), Wait::For(Duration::from_millis(1)));
    }

    #[test]
    fn gaps_that_take_less_than_the_least_time_of_the_rule_are_not_regular() {
        let rule = Rule::new(0.74, 3, None).at_least(Duration::from_secs(30));
        let times = Times::new(vec![at(0.0), at(10.0), at(20.0)]);
        assert_eq!(rule.level(Some(&times), at(29.9)), 0.0);
        assert_eq!(rule.level(Some(&times), at(30.0)), 1.0);
        // A wait makes the gaps irregular, not too short.
        let Wait::For(wait) = rule.wait(Some(&times), at(30.0), 1.0) else { panic!("the wait ends") };
        assert!(wait > Duration::from_secs(8), "{wait:?}");
    }
}
