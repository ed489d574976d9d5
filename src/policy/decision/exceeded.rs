//! Preconditions of checks: conditions `exceeded`, which look at the budgets of other limits and charge nothing, and
//! `suspicion`.

use super::Decision;
use crate::engine::Rule;
use crate::policy::budgets::Slot;
use crate::policy::limit::{Likelihood, Quota};
use crate::policy::matching::{Found, SkipExplanation, SkipReason};
use crate::policy::plan::{Alternative, Check, PlannedBudget};

impl Decision<'_> {
    /// Returns whether a check is made: it has no precondition, or an alternative of its precondition holds. The charges
    /// of earlier events of the run count, so pipelined commands are decided like separate ones.
    pub(super) fn is_made(&self, check: &Check) -> bool {
        check.precondition.as_ref().is_none_or(|precondition| precondition.iter().any(|one| self.holds(one)))
    }

    fn holds(&self, Alternative { exceeded, suspicion }: &Alternative) -> bool {
        let is_exceeded = |budget: &usize| self.is_exceeded(&self.plan.budgets[*budget]);
        exceeded.as_ref().is_none_or(|budgets| budgets.iter().any(is_exceeded))
            && suspicion.is_none_or(|class| self.suspicion_class() >= Some(class))
    }

    /// Returns whether a budget is exceeded, as a limit with `watch` finds it: the average has reached the limit, or the
    /// bucket has no room for one more.
    fn is_exceeded(&self, planned: &PlannedBudget<'_>) -> bool {
        let state = self.slot(planned.slot).and_then(Slot::state);
        match (*planned.quota, planned.quota.rule()) {
            (Quota::Never, _) => true,
            (Quota::Share(share), Some(rule)) => {
                let all = planned.total.and_then(|index| self.loaded.0.get(index)?.state());
                let (all, rejected) = (rule.step(all, self.now, 0.0).1, rule.step(state, self.now, 0.0).1);
                all.over && rejected.level >= share.most * all.level
            }
            (_, Some(rule)) => {
                let amount = if matches!(rule, Rule::Bucket(_)) { 1.0 } else { 0.0 };
                rule.at(1.0).is_over(rule.step(state, self.now, amount).1.level)
            }
            (Quota::Likelihood(Likelihood { rule, .. }), _) => {
                state.is_some_and(|state| rule.is_over(state.level, 1.0))
            }
            (_, None) => false,
        }
    }

    /// Explains that no alternative of the check's precondition holds: the level of each budget, and the score.
    pub(super) fn closed(&self, check: &Check) -> SkipExplanation {
        let alternatives = || check.precondition.iter().flat_map(|precondition| precondition.iter());
        if let Some(explanation) = self.not_suspicious(check) {
            return explanation;
        }
        let found = |budget: &usize| -> Found {
            let planned = &self.plan.budgets[*budget];
            let state = self.slot(planned.slot).and_then(Slot::state);
            let level = planned.quota.rule().map_or(0.0, |rule| rule.step(state, self.now, 0.0).1.level);
            let limit = &self.policy.limits[planned.limit];
            let level = format!("{} of {}", limit.thing().plain_number(level), planned.quota.amount());
            (self.policy.display_name(planned.limit).into(), Some(level))
        };
        let found = alternatives().filter_map(|one| one.exceeded.as_ref()).flatten().map(found).collect();
        SkipExplanation { why: SkipReason::NotExceeded, tables: vec![found] }
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::address::AddressNormalizer;
    use crate::policy::budgets::SessionCounters;
    use crate::policy::limit::{Action, Algorithm, Count, Ladder, Limit, Quota, Rung, Share};
    use crate::policy::matching::{AllOf, Condition, Field, Zone};
    use crate::policy::request::{Event, Facts, PolicyRequest};
    use crate::policy::verdict::Ruling;
    use crate::policy::{InMemoryStore, Policy};
    use crate::time::{Timestamp, Units, parse_rate};

    /// Returns a store with a limit that only warns, and a limit that refuses everything while the first is exceeded.
    fn store(quota: Quota, count: Count) -> InMemoryStore {
        let ladder = Ladder::new(vec![Rung { at: 1.0, action: Action::Warn }]);
        let first = Limit { ladder, ..Limit::new("first", count, vec![Field::User], quota) };
        let mut tighter = Limit::new("tighter", Count::Recipients, Vec::new(), Quota::Never);
        tighter.matcher.matches = vec![
            AllOf(vec![Condition::Tls(false), Condition::Exceeded(vec![0])]),
            AllOf(vec![Condition::Tls(true), Condition::Authenticated(true)]),
        ];
        InMemoryStore::new(Policy::new(vec![first, tighter], AddressNormalizer::default(), Zone::default()))
    }

    fn request(user: &str, events: Vec<Event>) -> PolicyRequest {
        let facts = Facts { user: Some(user.into()), tls: Some(false), ..Facts::default() };
        PolicyRequest { facts, events, ..PolicyRequest::default() }
    }

    fn rate(text: &str, algorithm: Algorithm) -> Quota {
        Quota::rate(algorithm, parse_rate(text, Units::Things).unwrap(), None)
    }

    fn recipient() -> Event {
        Event::Recipient("bob@example.net".into())
    }

    /// Returns the number of recipients, of five, before the first that is refused.
    fn accepted(store: &mut InMemoryStore, user: &str, is_pipelined: bool) -> usize {
        let (now, mut counters) = (Timestamp::from_micros(1_000_000_000_000_000), SessionCounters::default());
        let requests = match is_pipelined {
            true => vec![request(user, vec![recipient(); 5])],
            false => vec![request(user, vec![recipient()]); 5],
        };
        let verdicts = requests.iter().flat_map(|request| store.admit(now, request, &mut counters)).collect::<Vec<_>>();
        verdicts.iter().take_while(|verdict| matches!(verdict.ruling, Ruling::Pass)).count()
    }

    #[test]
    fn a_limit_applies_while_the_other_is_exceeded() {
        for (quota, expected) in [
            (Quota::Never, 0),
            (rate("2 / 1h", Algorithm::Ewma), 2),
            (rate("2 / 1h", Algorithm::TokenBucket), 2),
            (rate("2 / 1h", Algorithm::LeakyBucket), 2),
            (Quota::Unlimited, 5),
        ] {
            for is_pipelined in [false, true] {
                let mut store = store(quota, Count::Recipients);
                assert_eq!(accepted(&mut store, "alice", is_pipelined), expected, "{quota:?} {is_pipelined}");
                let bob = if quota == Quota::Never { 0 } else { expected };
                assert_eq!(accepted(&mut store, "bob", is_pipelined), bob, "each owner has a budget: {quota:?}");
            }
        }
    }

    #[test]
    fn a_share_of_rejections_can_be_exceeded() {
        let period = std::time::Duration::from_secs(3_600);
        let share = Share { most: 0.5, period, of: Count::Recipients, at_least: 3.0 };
        let mut store = store(Quota::Share(share), Count::Rejections);
        let (now, mut counters) = (Timestamp::from_micros(1_000_000_000_000_000), SessionCounters::default());
        assert_eq!(accepted(&mut store, "alice", false), 5);
        let rejected = request("alice", vec![Event::Rejected(Some("bob@example.net".into())); 4]);
        store.admit(now, &rejected, &mut counters);
        assert_eq!(accepted(&mut store, "alice", false), 0);
    }

    #[test]
    fn another_table_needs_no_exceeded_limit_and_an_unknown_owner_exceeds_none() {
        let now = Timestamp::from_micros(0);
        let mut asked = request("alice", vec![recipient()]);
        let mut store = store(rate("2 / 1h", Algorithm::TokenBucket), Count::Recipients);
        let mut is_refused = |asked: &PolicyRequest| {
            let verdict = store.admit(now, asked, &mut SessionCounters::default()).pop().unwrap();
            assert_eq!(verdict.not_exceeded.is_empty(), matches!(verdict.ruling, Ruling::Refuse(_)));
            matches!(verdict.ruling, Ruling::Refuse(_))
        };
        assert!(!is_refused(&asked));
        (asked.facts.tls, asked.facts.authenticated) = (Some(true), true);
        assert!(is_refused(&asked));
        (asked.facts.user, asked.facts.tls) = (None, Some(false));
        assert!(!is_refused(&asked));
    }

    #[test]
    fn the_level_of_the_other_limit_is_explained() {
        let now = Timestamp::from_micros(0);
        let mut store = store(rate("2 / 1h", Algorithm::TokenBucket), Count::Recipients);
        let asked = request("alice", vec![recipient()]);
        let mut said = |is_charged: bool| {
            if is_charged {
                store.admit(now, &asked, &mut SessionCounters::default());
            }
            let explained = store.explain(now, &asked, &mut SessionCounters::default()).pop().unwrap();
            explained.said.map(|said| said.refusal.is_some()).map_err(|why| why.to_string())
        };
        assert_eq!(said(false), Err("not exceeded: first is 0 of 2".to_owned()));
        assert_eq!(said(true), Err("not exceeded: first is 1 of 2".to_owned()));
        assert_eq!(said(true), Ok(true));
    }
}
