//! Planner: finds out for each event of a run whether a limit applies, with which quota, and how much the event counts.

use super::match_cache::MatchCache;
use super::{Candidate, Values};
use crate::engine::distinct::Value;
use crate::policy::budgets::{Key, KeyRef, Owner};
use crate::policy::limit::{Count, Effect, Limit, Overrides, Quota};
use crate::policy::matching::{Field, NormalizedFacts, SkipReason, Subject};
use crate::policy::request::{Event, PolicyRequest};
use crate::policy::{Memory, Policy};
use crate::time::Timestamp;
use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashSet;

/// Function that returns whether a memory knows a recipient. The key is that of the memory's shard for the recipient.
pub type IsKnown<'k> = dyn Fn(KeyRef<'_>, &Memory, Value) -> bool + 'k;

/// Planner of a run of events.
pub struct Planner<'a: 'b, 'b> {
    pub policy: &'a Policy,
    pub request: &'b PolicyRequest,
    pub facts: NormalizedFacts<'b>,
    /// Normalized recipient of each event.
    pub recipients: Vec<Option<Cow<'b, str>>>,
    /// Hash of the recipient of each event.
    pub hashes: Vec<OnceCell<Value>>,
    pub cache: MatchCache<'a>,
    /// New keys that share one budget instead of having a budget each.
    pub shared: Option<&'b HashSet<Key>>,
    /// Function that asks a memory; `None`: only the decision asks.
    pub is_known: Option<&'b IsKnown<'b>>,
    /// Answers of memories, one for each event and memory; empty without `is_known`.
    pub known: Vec<Cell<Option<bool>>>,
    /// Buffer in which keys are composed.
    pub buffer: RefCell<String>,
}

