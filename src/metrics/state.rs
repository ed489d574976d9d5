//! Metrics of the state file.

use super::builder::Builder;
use prometheus::{Error, Histogram, IntGauge};

/// Metrics of the state file.
pub struct StateMetrics {
    /// 1 while the state file has a problem, otherwise 0.
    pub degraded: IntGauge,
    /// Seconds from a charge or refund until the charge or refund was durable, or until the session stopped waiting.
    pub admit_seconds: Histogram,
    /// Octets of changes in the state file's journal that are not yet in its table of budgets.
    pub journal_octets: IntGauge,
    /// Octets of the state file's write-ahead log.
    pub wal_octets: IntGauge,
    /// 1 while a reader of the state file prevents the reset of its write-ahead log.
    pub wal_held: IntGauge,
}

impl StateMetrics {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        Ok(Self {
            degraded: build.gauge("weir_state_degraded", "1 while the state file has a problem")?,
            admit_seconds: build.histogram(
                "weir_admit_seconds",
                "Time until a charge or refund was durable, or until Weir stopped waiting for that",
                &[0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0],
            )?,
            journal_octets: build.gauge(
                "weir_state_journal_bytes",
                "Changes in the state file's journal that are not in its table of budgets yet",
            )?,
            wal_octets: build.gauge("weir_state_wal_bytes", "Length of the state file's write-ahead log")?,
            wal_held: build.gauge(
                "weir_state_wal_held",
                "1 while a reader of the state file prevents the reset of its write-ahead log",
            )?,
        })
    }
}
