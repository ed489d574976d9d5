//! A limit, checked and ready to be applied.

use super::event::{Event, Facts};
use super::key::{Owner, network};
use super::verdict::Template;
use crate::engine::distinct::{self, Value};
use crate::engine::{Rule, State, bucket, ewma};
use crate::time::{Rate, Timestamp};
use std::borrow::Cow;
use std::sync::Arc;

#[derive(Debug)]
pub struct Limit {
    pub name: Arc<str>,
    pub count: Count,
    /// Whose budget: sorted, without repetition.
    pub per: Vec<Owner>,
    pub rate: Rate,
    pub algorithm: Algorithm,
    pub rule: Rule,
    pub charge: Charge,
    /// Counts only values that have not been seen.
    pub distinct: Option<Distinct>,
    /// What whoever is over is told.
    pub text: Arc<Template>,
}

/// How a limit measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Ewma,
    TokenBucket,
    LeakyBucket,
}

/// Which events are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// What is let through: where a limit refuses, Exim's leaky.
    Accepted,
    /// Every attempt, also what is refused: Exim's strict.
    Attempts,
}

/// Counting distinct values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distinct {
    pub what: What,
    pub filter: distinct::Rule,
}

/// What must be new to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Recipient,
    Client,
}

impl Algorithm {
    pub const ALL: [Self; 3] = [Self::Ewma, Self::TokenBucket, Self::LeakyBucket];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ewma => "ewma",
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
        }
    }

    pub fn is_bucket(self) -> bool {
        self != Self::Ewma
    }

    /// Its rule. `burst` is for buckets; without it as much as `rate` has in its period fits at once.
    pub fn rule(self, rate: Rate, burst: Option<f64>) -> Rule {
        match self {
            Self::Ewma => Rule::Ewma(ewma::Rule::new(rate.amount, rate.period)),
            Self::TokenBucket | Self::LeakyBucket => {
                let per_second = rate.amount / rate.period.as_secs_f64();
                Rule::Bucket(bucket::Rule::new(burst.unwrap_or(rate.amount), per_second))
            }
        }
    }
}

impl Charge {
    pub const ALL: [Self; 2] = [Self::Accepted, Self::Attempts];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Attempts => "attempts",
        }
    }
}

impl What {
    pub const ALL: [Self; 2] = [Self::Recipient, Self::Client];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recipient => "recipient",
            Self::Client => "client",
        }
    }

    /// The value of an event; `None` if it has none.
    pub(super) fn value(self, facts: &Facts, event: &Event) -> Option<Value> {
        match (self, event) {
            (Self::Recipient, Event::Recipient(address)) => Some(Value::of(address)),
            (Self::Recipient, _) => None,
            (Self::Client, _) => facts.client.map(|client| Value::of(&network(client))),
        }
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Messages,
    Recipients,
}

/// What an event means to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It is charged, if nothing refuses it.
    Charge,
    /// The limit looks whether one more would fit.
    Look,
}

impl Limit {
    /// Whether everything is known that it needs of a session: whose budget, and what must be new.
    pub fn holds(&self, facts: &Facts) -> bool {
        let known = |owner| match owner {
            Owner::Client => facts.client.is_some(),
            Owner::User => facts.user.is_some(),
        };
        let new = self.distinct.is_none_or(|distinct| distinct.what != What::Client || known(Owner::Client));
        new && self.per.iter().all(|owner| known(*owner))
    }

    pub(super) fn effect(&self, event: &Event) -> Option<Effect> {
        match (self.count, event) {
            (Count::Messages, Event::Message) | (Count::Recipients, Event::Recipient(_)) => Some(Effect::Charge),
            // A look that refused would keep attempts from being made, and one at a value that is not known yet cannot tell.
            (_, Event::Mail) if self.charge == Charge::Attempts || self.needs_recipient() => None,
            (_, Event::Mail) => Some(Effect::Look),
            (Count::Messages, Event::Recipient(_)) | (Count::Recipients, Event::Message) => None,
        }
    }

    /// Whether a budget can be forgotten: whatever comes, from now on it is decided as if there had been nothing. `epoch` is when its
    /// filter's newer generation began, if it has a filter.
    pub fn has_forgotten(&self, state: State, epoch: Option<Timestamp>, now: Timestamp) -> bool {
        // The least that any event counts. What makes no difference to it makes none to more, nor later.
        let level = |state| self.rule.step(state, now, 1.0).0.level;
        let knows =
            epoch.is_some_and(|epoch| self.distinct.is_none_or(|distinct| !distinct.filter.is_over(epoch, now)));
        !knows && level(Some(state)) == level(None)
    }

    fn needs_recipient(&self) -> bool {
        self.distinct.is_some_and(|distinct| distinct.what == What::Recipient)
    }

    /// What stands before the owners in the keys of its budgets: a limit whose numbers change keeps its history, one whose meaning
    /// changes begins anew.
    pub(super) fn meaning(&self) -> Cow<'static, str> {
        match self.distinct {
            None => self.algorithm.name().into(),
            Some(distinct) => format!("{} distinct {}", self.algorithm.name(), distinct.what.name()).into(),
        }
    }
}

impl Count {
    pub const ALL: [Self; 2] = [Self::Messages, Self::Recipients];

    /// The word in the configuration and in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Recipients => "recipients",
        }
    }
}
