//! Preconditions: conditions `exceeded`, which depend on the budgets of other limits. The plan lists these budgets, and the
//! decision compares their levels.

use super::planner::Planner;
use super::{Check, Plan};
use crate::policy::limit::{Effect, Limit};
use crate::policy::matching::{Condition, Subject};
use std::sync::Arc;

/// Budgets of other limits, as indices in [`Plan::budgets`]. The check is made only if at least one of them is exceeded.
pub type Precondition = Arc<[usize]>;

/// Check with a precondition.
#[derive(Clone, Copy)]
pub struct ConditionalCheck {
    /// Index of the event.
    pub event: usize,
    /// Index of the limit in the policy.
    pub limit: usize,
    /// False if the limit only peeks at the event.
    pub is_counted: bool,
}

impl<'a> Plan<'a> {
    /// Returns the precondition of a limit whose matcher holds, apart from conditions `exceeded`, for an event. Adds the
    /// budgets of the precondition to the plan. `None`: a table of `match` holds whatever the budgets are.
    pub(super) fn precondition(
        &mut self,
        planner: &Planner<'a, '_>,
        limit: &'a Limit,
        at: usize,
        subject: &Subject<'_, '_>,
    ) -> Option<Precondition> {
        let mut looked_at = Vec::new();
        // Before the decision, a condition `exceeded` counts as true.
        for table in limit.matcher.matches.iter().filter(|table| table.0.iter().all(|one| one.holds(*subject))) {
            let others = table.0.iter().find_map(Condition::exceeded)?;
            for other in others {
                // Without a known owner there is no budget that could be exceeded.
                let budget = self.budget_index(planner, *other, &planner.policy.limits[*other], (at, subject), 0);
                looked_at.extend(budget.ok());
            }
        }
        Some(looked_at.into())
    }

    /// Returns the checks with preconditions. Whether they are made is known only after the decision.
    pub fn conditional_checks(&self) -> impl Iterator<Item = ConditionalCheck> {
        let conditional = |check: &Check| ConditionalCheck {
            event: check.event,
            limit: self.budgets[check.budget].limit,
            is_counted: check.effect != Effect::Peek,
        };
        self.checks.iter().filter(|check| check.precondition.is_some()).map(conditional)
    }
}
