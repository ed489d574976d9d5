//! Preparation of a limit for plans: the values that follow from its fields, computed once for all events.

use super::match_cache::MatcherSet;
use crate::policy::limit::{Derived, Limit, Quota};
use crate::policy::request::{Event, EventKinds};

impl Limit {
    /// Computes the values of [`Derived`], and adds the limit's matcher, owner fields and overrides to the policy's set.
    pub(in crate::policy) fn prepare(&mut self, matcher_set: &mut MatcherSet) {
        self.stage = self.stage_for(self.stage);
        let samples = Event::samples();
        let effects = samples.each_ref().map(|event| self.effect(event));
        let of_interest = samples.iter().zip(&effects).filter(|(_, effect)| effect.is_some());
        self.derived = Derived {
            prefix: self.key_prefix(),
            matcher: matcher_set.matcher(&self.matcher),
            owners: matcher_set.owners(&self.per),
            rows: self.overrides.as_ref().map_or(0, |overrides| matcher_set.rows(&overrides.rows)),
            effects,
            interests: EventKinds::of(of_interest.map(|(event, _)| event)),
            depends_on_recipient: self.is_per_recipient()
                || self.matcher.needs_recipient()
                || self.distinct.is_some_and(|distinct| distinct.what.is_of_recipient())
                || self.overrides.as_ref().is_some_and(|overrides| overrides.rows.is_by_recipient()),
            has_chosen_keys: self.is_stored()
                && !matches!(self.quota, Quota::Counter { .. })
                && self.has_chosen_key(false),
            skips_known: self.skips_known(),
            has_precondition: self.matcher.has_exceeded() || self.matcher.has_suspicion(),
            has_suspicion: self.matcher.has_suspicion(),
            // `Policy::new` sets the sign.
            sign: None,
            waits_for_recipients: self.matcher.needs_recipients(),
            waits_for_login: self.matcher.needs_login()
                || self.overrides.as_ref().is_some_and(|overrides| overrides.rows.is_by_group()),
        };
    }

    /// Returns whether a known recipient does not touch the limit's budget: the limit has `known-to`, and either a filter,
    /// or a quota that counts nothing. With a condition on other budgets, it is known only later whether the limit applies.
    fn skips_known(&self) -> bool {
        let Some(distinct) = self.distinct.filter(|distinct| distinct.known_to.is_some()) else { return false };
        let has_filter = distinct.filter(self.count, &self.quota).is_some();
        let counts_nothing = matches!(self.quota, Quota::Never | Quota::Unlimited);
        (has_filter || counts_nothing) && !self.matcher.has_exceeded() && !self.matcher.has_suspicion()
    }
}
