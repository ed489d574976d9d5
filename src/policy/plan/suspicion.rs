//! Points of the user's signs, for decisions that raise a sign or depend on the suspicion score.

use super::Plan;
use super::planner::Planner;
use crate::policy::budgets::KeyRef;
use crate::policy::request::Facts;

impl<'a> Plan<'a> {
    /// Adds the keys of the user's signs, if a planned limit is a sign, or matches on the suspicion score.
    pub(super) fn add_signs(&mut self, planner: &Planner<'a, '_>) {
        let Some(user) = planner.facts.user().filter(|_| !planner.policy.signs.is_empty()) else { return };
        let derived = |limit: usize| &planner.policy.limits[limit].derived;
        let is_needed = |limit: usize| derived(limit).sign.is_some() || derived(limit).has_suspicion;
        if self.budgets.iter().any(|planned| is_needed(planned.limit)) {
            let mut buffer = planner.buffer.borrow_mut();
            let signs = planner.policy.signs.iter();
            self.signs = signs.map(|sign| self.keys.push(KeyRef::of_sign(&sign.limit, user, &mut buffer))).collect();
        }
    }
}

/// Returns whether events of a session with these facts can raise signs. Before the login, the client may have invented
/// the user's name, or may guess the user's password.
pub(in crate::policy) fn can_suspect(facts: &Facts) -> bool {
    facts.authenticated
}