impl<'a: 'b, 'b> Planner<'a, 'b> {
    pub fn new(policy: &'a Policy, request: &'b PolicyRequest, now: Timestamp) -> Self {
        let facts = NormalizedFacts::new(&request.facts, &policy.normalizer, &policy.senders, &policy.zone, now);
        let named = request.events.iter().map(Event::recipient);
        let recipients = named.map(|recipient| Some(policy.normalizer.address(recipient?))).collect();
        let cache = MatchCache::new(&policy.matcher_set, request.events.len());
        let (hashes, buffer) = (vec![OnceCell::new(); request.events.len()], String::with_capacity(160).into());
        let (shared, is_known, known) = (None, None, Vec::new());
        Self { policy, request, facts, recipients, hashes, cache, shared, is_known, known, buffer }
    }

    /// Returns a planner that asks memories which recipients are known.
    pub fn asking(self, is_known: Option<&'b IsKnown<'b>>) -> Self {
        let answers = if is_known.is_some() { self.policy.memories().len() * self.request.events.len() } else { 0 };
        Self { is_known, known: vec![Cell::new(None); answers], ..self }
    }

    /// Returns the owner part of the budget that new keys share, if the event must be charged to that budget. This is
    /// the case if the key of the event is in `shared`, or if the declared size was charged to the shared budget.
    /// `buffer` provides memory in which keys are composed.
    pub fn shared_owners(&self, limit: &Limit, owners: &str, buffer: &mut String) -> Option<String> {
        let is_declared = |key: KeyRef<'_>| self.request.declared.iter().any(|charged| charged.key.borrowed() == key);
        if self.shared.is_none_or(HashSet::is_empty) && self.request.declared.is_empty() {
            return None;
        }
        let own = Key::of(&limit.derived.prefix, owners, None, buffer);
        let is_listed = self.shared.is_some_and(|shared| shared.contains(own.as_str()));
        if !is_listed && (self.request.declared.is_empty() || is_declared(own)) {
            return None;
        }
        let shared = limit.shared_owners(owners, self.request.facts.has_account);
        (is_listed || is_declared(Key::of(&limit.derived.prefix, &shared, None, buffer))).then_some(shared)
    }

    /// Returns the time when the valid suspension of the budget's owner began, if the suspension allows some mail. The
    /// budget that led to the suspension is full, so mail that is allowed is charged to a new one, which is as large. So
    /// the suspended owner can write to the help desk, but not flood it.
    pub fn suspended_since(&self, limit: &Limit, owners: &str) -> Option<Timestamp> {
        let Policy { exceptions, suspensions, .. } = self.policy;
        if !exceptions.has_suspensions() || !limit.count.is_of_mail() {
            return None;
        }
        let suspension = exceptions.lenient(Owner::text(owners), self.facts.now())?;
        (suspension.is_lock() || !suspensions.allowed.is_empty()).then_some(suspension.term.since)
    }

    /// Returns the effect of an event on the limit. A wrong password that the client repeats is one guess, so a limit on
    /// failed logins charges it once, and then only checks whether one more guess would pass.
    pub fn effect(&self, limit: &Limit, event: &Event) -> Option<Effect> {
        match (limit.effect(event)?, limit.count) {
            (Effect::Charge, Count::LoginFailures) if self.request.facts.is_repeated_password => Some(Effect::Peek),
            (effect, _) => Some(effect),
        }
    }

    /// Checks whether the limit applies to an event. If the limit does not apply, returns an error with the reason.
    pub fn holds(&self, limit: &Limit, at: usize, subject: &Subject<'_, '_>) -> Result<(), SkipReason> {
        let is_of_message = subject.recipients.is_some();
        let unknown = limit.distinct.map(|distinct| distinct.what).filter(|what| {
            // The end of a message has no recipient of its own. The values of its accepted recipients are checked later.
            let comes_later = is_of_message && what.is_of_recipient();
            !comes_later && !what.is_known(&self.facts, subject.recipient)
        });
        if let Some(what) = unknown {
            return Err(SkipReason::Unknown(what));
        }
        if is_of_message && limit.matcher.needs_recipient() {
            return self.passing(limit).next().map(|_| ()).ok_or(SkipReason::NoRecipient);
        }
        self.cache.check(limit.derived.matcher, at, subject)
    }

    /// Returns the limit's quota for an event: the quota of the override that applies, with the line of the override,
    /// or else the limit's own quota.
    pub fn quota(&self, limit: &'a Limit, at: usize, subject: &Subject<'_, '_>) -> (&'a Quota, Option<u32>) {
        let row = |overrides: &'a Overrides| {
            let row = self.cache.row(limit.derived.rows, at, subject)?;
            Some((overrides.quota(row, limit.ordinal)?, u32::try_from(row.line).ok()))
        };
        limit.overrides.as_deref().and_then(row).unwrap_or((&limit.quota, None))
    }

    /// Returns whether a limit that applies to an event counts the event.
    pub fn counts(&self, limit: &Limit, effect: Effect, at: usize, subject: &Subject<'_, '_>) -> bool {
        self.holds(limit, at, subject).is_ok()
            && self.cache.owners(limit.derived.owners, at, subject).is_ok()
            && self.amount(limit, effect, at).is_ok()
    }

    /// Returns the facts of the event at index `at`, for conditions to compare.
    pub fn subject(&self, at: usize) -> Subject<'_, 'b> {
        let is_of_message = matches!(self.request.events[at], Event::Message | Event::End { .. });
        let recipients = is_of_message.then_some(self.request.facts.recipients.len());
        Subject { facts: &self.facts, recipient: self.recipients[at].as_deref(), recipients }
    }

    /// Returns the accepted recipients that the limit's matcher matches.
    fn passing<'c>(&'c self, limit: &'c Limit) -> impl Iterator<Item = &'c str> {
        let recipients = Some(self.request.facts.recipients.len());
        let all = self.facts.recipients().iter().map(|recipient| &**recipient);
        all.filter(move |recipient| {
            let subject = Subject { facts: &self.facts, recipient: Some(recipient), recipients };
            self.cache.hold(limit.derived.matcher, subject)
        })
    }

    /// Returns the amount that the limit counts for an event, or an error that names the missing fact.
    pub fn amount(&self, limit: &Limit, effect: Effect, at: usize) -> Result<f64, SkipReason> {
        Ok(match (limit.count, &self.request.events[at]) {
            _ if effect == Effect::Watch => 0.0,
            (Count::Bytes, Event::End { size }) => size.ok_or(SkipReason::UnknownSize)? as f64,
            (Count::Bytes, _) => self.facts.size().ok_or(SkipReason::UnknownSize)? as f64,
            (Count::Recipients, Event::Message | Event::End { .. }) => match limit.distinct {
                None => self.passing(limit).count() as f64,
                // The decision counts the new values.
                Some(_) => 0.0,
            },
            _ => 1.0,
        })
    }

    /// Returns the hash of a recipient of the event at index `at`. Each recipient is hashed once for all limits.
    pub fn recipient_value(&self, at: usize) -> Option<Value> {
        let recipient = self.recipients[at].as_deref()?;
        Some(*self.hashes[at].get_or_init(|| Value::of(recipient)))
    }

    /// Returns whether the limit's memory knows the recipient of the event at index `at`. False if this planner asks no
    /// memories.
    pub fn knows(&self, limit: &Limit, at: usize) -> bool {
        let (Some(is_known), Some(value)) = (self.is_known, self.recipient_value(at)) else { return false };
        let memories = self.policy.memories();
        let memory = limit.distinct.and_then(|distinct| distinct.known_to);
        let Some(number) = memories.iter().position(|known| Some(*known) == memory) else { return false };
        let ask = || {
            let mut buffer = self.buffer.borrow_mut();
            let key = memories[number].key(&self.facts, value, &mut buffer);
            key.is_ok_and(|key| is_known(key, &memories[number], value))
        };
        let answer = &self.known[at * memories.len() + number];
        let is_known = answer.get().unwrap_or_else(ask);
        answer.set(Some(is_known));
        is_known
    }

    /// Returns the values of an event, if the limit counts only new values, without their memories. Returns an error that
    /// names a missing fact.
    pub fn values(&self, limit: &Limit, at: usize) -> Result<Values, SkipReason> {
        let Some(distinct) = limit.distinct else { return Ok(Values::All) };
        let is_whole = matches!(self.request.events[at], Event::Message | Event::End { .. });
        if is_whole && (limit.count == Count::Recipients || limit.is_of_new_recipients()) {
            let values = self.passing(limit).filter_map(|recipient| limit.value(&self.facts, Some(recipient)));
            return Ok(Values::Many(values.map(Candidate::new).collect()));
        }
        let value = match distinct.what {
            Field::Recipient => self.recipient_value(at),
            _ => limit.value(&self.facts, self.recipients[at].as_deref()),
        };
        Ok(Values::One(Candidate::new(value.ok_or(SkipReason::Unknown(distinct.what))?)))
    }
}
