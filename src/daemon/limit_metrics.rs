//! Counters of limits. They exist from the moment at which their limit comes into force.

use crate::metrics::Metrics;
use crate::policy::Policy;

/// Shows the counters of all limits in force.
pub fn show_limits(metrics: &Metrics, policy: &Policy) {
    for limit in policy.limits.iter() {
        metrics.limits.show(&limit.name, limit.ladder.suspends(), limit.has_chosen_keys());
    }
}
