//! Which limits hold for a run of events, and whose budgets they are: found out before any budget is looked at.

mod explain;

use super::Policy;
use super::answers::Answers;
use super::event::{Asked, Event, Stage};
use super::exception::Suspension;
use super::key::Key;
use super::limit::{Count, Effect, Limit};
use super::overrides::Overrides;
use super::quota::{Quota, Scope};
use super::view::View;
use super::whom::Subject;
use super::why::Why;
use crate::engine::distinct::{self, Value};
use crate::time::Timestamp;
use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

/// What a run of events asks of which budgets. A store loads them before the decision.
#[derive(Default)]
pub struct Question {
    /// Sorted by the events' places in the run.
    pub(super) applications: Vec<Application>,
    pub(super) budgets: Vec<Used>,
    /// Budgets of the store.
    pub(super) keys: Vec<Key>,
    /// Counters of the session.
    pub(super) own: Vec<Key>,
    /// Whoever it is may send nothing.
    pub(super) suspension: Option<Arc<Suspension>>,
}

/// A limit as it applies to one event.
pub(super) struct Application {
    pub event: usize,
    /// Its place in [`Question::budgets`].
    pub used: usize,
    pub effect: Effect,
    /// In units of what is counted.
    pub amount: f64,
    pub values: Values,
}

/// A limit with a budget, and how much it allows there.
pub(super) struct Used {
    /// The limit's place in the policy.
    pub limit: usize,
    pub quota: Quota,
    pub slot: Slot,
    /// The budget of all of which the limit counts a part.
    pub others: Option<usize>,
    /// How values are remembered, where only new ones count.
    pub filter: Option<distinct::Rule>,
}

/// Where a budget is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// In the store: its place in [`Question::keys`].
    Stored(usize),
    /// In the session: its place in [`Question::own`].
    Message(usize),
    Connection(usize),
    /// Nothing is remembered.
    None,
}

/// What has to be new about an event.
pub(super) enum Values {
    /// The limit counts everything.
    All,
    One(Value),
    Many(Vec<Value>),
}

/// A run that is looked at.
struct Run<'a> {
    policy: &'a Policy,
    asked: &'a Asked,
    view: View<'a>,
    /// For each event the recipient that it is about, as it is compared.
    recipients: Vec<Option<Cow<'a, str>>>,
    answers: Answers<'a>,
    /// To write keys in.
    room: RefCell<String>,
}

impl Question {
    pub fn new(policy: &Policy, asked: &Asked, now: Timestamp) -> Self {
        let mut question = Self::default();
        let kinds = asked.events.iter().fold(0, |all, event| all | event.kind());
        let mut of_interest =
            policy.limits.iter().enumerate().filter(|(_, limit)| limit.settled.interests & kinds != 0).peekable();
        if of_interest.peek().is_none() && !policy.exceptions.has_suspensions() {
            return question;
        }
        let most = policy.limits.len();
        question.applications.reserve(most);
        question.budgets.reserve(most);
        question.keys.reserve(most);
        let run = Run::new(policy, asked, now);
        question.suspension = policy.exceptions.suspended(&run.view, now).cloned();
        // Those that look at budgets of others come last in the policy.
        of_interest.for_each(|(place, limit)| question.apply(&run, place, limit));
        question.applications.sort_by_key(|application| application.event);
        question
    }

