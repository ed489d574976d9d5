//! The exponentially weighted moving average of Exim's `ratelimit` (Tony Finch): a rate that is its own burst limit.
//!
//! The decisions are those of Exim 4.77 to 4.99, bit for bit, in IEEE doubles and in Exim's own order of operations.
//! Deliberate differences: the time is kept in whole microseconds, so a second never slips when it is stored; and an event in no
//! time counts in full, where Exim takes the interval for a nanosecond and loses digits until, over long periods, it counts
//! anything from 0 to 1.75.

use super::{Outcome, Wait};
use crate::time::{Rate, Timestamp};
use std::time::Duration;

/// At most `limit` in `period`, smoothed over it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// m: the rate at which a sender is over, per period.
    limit: f64,
    /// p: the smoothing period, in seconds.
    period: f64,
}

/// What is remembered of a sender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// When the rate was last brought up to date.
    pub at: Timestamp,
    /// r: events per period, as of then.
    pub rate: f64,
}

impl From<Rate> for Rule {
    fn from(rate: Rate) -> Self {
        Self { limit: rate.amount, period: rate.period.as_secs_f64() }
    }
}

impl Rule {
    /// The state after an event of `amount` at `now`, and what it means. Whether the state is kept is for the caller to decide:
    /// Exim's strict keeps it always, its leaky when not over.
    pub fn step(&self, state: Option<State>, now: Timestamp, amount: f64) -> (State, Outcome) {
        let rate = match state {
            None => amount,
            Some(State { at, rate }) => self.smooth(at, rate, now, amount),
        };
        (State { at: now, rate }, Outcome { level: rate, over: rate >= self.limit })
    }

    fn smooth(&self, then: Timestamp, rate: f64, now: Timestamp, amount: f64) -> f64 {
        // The difference of the doubles, as Exim takes it, not of the integers: it changes rates in their last digits.
        let interval = now.seconds() - then.seconds();
        if interval <= 0.0 {
            // No time has passed, or the clock was set back: nothing decays and the event counts whole.
            return rate + amount;
        }
        let x = interval / self.period;
        let a = (-x).exp();
        let smoothed = (1.0 - a) * amount / x + a * rate;
        // A burst after silence counts for no less than itself.
        smoothed.max(amount)
    }

    /// How long until an event of `amount`, alone, is under the limit, from `now` on.
    ///
    /// The rate falls steadily while nothing happens, so the millisecond is found by halving; the test is the step itself, so that
    /// the answer cannot disagree with the decision. For periods of over a day the last digits of the step are noise: the answer is
    /// then good to 10⁻¹²·p² seconds.
    pub fn wait(&self, state: Option<State>, now: Timestamp, amount: f64) -> Wait {
        if amount >= self.limit {
            return Wait::Never;
        }
        let over_after = |millis: u64| {
            let later = now.after(Duration::from_millis(millis));
            self.step(state, later, amount).1.over
        };
        if !over_after(0) {
            return Wait::For(Duration::ZERO);
        }
        let mut over = 0;
        let mut under = 1;
        while over_after(under) {
            over = under;
            under = match under.checked_mul(2) {
                Some(doubled) if doubled <= MAX_WAIT_MILLIS => doubled,
                _ => return Wait::Never,
            };
        }
        while under - over > 1 {
            let middle = over + (under - over) / 2;
            if over_after(middle) {
                over = middle;
            } else {
                under = middle;
            }
        }
        Wait::For(Duration::from_millis(under))
    }
}

/// A thousand years: whoever must wait longer waits for ever.
const MAX_WAIT_MILLIS: u64 = 1_000 * 366 * 86_400 * 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::parse_rate;
    use proptest::prelude::*;

    fn rule(rate: &str) -> Rule {
        parse_rate(rate).unwrap().into()
    }

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + (seconds * 1e6) as i64)
    }

    /// Number of the first event over, under Exim's strict.
    fn first_over(rule: Rule, interval: f64) -> usize {
        let mut state = None;
        for n in 0.. {
            let (next, outcome) = rule.step(state, at(n as f64 * interval), 1.0);
            if outcome.over {
                return n + 1;
            }
            state = Some(next);
        }
        unreachable!()
    }

    #[test]
    fn bursts_last_as_long_as_in_finchs_table() {
        for (rate, firsts) in [
            ("100 / 1d", [101, 101, 104, 123, 171]),
            ("20 / 5h", [21, 21, 21, 25, 33]),
            ("4 / 1h", [5, 5, 5, 5, 7]),
            ("1 / 15m", [1, 1, 1, 1, 1]),
        ] {
            let measured = [1.0, 10.0, 60.0, 300.0, 600.0].map(|interval| first_over(rule(rate), interval));
            assert_eq!(measured, firsts, "{rate}");
        }
    }

    #[test]
    fn rates_are_those_of_exim_to_the_last_bit() {
        // The first lines of a trace of Exim 4.96: 100 / 86400s, one event a second.
        let rule = rule("100 / 1d");
        let mut state = None;
        for (second, rate) in [1.0, 1.999982638977395, 2.9999537041486315].into_iter().enumerate() {
            let (next, outcome) = rule.step(state, at(second as f64), 1.0);
            assert_eq!(outcome.level.to_bits(), f64::to_bits(rate));
            state = Some(next);
        }
    }

    #[test]
    fn an_event_in_no_time_counts_whole_and_a_clock_set_back_does_not_decay() {
        let rule = rule("100 / 1d");
        let state = Some(State { at: at(10.0), rate: 7.5 });
        assert_eq!(rule.step(state, at(10.0), 1.0).1.level, 8.5);
        assert_eq!(rule.step(state, at(-5.0), 1.0).1.level, 8.5);
    }

    #[test]
    fn what_is_by_itself_over_the_limit_never_fits() {
        assert_eq!(rule("1 / 15m").wait(None, at(0.0), 1.0), Wait::Never);
        assert_eq!(rule("2 / 15m").wait(None, at(0.0), 1.0), Wait::For(Duration::ZERO));
    }

    proptest! {
        #[test]
        fn the_wait_is_exact_to_the_millisecond(limit in 1.5f64..1000.0, period in 1u32..86_400, level in 0.0f64..5000.0, n in 0.01f64..1.4) {
            let rule = Rule { limit, period: f64::from(period) };
            let state = Some(State { at: at(0.0), rate: level });
            let Wait::For(wait) = rule.wait(state, at(1.0), n) else { panic!("never") };
            prop_assert!(!rule.step(state, at(1.0).after(wait), n).1.over);
            if wait > Duration::ZERO {
                let earlier = wait - Duration::from_millis(1);
                prop_assert!(rule.step(state, at(1.0).after(earlier), n).1.over);
            }
        }

        #[test]
        fn no_number_makes_a_rate_that_is_none(limit in 0.0f64..1e300, period in 1e-6f64..1e12, level in 0.0f64..1e300,
                                               then in any::<i64>(), now in any::<i64>(), n in 0.0f64..1e300) {
            let rule = Rule { limit, period };
            let state = Some(State { at: Timestamp::from_micros(then), rate: level });
            let (after, _) = rule.step(state, Timestamp::from_micros(now), n);
            prop_assert!(after.rate >= 0.0 && !after.rate.is_nan());
        }
    }
}
