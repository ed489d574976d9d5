//! Limit: a checked rule, ready to be applied to events.

mod action;
mod algorithm;
mod count;
mod effect;
mod keys;
mod overrides;
mod owner_syntax;
mod quota;
mod rate_doubt;
mod rate_syntax;
mod reset_target;
mod template;
mod wording;

pub use action::{Action, ActionKind, Delay, Ladder, Notification, Rung, Verb};
pub use algorithm::Algorithm;
pub use count::Count;
pub use effect::Effect;
pub use overrides::{OverrideRow, OverrideRows, Overrides};
pub use quota::{Likelihood, Quota, Scope, Share};
pub use rate_doubt::RateDoubt;
pub use rate_syntax::{LONGEST_PERIOD, RateTerms};
pub use reset_target::{ResetTarget, SUSPICION};
pub use template::{Code, KnownValues, Template};
pub use wording::{Thing, plain_period};

pub(super) use keys::OwnerFields;
pub(super) use template::Words;

use super::Memory;
use super::lifetime::Lifetime;
use super::matching::{Field, Matcher, NormalizedFacts, NormalizedRecipient};
use super::request::{Event, EventKinds, Stage};
use crate::engine::distinct::{self, Value};
use crate::engine::{Rule, State, regularity};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

#[derive(Clone, Debug)]
pub struct Limit {
    pub name: Arc<str>,
    pub count: Count,
    /// Fields of the budget's owner: sorted, unique.
    pub per: Vec<Field>,
    /// Index of this rate, from 0. A limit with several rates has one budget for each rate.
    pub ordinal: usize,
    pub quota: Quota,
    pub algorithm: Algorithm,
    pub charge: Charge,
    pub mode: Mode,
    /// Stage at which the limit charges events.
    pub stage: Stage,
    /// If present, the limit counts only new values of this field.
    pub distinct: Option<Distinct>,
    /// Matcher of `match` and `except`.
    pub matcher: Matcher,
    /// Different rates for some owners.
    pub overrides: Option<Arc<Overrides>>,
    /// Amount that a node takes ahead of a budget that nodes share; `None` if it takes nothing ahead.
    pub lease: Option<f64>,
    /// Index in the policy of the limit whose budgets this limit checks without charging them.
    pub watch: Option<usize>,
    /// Actions when the limit is exceeded; never empty.
    pub ladder: Ladder,
    /// Line of the configuration file in which the limit begins; `None` if no file has it.
    pub line: Option<usize>,
    /// Values derived from the fields above.
    pub derived: Derived,
}

/// Values that are derived from a limit only once, because every event needs them.
#[derive(Clone, Debug, Default)]
pub struct Derived {
    /// Prefix of the keys of the limit's budgets.
    pub(super) prefix: Box<str>,
    /// Indices of the limit's matcher, owner fields and override table in the policy's
    /// [`MatcherSet`](super::plan::MatcherSet).
    pub(super) matcher: usize,
    pub(super) owners: usize,
    pub(super) rows: usize,
    /// Effect of each kind of event on the limit: see [`Event::kind`].
    pub(super) effects: [Option<Effect>; Event::KINDS],
    /// Kinds of events that have an effect.
    pub(super) interests: EventKinds,
    /// The owner, the matcher, the override or the distinct value depends on the recipient.
    pub(super) depends_on_recipient: bool,
    /// Clients can freely choose the keys of stored budgets, so the number of new keys is bounded.
    pub(super) has_chosen_keys: bool,
    /// A known recipient does not touch the limit's budget.
    pub(super) skips_known: bool,
    /// The matcher has conditions `exceeded` or `suspicion`, which only the decision can evaluate.
    pub(super) has_precondition: bool,
    /// The matcher has conditions `suspicion`.
    pub(super) has_suspicion: bool,
    /// Index of the limit's sign in [`Policy::signs`](super::Policy::signs), if the limit is a sign.
    pub(super) sign: Option<usize>,
    /// The limit cannot be checked at MAIL (`waits_for_recipients`) or at AUTH (`waits_for_login`), because the
    /// recipients or the login decide whether the limit applies.
    pub(super) waits_for_recipients: bool,
    pub(super) waits_for_login: bool,
}

