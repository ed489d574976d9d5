//! Limit: a checked rule, ready to be applied to events.

mod action;
mod algorithm;
mod count;
mod effect;
mod keys;
mod overrides;
mod owner_syntax;
mod quota;
mod rate_syntax;
mod reset_target;
mod template;
mod wording;

pub use action::{Action, Delay, Ladder, Notification, Rung, Verb};
pub use algorithm::Algorithm;
pub use count::Count;
pub use effect::Effect;
pub use overrides::{OverrideRow, OverrideRows, Overrides};
pub use quota::{Quota, Scope, Share};
pub use rate_syntax::{LONGEST_PERIOD, RateTerms};
pub use reset_target::ResetTarget;
pub use template::{Code, Template};
pub use wording::Thing;

pub(super) use keys::OwnerFields;
pub(super) use template::Words;
pub(super) use wording::plain_period;

use super::matching::{Field, Matcher, NormalizedFacts};
use super::request::Stage;
use crate::engine::distinct::{self, Value};
use crate::engine::{Rule, State};
use crate::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Limit {
    pub name: Arc<str>,
    pub count: Count,
    /// Fields of the budget's owner: sorted, unique.
    pub per: Vec<Field>,
    /// Index of this rate, from 0: a limit with several rates has a budget for each.
    pub ordinal: usize,
    pub quota: Quota,
    pub algorithm: Algorithm,
    pub charge: Charge,
    pub mode: Mode,
    /// Stage that charges it.
    pub stage: Stage,
    /// Counts only new values.
    pub distinct: Option<Distinct>,
    /// Matcher of `match` and `except`.
    pub matcher: Matcher,
    /// Different rates for some owners.
    pub overrides: Option<Arc<Overrides>>,
    /// Index of the limit in the policy whose budget this one watches without charging it.
    pub watch: Option<usize>,
    /// Actions when the limit is exceeded; never empty.
    pub ladder: Ladder,
    /// Values derived from the fields above.
    pub derived: Derived,
}

/// Values derived from a limit once, since every event needs them.
#[derive(Clone, Debug, Default)]
pub struct Derived {
    /// Prefix of the keys of its budgets.
    pub(super) prefix: Box<str>,
    /// Indices of the limit's matcher, owner fields and override table in the policy's [`MatcherSet`](super::plan::MatcherSet).
    pub(super) matcher: usize,
    pub(super) owners: usize,
    pub(super) rows: usize,
    /// Kinds of events that concern the limit: see [`Event::kind`](super::request::Event::kind).
    pub(super) interests: u16,
    /// The owner or the matcher depends on the recipient.
    pub(super) depends_on_recipient: bool,
    /// Clients can choose stored keys freely, so the number of new ones is bounded.
    pub(super) has_chosen_keys: bool,
    /// The limit cannot be checked at MAIL, or at AUTH: recipients, or the login, decide whether it applies.
    pub(super) waits_for_recipients: bool,
    pub(super) waits_for_login: bool,
}

/// Events that are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Events that are let through: where a limit refuses, Exim's leaky.
    Accepted,
    /// Events that are let through, refunded if the mail turns out not to be sent.
    Sent,
    /// All attempts, refused ones too: Exim's strict.
    Attempts,
}

/// Mode of enforcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Computes and charges as if this limit were alone in force; reports only to the log.
    Shadow,
    /// Like shadow mode, but warns and notifies.
    Soft,
    Enforce,
}

/// Counting of distinct values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distinct {
    pub what: Field,
    /// Time for which a value stays known; `None`: one period.
    pub remember: Option<Duration>,
}

impl Distinct {
    /// Returns a filter large enough for a quota. `None` if it would be too large, or nothing has to be remembered.
    pub fn filter(self, quota: &Quota) -> Option<distinct::Rule> {
        match quota {
            Quota::Rate { rate, rule } => {
                distinct::Rule::with_burst(rule.burst(), rate.amount, rate.period, self.remember)
            }
            // Longer than any message or connection lasts.
            Quota::Counter { most, .. } => distinct::Rule::new(*most, Duration::from_secs(86_400), None),
            Quota::Never | Quota::Unlimited | Quota::Share(_) => None,
        }
    }
}

impl Charge {
    pub const ALL: [Self; 3] = [Self::Accepted, Self::Sent, Self::Attempts];

