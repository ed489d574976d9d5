//! The arithmetic of limits: numbers in, numbers out. Pure: whoever calls says what time it is.
//!
//! A [`Rule`] steps a [`State`]; whether the new state is kept is decided above: Exim's strict keeps it always, its leaky when the
//! event is not over, its readonly steps with nothing and keeps nothing.

pub mod bucket;
pub mod distinct;
pub mod ewma;
mod wait;

use crate::time::Timestamp;
use std::time::Duration;
pub use wait::Wait;

/// How a limit measures: a moving average, or a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    Ewma(ewma::Rule),
    Bucket(bucket::Rule),
}

/// What is remembered of a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// When the level was last brought up to date.
    pub at: Timestamp,
    /// How much is used, in units of what is counted, as of then: under a moving average the rate per period.
    pub level: f64,
}

/// What an event did, or would do, to a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// How full the budget is, in units of what is counted, this event included.
    pub level: f64,
    /// The event is more than the limit allows.
    pub over: bool,
}

/// A charge that may be given back: the budget's state before it and right after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Receipt {
    pub before: Option<State>,
    pub after: State,
}

impl Rule {
    /// The state after an event of `amount` (at least 0) at `now`, and what it means.
    pub fn step(&self, state: Option<State>, now: Timestamp, amount: f64) -> (State, Outcome) {
        let (level, over) = match self {
            Self::Ewma(rule) => rule.step(state, now, amount),
            Self::Bucket(rule) => rule.step(state, now, amount),
        };
        (State { at: now, level }, Outcome { level, over })
    }

    /// How long until an event of `amount`, alone, is not over, from `now` on; with 0, until the sender is no longer over.
    ///
    /// For moving averages over periods p of more than a day the last digits of the step are noise: the answer is then good to
    /// 10⁻¹²·p² seconds.
    pub fn wait(&self, state: Option<State>, now: Timestamp, amount: f64) -> Wait {
        if self.step(None, now, amount).1.over {
            return Wait::Never;
        }
        wait::until_under(|after| self.step(state, now.after(after), amount).1.over)
    }

    /// Gives back a charge: the budget's state without it, as far as that is known.
    ///
    /// Exactly the former state when nothing has touched the budget since. Otherwise never less than if there had been no charge:
    /// what has been forgotten of it meanwhile, and what it can have stood in for, stays. (A clock that was set back hides how much
    /// has been forgotten: while that is seen, everything stays.) `None` where the budget was untouched
    /// before. Not for budgets that count distinct values: their filter cannot forget.
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

    /// The rule with both its numbers moved, as reputation does in rspamd; the factors are above 0. `burst` multiplies what may come at once, `rate` what may
    /// come in the long run.
    pub fn scaled(&self, rate: f64, burst: f64) -> Self {
        match self {
            Self::Ewma(rule) => Self::Ewma(rule.scaled(rate, burst)),
            Self::Bucket(rule) => Self::Bucket(rule.scaled(rate, burst)),
        }
    }

    /// The rule that is over at so many times the limit: the rung of a ladder.
    pub fn at(&self, times: f64) -> Self {
        match self {
            Self::Ewma(rule) => Self::Ewma(rule.at(times)),
            Self::Bucket(rule) => Self::Bucket(rule.scaled(1.0, times)),
        }
    }

    /// Whether a level is more than is allowed.
    pub fn is_over(&self, level: f64) -> bool {
        match self {
            Self::Ewma(rule) => rule.is_over(level),
            Self::Bucket(rule) => rule.is_over(level),
        }
    }

    /// How long it remembers, in seconds, in proportion: of two rules of a kind the one with more forgets later.
    pub fn memory(&self) -> f64 {
        match self {
            Self::Ewma(rule) => rule.period(),
            Self::Bucket(rule) => 1.0 / rule.rate(),
        }
    }

    /// What may come at once after silence, in units of what is counted. A bucket can be filled to it, an average stays below.
    pub fn burst(&self) -> f64 {
        match self {
            Self::Ewma(rule) => rule.limit(),
            Self::Bucket(rule) => rule.burst(),
        }
    }

    /// What may come in the long run, per second.
    pub fn sustained(&self) -> f64 {
        match self {
            Self::Ewma(rule) => rule.limit() / rule.period(),
            Self::Bucket(rule) => rule.rate(),
        }
    }

    /// E(T): the most that gets through in any window of this length, whatever is tried.
    ///
    /// For a bucket that is β + ρ·T, the arrival envelope of the Vienna paper. For a moving average it is m + (m/p)·T: the step
    /// counts an event as if it had flowed evenly since the one before, so that the level rises by what flows and falls by level/p
    /// a second; it stays below m, so from an event that leaves it at r₁ on no more flows than m − r₁ + (m/p)·T, and that event
    /// itself was no more than r₁.
    pub fn envelope(&self, window: Duration) -> f64 {
        self.burst() + self.sustained() * window.as_secs_f64()
    }

    /// The number of the first event that is over, when events of `amount` come one every `interval` into an empty budget and all
    /// are charged (Finch's table of bursts). `None` if that goes on for ever.
    pub fn first_over(&self, interval: Duration, amount: f64) -> Option<u64> {
        match self {
            Self::Ewma(rule) => rule.first_over(interval, amount),
            Self::Bucket(rule) => rule.first_over(interval, amount),
        }
    }
}

/// The smallest number of events for which this is true, which it is from there on. `guess` is near it. `None` beyond 2⁵³, where
/// doubles no longer count.
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
