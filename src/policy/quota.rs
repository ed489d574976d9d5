//! How much a limit allows, in all the forms in which that is written.

use super::algorithm::Algorithm;
use super::count::Count;
use crate::engine::{Rule, bucket, ewma};
use crate::time::{Rate, format_amount, format_duration};
use std::time::Duration;

/// How much is allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quota {
    /// `0`: nothing.
    Never,
    Unlimited,
    /// So much in so long.
    Rate {
        rate: Rate,
        rule: Rule,
    },
    /// So much in each message, connection, or at the same time: a counter that nothing leaks from.
    Counter {
        scope: Scope,
        most: f64,
    },
    /// At most this share of the others of which this is a part, once there are enough to say.
    Share(Share),
}

/// How long a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Message,
    Connection,
    /// As long as what is counted is there: sessions.
    AtOnce,
}

/// Two moving averages, and how large a part of the other the one may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Between 0 and 1.
    pub most: f64,
    /// How long both averages remember.
    pub period: Duration,
    /// What all are, of which some are counted.
    pub of: Count,
    /// Too few say nothing.
    pub at_least: f64,
}

impl Quota {
    /// A rate, as an algorithm measures it. `burst` is for buckets; without it as much as `rate` has in its period fits at once.
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

    /// Whether it is so much in so long, or may stand where such a rate does.
    pub fn may_be_rate(&self) -> bool {
        matches!(self, Self::Rate { .. } | Self::Never | Self::Unlimited)
    }

    /// Whether a budget of it can go on as one of the other.
    pub fn is_like(&self, own: &Self) -> bool {
        match (self, own) {
            (Self::Never | Self::Unlimited, _) => true,
            (Self::Rate { .. }, own) => own.may_be_rate(),
            (Self::Counter { scope, .. }, Self::Counter { scope: own, .. }) => scope == own,
            (Self::Share(_), Self::Share(_)) => true,
            _ => false,
        }
    }

    /// So many times as much.
    pub fn times(self, factor: f64) -> Self {
        match self {
            Self::Rate { rate, rule } => {
                let rate = Rate { amount: rate.amount * factor, ..rate };
                Self::Rate { rate, rule: rule.scaled(factor, factor) }
            }
            Self::Counter { scope, most } => Self::Counter { scope, most: most * factor },
            Self::Share(share) => Self::Share(Share { most: (share.most * factor).min(1.0), ..share }),
            Self::Never | Self::Unlimited => self,
        }
    }

    /// How what is charged adds up; `None` where nothing has to be remembered.
    pub fn rule(&self) -> Option<Rule> {
        match self {
            Self::Never | Self::Unlimited => None,
            Self::Rate { rule, .. } => Some(*rule),
            Self::Counter { most, .. } => Some(Rule::Bucket(bucket::Rule::new(*most, 0.0))),
            // There are enough when the average of all of them is over.
            Self::Share(share) => Some(Rule::Ewma(ewma::Rule::new(share.at_least, share.period))),
        }
    }

    /// How much is allowed, for people: without in how long.
    pub fn amount(&self) -> String {
        match self {
            Self::Never => "0".to_owned(),
            Self::Unlimited => "unlimited".to_owned(),
            Self::Rate { rate, .. } => format_amount(rate.amount),
            Self::Counter { most, .. } => format_amount(*most),
            Self::Share(share) => percent(share.most),
        }
    }

    /// What a level is compared with, for people: of a bucket, what it holds.
    pub fn most(&self) -> String {
        match self {
            Self::Rate { rule, .. } => format_amount(rule.burst()),
            _ => self.amount(),
        }
    }

    /// In how long, for people: `1d`, `message`.
    pub fn period(&self) -> String {
        match self {
            Self::Never | Self::Unlimited => String::new(),
            Self::Rate { rate, .. } => format_duration(rate.period),
            Self::Counter { scope: Scope::Message, .. } => "message".to_owned(),
            Self::Counter { scope: Scope::Connection, .. } => "connection".to_owned(),
            Self::Counter { scope: Scope::AtOnce, .. } => "at once".to_owned(),
            Self::Share(share) => format_duration(share.period),
        }
    }

    /// A level beside it, for the log: `97/100`.
    pub fn beside(&self, level: &str) -> String {
        format!("{level}/{}", self.most())
    }

    /// A level, in the terms in which the limit is written.
    pub fn level(&self, level: f64) -> String {
        match self {
            Self::Share(_) => percent(level),
            _ => format_amount(level),
        }
    }
}

fn percent(share: f64) -> String {
    // To one decimal before it is written, lest the last digits of a quotient show.
    format!("{}%", format_amount((share * 1000.0).round() / 10.0))
}
