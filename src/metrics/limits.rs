//! Metrics of limits, exceptions and budgets.

use super::builder::Builder;
use prometheus::{Error, Histogram, IntCounterVec, IntGauge};
use std::time::Duration;

/// Metrics of limits, exceptions and budgets.
pub struct LimitMetrics {
    /// Commands refused by a limit, by limit and stage.
    pub refusals: IntCounterVec,
    /// Commands that exceeded a limit but were not refused for that, by limit, stage and mode.
    pub hits: IntCounterVec,
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
    /// For each limit: number of new keys that had to share one budget. A limit creates only a certain number of new
    /// budgets in an hour; after that, all new keys share one budget.
    pub new_budgets_shared: IntCounterVec,
}

impl LimitMetrics {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        Ok(Self {
            refusals: build.counters("weir_refusals_total", "Commands refused by a limit", &["limit", "stage"])?,
            hits: build.counters(
                "weir_over_total",
                "Commands that exceeded a limit which did not refuse them: it only warns, delays, routes or notifies, or \
                 is in shadow or soft mode",
                &["limit", "stage", "mode"],
            )?,
            delay_seconds: build.histogram(
                "weir_delay_seconds",
                "Time by which a limit delays a reply",
                &[0.1, 0.3, 1.0, 3.0, 10.0, 20.0, 45.0],
            )?,
            delayed: build.gauge("weir_delayed_sessions", "Sessions that a limit delays at present")?,
            suspensions: build.counters("weir_suspensions_total", "Suspensions that a limit began", &["limit"])?,
            suspensions_in_force: build
                .gauge("weir_suspensions", "Suspensions in force, begun by administrators or by limits")?,
            grants_in_force: build.gauge("weir_grants", "Grants in force")?,
            notices: build.counters("weir_notices_total", "Notifications sent", &["notify", "limit"])?,
            budgets: build.gauge("weir_budgets", "Budgets in memory")?,
            new_budgets_shared: build.counters(
                "weir_new_budgets_shared_total",
                "New keys that share a budget, because their limit has made max-new-budgets in the last hour",
                &["limit"],
            )?,
        })
    }

    /// Shows the counters of a limit in force, with the initial value 0, so that Prometheus sees their first event as a
    /// change.
    pub fn show(&self, limit: &str, suspends: bool, bounds_new_budgets: bool) {
        for (counter, is_shown) in [(&self.suspensions, suspends), (&self.new_budgets_shared, bounds_new_budgets)] {
            if is_shown {
                counter.with_label_values(&[limit]);
            }
        }
    }

    /// Counts a delay of this length, and counts a session as delayed until the returned guard is dropped.
    pub fn count_delayed(&self, time: Duration) -> Delayed {
        self.delay_seconds.observe(time.as_secs_f64());
        self.delayed.inc();
        Delayed(self.delayed.clone())
    }
}

/// Guard that counts a delayed session until it is dropped.
pub struct Delayed(IntGauge);

impl Drop for Delayed {
    fn drop(&mut self) {
        self.0.dec();
    }
}
