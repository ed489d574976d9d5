//! Engine: the arithmetic of limits. Pure: the caller passes the time.
//!
//! A [`Rule`] steps a [`State`]. The caller decides whether to keep the new state: Exim's strict always keeps it, its
//! leaky only if the event does not exceed the limit, its readonly steps with 0 and keeps nothing.

pub mod bucket;
pub mod distinct;
pub mod ewma;
mod wait;

use crate::time::Timestamp;
use std::time::Duration;
pub use wait::Wait;

/// Rule of a limit: a moving average, or a bucket.
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
    /// Level used at that time, in units of what is counted; for a moving average, the rate per period.
    pub level: f64,
}

/// Outcome of an event for a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Level with this event, in units of what is counted.
    pub level: f64,
    /// Whether the event exceeds the limit.
    pub over: bool,
}

/// Receipt of a charge, for a refund: the budget's state before it and right after.
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

    /// Returns the wait from `now` until an event of `amount`, alone, fits; with 0, until the sender no longer exceeds
    /// the limit.
    ///
    /// For moving averages over periods p of more than a day the last digits of the step are noise: the answer is then
    /// accurate to 10⁻¹²·p² seconds.
    pub fn wait(&self, state: Option<State>, now: Timestamp, amount: f64) -> Wait {
        if self.step(None, now, amount).1.over {
            return Wait::Never;
        }
        wait::until_under(|after| self.step(state, now.after(after), amount).1.over)
    }

    /// Refunds a charge: returns the budget's state without it, as far as that is known.
    ///
    /// Exactly the former state if nothing has changed the budget since. Otherwise never less than without the charge:
    /// any part that has decayed meanwhile, or that may have replaced another charge, is not refunded. (A clock that
    /// was set back hides the decay: while that shows, nothing is refunded.) `None` if the budget was unused before.
    /// Not for budgets that count distinct values: a filter cannot forget.
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

    /// Returns the rule with both numbers multiplied, as reputation does in rspamd; the factors are above 0. `burst`
    /// applies to the burst, `rate` to the long-run rate.
    pub fn scaled(&self, rate: f64, burst: f64) -> Self {
        match self {
            Self::Ewma(rule) => Self::Ewma(rule.scaled(rate, burst)),
            Self::Bucket(rule) => Self::Bucket(rule.scaled(rate, burst)),
        }
    }

    /// Returns the rule at a multiple of the limit: the rung of a ladder.
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

    /// Returns a number of seconds proportional to its memory: of two rules of a kind, the one with more forgets later.
    pub fn memory(&self) -> f64 {
        match self {
            Self::Ewma(rule) => rule.period(),
            Self::Bucket(rule) => 1.0 / rule.rate(),
        }
    }

    /// Returns the burst after silence, in units of what is counted. A bucket can be filled to it, an average stays
    /// below.
    pub fn burst(&self) -> f64 {
        match self {
            Self::Ewma(rule) => rule.limit(),
            Self::Bucket(rule) => rule.burst(),
        }
    }

    /// Returns the long-run rate, per second.
    pub fn sustained(&self) -> f64 {
        match self {
            Self::Ewma(rule) => rule.limit() / rule.period(),
            Self::Bucket(rule) => rule.rate(),
        }
    }

    /// Returns the envelope E(T): the most that can pass in any window of this length, for any sender.
    ///
    /// For a bucket it is β + ρ·T, the arrival envelope of the Vienna paper. For a moving average it is m + (m/p)·T.
    /// The step counts an event as if it had flowed evenly since the one before. So the level rises by that flow and
    /// falls by level/p per second; it stays below m. After an event that leaves the level at r₁, no more flows than m
    /// − r₁ + (m/p)·T, and that event itself was no more than r₁.
    pub fn envelope(&self, window: Duration) -> f64 {
        self.burst() + self.sustained() * window.as_secs_f64()
    }

    /// Returns the number of the first event that exceeds the limit, if events of `amount` come one every `interval`
    /// into an empty budget and all are charged (Finch's table of bursts). `None` if all fit.
    pub fn first_over(&self, interval: Duration, amount: f64) -> Option<u64> {
        match self {
            Self::Ewma(rule) => rule.first_over(interval, amount),
            Self::Bucket(rule) => rule.first_over(interval, amount),
        }
    }
}

/// Returns the smallest number of events for which `is_over` is true; it is true from there on. `guess` is near it.
/// `None` beyond 2⁵³, where doubles cannot count.
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
