//! Builder of metrics: creates a metric and registers it.

use prometheus::core::Collector;
use prometheus::{
    Error, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// Creates metrics in this registry. Each function fails if the name is invalid, or if the registry has a metric of this
/// name.
pub struct Builder<'a>(pub &'a Registry);

impl Builder<'_> {
    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter, Error> {
        self.register(IntCounter::new(name, help)?)
    }

    /// Creates counters with these labels.
    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, Error> {
        self.register(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, Error> {
        self.register(IntGauge::new(name, help)?)
    }

    /// Creates gauges with these labels.
    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, Error> {
        self.register(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// Creates a histogram with these upper bounds of its buckets.
    pub fn histogram(&self, name: &str, help: &str, bounds: &[f64]) -> Result<Histogram, Error> {
        self.register(Histogram::with_opts(HistogramOpts::new(name, help).buckets(bounds.to_vec()))?)
    }

    /// Creates histograms with these labels, and these upper bounds of their buckets.
    pub fn histograms(&self, name: &str, help: &str, labels: &[&str], bounds: &[f64]) -> Result<HistogramVec, Error> {
        self.register(HistogramVec::new(HistogramOpts::new(name, help).buckets(bounds.to_vec()), labels)?)
    }

    fn register<T: Collector + Clone + 'static>(&self, metric: T) -> Result<T, Error> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }
}
