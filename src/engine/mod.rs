//! Engine: the arithmetic of limits. It has no side effects and reads no clock: the caller passes the time.
//!
//! A [`Rule`] computes a budget's [`State`] after an event from the state before the event. The caller decides whether
//! to store the new state. Exim's `strict` always stores the new state. Exim's `leaky` stores it only if the event does
//! not exceed the limit. Exim's `readonly` computes the state for an amount of 0 and never stores it.

pub mod bucket;
pub mod decay;
pub mod distinct;
pub mod ewma;
pub mod lease;
pub mod likelihood;
pub mod regularity;
mod wait;

use crate::time::Timestamp;
use std::time::Duration;
pub use wait::Wait;

/// Rule of a limit: moving average (Exim) or bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    Ewma(ewma::Rule),
    Bucket(bucket::Rule),
}

/// State of a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// Time of the last update.
    pub at: Timestamp,
    /// For a bucket, the used part of the burst at that time; for a moving average, the rate per period at that time.
    /// Both values are in units of what the limit counts.
    pub level: f64,
}

/// Outcome of one event for one budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Level including this event, in units of what the limit counts.
    pub level: f64,
    /// True if the event exceeds the limit.
    pub over: bool,
}

/// Receipt of a charge, needed to refund the charge: the budget's state right before and right after the charge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Receipt {
    pub before: Option<State>,
    pub after: State,
}

impl Rule {
    /// Returns the state after an event of `amount` (at least 0) at `now`, and the outcome.
    pub fn step(&self, state: Option<State>, now: Timestamp, amount: f64) -> (State, Outcome) {
        let (level, over) = match self {
            Self::Ewma(rule) => rule.step(state, now, amount),
            Self::Bucket(rule) => rule.step(state, now, amount),
        };
        (State { at: now, level }, Outcome { level, over })
    }

    /// Returns the time from `now` until an event of `amount` no longer exceeds the limit, if no other event comes
    /// earlier. With an amount of 0, returns the time until the level itself no longer exceeds the limit.
    ///
    /// For moving averages over periods p of more than a day, the last digits of [`Rule::step`] are rounding errors.
    /// The wait is then accurate to 10⁻¹²·p² seconds.
    pub fn wait(&self, state: Option<State>, now: Timestamp, amount: f64) -> Wait {
        if self.step(None, now, amount).1.over {
            return Wait::Never;
        }
        wait::until_under(|after| self.step(state, now.after(after), amount).1.over)
    }

    /// Refunds a charge: returns the budget's state without the charge, or the closest state that is certainly not
    /// lower.
    ///
    /// If nothing has changed the budget since the charge, the result is the state before the charge, or `None` if
    /// there was no state. Otherwise the level is never lower than it would be without the charge. Two parts of the
    /// charge are not refunded: the part that has decayed since the charge, and the part that a later event would have
    /// added anyway. If the clock was set back, the budget's time can be earlier than the time of the charge. The decay
    /// is then unknown, and nothing is refunded. Do not call this function for budgets that count distinct values,
    /// because a filter cannot forget a value.
    pub fn refund(&self, state: State, receipt: &Receipt) -> Option<State> {
        if state == receipt.after {
            return receipt.before;
        }
        if state.at < receipt.after.at {
            return Some(state);
        }
        let back = match self {
            Self::Ewma(rule) => rule.refund(state, receipt),
            Self::Bucket(rule) => rule.refund(state, receipt),
        };
        Some(State { level: (state.level - back).max(0.0), ..state })
    }

    /// Returns the rule with its long-run rate multiplied by `rate` and its burst multiplied by `burst`. rspamd uses
    /// such factors for a sender's reputation. Both factors must be above 0.
    pub fn scaled(&self, rate: f64, burst: f64) -> Self {
        match self {
            Self::Ewma(rule) => Self::Ewma(rule.scaled(rate, burst)),
            Self::Bucket(rule) => Self::Bucket(rule.scaled(rate, burst)),
        }
    }

