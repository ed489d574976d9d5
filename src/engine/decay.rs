//! Points that halve in each half-life: the suspicion that one sign has raised.

use super::State;
use crate::time::Timestamp;
use std::time::Duration;

/// Rule by which the points of one sign decay, and the most points that the sign can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Half-life, in seconds, above 0.
    half_life: f64,
    /// Most points, at least 0.
    most: f64,
}

/// Points below this number count as none, so that a state can be forgotten.
const LEAST: f64 = 0.01;

impl Rule {
    /// Creates a rule. `half_life` must be above 0, and `most` at least 0.
    pub fn new(half_life: Duration, most: f64) -> Self {
        Self { half_life: half_life.as_secs_f64(), most }
    }

    /// Returns the half-life, in seconds.
    pub fn half_life(&self) -> f64 {
        self.half_life
    }

    /// Returns the most points that the sign can have.
    pub fn most(&self) -> f64 {
        self.most
    }

    /// Returns the points that are left at `now`: from 0 to the most points. The level of the state is in points. If the
    /// clock was set back, nothing decays.
    pub fn level(&self, state: Option<State>, now: Timestamp) -> f64 {
        let Some(State { at, level }) = state else { return 0.0 };
        let passed = now.since(at).as_secs_f64();
        // The most points may have been lowered since.
        let left = level.min(self.most) * (-passed / self.half_life).exp2();
        // A state that is no number counts as none, because the comparison is false.
        if left >= LEAST { left } else { 0.0 }
    }

    /// Returns the state after `points` (at least 0) more at `now`.
    pub fn add(&self, state: Option<State>, now: Timestamp, points: f64) -> State {
        State { at: now, level: (self.level(state, now) + points).min(self.most) }
    }

    /// Returns the time after which nothing is left of the most points. It can be longer than necessary.
    pub fn lasts(&self) -> Duration {
        let half_lives = (self.most / LEAST).max(1.0).log2() + 1.0;
        Duration::try_from_secs_f64(half_lives * self.half_life).unwrap_or(Duration::MAX)
    }

    /// Returns whether nothing is left of the points, so that a store can delete the state.
    pub fn has_forgotten(&self, state: State, now: Timestamp) -> bool {
        self.level(Some(state), now) == 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    #[test]
    fn points_halve_in_each_half_life() {
        let rule = Rule::new(7 * DAY, 60.0);
        let state = rule.add(None, NOW, 40.0);
        assert_eq!(rule.level(Some(state), NOW), 40.0);
        assert_eq!(rule.level(Some(state), NOW.after(7 * DAY)), 20.0);
        assert_eq!(rule.level(Some(state), NOW.after(14 * DAY)), 10.0);
        let again = rule.add(Some(state), NOW.after(7 * DAY), 40.0);
        assert_eq!(again, State { at: NOW.after(7 * DAY), level: 60.0 });
    }

    #[test]
    fn a_clock_that_is_set_back_lets_nothing_decay() {
        let rule = Rule::new(DAY, 60.0);
        assert_eq!(rule.level(Some(State { at: NOW.after(DAY), level: 40.0 }), NOW), 40.0);
    }

    #[test]
    fn a_lower_cap_holds_for_points_of_before() {
        let state = State { at: NOW, level: 60.0 };
        assert_eq!(Rule::new(DAY, 30.0).level(Some(state), NOW), 30.0);
    }

    proptest! {
        #[test]
        fn points_stay_between_nothing_and_the_cap(
            half_life in 1_u64..100_000_000,
            most in 0.0..1000.0_f64,
            steps in prop::collection::vec((0_u64..10_000_000, 0.0..1000.0_f64), 1..50),
        ) {
            let rule = Rule::new(Duration::from_secs(half_life), most);
            let (mut now, mut state) = (NOW, None);
            for (seconds, points) in steps {
                now = now.after(Duration::from_secs(seconds));
                let before = rule.level(state, now);
                let after = rule.add(state, now, points);
                prop_assert!((0.0..=most).contains(&after.level) && after.level >= before);
                prop_assert!(rule.level(Some(after), now.after(Duration::from_secs(seconds))) <= after.level);
                state = Some(after);
            }
        }

        #[test]
        fn points_decay_to_nothing(half_life in 1_u64..10_000_000, points in 0.0..1000.0_f64) {
            let rule = Rule::new(Duration::from_secs(half_life), 1000.0);
            let state = rule.add(None, NOW, points);
            // 1000 points are below a hundredth after 17 half-lives.
            let later = NOW.after(Duration::from_secs(17 * half_life));
            prop_assert!(rule.has_forgotten(state, later));
            prop_assert_eq!(rule.level(Some(state), later), 0.0);
        }
    }
}
