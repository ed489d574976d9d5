//! Metrics of the queues in which logins wait for the check of their password.

use super::builder::Builder;
use super::gauge_guard::GaugeGuard;
use prometheus::{Error, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use std::time::Duration;

/// Metrics of the queues of all sources of accounts.
pub struct PasswordCheckMetrics {
    running: IntGaugeVec,
    waiting: IntGaugeVec,
    wait_seconds: HistogramVec,
    rejected: IntCounterVec,
    given_up: IntCounterVec,
}

/// Metrics of the queue of one source of accounts.
#[derive(Clone)]
pub struct PasswordQueue {
    running: IntGauge,
    waiting: IntGauge,
    wait_seconds: Histogram,
    /// Number of checks that found the queue of their network full.
    pub rejected: IntCounter,
    /// Number of checks that left the queue before their turn: the check waited for too long, or the client left.
    pub given_up: IntCounter,
}

impl PasswordCheckMetrics {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        Ok(Self {
            running: build.gauges("weir_password_checks_running", "Password checks that run", &["source"])?,
            waiting: build.gauges("weir_password_checks_waiting", "Logins that wait for their check", &["source"])?,
            wait_seconds: build.histograms(
                "weir_password_check_wait_seconds",
                "Time for which a login waited until its check began",
                &["source"],
                &[0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 20.0],
            )?,
            rejected: build.counters(
                "weir_password_checks_rejected_total",
                "Logins that were not checked because too many logins of the same network waited already",
                &["source"],
            )?,
            given_up: build.counters(
                "weir_password_checks_given_up_total",
                "Logins that were not checked because they waited for too long, or the client left",
                &["source"],
            )?,
        })
    }

    /// Returns the metrics of the queue of this source.
    pub fn queue(&self, source: &str) -> PasswordQueue {
        PasswordQueue {
            running: self.running.with_label_values(&[source]),
            waiting: self.waiting.with_label_values(&[source]),
            wait_seconds: self.wait_seconds.with_label_values(&[source]),
            rejected: self.rejected.with_label_values(&[source]),
            given_up: self.given_up.with_label_values(&[source]),
        }
    }
}

impl PasswordQueue {
    /// Counts a login as waiting until the guard is dropped.
    pub fn count_waiting(&self) -> GaugeGuard {
        GaugeGuard::new(&self.waiting)
    }

    /// Counts a check as running until the guard is dropped.
    pub fn count_running(&self) -> GaugeGuard {
        GaugeGuard::new(&self.running)
    }

    /// Records for how long a login waited until its check began.
    pub fn observe_wait(&self, waited: Duration) {
        self.wait_seconds.observe(waited.as_secs_f64());
    }
}