    /// Returns the rule with its limit (for a bucket, its burst) multiplied by `times`, for a limit with actions at
    /// several levels.
    pub fn at(&self, times: f64) -> Self {
        match self {
            Self::Ewma(rule) => Self::Ewma(rule.at(times)),
            Self::Bucket(rule) => Self::Bucket(rule.scaled(1.0, times)),
        }
    }

    /// Returns whether a level exceeds the limit.
    pub fn is_over(&self, level: f64) -> bool {
        match self {
            Self::Ewma(rule) => rule.is_over(level),
            Self::Bucket(rule) => rule.is_over(level),
        }
    }

    /// Returns a number that is proportional to the time after which the rule forgets an event. Use this number only to
    /// compare two moving averages or two buckets: the rule with the larger number forgets later.
    pub fn memory(&self) -> f64 {
        match self {
            Self::Ewma(rule) => rule.period(),
            Self::Bucket(rule) => 1.0 / rule.rate(),
        }
    }

    /// Returns a time in seconds after which a budget with this level decides like an unused budget. It can be longer
    /// than necessary.
    pub fn forgets_after(&self, level: f64) -> f64 {
        // An event counts at least 1. After ln(r) + 2 periods, at most e⁻² of an event of 1 is left of a moving average
        // r, and the step counts a new event of 1 as 1: see `ewma`. One second more covers the rounding.
        match self {
            Self::Ewma(rule) => rule.period() * (level.max(1.0).ln() + 2.0) + 1.0,
            Self::Bucket(rule) => level / rule.rate() + 1.0,
        }
    }

    /// Returns the burst: the amount that an unused budget admits at once, in units of what the limit counts. The level
    /// of a bucket can reach the burst. The level of a moving average must stay below the burst.
    pub fn burst(&self) -> f64 {
        match self {
            Self::Ewma(rule) => rule.limit(),
            Self::Bucket(rule) => rule.burst(),
        }
    }

    /// Returns the long-run rate per second, in units of what the limit counts.
    pub fn sustained(&self) -> f64 {
        match self {
            Self::Ewma(rule) => rule.limit() / rule.period(),
            Self::Bucket(rule) => rule.rate(),
        }
    }

    /// Returns the envelope E(T): the maximum amount that one budget admits in any window of this length, for every
    /// possible order and spacing of events.
    ///
    /// For a bucket (burst β, leak ρ), the envelope is β + ρ·T, the arrival envelope of the Vienna paper. For a moving
    /// average (limit m, period p), the envelope is m + (m/p)·T. The reason is as follows. The step treats the amount
    /// of an event as a constant flow since the previous event. So the level rises by this flow and falls by level/p
    /// per second, and the level stays below m. Let r₁ be the level after a first event. The amount of this event was
    /// at most r₁, and later events in the window add at most m − r₁ + (m/p)·T.
    pub fn envelope(&self, window: Duration) -> f64 {
        self.burst() + self.sustained() * window.as_secs_f64()
    }

    /// Returns the number (from 1) of the first event that exceeds the limit. It is assumed that an unused budget gets
    /// one event of `amount` in every `interval`, and that all events are charged (Finch's table of bursts). `None` if
    /// no event ever exceeds the limit.
    pub fn first_over(&self, interval: Duration, amount: f64) -> Option<u64> {
        match self {
            Self::Ewma(rule) => rule.first_over(interval, amount),
            Self::Bucket(rule) => rule.first_over(interval, amount),
        }
    }
}

/// Returns the smallest number of events for which `is_over` is true. `is_over` must also be true for all larger
/// numbers. `guess` is an estimate of the result. `None` if the result would be above 2⁵³, because doubles cannot
/// represent every integer above that number.
fn smallest(guess: f64, is_over: impl Fn(u64) -> bool) -> Option<u64> {
    const MOST: u64 = 1 << 53;
    let (mut under, mut over) = (0, (guess.max(1.0) as u64).min(MOST));
    while !is_over(over) {
        if over == MOST {
            return None;
        }
        (under, over) = (over, (2 * over).min(MOST));
    }
    while over - under > 1 {
        let middle = under + (over - under) / 2;
        if is_over(middle) {
            over = middle;
        } else {
            under = middle;
        }
    }
    Some(over)
}

#[cfg(test)]
mod tests;
