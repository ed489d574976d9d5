//! Exponentially weighted moving average of Exim's `ratelimit` (Tony Finch). A single number is both the limit of the
//! rate and the burst.
//!
//! The decisions are the same as in Exim 4.77 to 4.99, bit for bit, in IEEE doubles and in Exim's own order of
//! operations. Two differences are deliberate. First, Weir stores times in whole microseconds, so that no second is
//! lost. Second, an event at the same time as the previous event counts in full. Exim instead assumes an interval of a
//! nanosecond, and loses many digits. Over long periods, Exim therefore counts such an event as anything from 0 to
//! 1.75.

use super::{Receipt, State, smallest};
use crate::time::Timestamp;
use std::time::Duration;

/// Rule that admits an average of `limit` per `period`, smoothed over the period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// m: a sender with this rate per period, or with a higher rate, exceeds the limit.
    limit: f64,
    /// p: smoothing period, in seconds.
    period: f64,
}

impl Rule {
    pub fn new(limit: f64, period: Duration) -> Self {
        Self { limit, period: period.as_secs_f64() }
    }

    pub fn limit(&self) -> f64 {
        self.limit
    }

    /// Returns the smoothing period, in seconds.
    pub fn period(&self) -> f64 {
        self.period
    }

    pub(super) fn step(&self, state: Option<State>, now: Timestamp, amount: f64) -> (f64, bool) {
        let rate = state.map_or(amount, |state| self.smooth(state, now, amount));
        (rate, self.is_over(rate))
    }

    pub(super) fn at(&self, times: f64) -> Self {
        Self { limit: self.limit * times, ..*self }
    }

    pub(super) fn is_over(&self, rate: f64) -> bool {
        rate >= self.limit
    }

    fn smooth(&self, state: State, now: Timestamp, amount: f64) -> f64 {
        // As in Exim, the times are subtracted as doubles, not as integers: these two methods give rates that differ in
        // the last digits.
        let interval = now.seconds() - state.at.seconds();
        if interval <= 0.0 {
            // No time has passed, or the clock was set back: nothing decays, and the event counts in full.
            return state.level + amount;
        }
        let x = interval / self.period;
        if x == 0.0 {
            // The period is so long that the interval divided by it is 0: the event counts in full.
            return state.level + amount;
        }
        let a = (-x).exp();
        let smoothed = (1.0 - a) * amount / x + a * state.level;
        // The first event after a long pause raises the rate to at least its own amount (as in Exim).
        smoothed.max(amount)
    }

    /// Returns the part of a charge that can be refunded, in units of what the limit counts.
    ///
    /// The charge raised the rate by an increment. After the time Δ, the part e^(−Δ/p) of the increment is left. But
    /// this part cannot always be refunded. Consider a later event of amount n, an interval x·p after the charge.
    /// Without the charge, [`Rule::smooth`] may have raised the rate to the event's own amount. Then the rate without
    /// the charge would be higher than the present rate minus the rest of the increment, by at most n·g(x). Here g(x) =
    /// 1 − (1 − e^(−x))/x grows with x, and n is at most the present level. This difference is not refunded.
    pub(super) fn refund(&self, state: State, receipt: &Receipt) -> f64 {
        let decay = |from: Timestamp, to: Timestamp| (-to.since(from).as_secs_f64() / self.period).exp();
        let before = receipt.before.map_or(0.0, |before| before.level * decay(before.at, receipt.after.at));
        let left = (receipt.after.level - before) * decay(receipt.after.at, state.at);
        let x = state.at.since(receipt.after.at).as_secs_f64() / self.period;
        let g = if x > 0.0 { 1.0 + (-x).exp_m1() / x } else { 0.0 };
        (left - state.level * g).max(0.0)
    }

    pub(super) fn scaled(&self, rate: f64, burst: f64) -> Self {
        // The long-run rate is limit / period. The period is also changed, so that the long-run rate is multiplied by
        // `rate`.
        Self { limit: self.limit * burst, period: self.period * burst / rate }
    }

    pub(super) fn first_over(&self, interval: Duration, amount: f64) -> Option<u64> {
        let x = interval.as_secs_f64() / self.period;
        if amount >= self.limit {
            return Some(1);
        }
        if x == 0.0 {
            return smallest(self.limit / amount, |count| count as f64 * amount >= self.limit);
        }
        // With events of amount n at a constant interval, the rate starts at n and approaches n/x: after k events it is
        // n + (n/x − n)·(1 − a^(k−1)), where x = interval / period and a = e^(−x).
        let (end, more) = (amount / x, self.limit - amount);
        if end <= self.limit {
            return None;
        }
        let rate = |count: u64| amount - (end - amount) * (-x * (count - 1) as f64).exp_m1();
        smallest(1.0 - (-more / (end - amount)).ln_1p() / x, |count| rate(count) >= self.limit)
    }
}
