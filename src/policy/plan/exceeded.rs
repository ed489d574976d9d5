//! Preconditions: conditions `exceeded`, which depend on the budgets of other limits, and `suspicion`, which depend on the
//! score of the user. The plan lists the budgets, and the decision compares their levels.

use super::planner::Planner;
use super::{Check, Plan};
use crate::policy::SuspicionClass;
use crate::policy::limit::{Effect, Limit};
use crate::policy::matching::{Condition, Subject};
use std::sync::Arc;

/// Precondition of a check: one alternative for each table of `match` that can hold. The check is made only if at least
/// one alternative holds.
pub type Precondition = Arc<[Alternative]>;

/// Conditions of one table of `match` that only the decision can evaluate. All of them must hold.
pub struct Alternative {
    /// Budgets of other limits, as indices in [`Plan::budgets`]; at least one of them must be exceeded. `None`: the table
    /// has no condition `exceeded`.
    pub exceeded: Option<Box<[usize]>>,
    /// Class that the user must have.
    pub suspicion: Option<SuspicionClass>,
}

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
    /// Returns the precondition of a limit whose matcher holds for an event, apart from conditions `exceeded` and
    /// `suspicion`. Adds the budgets of the precondition to the plan. `None`: a table of `match` holds whatever the budgets are.
    pub(super) fn precondition(
        &mut self,
        planner: &Planner<'a, '_>,
        limit: &'a Limit,
        at: usize,
        subject: &Subject<'_, '_>,
    ) -> Option<Precondition> {
        let mut alternatives = Vec::new();
        // Before the decision, conditions `exceeded` and `suspicion` count as true.
        for table in limit.matcher.matches.iter().filter(|table| table.0.iter().all(|one| one.holds(*subject))) {
            let suspicion = table.0.iter().find_map(Condition::suspicion);
            let others = table.0.iter().find_map(Condition::exceeded);
            if suspicion.is_none() && others.is_none() {
                return None;
            }
            let mut budget = |other: &usize| {
                // Without a known owner there is no budget that could be exceeded.
                self.budget_index(planner, *other, &planner.policy.limits[*other], (at, subject), 0).ok()
            };
            let exceeded = others.map(|others| others.iter().filter_map(&mut budget).collect());
            alternatives.push(Alternative { exceeded, suspicion });
        }
        Some(alternatives.into())
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
