//! Counters of limits. They exist from the moment at which their limit comes into force.

use crate::metrics::{LimitLabels, Metrics};
use crate::policy::limit::{Action, Limit};
use crate::policy::{Policy, SuspicionClass};

/// Shows the counters of all limits in force, and removes those of other limits.
pub fn show_limits(metrics: &Metrics, policy: &Policy) {
    let labels: Vec<_> = policy.limits.iter().map(labels).collect();
    metrics.limits.show(&labels);
    metrics.suspicion.show(&SuspicionClass::ALL.map(SuspicionClass::name));
}

/// Returns the labels of a limit's counters.
fn labels(limit: &Limit) -> LimitLabels<'_> {
    let notifications = limit.ladder.rungs().iter().filter_map(|rung| match &rung.action {
        Action::Notify(notification) => Some(&*notification.name),
        _ => None,
    });
    LimitLabels {
        limit: &limit.name,
        mode: limit.mode.name(),
        actions: limit.possible_actions().map(|(stage, action)| (stage.name(), action)).collect(),
        notifications: notifications.collect(),
        suspends: limit.ladder.suspends(),
        bounds_new_budgets: limit.has_chosen_keys(),
    }
}
