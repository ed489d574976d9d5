//! Metrics of limits, exceptions and budgets.

use super::builder::Builder;
use super::gauge_guard::GaugeGuard;
use prometheus::core::Collector as _;
use prometheus::{Error, Histogram, IntCounterVec, IntGauge};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Metrics of limits, exceptions and budgets.
pub struct LimitMetrics {
    refusals: IntCounterVec,
    shadow_refusals: IntCounterVec,
    decisions: IntCounterVec,
    /// Seconds by which limits have delayed replies.
    delay_seconds: Histogram,
    /// Sessions that a limit delays at present.
    delayed: IntGauge,
    /// Suspensions that began, by limit.
    pub suspensions: IntCounterVec,
    /// Suspensions in force, begun by an administrator or by a limit.
    pub suspensions_in_force: IntGauge,
    /// Grants in force.
    pub grants_in_force: IntGauge,
    /// Notification messages sent, by configured notification and by limit.
    pub notices: IntCounterVec,
    /// Number of budgets in memory.
    pub budgets: IntGauge,
    /// Memory that these budgets take, in octets.
    pub budget_octets: IntGauge,
    /// For each limit: number of new keys that had to share one budget. A limit creates only a certain number of new
    /// budgets in an hour; after that, all new keys share one budget.
    pub new_budgets_shared: IntCounterVec,
}

/// A limit in force, and the values that the labels of its counters can have.
pub struct LimitLabels<'a> {
    pub limit: &'a str,
    pub mode: &'static str,
    /// Each stage at which the limit can take an action, with the word of that action.
    pub actions: HashSet<(&'static str, &'static str)>,
    /// Names of the notifications that the limit sends.
    pub notifications: HashSet<&'a str>,
    /// True if the limit can suspend.
    pub suspends: bool,
    /// True if the number of the limit's new budgets is bounded.
    pub bounds_new_budgets: bool,
}

/// Value of the label `limit` for refusals because of a suspension.
const SUSPENDED: &str = "suspended";

/// Stages at which a suspension refuses.
const STAGES_OF_SUSPENSIONS: [&str; 4] = ["mail", "rcpt", "data", "end"];

/// Word of the mode in which a limit refuses nothing.
const SHADOW: &str = "shadow";

/// Words of the actions that refuse.
const REFUSALS: [&str; 5] = ["defer", "deny", "lock", "suspend", "drop"];

