//! Metrics of the delivery of notices.

use super::builder::Builder;
use prometheus::{Error, IntCounterVec, IntGauge};

/// Metrics of the delivery of notices.
pub struct NoticeMetrics {
    /// Deliveries by kind of the target and outcome.
    pub deliveries: IntCounterVec,
    /// Deliveries that wait.
    pub waiting: IntGauge,
    /// Octets of the deliveries that wait.
    pub waiting_octets: IntGauge,
    /// Open episodes.
    pub episodes: IntGauge,
}

/// Values of the label `kind`.
const KINDS: [&str; 4] = ["webhook", "command", "mail", "user"];

/// Values of the label `outcome`.
const OUTCOMES: [&str; 5] = ["delivered", "failed", "lost", "dropped", "skipped"];

impl NoticeMetrics {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        let deliveries = build.counters(
            "weir_notice_deliveries_total",
            "Attempts to deliver notices, and notices that were not delivered",
            &["kind", "outcome"],
        )?;
        // All labels are shown from the start, so that Prometheus sees their first event as a change.
        for kind in KINDS {
            OUTCOMES.iter().for_each(|outcome| drop(deliveries.with_label_values(&[kind, outcome])));
        }
        Ok(Self {
            deliveries,
            waiting: build.gauge("weir_notices_waiting", "Deliveries of notices that wait")?,
            waiting_octets: build
                .gauge("weir_notices_waiting_bytes", "Octets of the deliveries of notices that wait")?,
            episodes: build.gauge("weir_notice_episodes", "Open episodes of notifications")?,
        })
    }
}