    /// The store's budgets that the events look at or charge.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    pub fn into_keys(self) -> Vec<Key> {
        self.keys
    }

    /// The limits, by their places in the policy, that hold for an event otherwise than by a look: one for each event.
    pub fn limits(&self) -> impl Iterator<Item = usize> {
        let is_counted = |application: &&Application| application.effect != Effect::Look;
        self.applications.iter().filter(is_counted).map(|application| self.budgets[application.used].limit)
    }

    /// The same with those that only look.
    pub fn looking(&self) -> impl Iterator<Item = usize> {
        self.applications.iter().map(|application| self.budgets[application.used].limit)
    }

    fn apply(&mut self, run: &Run<'_>, place: usize, limit: &Limit) {
        let depends = limit.settled.depends_on_recipient
            || limit.watch.is_some_and(|at| run.policy.limits[at].settled.depends_on_recipient);
        // Otherwise the budget is the same for all events.
        let mut known: Option<Result<usize, Why>> = None;
        let began = self.budgets.len();
        for (at, event) in run.asked.events.iter().enumerate() {
            let Some(effect) = limit.effect(event) else { continue };
            // Whether the recipients to come are excepted, or have more, nobody knows yet; nor of which groups the user is.
            let is_early = match (effect, event) {
                (Effect::Look, Event::Mail) => depends || limit.settled.waits_for_recipients,
                (Effect::Look, Event::Auth) => limit.settled.waits_for_login,
                _ => false,
            };
            if is_early {
                continue;
            }
            let used = match known.filter(|_| !depends) {
                Some(used) => used,
                None => {
                    let used = run.holds(limit, at).and_then(|()| self.used(run, place, limit, at, began));
                    known = Some(used);
                    used
                }
            };
            let Ok(used) = used else { continue };
            let Ok((amount, values)) = run.amount(limit, effect, at) else { continue };
            self.applications.push(Application { event: at, used, effect, amount, values });
        }
    }

    /// The limit's budget for an event. Those from `began` on are of the same limit.
    fn used(&mut self, run: &Run<'_>, place: usize, limit: &Limit, at: usize, began: usize) -> Result<usize, Why> {
        let owner = limit.watch.map_or(limit, |watched| &run.policy.limits[watched]);
        let (mut quota, mut key) = (run.quota(owner, at), run.key(owner, at)?);
        let granted = run.policy.exceptions.granted(owner, &key, run.view.now());
        let granted = granted.and_then(|grant| Some((grant.quota(owner)?, grant.term.since)));
        if let Some((other, since)) = &granted {
            (quota, key) = (other, key.granted(*since));
        }
        // No two limits share a budget, but for those that watch others.
        let first = if limit.watch.is_some() { 0 } else { began };
        let same = |used: &Used| self.key(used.slot).is_some_and(|known| *known == key);
        let known = self.budgets[first..].iter().find(|used| same(used));
        // Recipients of one message may have numbers of their own, and share a budget all the same.
        let is_it = |used: &Used| used.limit == place && used.quota == *quota && same(used);
        if let Some(it) = self.budgets[first..].iter().position(is_it) {
            return Ok(first + it);
        }
        let (slot, others) = match (known, *quota) {
            (Some(known), _) => (known.slot, known.others),
            (None, Quota::Never | Quota::Unlimited) => (Slot::None, None),
            (None, Quota::Counter { scope: Scope::Message, .. }) => (Slot::Message(push(&mut self.own, key)), None),
            (None, Quota::Counter { scope: Scope::Connection, .. }) => {
                (Slot::Connection(push(&mut self.own, key)), None)
            }
            (None, _) => {
                let others = matches!(quota, Quota::Share(_)).then(|| key.of_others(owner));
                (Slot::Stored(push(&mut self.keys, key)), others.map(|key| push(&mut self.keys, key)))
            }
        };
        let filter = limit.distinct.and_then(|distinct| distinct.filter(quota));
        Ok(push(&mut self.budgets, Used { limit: place, quota: *quota, slot, others, filter }))
    }

    pub(super) fn key(&self, slot: Slot) -> Option<&Key> {
        match slot {
            Slot::Stored(place) => self.keys.get(place),
            Slot::Message(place) | Slot::Connection(place) => self.own.get(place),
            Slot::None => None,
        }
    }
}

fn push<T>(all: &mut Vec<T>, one: T) -> usize {
    all.push(one);
    all.len() - 1
}

impl<'a> Run<'a> {
    fn new(policy: &'a Policy, asked: &'a Asked, now: Timestamp) -> Self {
        let view = View::new(&asked.facts, &policy.folding, &policy.zone, now);
        let named = asked.events.iter().map(Event::recipient);
        let recipients = named.map(|recipient| Some(policy.folding.address(recipient?))).collect();
        let answers = Answers::new(&policy.asking, asked.events.len());
        Self { policy, asked, view, recipients, answers, room: String::with_capacity(160).into() }
    }

