//! Counters with one label.

use prometheus::{IntCounter, IntCounterVec};

/// Counters of a metric with one label. The counters of the usual values are found without the lock of the metric, which
/// all processors would share.
pub struct LabelledCounters {
    all: IntCounterVec,
    usual: Vec<(&'static str, IntCounter)>,
}

impl LabelledCounters {
    /// Creates the counters of the usual values with the value 0, so that Prometheus sees the first count as a change.
    pub(super) fn new(all: IntCounterVec, usual: &[&'static str]) -> Self {
        let usual = usual.iter().map(|value| (*value, all.with_label_values(&[*value]))).collect();
        Self { all, usual }
    }

    /// Adds `count` to the counter of this value of the label.
    pub fn add(&self, value: &str, count: u64) {
        match self.usual.iter().find(|(usual, _)| *usual == value) {
            Some((_, counter)) => counter.inc_by(count),
            None => self.all.with_label_values(&[value]).inc_by(count),
        }
    }
}