/// Events that are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Events that pass. The charge stays, even if the mail is not sent. A limit with this setting that refuses events
    /// works like Exim's `leaky`.
    Accepted,
    /// Events that pass. The charge is refunded if the mail is not sent. This is the default in the configuration if
    /// charges of the limit can be refunded.
    Sent,
    /// All attempts, including refused attempts, like Exim's `strict`.
    Attempts,
}

/// Mode of enforcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Charges the same amounts as if only this limit were enforced. Refuses nothing, and reports only to the log.
    Shadow,
    /// Like shadow mode, but also warns and sends notifications.
    Soft,
    Enforce,
}

/// Number of recipients of a message for which the filter of a limit on messages to new recipients has room.
const RECIPIENTS_PER_MESSAGE: f64 = 20.0;

/// Counting of distinct values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distinct {
    pub what: Field,
    /// Time for which the filter remembers a value. `None` means one period.
    pub remember: Option<Duration>,
    /// Memory whose recipients are not counted. The filter of the budget then remembers values for one period.
    pub known_to: Option<Memory>,
}

impl Distinct {
    /// Returns a rule that counts each value of this field once in each period.
    pub fn new(what: Field) -> Self {
        Self { what, remember: None, known_to: None }
    }

    /// Returns the rule of a filter that is large enough for a quota of this count; `None` if the filter would be too
    /// large, or if nothing has to be remembered.
    pub fn filter(self, count: Count, quota: &Quota) -> Option<distinct::Rule> {
        // A message has several recipients, and the filter has to hold them all.
        let times = if count == Count::Messages && self.what.is_of_recipient() { RECIPIENTS_PER_MESSAGE } else { 1.0 };
        match quota {
            Quota::Rate { rate, rule } => {
                distinct::Rule::with_burst(rule.burst() * times, rate.amount * times, rate.period, self.remember)
            }
            // One day is longer than any message or connection lasts.
            Quota::Counter { most, .. } => distinct::Rule::new(*most * times, Duration::from_secs(86_400), None),
            // A person writes fewer messages to new recipients in a day.
            Quota::Regularity(_) => distinct::Rule::new(1_000.0, Duration::from_secs(86_400), None),
            Quota::Never | Quota::Unlimited | Quota::Share(_) | Quota::Likelihood(_) => None,
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
    /// Returns a limit with simple values in all other fields: it is enforced, uses `ewma`, makes no refunds, and
    /// applies to everybody. [`Policy::new`](super::Policy::new) sets the derived values.
    pub fn new(name: &str, count: Count, mut per: Vec<Field>, quota: Quota) -> Self {
        per.sort_unstable();
        per.dedup();
        let stage = match count {
            // The message counts once for each distinct value of its recipients.
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
            lease: None,
            watch: None,
            ladder: Ladder::standard(),
            line: None,
            derived: Derived::default(),
        }
    }

    /// Disables the limit: no event has an effect on it, and it is never exceeded.
    pub fn disable(&mut self) {
        (self.quota, self.overrides) = (Quota::Unlimited, None);
        (self.derived.effects, self.derived.interests) = ([None; Event::KINDS], EventKinds::NONE);
    }

    /// Returns one limit for each of the rates.
    pub fn with_rates(&self, rates: &[Quota]) -> Vec<Self> {
        let one = |(ordinal, quota): (usize, &Quota)| Self { ordinal, quota: *quota, ..self.clone() };
        rates.iter().enumerate().map(one).collect()
    }

    /// If the limit's quota is a share of a total or a likelihood ratio, returns of what rejections are a part.
    pub fn share_of(&self) -> Option<Count> {
        match self.quota {
            Quota::Share(share) => Some(share.of),
            Quota::Likelihood(likelihood) => Some(likelihood.of),
            _ => None,
        }
    }

    /// Returns whether each recipient is checked separately.
    pub fn is_per_recipient(&self) -> bool {
        self.per.iter().any(|field| field.is_of_recipient())
    }

    /// Returns whether only recipients that are new count, or messages to such recipients.
    pub(super) fn is_of_new_recipients(&self) -> bool {
        self.distinct.is_some_and(|distinct| distinct.what.is_of_recipient())
    }

    /// Returns whether clients can freely choose the keys of the limit's budgets. The number of new budgets of such a
    /// limit is bounded.
    pub fn has_chosen_keys(&self) -> bool {
        self.derived.has_chosen_keys
    }

    /// Returns whether a message counts only once per budget: at the first recipient that belongs to the budget.
    pub(super) fn counts_once(&self) -> bool {
        self.count == Count::Messages && self.stage == Stage::Rcpt
    }

    /// Returns the value of an event for a limit that counts only new values. `None` if the limit counts all values, or
    /// if the value is unknown.
    pub(super) fn value(
        &self,
        facts: &NormalizedFacts<'_>,
        recipient: Option<&NormalizedRecipient<'_>>,
    ) -> Option<Value> {
        match self.distinct?.what {
            Field::Recipient => recipient.map(NormalizedRecipient::value),
            field => Some(Value::of(&field.value(facts, recipient)?)),
        }
    }

    /// Returns whether a store can delete a budget because every later decision would be the same without the budget.
    /// `epoch` is the time when the newer generation of the budget's filter began, if the budget has a filter.
    pub fn has_forgotten(&self, state: State, epoch: Option<Timestamp>, now: Timestamp) -> bool {
        if self.quotas().any(|quota| matches!(quota, Quota::Regularity(_))) {
            return now.since(state.at) > regularity::REMEMBERED;
        }
        if self.quotas().any(|quota| matches!(quota, Quota::Likelihood(_))) {
            // The rejections of recipients that were sent together come soon, and need the sum below 0 that these left.
            let is_settled = now.since(state.at) > Duration::from_secs(3_600);
            return state.level <= 0.0 && is_settled || now.since(state.at) > regularity::REMEMBERED;
        }
        let Some(rule) = self.slowest() else { return true };
        // An event counts at least 1. Suppose that the level after an event of 1 is the same with and without the
        // state. Then the level after a larger or later event is also the same.
        let level = |state| rule.step(state, now, 1.0).0.level;
        let filters =
            || self.distinct.iter().flat_map(|distinct| self.quotas().map(|quota| distinct.filter(self.count, &quota)));
        let knows = epoch.is_some_and(|epoch| filters().flatten().any(|filter| !filter.is_over(epoch, now)));
        !knows && level(Some(state)) == level(None)
    }

    /// Returns the lifetime of the limit's budgets.
    pub(in crate::policy) fn lifetime(&self) -> Lifetime {
        let has_times = |quota: Quota| matches!(quota, Quota::Regularity(_) | Quota::Likelihood(_));
        if self.quotas().any(has_times) {
            return Lifetime::UNKNOWN;
        }
        let filters = self.distinct.iter().flat_map(|distinct| {
            self.quotas().filter_map(|quota| distinct.filter(self.count, &quota)).map(|filter| filter.lasts())
        });
        Lifetime::new(self.slowest(), filters.max().unwrap_or(Duration::ZERO))
    }

    /// Returns the limit's quota, and the quotas of all overrides.
    pub fn quotas(&self) -> impl Iterator<Item = Quota> {
        let others = self.overrides.iter().flat_map(|overrides| overrides.quotas(self.ordinal));
        others.chain([self.quota])
    }

    /// Returns the rule with the longest memory, among the limit's quota and all overrides; `None` if no quota has a
    /// rule.
    fn slowest(&self) -> Option<Rule> {
        let rules = self.quotas().filter_map(|quota| quota.rule());
        rules.max_by(|a, b| a.memory().total_cmp(&b.memory()))
    }

    /// Returns the rule to use for a budget if it is unknown which override applies to the budget.
    pub fn rule(&self) -> Option<Rule> {
        self.quota.rule().or_else(|| self.slowest())
    }

    /// Returns whether a store keeps the limit's budgets.
    pub fn is_stored(&self) -> bool {
        self.watch.is_none() && !self.is_of_session()
    }

    /// Returns whether the limit counts concurrent sessions. The budgets of such a limit end with the process.
    pub(in crate::policy) fn is_of_present(&self) -> bool {
        matches!(self.quota, Quota::Counter { scope: Scope::AtOnce, .. })
    }

    /// Returns whether the limit counts within one message or one connection.
    fn is_of_session(&self) -> bool {
        matches!(self.quota, Quota::Counter { scope: Scope::Message | Scope::Connection, .. })
    }
}