    /// Whether the limit is for this event; if not, why.
    fn holds(&self, limit: &Limit, at: usize) -> Result<(), Why> {
        let subject = self.subject(at);
        let is_of_message = subject.recipients.is_some();
        let unknown = limit.distinct.map(|distinct| distinct.what).filter(|what| {
            // That of each accepted recipient comes with the message.
            let comes_later = is_of_message && what.is_of_recipient();
            !comes_later && !what.is_known(&self.view, subject.recipient)
        });
        if let Some(what) = unknown {
            return Err(Why::Unknown(what));
        }
        if is_of_message && limit.whom.needs_recipient() {
            return self.passing(limit).next().map(|_| ()).ok_or(Why::NoRecipient);
        }
        self.answers.check(&limit.settled.whom, at, subject)
    }

    /// How much a limit allows for this event.
    fn quota<'b>(&self, limit: &'b Limit, at: usize) -> &'b Quota {
        let row = |overrides: &'b Overrides| {
            let row = self.answers.row(limit.settled.rows, at, self.subject(at))?;
            overrides.quota(row, limit.ordinal)
        };
        limit.overrides.as_deref().and_then(row).unwrap_or(&limit.quota)
    }

    /// The limit's budget for this event.
    fn key(&self, limit: &Limit, at: usize) -> Result<Key, Why> {
        let owners = self.answers.owners(limit.settled.owners, at, self.subject(at)).map_err(Why::Unknown)?;
        Ok(Key::of(limit, owners, &mut self.room.borrow_mut()))
    }

    /// What conditions look at when they look at an event.
    fn subject(&self, at: usize) -> Subject<'_, 'a> {
        let is_of_message = matches!(self.asked.events[at], Event::Message | Event::End { .. });
        let recipients = is_of_message.then_some(self.asked.facts.recipients.len());
        Subject { view: &self.view, recipient: self.recipients[at].as_deref(), recipients }
    }

    /// The accepted recipients for whom the limit is.
    fn passing<'b>(&'b self, limit: &'b Limit) -> impl Iterator<Item = &'b str> {
        let recipients = Some(self.asked.facts.recipients.len());
        let all = self.view.recipients().iter().map(|recipient| &**recipient);
        all.filter(move |recipient| {
            let subject = Subject { view: &self.view, recipient: Some(recipient), recipients };
            self.answers.hold(&limit.settled.whom, subject)
        })
    }

    /// How much an event counts, and what has to be new about it. The error: it is not known yet.
    fn amount(&self, limit: &Limit, effect: Effect, at: usize) -> Result<(f64, Values), Why> {
        let event = &self.asked.events[at];
        let amount = match (limit.count, event) {
            _ if effect == Effect::Watch => 0.0,
            (Count::Bytes, Event::End { size }) => size.ok_or(Why::UnknownSize)? as f64,
            (Count::Bytes, _) => self.view.size().ok_or(Why::UnknownSize)? as f64,
            (Count::Recipients, Event::Message | Event::End { .. }) => return Ok(self.recipients_at_once(limit)),
            _ => 1.0,
        };
        let values = match limit.distinct {
            None => Values::All,
            Some(distinct) => {
                let value = limit.value(&self.view, self.recipients[at].as_deref());
                Values::One(value.ok_or(Why::Unknown(distinct.what))?)
            }
        };
        Ok((amount, values))
    }

    /// All recipients of a message that count, as one event.
    fn recipients_at_once(&self, limit: &Limit) -> (f64, Values) {
        let values = limit.distinct.map(|_| self.passing(limit).filter_map(|one| limit.value(&self.view, Some(one))));
        match values {
            Some(values) => (0.0, Values::Many(values.collect())),
            None => (self.passing(limit).count() as f64, Values::All),
        }
    }
}

impl Limit {
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
}
