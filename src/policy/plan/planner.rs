//! Planner: finds out for each event of a run whether a limit applies, with which quota, and how much the event counts.

use super::match_cache::MatchCache;
use super::{Candidate, Values};
use crate::engine::distinct::Value;
use crate::policy::Policy;
use crate::policy::budgets::{Key, KeyRef, Owner};
use crate::policy::limit::{Count, Effect, Limit, Overrides, Quota};
use crate::policy::matching::{Field, NormalizedFacts, NormalizedRecipient, SkipReason, Subject};
use crate::policy::request::{Event, PolicyRequest};
use crate::time::Timestamp;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::HashSet;

/// Number of events of a usual run: MAIL and the first recipient, or one event.
pub const USUAL_EVENTS: usize = 2;

/// Planner of a run of events.
pub struct Planner<'a: 'b, 'b> {
    pub policy: &'a Policy,
    pub request: &'b PolicyRequest,
    pub facts: NormalizedFacts<'b>,
    /// Recipient of each event.
    recipients: SmallVec<[Option<NormalizedRecipient<'b>>; USUAL_EVENTS]>,
    pub cache: MatchCache<'a>,
    /// New keys that share one budget instead of having a budget each.
    pub shared: Option<&'b HashSet<Key>>,
    /// Buffer in which keys are composed.
    pub buffer: RefCell<String>,
}

impl<'a: 'b, 'b> Planner<'a, 'b> {
    pub fn new(
        policy: &'a Policy,
        request: &'b PolicyRequest,
        now: Timestamp,
        shared: Option<&'b HashSet<Key>>,
    ) -> Self {
        let facts = NormalizedFacts::new(&request.facts, &policy.normalizer, &policy.senders, &policy.zone, now);
        let recipient = |event: &'b Event| Some(NormalizedRecipient::new(event.recipient()?, &policy.normalizer));
        let recipients = request.events.iter().map(recipient).collect();
        let cache = MatchCache::new(&policy.matcher_set, request.events.len());
        let buffer = String::with_capacity(160).into();
        Self { policy, request, facts, recipients, cache, shared, buffer }
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
        match (limit.derived.effects[event.kind()]?, limit.count) {
            (Effect::Charge, Count::LoginFailures) if self.request.facts.is_repeated_password => Some(Effect::Peek),
            (effect, _) => Some(effect),
        }
    }

    /// Returns whether the limit's matcher matches no event of the run. A quick check: false if the matcher has to be
    /// evaluated for each event.
    pub fn is_for_others(&self, limit: &Limit, subjects: &[Subject<'_, '_>]) -> bool {
        subjects.first().is_some_and(|subject| self.cache.fails_for_all(limit.derived.matcher, subject))
    }

    /// Returns whether the limit applies to an event.
    pub fn holds(&self, limit: &Limit, at: usize, subject: &Subject<'_, '_>) -> bool {
        let is_of_message = subject.recipients.is_some();
        self.unknown_value(limit, subject).is_none()
            && match is_of_message && limit.matcher.needs_recipient() {
                true => self.passing(limit).next().is_some(),
                false => self.cache.matches(limit.derived.matcher, at, subject),
            }
    }

    /// Checks whether the limit applies to an event. If the limit does not apply, returns an error with the reason.
    pub fn check(&self, limit: &Limit, at: usize, subject: &Subject<'_, '_>) -> Result<(), SkipReason> {
        match self.unknown_value(limit, subject) {
            _ if self.holds(limit, at, subject) => Ok(()),
            Some(what) => Err(SkipReason::Unknown(what)),
            None if subject.recipients.is_some() && limit.matcher.needs_recipient() => Err(SkipReason::NoRecipient),
            None => self.cache.check(limit.derived.matcher, at, subject),
        }
    }

    /// Returns the field whose values the limit counts, if the event has no value of this field.
    fn unknown_value(&self, limit: &Limit, subject: &Subject<'_, '_>) -> Option<Field> {
        let what = limit.distinct.as_ref()?.what;
        // Each event that is counted has a destination. Mail has none: it is checked as one more new destination.
        if what == Field::Destination {
            return None;
        }
        // The end of a message has no recipient of its own. The values of its accepted recipients are checked later.
        let comes_later = subject.recipients.is_some() && what.is_of_recipient();
        (!comes_later && !what.is_known(&self.facts, subject.recipient)).then_some(what)
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
        self.holds(limit, at, subject)
            && self.cache.owners(limit.derived.owners, at, subject).is_ok()
            && self.amount(limit, effect, at).is_ok()
    }

    /// Returns the facts of the event at index `at`, for conditions to compare.
    pub fn subject(&self, at: usize) -> Subject<'_, 'b> {
        let is_of_message = matches!(self.request.events[at], Event::Message | Event::End { .. });
        let recipients = is_of_message.then_some(self.request.facts.recipients.len());
        Subject { facts: &self.facts, recipient: self.recipient(at), recipients }
    }

    /// Returns the accepted recipients that the limit's matcher matches.
    fn passing<'c>(&'c self, limit: &'c Limit) -> impl Iterator<Item = &'c NormalizedRecipient<'b>> {
        let recipients = Some(self.request.facts.recipients.len());
        self.facts.recipients().iter().filter(move |recipient| {
            let subject = Subject { facts: &self.facts, recipient: Some(recipient), recipients };
            self.cache.matches_other(limit.derived.matcher, subject)
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

    /// Returns the recipient of the event at index `at`.
    pub fn recipient(&self, at: usize) -> Option<&NormalizedRecipient<'b>> {
        self.recipients[at].as_ref()
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
        let value = match (distinct.what, &self.request.events[at]) {
            (Field::Destination, Event::Blocked(address)) => Some(Value::of(&address.to_string())),
            (Field::Destination, _) => return Ok(Values::All),
            _ => limit.value(&self.facts, self.recipient(at)),
        };
        Ok(Values::One(Candidate::new(value.ok_or(SkipReason::Unknown(distinct.what))?)))
    }
}