impl LimitMetrics {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        let refusals = build.counters(
            "weir_refusals_total",
            "Commands refused by a limit or a suspension; each command counts once",
            &["limit", "stage"],
        )?;
        // Create the counters with the value 0, so that Prometheus sees the first refusal as a change.
        for stage in STAGES_OF_SUSPENSIONS {
            refusals.with_label_values(&[SUSPENDED, stage]);
        }
        Ok(Self {
            refusals,
            shadow_refusals: build.counters(
                "weir_shadow_refusals_total",
                "Commands that a limit in shadow mode would have refused",
                &["limit", "stage"],
            )?,
            decisions: build.counters(
                "weir_limit_decisions_total",
                "Commands for which a limit took an action, or in shadow or soft mode would have taken the action, by the \
                 strongest action",
                &["limit", "stage", "mode", "action"],
            )?,
            delay_seconds: build.histogram(
                "weir_delay_seconds",
                "Delays by limits, of a reply or of the replies to pipelined commands together",
                &[0.1, 0.3, 1.0, 3.0, 10.0, 20.0, 45.0],
            )?,
            delayed: build.gauge("weir_delayed_sessions", "Sessions that a limit delays at present")?,
            suspensions: build.counters("weir_suspensions_total", "Suspensions that a limit began", &["limit"])?,
            suspensions_in_force: build.gauge(
                "weir_suspensions_in_force",
                "Suspensions in force, begun by administrators or by limits",
            )?,
            grants_in_force: build.gauge("weir_grants_in_force", "Grants in force")?,
            notices: build.counters("weir_notices_total", "Notifications sent", &["notify", "limit"])?,
            budgets: build.gauge("weir_budgets_in_memory", "Budgets in memory")?,
            budget_octets: build.gauge("weir_budget_memory_bytes", "Memory that the budgets in memory take")?,
            new_budgets_shared: build.counters(
                "weir_new_budgets_shared_total",
                "New keys that share a budget, because their limit has made max-new-budgets in the last hour",
                &["limit"],
            )?,
        })
    }

    /// Shows the counters of these limits, with the initial value 0, so that Prometheus sees their first event as a
    /// change. Removes the counters of all other limits: otherwise reloads with ever new names would add labels without
    /// end.
    pub fn show(&self, limits: &[LimitLabels<'_>]) {
        limits.iter().for_each(|limit| self.show_limit(limit));
        let names: HashSet<&str> = limits.iter().map(|limit| limit.limit).chain([SUSPENDED]).collect();
        for counters in [
            &self.refusals,
            &self.shadow_refusals,
            &self.decisions,
            &self.suspensions,
            &self.notices,
            &self.new_budgets_shared,
        ] {
            forget_others(counters, &names);
        }
    }

    fn show_limit(&self, labels: &LimitLabels<'_>) {
        let LimitLabels { limit, mode, actions, notifications, suspends, bounds_new_budgets } = labels;
        for (stage, action) in actions {
            self.decisions.with_label_values(&[limit, stage, mode, action]);
            if let Some(refusals) = self.refusals_in(mode, action) {
                refusals.with_label_values(&[limit, stage]);
            }
        }
        for notify in notifications {
            self.notices.with_label_values(&[notify, limit]);
        }
        for (counter, is_shown) in [(&self.suspensions, suspends), (&self.new_budgets_shared, bounds_new_budgets)] {
            if *is_shown {
                counter.with_label_values(&[limit]);
            }
        }
    }

    /// Returns the counter of refusals for a limit of this mode with this action. `None` if the action does not refuse,
    /// or if the limit is in soft mode, which refuses nothing and pretends nothing.
    fn refusals_in(&self, mode: &str, action: &str) -> Option<&IntCounterVec> {
        match mode {
            _ if !REFUSALS.contains(&action) => None,
            SHADOW => Some(&self.shadow_refusals),
            "enforce" => Some(&self.refusals),
            _ => None,
        }
    }

    /// Counts a refused command. `limit`: the limit that the reply names. `also`: names of all other limits that refuse,
    /// perhaps more than once, because several rates of a limit can refuse.
    pub fn count_refusal(&self, limit: &str, also: &[Arc<str>], stage: &str, action: &str) {
        self.refusals.with_label_values(&[limit, stage]).inc();
        let count = |limit: &str| self.decisions.with_label_values(&[limit, stage, "enforce", action]).inc();
        count(limit);
        for (at, other) in also.iter().enumerate() {
            if **other != *limit && !also[..at].contains(other) {
                count(other);
            }
        }
    }

    /// Counts a command that a suspension refused.
    pub fn count_suspended(&self, stage: &str) {
        self.refusals.with_label_values(&[SUSPENDED, stage]).inc();
    }

    /// Counts a command that reached an action of a limit, and was not refused by the limit.
    pub fn count_hit(&self, limit: &str, stage: &str, mode: &str, action: &str) {
        self.decisions.with_label_values(&[limit, stage, mode, action]).inc();
        if mode == SHADOW && REFUSALS.contains(&action) {
            self.shadow_refusals.with_label_values(&[limit, stage]).inc();
        }
    }

    /// Counts a delay of this length, and counts a session as delayed until the returned guard is dropped.
    pub fn count_delayed(&self, time: Duration) -> GaugeGuard {
        self.delay_seconds.observe(time.as_secs_f64());
        GaugeGuard::new(&self.delayed)
    }
}

/// Removes the counters whose label `limit` is none of these names.
fn forget_others(counters: &IntCounterVec, names: &HashSet<&str>) {
    for family in counters.collect() {
        for metric in family.get_metric() {
            let labels: HashMap<&str, &str> =
                metric.get_label().iter().map(|label| (label.name(), label.value())).collect();
            if !labels.get("limit").is_some_and(|limit| names.contains(limit)) {
                // An error means that the counter has been removed already.
                let _ = counters.remove(&labels);
            }
        }
    }
}
