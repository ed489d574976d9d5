//! What Prometheus is told. Rooms count here; nobody reads here but the scraper.

use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

/// All metrics of a process.
pub struct Metrics {
    registry: Registry,
    /// Sessions under way, by listener.
    pub sessions: IntGaugeVec,
    /// Connections accepted, by listener.
    pub connections: IntCounterVec,
    /// Connections closed before they had a session, by listener and reason: the key of the configuration that says so.
    pub connections_refused: IntCounterVec,
    /// Logins, by result.
    pub logins: IntCounterVec,
    /// Messages that reached their end, by result.
    pub messages: IntCounterVec,
    /// Recipients of messages that were delivered, and those that the upstream refused.
    pub recipients: IntCounterVec,
    /// Refusals, by limit and stage.
    pub refusals: IntCounterVec,
    /// Commands and messages for which the upstream was of no use.
    pub upstream_failures: IntCounter,
    /// Seconds that an admit took, its commit among them.
    pub admit_seconds: Histogram,
    /// 1 while the state file is not as it should be.
    pub state_degraded: IntGauge,
    /// Budgets in memory.
    pub budgets: IntGauge,
    /// Octets of changes that are in the state file's journal and not yet in its table of budgets.
    pub journal_octets: IntGauge,
}

impl Metrics {
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let gauge = |name: &str, help: &str| {
            let metric = IntGauge::new(name, help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let sessions = IntGaugeVec::new(Opts::new("weir_sessions", "Sessions under way"), &["listener"])?;
        registry.register(Box::new(sessions.clone()))?;
        let failures = "Times the upstream could not be reached, was silent or not understood";
        let upstream_failures = IntCounter::new("weir_upstream_failures_total", failures)?;
        registry.register(Box::new(upstream_failures.clone()))?;
        let admit = HistogramOpts::new("weir_admit_seconds", "Time to decide a stage, its commit included")
            .buckets(vec![0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]);
        let admit_seconds = Histogram::with_opts(admit)?;
        registry.register(Box::new(admit_seconds.clone()))?;
        let logins = counter("weir_logins_total", "Logins", &["result"])?;
        let messages = counter("weir_messages_total", "Messages that reached their end", &["result"])?;
        // Known from the start, so that the first of each is seen as a change.
        for result in ["right", "wrong", "busy"] {
            logins.with_label_values(&[result]);
        }
        for result in ["delivered", "refused", "upstream-away"] {
            messages.with_label_values(&[result]);
        }
        Ok(Self {
            sessions,
            connections: counter("weir_connections_total", "Connections accepted", &["listener"])?,
            connections_refused: counter(
                "weir_connections_refused_total",
                "Connections closed before they had a session",
                &["listener", "reason"],
            )?,
            logins,
            messages,
            recipients: counter(
                "weir_recipients_total",
                "Recipients, delivered to or refused by the upstream",
                &["result"],
            )?,
            refusals: counter("weir_refusals_total", "Commands refused by a limit", &["limit", "stage"])?,
            upstream_failures,
            admit_seconds,
            state_degraded: gauge("weir_state_degraded", "1 while the state file is not as it should be")?,
            budgets: gauge("weir_budgets", "Budgets in memory")?,
            journal_octets: gauge("weir_state_journal_bytes", "Changes in the state file's journal, to be folded")?,
            registry,
        })
    }

    /// Everything, in the text format of Prometheus.
    pub fn render(&self) -> String {
        let mut out = Vec::new();
        // Encoding to memory fails only for a metric without a name, which registering has refused.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut out);
        String::from_utf8(out).unwrap_or_default()
    }
}
