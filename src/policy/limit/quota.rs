//! Quota: the amount that a limit allows, in all its forms.

use super::algorithm::Algorithm;
use super::count::Count;
use crate::engine::{Rule, bucket, ewma, likelihood, regularity};
use crate::time::{Rate, format_amount, format_duration};
use std::time::Duration;

/// Quota of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quota {
    /// `0`: nothing is allowed.
    Never,
    Unlimited,
    /// Amount per period.
    Rate {
        rate: Rate,
        rule: Rule,
    },
    /// Amount per message or per connection, or number of concurrent sessions: a counter without decay.
    Counter {
        scope: Scope,
        most: f64,
    },
    /// Highest share of rejections in a total. The share is checked only if the total is large enough.
    Share(Share),
    /// Highest allowed regularity of the times of the last events.
    Regularity(regularity::Rule),
    /// Likelihood ratio of the rejections: a sum of logarithms, in percent of the limit for people.
    Likelihood(Likelihood),
}

/// Lifetime of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Message,
    Connection,
    /// The time for which a session exists.
    AtOnce,
}

/// Limit on a share: the moving average of rejections, divided by the moving average of a total.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Highest allowed share, between 0 and 1.
    pub most: f64,
    /// Smoothing period of both averages.
    pub period: Duration,
    /// Quantity that the total counts.
    pub of: Count,
    /// Smallest total for which the share is checked.
    pub at_least: f64,
}

/// Limit on the likelihood ratio of rejections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likelihood {
    pub rule: likelihood::Rule,
    /// Quantity of which the rejections are a part.
    pub of: Count,
}

impl Quota {
    /// Creates the quota of a rate, for this algorithm. `burst` is the size of a bucket; its default is the amount of
    /// one period.
    pub fn rate(algorithm: Algorithm, rate: Rate, burst: Option<f64>) -> Self {
        let rule = match algorithm {
            Algorithm::Ewma => Rule::Ewma(ewma::Rule::new(rate.amount, rate.period)),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let per_second = rate.amount / rate.period.as_secs_f64();
                Rule::Bucket(bucket::Rule::new(burst.unwrap_or(rate.amount), per_second))
            }
        };
        Self::Rate { rate, rule }
    }

    /// Returns whether the quota is a rate, or a quota that can replace a rate: `0` or `unlimited`.
    pub fn may_be_rate(&self) -> bool {
        matches!(self, Self::Rate { .. } | Self::Never | Self::Unlimited)
    }

    /// Returns whether a budget that was charged under the quota `own` can continue under this quota.
    pub fn is_like(&self, own: &Self) -> bool {
        match (self, own) {
            (Self::Never | Self::Unlimited, _) => true,
            (Self::Rate { .. }, own) => own.may_be_rate(),
            (Self::Counter { scope, .. }, Self::Counter { scope: own, .. }) => scope == own,
            (Self::Share(_), Self::Share(_)) | (Self::Regularity(_), Self::Regularity(_)) => true,
            (Self::Likelihood(_), Self::Likelihood(_)) => true,
            _ => false,
        }
    }

    /// Multiplies the amount of the quota.
    pub fn times(self, factor: f64) -> Self {
        match self {
            Self::Rate { rate, rule } => {
                let rate = Rate { amount: rate.amount * factor, ..rate };
                Self::Rate { rate, rule: rule.scaled(factor, factor) }
            }
            Self::Counter { scope, most } => Self::Counter { scope, most: most * factor },
            Self::Share(share) => Self::Share(Share { most: (share.most * factor).min(1.0), ..share }),
            Self::Regularity(rule) => Self::Regularity(rule.scaled(factor)),
            Self::Likelihood(Likelihood { rule, of }) => Self::Likelihood(Likelihood { rule: rule.scaled(factor), of }),
            Self::Never | Self::Unlimited => self,
        }
    }

    /// Returns the rule by which charges accumulate; `None` if the quota accumulates nothing, only the times of events, or
    /// a sum that time does not change.
    pub fn rule(&self) -> Option<Rule> {
        match self {
            Self::Never | Self::Unlimited | Self::Regularity(_) | Self::Likelihood(_) => None,
            Self::Rate { rule, .. } => Some(*rule),
            Self::Counter { most, .. } => Some(Rule::Bucket(bucket::Rule::new(*most, 0.0))),
            // The rule's limit is the smallest total for which the share is checked. The total is large enough when its
            // average exceeds this limit.
            Self::Share(share) => Some(Rule::Ewma(ewma::Rule::new(share.at_least, share.period))),
        }
    }

    /// Formats the amount for people, without the period.
    pub fn amount(&self) -> String {
        match self {
            Self::Never => "0".to_owned(),
            Self::Unlimited => "unlimited".to_owned(),
            Self::Rate { rate, .. } => format_amount(rate.amount),
            Self::Counter { most, .. } => format_amount(*most),
            Self::Share(share) => percent(share.most),
            Self::Regularity(rule) => percent(rule.most()),
            Self::Likelihood(_) => percent(1.0),
        }
    }

    /// Formats the number with which a level is compared. For a bucket, this number is the bucket's size.
    pub fn most(&self) -> String {
        match self {
            Self::Rate { rule, .. } => format_amount(rule.burst()),
            _ => self.amount(),
        }
    }

    /// Formats the period for people: `1d`, `message`.
    pub fn period(&self) -> String {
        match self {
            Self::Never | Self::Unlimited => String::new(),
            Self::Rate { rate, .. } => format_duration(rate.period),
            Self::Counter { scope: Scope::Message, .. } => "message".to_owned(),
            Self::Counter { scope: Scope::Connection, .. } => "connection".to_owned(),
            Self::Counter { scope: Scope::AtOnce, .. } => "at once".to_owned(),
            Self::Share(share) => format_duration(share.period),
            Self::Regularity(rule) => {
                let within = rule.within().map(format_duration).map(|within| match rule.least() {
                    Duration::ZERO => format!(" within {within}"),
                    least => format!(" within {} to {within}", format_duration(least)),
                });
                format!("{} gaps{}", rule.gaps(), within.unwrap_or_default())
            }
            Self::Likelihood(Likelihood { rule, .. }) => format!("ratio {}", format_amount(rule.threshold())),
        }
    }

    /// Returns, for the log, a level and the number with which the level is compared. Shares are in per cent, and
    /// likelihood ratios in per cent of the limit.
    pub fn numbers(&self, level: f64) -> (f64, f64) {
        match self {
            Self::Never => (level, 0.0),
            Self::Unlimited => (level, f64::INFINITY),
            Self::Rate { rule, .. } => (level, rule.burst()),
            Self::Counter { most, .. } => (level, *most),
            Self::Share(share) => (level * 100.0, share.most * 100.0),
            Self::Regularity(rule) => (level * 100.0, rule.most() * 100.0),
            Self::Likelihood(Likelihood { rule, .. }) => (100.0 * level / rule.limit(), 100.0),
        }
    }

    /// Formats a level in the units of the configuration.
    pub fn level(&self, level: f64) -> String {
        match self {
            Self::Share(_) | Self::Regularity(_) => percent(level),
            Self::Likelihood(Likelihood { rule, .. }) => percent(level / rule.limit()),
            _ => format_amount(level),
        }
    }
}

/// Formats a share in percent, with one decimal.
pub fn percent(share: f64) -> String {
    // Round to one decimal first, so that the text does not show the last digits of a quotient.
    format!("{}%", format_amount((share * 1000.0).round() / 10.0))
}
