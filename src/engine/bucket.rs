//! Bucket. It has two equivalent descriptions. In the University of Vienna's token bucket, tokens flow in at a rate, up
//! to a burst, and events take tokens out. In rspamd's leaky bucket, events flow in and leak out at a rate. The state
//! is the used part of the burst. With this state, both descriptions admit the same events.

use super::{Receipt, State, smallest};
use crate::time::Timestamp;
use std::time::Duration;

/// Rule that admits the amount `burst` at once, and the amount `rate` per second in the long run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// β: size of the bucket, in units of what the limit counts.
    burst: f64,
    /// ρ: leak per second, in units of what the limit counts.
    rate: f64,
}

impl Rule {
    /// Creates a rule with a size of `burst` units and a leak of `rate` units per second.
    pub fn new(burst: f64, rate: f64) -> Self {
        Self { burst, rate }
    }

    pub fn burst(&self) -> f64 {
        self.burst
    }

    /// Returns the leak per second.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    pub(super) fn step(&self, state: Option<State>, now: Timestamp, amount: f64) -> (f64, bool) {
        let level = state.map_or(0.0, |state| self.leaked(state.level, now.since(state.at))) + amount;
        (level, self.is_over(level))
    }

    pub(super) fn is_over(&self, level: f64) -> bool {
        level > self.burst
    }

    /// Returns the part of `level` that is left after `time`. (If the clock was set back, the caller passes a time of
    /// 0, and nothing leaks.)
    fn leaked(&self, level: f64, time: Duration) -> f64 {
        (level - self.rate * time.as_secs_f64()).max(0.0)
    }

    /// Returns the part of a charge that can be refunded: the part that cannot have leaked since the charge.
    pub(super) fn refund(&self, state: State, receipt: &Receipt) -> f64 {
        let since = receipt.before.map_or(0.0, |before| self.leaked(before.level, receipt.after.at.since(before.at)));
        self.leaked(receipt.after.level - since, state.at.since(receipt.after.at))
    }

    pub(super) fn scaled(&self, rate: f64, burst: f64) -> Self {
        Self { burst: self.burst * burst, rate: self.rate * rate }
    }

    pub(super) fn first_over(&self, interval: Duration, amount: f64) -> Option<u64> {
        // Each earlier event of amount n raises the level by n − ρ·i, where i is the interval. If this difference is
        // below 0, the level does not rise.
        let stays = amount - self.rate * interval.as_secs_f64();
        if amount > self.burst {
            return Some(1);
        }
        if stays <= 0.0 {
            return None;
        }
        let level = |count: u64| amount + (count - 1) as f64 * stays;
        smallest((self.burst - amount) / stays + 1.0, |count| level(count) > self.burst)
    }
}
