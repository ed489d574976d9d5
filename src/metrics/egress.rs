//! Metrics of egress control.

use super::builder::Builder;
use prometheus::{Error, IntCounter};

/// Metrics of egress control.
pub struct EgressMetrics {
    /// Connections of clients that the edge has blocked, as far as they were reported to Weir.
    pub blocked_connections: IntCounter,
}

impl EgressMetrics {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        Ok(Self {
            blocked_connections: build.counter(
                "weir_blocked_connections_total",
                "Connections of clients that the edge has blocked, as far as they were reported to Weir",
            )?,
        })
    }
}
