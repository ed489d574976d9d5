//! Limit: a checked rule, ready to be applied to events.

use super::action::Ladder;
use super::algorithm::Algorithm;
use super::count::Count;
use super::event::{Event, Stage};
use super::field::Field;
use super::match_cache::MatcherSet;
use super::matcher::Matcher;
use super::normalized_facts::NormalizedFacts;
use super::overrides::Overrides;
use super::quota::{Quota, Scope};
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
    /// Indices of the limit's matcher, owner fields and override table in the policy's [`MatcherSet`].
    pub(super) matcher: usize,
    pub(super) owners: usize,
    pub(super) rows: usize,
    /// Kinds of events that concern the limit: see [`Event::kind`].
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

/// Effect of an event on a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Charges the event, unless a limit refuses it.
    Charge,
    /// Checks whether one more would fit.
    Peek,
    /// Charges an event that has happened already.
    Record,
    /// Charges the true size instead of the declared one.
    TrueUp,
    /// Checks the budget of another limit.
    Watch,
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

    /// Derives the values of [`Derived`], and adds the limit's matcher, owner fields and overrides to the policy's set.
    pub(super) fn derive(&mut self, matcher_set: &mut MatcherSet) {
        self.stage = self.stage_for(self.stage);
        let of_interest = Event::samples().into_iter().filter(|event| self.effect(event).is_some());
        self.derived = Derived {
            prefix: self.key_prefix(),
            matcher: matcher_set.matcher(&self.matcher),
            owners: matcher_set.owners(&self.per),
            rows: self.overrides.as_ref().map_or(0, |overrides| matcher_set.place(&overrides.rows)),
            interests: of_interest.fold(0, |all, event| all | event.kind()),
            depends_on_recipient: self.is_per_recipient()
                || self.matcher.needs_recipient()
                || self.distinct.is_some_and(|distinct| distinct.what.is_of_recipient())
                || self.overrides.as_ref().is_some_and(|overrides| overrides.rows.is_by_recipient()),
            has_chosen_keys: self.is_stored()
                && !matches!(self.quota, Quota::Counter { .. })
                && self.has_chosen_key(false),
            waits_for_recipients: self.matcher.needs_recipients(),
            waits_for_login: self.matcher.needs_login()
                || self.overrides.as_ref().is_some_and(|overrides| overrides.rows.is_by_group()),
        };
    }

    /// Returns the stage that charges it, given the facts that it needs. `wanted` is the stage from the configuration,
    /// or the count's default.
    pub fn stage_for(&self, wanted: Stage) -> Stage {
        match (self.count, wanted) {
            // A watching limit names its stage itself.
            (_, stage) if self.watch.is_some() => stage,
            (Count::Messages, _) if self.is_per_recipient() => Stage::Rcpt,
            (Count::Messages | Count::Recipients, stage) if self.matcher.needs_recipients() => stage.max(Stage::Data),
            (Count::Messages, Stage::Mail | Stage::Rcpt) if self.matcher.needs_recipient() => Stage::Data,
            (_, stage) => stage,
        }
    }

    /// Returns the effect of an event on the limit.
    pub(super) fn effect(&self, event: &Event) -> Option<Effect> {
        if self.watch.is_some() {
            // AUTH has two events: watch at the one before the password check.
            let is_there = event.stage() == Some(self.stage) && *event != Event::Login;
            return is_there.then_some(Effect::Watch);
        }
        let at = |stage| (self.stage == stage).then_some(Effect::Charge);
        let before = |stage| (self.stage > stage && self.looks()).then_some(Effect::Peek);
        match (self.count, event) {
            (Count::Commands, event) => event.is_command().then_some(Effect::Charge),
            (Count::Connections, Event::Connect) => Some(Effect::Charge),
            (Count::Sessions, Event::Connect) => at(Stage::Connect),
            (Count::Sessions, Event::Login) => at(Stage::Auth),
            (Count::Logins, Event::Login) => Some(Effect::Charge),
            (Count::Logins, Event::Auth) => self.looks().then_some(Effect::Peek),
            (Count::LoginFailures, Event::Auth) => Some(Effect::Charge),
            (Count::Messages | Count::Recipients | Count::Bytes, Event::Mail) if self.stage == Stage::Mail => {
                Some(Effect::Charge)
            }
            (Count::Messages | Count::Recipients | Count::Bytes, Event::Mail) => before(Stage::Mail),
            (Count::Messages | Count::Recipients, Event::Recipient(_)) => at(Stage::Rcpt),
            (Count::Messages | Count::Recipients, Event::Message) => at(Stage::Data),
            (Count::Messages | Count::Recipients, Event::End { .. }) => at(Stage::End),
            // A counter of the session charges the true size only.
            (Count::Bytes, Event::Message) if self.is_of_session() => at(Stage::Data).and(Some(Effect::Peek)),
            (Count::Bytes, Event::Message) => at(Stage::Data),
            (Count::Bytes, Event::End { .. }) => Some(Effect::TrueUp),
            (Count::Rejections, Event::Rejected(_)) => Some(Effect::Record),
            (Count::Rejections, Event::Mail | Event::Recipient(_)) => Some(Effect::Peek),
            // Checks the share of rejected messages.
            (Count::Rejections, Event::Message) if self.share_of() == Some(Count::Messages) => Some(Effect::Peek),
            _ => None,
        }
    }

    /// Returns the count of the total, if the limit counts a share of it.
    pub fn share_of(&self) -> Option<Count> {
        if let Quota::Share(share) = self.quota { Some(share.of) } else { None }
    }

    /// Returns whether the limit peeks before it charges. With `attempts` it must not: a refusing peek would prevent
    /// attempts from being counted.
    fn looks(&self) -> bool {
        self.charge != Charge::Attempts
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
    pub(super) fn value(&self, view: &NormalizedFacts<'_>, recipient: Option<&str>) -> Option<Value> {
        let distinct = self.distinct?;
        Some(Value::of(&distinct.what.value(view, recipient)?))
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
