//! A limit, checked and ready to be applied.

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
    /// Whose budget: sorted, without repetition.
    pub per: Vec<Field>,
    /// A limit with several rates has a budget for each: which one this is, from 0.
    pub ordinal: usize,
    pub quota: Quota,
    pub algorithm: Algorithm,
    pub charge: Charge,
    pub mode: Mode,
    /// Where it is charged.
    pub stage: Stage,
    /// Counts only values that have not been seen.
    pub distinct: Option<Distinct>,
    /// For whom it is.
    pub whom: Matcher,
    /// Other numbers for some.
    pub overrides: Option<Arc<Overrides>>,
    /// The limit, by its place in the policy, at whose budget this one only looks.
    pub watch: Option<usize>,
    /// What happens to whoever is over; never empty.
    pub ladder: Ladder,
    /// What follows from all this.
    pub settled: Settled,
}

/// What is worked out of a limit once, as every event asks for it.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    /// What its budgets' keys begin with.
    pub(super) prefix: Box<str>,
    /// For whom it is, whose its budgets are, and whom its overrides are for: the numbers of that in what the policy asks.
    pub(super) whom: usize,
    pub(super) owners: usize,
    pub(super) rows: usize,
    /// The kinds of events that mean anything to it: see [`Event::kind`].
    pub(super) interests: u16,
    /// Whose budget it is, or for whom it is, is another question for each recipient.
    pub(super) depends_on_recipient: bool,
    /// It has stored budgets by keys that a client can choose freely: new ones are bounded.
    pub(super) has_chosen_keys: bool,
    /// What a look at MAIL cannot tell, and one at AUTH.
    pub(super) waits_for_recipients: bool,
    pub(super) waits_for_login: bool,
}

/// Which events are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// What is let through: where a limit refuses, Exim's leaky.
    Accepted,
    /// What is let through, until it turns out that it was not sent.
    Sent,
    /// Every attempt, also what is refused: Exim's strict.
    Attempts,
}

/// How seriously a limit is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Computes and charges as if it were alone in force; only the log hears of it.
    Shadow,
    /// As in shadow, but it warns and notifies.
    Soft,
    Enforce,
}

/// Counting distinct values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distinct {
    pub what: Field,
    /// How long a value stays known; `None`: for a period.
    pub remember: Option<Duration>,
}

impl Distinct {
    /// The filter that has room for what a quota allows. `None` if that would be too large, or nothing has to be remembered.
    pub fn filter(self, quota: &Quota) -> Option<distinct::Rule> {
        match quota {
            Quota::Rate { rate, rule } => {
                distinct::Rule::with_burst(rule.burst(), rate.amount, rate.period, self.remember)
            }
            // Longer than any message or connection.
            Quota::Counter { most, .. } => distinct::Rule::new(*most, Duration::from_secs(86_400), None),
            Quota::Never | Quota::Unlimited | Quota::Share(_) => None,
        }
    }
}

/// What an event means to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is charged, if nothing refuses it.
    Charge,
    /// The limit looks whether one more would fit.
    Peek,
    /// It is charged, as it has happened already.
    Record,
    /// The true size is charged instead of the declared one.
    TrueUp,
    /// The limit looks at another one's budget.
    Watch,
}

impl Charge {
    pub const ALL: [Self; 3] = [Self::Accepted, Self::Sent, Self::Attempts];

    /// The word in the configuration.
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

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shadow => "shadow",
            Self::Soft => "soft",
            Self::Enforce => "enforce",
        }
    }
}

impl Limit {
    /// A limit as it is when only this is said of it. It is ready when [`Policy::new`](super::Policy::new) has it.
    pub fn new(name: &str, count: Count, mut per: Vec<Field>, quota: Quota) -> Self {
        per.sort_unstable();
        per.dedup();
        let stage = match count {
            // Once for each different one in the message.
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
            whom: Matcher::default(),
            overrides: None,
            watch: None,
            ladder: Ladder::standard(),
            settled: Settled::default(),
        }
    }

    /// One limit for each of its rates.
    pub fn with_rates(&self, rates: &[Quota]) -> Vec<Self> {
        let one = |(ordinal, quota): (usize, &Quota)| Self { ordinal, quota: *quota, ..self.clone() };
        rates.iter().enumerate().map(one).collect()
    }

    /// Works out what follows from the rest, and adds what it asks to what the whole policy asks.
    pub(super) fn settle(&mut self, asking: &mut MatcherSet) {
        self.stage = self.stage_for(self.stage);
        let of_interest = Event::samples().into_iter().filter(|event| self.effect(event).is_some());
        self.settled = Settled {
            prefix: self.key_prefix(),
            whom: asking.whom(&self.whom),
            owners: asking.owners(&self.per),
            rows: self.overrides.as_ref().map_or(0, |overrides| asking.place(&overrides.rows)),
            interests: of_interest.fold(0, |all, event| all | event.kind()),
            depends_on_recipient: self.is_per_recipient()
                || self.whom.needs_recipient()
                || self.distinct.is_some_and(|distinct| distinct.what.is_of_recipient())
                || self.overrides.as_ref().is_some_and(|overrides| overrides.rows.is_by_recipient()),
            has_chosen_keys: self.is_stored()
                && !matches!(self.quota, Quota::Counter { .. })
                && self.has_chosen_key(false),
            waits_for_recipients: self.whom.needs_recipients(),
            waits_for_login: self.whom.needs_login()
                || self.overrides.as_ref().is_some_and(|overrides| overrides.rows.is_by_group()),
        };
    }

