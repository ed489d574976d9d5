//! Explanation of a decision: the response of each limit to an event, computed by the same code as the decision.

use super::{Decision, Loaded, Reached, Step};
use crate::policy::budgets::{Key, SessionCounters};
use crate::policy::limit::{Effect, Quota};
use crate::policy::matching::{SkipExplanation, SkipReason};
use crate::policy::request::PolicyRequest;
use crate::policy::verdict::Refusal;
use crate::policy::{Plan, Policy};
use crate::time::Timestamp;

/// Response of one limit to an event.
#[derive(Debug)]
pub struct Explained {
    /// Index of the limit in the policy.
    pub limit: usize,
    /// The response, or an error that states why the limit does not apply.
    pub said: Result<Evaluation, SkipExplanation>,
}

/// Effect that an event would have on a budget.
#[derive(Debug)]
pub struct Evaluation {
    pub effect: Effect,
    /// Key of the budget; `None` if the quota accumulates nothing.
    pub key: Option<Key>,
    pub quota: Quota,
    /// Row of the override that applies: `bulk-hosts.csv, line 3`.
    pub row: Option<String>,
    /// Level before the event, amount of the event, and level after the event, in units of what is counted.
    pub level: f64,
    pub amount: f64,
    pub after: f64,
    /// Refusal that this limit would cause if it were the only limit.
    pub refusal: Option<Refusal>,
    /// Other actions: `warn`, `delay 2s`.
    pub actions: Vec<String>,
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
        let Some(effect) = step.effect else {
            let is_unlimited = *plan.budgets[check.budget].quota == Quota::Unlimited;
            return Err(SkipExplanation::plain(if is_unlimited { SkipReason::Unlimited } else { SkipReason::Counted }));
        };
        let row = Plan::row(policy, request, now, limit);
        let row = row.map(|(overrides, row)| format!("{}, line {}", overrides.file, row.line));
        decision.measure(&mut step, &request.events[check.event]);
        Ok(Evaluation { row, ..decision.evaluation(step, effect) })
    };
    (0..policy.limits.len()).map(|limit| Explained { limit, said: explained(limit) }).collect()
}

impl Decision<'_> {
    fn evaluation(&self, step: Step<'_>, effect: Effect) -> Evaluation {
        let Step { planned, before, amount, level: after, reached, .. } = step;
        let reached = reached.map_or_else(Reached::default, |reached| *reached);
        let level = match *planned.quota {
            // The average of the rejected events and the average of all events decay equally, so the share does not
            // change with time.
            Quota::Share(_) => after,
            quota => quota.rule().map_or(0.0, |rule| rule.step(before, self.now, 0.0).1.level),
        };
        let key = self.plan.key(planned.slot).map(|key| key.owned());
        let actions = reached.actions(None);
        Evaluation {
            effect,
            key,
            quota: *planned.quota,
            row: None,
            level,
            amount,
            after,
            refusal: reached.refusal.map(|refusal| *refusal),
            actions,
        }
    }
}