    /// Returns the word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Sent => "sent",
            Self::Attempts => "attempts",
        }
    }
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Enforce, Self::Soft, Self::Shadow];

    /// Returns the word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shadow => "shadow",
            Self::Soft => "soft",
            Self::Enforce => "enforce",
        }
    }
}

impl Limit {
    /// Returns a limit with defaults for all other fields. [`Policy::new`](super::Policy::new) completes it.
    pub fn new(name: &str, count: Count, mut per: Vec<Field>, quota: Quota) -> Self {
        per.sort_unstable();
        per.dedup();
        let stage = match count {
            // Once for each distinct value in the message.
            Count::Messages if per.iter().any(|field| field.is_of_recipient()) => Stage::Rcpt,
            _ => count.stage(per.iter().any(|field| field.is_of_user())),
        };
        Self {
            name: name.into(),
            count,
            per,
            ordinal: 0,
            quota,
            algorithm: Algorithm::Ewma,
            charge: Charge::Accepted,
            mode: Mode::Enforce,
            stage,
            distinct: None,
            matcher: Matcher::default(),
            overrides: None,
            watch: None,
            ladder: Ladder::standard(),
            derived: Derived::default(),
        }
    }

    /// Returns one limit for each of the rates.
    pub fn with_rates(&self, rates: &[Quota]) -> Vec<Self> {
        let one = |(ordinal, quota): (usize, &Quota)| Self { ordinal, quota: *quota, ..self.clone() };
        rates.iter().enumerate().map(one).collect()
    }

    /// Returns the count of the total, if the limit counts a share of it.
    pub fn share_of(&self) -> Option<Count> {
        if let Quota::Share(share) = self.quota { Some(share.of) } else { None }
    }

    /// Returns whether each recipient is checked separately.
    pub fn is_per_recipient(&self) -> bool {
        self.per.iter().any(|field| field.is_of_recipient())
    }

    /// Returns whether a message counts once per budget, at the first recipient of that budget.
    pub(super) fn counts_once(&self) -> bool {
        self.count == Count::Messages && self.stage == Stage::Rcpt
    }

    /// Returns the value of an event that has to be new.
    pub(super) fn value(&self, facts: &NormalizedFacts<'_>, recipient: Option<&str>) -> Option<Value> {
        let distinct = self.distinct?;
        Some(Value::of(&distinct.what.value(facts, recipient)?))
    }

    /// Returns whether a store can forget a budget: from now on every decision would be the same without it. `epoch`:
    /// the beginning of the newer generation of its filter, if it has one.
    pub fn has_forgotten(&self, state: State, epoch: Option<Timestamp>, now: Timestamp) -> bool {
        let Some(rule) = self.slowest() else { return true };
        // An event counts at least 1. If the state makes no difference to 1, it makes none to more, nor later.
        let level = |state| rule.step(state, now, 1.0).0.level;
        let filters = || self.distinct.iter().flat_map(|distinct| self.quotas().map(|quota| distinct.filter(&quota)));
        let knows = epoch.is_some_and(|epoch| filters().flatten().any(|filter| !filter.is_over(epoch, now)));
        !knows && level(Some(state)) == level(None)
    }

    /// Returns the limit's quota, and those of all overrides.
    pub fn quotas(&self) -> impl Iterator<Item = Quota> {
        let others = self.overrides.iter().flat_map(|overrides| overrides.quotas(self.ordinal));
        others.chain([self.quota])
    }

    /// Returns the rule that forgets last, of all quotas; `None` if the limit has no budgets.
    fn slowest(&self) -> Option<Rule> {
        let rules = self.quotas().filter_map(|quota| quota.rule());
        rules.max_by(|a, b| a.memory().total_cmp(&b.memory()))
    }

    /// Returns the rule of a budget if its override is unknown.
    pub fn rule(&self) -> Option<Rule> {
        self.quota.rule().or_else(|| self.slowest())
    }

    /// Returns whether a store keeps its budgets.
    pub fn is_stored(&self) -> bool {
        self.watch.is_none() && !self.is_of_session()
    }

    /// Returns whether its counters belong to a message or a connection.
    fn is_of_session(&self) -> bool {
        matches!(self.quota, Quota::Counter { scope: Scope::Message | Scope::Connection, .. })
    }
}
