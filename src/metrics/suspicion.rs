//! Metrics of suspicious users. No label names a user.

use super::builder::Builder;
use prometheus::{Error, IntCounterVec, IntGaugeVec};

/// Metrics of suspicious users, by their class.
pub struct SuspicionMetrics {
    /// Users in a class, among the users whose signs are in memory. A locked user counts as watched, too.
    pub users: IntGaugeVec,
    /// Events with which a user reached a class.
    pub rises: IntCounterVec,
}

impl SuspicionMetrics {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        Ok(Self {
            users: build.gauges(
                "weir_suspicious_users",
                "Users whose suspicion score is in a class, or in a higher one; counted every 30 s among the users whose \
                 scores are in memory",
                &["class"],
            )?,
            rises: build.counters(
                "weir_suspicion_rises_total",
                "Users who have reached a class of suspicion from a lower score",
                &["class"],
            )?,
        })
    }

    /// Shows these classes with the initial value 0, so that Prometheus sees the first user as a change.
    pub fn show(&self, classes: &[&str]) {
        for class in classes {
            self.users.with_label_values(&[class]);
            self.rises.with_label_values(&[class]);
        }
    }
}
