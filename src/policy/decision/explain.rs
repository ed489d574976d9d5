//! Explanation of a decision: the response of each limit to an event, computed by the same code as the decision.

use super::{Decision, Loaded, Reached, Step};
use crate::policy::budgets::SessionCounters;
use crate::policy::limit::Quota;
use crate::policy::matching::{SkipExplanation, SkipReason};
use crate::policy::plan::PlannedBudget;
use crate::policy::request::PolicyRequest;
use crate::policy::verdict::Evaluation;
use crate::policy::{Plan, Policy, SuspicionScore};
use crate::time::Timestamp;

/// Response of one limit to an event.
#[derive(Debug)]
pub struct Explained {
    /// Index of the limit in the policy.
    pub limit: usize,
    /// The response, or an error that states why the limit does not apply.
    pub said: Result<Evaluation, SkipExplanation>,
}

/// Explains the response of every limit to the single event of `request`. Charges nothing. [`decide`](super::decide)
/// returns the combined outcome for the same request.
pub fn explain(
    policy: &Policy,
    now: Timestamp,
    request: &PolicyRequest,
    plan: &Plan<'_>,
    loaded: &mut Loaded,
    counters: &mut SessionCounters,
) -> Vec<Explained> {
    let decision = Decision::new(policy, now, request, plan, loaded, counters);
    let explained = |limit: usize| {
        let mut checks = plan.checks.iter();
        let Some(check) = checks.find(|one| plan.budgets[one.budget].limit == limit) else {
            let reason = Plan::reason(policy, request, now, limit);
            return Err(reason.unwrap_or_else(|| SkipExplanation::plain(SkipReason::Elsewhere)));
        };
        if !decision.is_made(check) {
            return Err(decision.closed(check));
        }
        let mut step = decision.begin(check);
        decision.measure(&mut step, &request.events[check.event]);
        let is_unlimited = *step.planned.quota == Quota::Unlimited;
        let reason = if is_unlimited { SkipReason::Unlimited } else { SkipReason::Counted };
        let score = decision.score_of([&step]);
        decision.evaluation(step, score.as_ref()).ok_or_else(|| SkipExplanation::plain(reason))
    };
    (0..policy.limits.len()).map(|limit| Explained { limit, said: explained(limit) }).collect()
}

impl Decision<'_> {
    /// Returns the numbers of a measured step; `None` if the limit neither checked nor charged the event. `score`: the
    /// score of the user before the event, if a limit of the event matches on suspicion.
    pub(super) fn evaluation(&self, step: Step<'_>, score: Option<&SuspicionScore>) -> Option<Evaluation> {
        let Step { limit, planned, effect, before, amount, level: after, reached, .. } = step;
        let reached = reached.map_or_else(Reached::default, |reached| *reached);
        let level = match *planned.quota {
            // The average of the rejected events and the average of all events decay equally, so the share does not
            // change with time.
            Quota::Share(_) => after,
            Quota::Likelihood(_) => after,
            Quota::Regularity(_) => before.map_or(0.0, |state| state.level),
            quota => quota.rule().map_or(0.0, |rule| rule.step(before, self.now, 0.0).1.level),
        };
        Some(Evaluation {
            limit: planned.limit,
            name: limit.name.clone(),
            rate: self.policy.has_several_rates(planned.limit).then_some(limit.quota),
            mode: limit.mode,
            thing: limit.thing(),
            effect: effect?,
            key: self.plan.key(planned.slot).map(|key| key.owned()),
            quota: *planned.quota,
            row: self.row(planned),
            grant: planned.quota.grant().cloned(),
            level,
            amount,
            after,
            actions: reached.actions(None),
            refusal: reached.refusal,
            suspicion: score.filter(|_| limit.derived.has_suspicion).cloned(),
        })
    }

    /// Returns the row of the override that applies to a budget: `bulk-hosts.csv, line 3`.
    fn row(&self, planned: &PlannedBudget<'_>) -> Option<String> {
        let limit = &self.policy.limits[planned.limit];
        let charging = limit.watch.map_or(limit, |watched| &self.policy.limits[watched]);
        Some(format!("{}, line {}", charging.overrides.as_ref()?.file, planned.row?))
    }
}
