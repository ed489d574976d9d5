//! Lifetimes of budgets in stores that forget budgets by themselves.

use crate::engine::{Rule, regularity};
use std::time::Duration;

/// Time after which a store can forget a budget, if nothing changes the budget meanwhile. See
/// [`StoredKind::has_forgotten`](super::StoredKind::has_forgotten).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lifetime {
    /// Rule by which the level decays; `None` if the level does not decay by a rule of this kind.
    rule: Option<Rule>,
    at_least: Duration,
}

impl Lifetime {
    /// Returns a lifetime that depends on a rule, but is at least as long as the second time.
    pub(super) fn new(rule: Option<Rule>, at_least: Duration) -> Self {
        Self { rule, at_least }
    }

    pub(super) fn fixed(at_least: Duration) -> Self {
        Self { rule: None, at_least }
    }

    /// Lifetime of a budget whose limit is not in the policy.
    pub const UNKNOWN: Self = Self { rule: None, at_least: regularity::REMEMBERED };

    /// Returns the time after which a store can forget a budget with this level. It can be longer than necessary.
    pub fn of(&self, level: f64) -> Duration {
        let decay = self.rule.map_or(0.0, |rule| rule.forgets_after(level));
        let decay = Duration::try_from_secs_f64(decay).unwrap_or(Duration::MAX);
        decay.max(self.at_least).min(regularity::REMEMBERED)
    }
}
