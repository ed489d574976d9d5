//! Metrics of outcomes of deliveries.

use super::builder::Builder;
use prometheus::{Error, IntCounter, IntCounterVec};

/// Metrics of outcomes of deliveries.
pub struct OutcomeMetrics {
    /// Outcomes that were attributed to a message, by kind.
    pub attributed: IntCounterVec,
    /// Outcomes of no message that Weir knows, by kind.
    pub unknown: IntCounterVec,
    /// Outcomes that had been counted before.
    pub repeated: IntCounter,
    /// Queue ids that were not stored, because too many waited to be written.
    pub queue_ids_dropped: IntCounter,
}

/// Kinds of outcomes.
const KINDS: [&str; 5] = ["sent", "deferred", "bounced", "expired", "complained"];

impl OutcomeMetrics {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        let attributed = build.counters(
            "weir_outcomes_total",
            "Outcomes of deliveries that were attributed to a message, by kind",
            &["kind"],
        )?;
        let unknown = build.counters(
            "weir_outcomes_unknown_total",
            "Outcomes of no message that Weir knows, by kind",
            &["kind"],
        )?;
        for kind in KINDS {
            attributed.with_label_values(&[kind]);
            unknown.with_label_values(&[kind]);
        }
        Ok(Self {
            attributed,
            unknown,
            repeated: build.counter("weir_outcomes_repeated_total", "Outcomes that had been counted before")?,
            queue_ids_dropped: build.counter(
                "weir_outcomes_queue_ids_dropped_total",
                "Queue ids that were not stored, because too many waited to be written",
            )?,
        })
    }
}