    /// Where it is judged, given what it needs to know; `wanted` is where the configuration or what is counted would have it.
    pub fn stage_for(&self, wanted: Stage) -> Stage {
        match (self.count, wanted) {
            // Who watches says when.
            (_, stage) if self.watch.is_some() => stage,
            (Count::Messages, _) if self.is_per_recipient() => Stage::Rcpt,
            (Count::Messages | Count::Recipients, stage) if self.whom.needs_recipients() => stage.max(Stage::Data),
            (Count::Messages, Stage::Mail | Stage::Rcpt) if self.whom.needs_recipient() => Stage::Data,
            (_, stage) => stage,
        }
    }

    /// What an event means to it.
    pub(super) fn effect(&self, event: &Event) -> Option<Effect> {
        if self.watch.is_some() {
            // Of the two events of AUTH, the one before the password is tried.
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
            // A counter of the session's own takes the true size alone.
            (Count::Bytes, Event::Message) if self.is_of_session() => at(Stage::Data).and(Some(Effect::Peek)),
            (Count::Bytes, Event::Message) => at(Stage::Data),
            (Count::Bytes, Event::End { .. }) => Some(Effect::TrueUp),
            (Count::Rejections, Event::Rejected(_)) => Some(Effect::Record),
            (Count::Rejections, Event::Mail | Event::Recipient(_)) => Some(Effect::Peek),
            // Of the messages of which some are rejected.
            (Count::Rejections, Event::Message) if self.share_of() == Some(Count::Messages) => Some(Effect::Peek),
            _ => None,
        }
    }

    /// What the others are of which it counts a part.
    pub fn share_of(&self) -> Option<Count> {
        if let Quota::Share(share) = self.quota { Some(share.of) } else { None }
    }

    /// Whether it looks before it charges. A look that refused would keep attempts from being made.
    fn looks(&self) -> bool {
        self.charge != Charge::Attempts
    }

    /// Whether it is judged for each recipient by itself.
    pub fn is_per_recipient(&self) -> bool {
        self.per.iter().any(|field| field.is_of_recipient())
    }

    /// Whether a message counts once for each of its budgets, at whichever recipient comes first.
    pub(super) fn counts_once(&self) -> bool {
        self.count == Count::Messages && self.stage == Stage::Rcpt
    }

    /// The value of an event that has to be new.
    pub(super) fn value(&self, view: &NormalizedFacts<'_>, recipient: Option<&str>) -> Option<Value> {
        let distinct = self.distinct?;
        Some(Value::of(&distinct.what.value(view, recipient)?))
    }

    /// Whether a budget can be forgotten: whatever comes, from now on it is decided as if there had been nothing. `epoch` is when its
    /// filter's newer generation began, if it has a filter.
    pub fn has_forgotten(&self, state: State, epoch: Option<Timestamp>, now: Timestamp) -> bool {
        let Some(rule) = self.slowest() else { return true };
        // The least that any event counts. What makes no difference to it makes none to more, nor later.
        let level = |state| rule.step(state, now, 1.0).0.level;
        let filters = || self.distinct.iter().flat_map(|distinct| self.quotas().map(|quota| distinct.filter(&quota)));
        let knows = epoch.is_some_and(|epoch| filters().flatten().any(|filter| !filter.is_over(epoch, now)));
        !knows && level(Some(state)) == level(None)
    }

    /// How much it allows, and all other numbers that hold for some.
    pub fn quotas(&self) -> impl Iterator<Item = Quota> {
        let others = self.overrides.iter().flat_map(|overrides| overrides.quotas(self.ordinal));
        others.chain([self.quota])
    }

    /// How its budgets add up, of all its rates the one that forgets last; `None` if it has no budgets.
    fn slowest(&self) -> Option<Rule> {
        let rules = self.quotas().filter_map(|quota| quota.rule());
        rules.max_by(|a, b| a.memory().total_cmp(&b.memory()))
    }

    /// How a budget of this limit adds up, where nobody knows whose numbers hold for it.
    pub fn rule(&self) -> Option<Rule> {
        self.quota.rule().or_else(|| self.slowest())
    }

    /// Whether its budgets are kept by a store.
    pub fn is_stored(&self) -> bool {
        self.watch.is_none() && !self.is_of_session()
    }

    /// Whether its counters belong to a message or a connection.
    fn is_of_session(&self) -> bool {
        matches!(self.quota, Quota::Counter { scope: Scope::Message | Scope::Connection, .. })
    }
}
