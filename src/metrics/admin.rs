//! Metrics of the admin API.

use super::builder::Builder;
use prometheus::{Error, IntCounterVec, IntGauge};

/// Metrics of the admin API.
pub struct AdminMetrics {
    /// Refused requests, by reason: `no-token`, `wrong-token`, `no-session`, `csrf`, `read-only`, `host`, `origin`, or the
    /// code of another error.
    pub refused: IntCounterVec,
    /// Open readers of the event stream.
    pub event_readers: IntGauge,
}

impl AdminMetrics {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        let refused =
            build.counters("weir_admin_requests_refused_total", "Requests that the admin API refused", &["reason"])?;
        // Create the counters with the value 0, so that Prometheus sees the first request of a stranger as a change.
        for reason in ["no-token", "wrong-token", "no-session", "csrf", "read-only", "host", "origin"] {
            refused.with_label_values(&[reason]);
        }
        let event_readers = build.gauge("weir_admin_event_readers", "Open readers of the event stream")?;
        Ok(Self { refused, event_readers })
    }
}
