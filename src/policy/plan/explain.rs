//! Explanation of a plan: the reason why a limit does not apply.

use super::Plan;
use super::planner::Planner;
use crate::policy::Policy;
use crate::policy::matching::{SkipExplanation, SkipReason};
use crate::policy::request::PolicyRequest;
use crate::time::Timestamp;

impl Plan<'_> {
    /// Returns the reason why the limit at this index did not apply to the first event; `None` if the limit applies.
    pub fn reason(policy: &Policy, request: &PolicyRequest, now: Timestamp, index: usize) -> Option<SkipExplanation> {
        let (planner, limit) = (Planner::new(policy, request, now, None), &policy.limits[index]);
        let check = || {
            let effect = limit.effect(&request.events[0]).ok_or(SkipReason::Elsewhere)?;
            let subject = planner.subject(0);
            planner.check(limit, 0, &subject)?;
            Self::default().budget_index(&planner, index, limit, (0, &subject), 0)?;
            planner.amount(limit, effect, 0)?;
            Self::default().values(&planner, limit, 0)?;
            // Without the budgets it is not known whether another limit is exceeded, or the user is suspicious. This
            // reason is asked for only if the limit did not apply.
            match () {
                () if limit.derived.has_suspicion => Err(SkipReason::NotSuspicious),
                () if limit.derived.has_precondition => Err(SkipReason::NotExceeded),
                () => Ok(()),
            }
        };
        check().err().map(|why| SkipExplanation::new(why, &limit.matcher, planner.subject(0)))
    }
}
