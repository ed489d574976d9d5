//! Metrics for Prometheus. The other modules count in them; only the metrics page reads them.

use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// All metrics of a process.
pub struct Metrics {
    registry: Registry,
    /// Open SMTP sessions, by listener.
    pub sessions: IntGaugeVec,
    /// Maximum of concurrent connections that is in force: the configured one, or a lower one if the system's limit of
    /// open files does not allow that many.
    pub max_connections: IntGauge,
    /// Accepted client connections, by listener.
    pub connections: IntCounterVec,
    /// Client connections closed before an SMTP session began, by listener and reason. The reason is the configuration
    /// key of the limit that the connection exceeded.
    pub connections_refused: IntCounterVec,
    /// Logins, by result.
    pub logins: IntCounterVec,
    /// Messages that clients began to send (DATA or BDAT), by result: delivered, refused by the upstream, or why the
    /// transfer stopped.
    pub messages: IntCounterVec,
    /// Recipients, by result: accepted by the upstream in a delivered message, or refused by the upstream.
    pub recipients: IntCounterVec,
    /// Commands refused by a limit, by limit and stage.
    pub refusals: IntCounterVec,
    /// Commands that exceeded a limit but were not refused for that, by limit, stage and mode.
    pub limit_hits: IntCounterVec,
    /// Seconds by which limits have delayed replies.
    delay_seconds: Histogram,
    /// Sessions that a limit delays at present.
    delayed: IntGauge,
    /// Suspensions that began, by limit.
    pub suspensions: IntCounterVec,
    /// Grants in force.
    pub grants_in_force: IntGauge,
    /// Suspensions in force, begun by an administrator or by a limit.
    pub suspensions_in_force: IntGauge,
    /// Notification messages sent, by configured notification and by limit.
    pub notices: IntCounterVec,
    /// Metrics of the upstreams. A reload of the configuration may add and remove upstreams.
    pub upstreams: Arc<Upstreams>,
    /// Seconds from a charge or refund until it was durable, or until the session stopped waiting for that.
    pub admit_seconds: Histogram,
    /// 1 while the state file has a problem, otherwise 0.
    pub state_degraded: IntGauge,
    /// Number of budgets in memory.
    pub budgets: IntGauge,
    /// New keys that had to share a budget, because their limit had created its maximum of new budgets in the last
    /// hour; by limit.
    pub new_budgets_shared: IntCounterVec,
    /// Octets of changes in the state file's journal that are not yet in its table of budgets.
    pub journal_octets: IntGauge,
    /// Octets of the state file's write-ahead log.
    pub wal_octets: IntGauge,
    /// 1 while a reader of the state file prevents the reset of its write-ahead log.
    pub wal_held: IntGauge,
    /// Jumps of the wall clock since the start.
    pub clock_jumps: IntCounter,
    /// Seconds by which the wall clock is ahead of Weir's time.
    pub clock_ahead: IntGauge,
    /// Reloads of the configuration since the start, by result.
    pub reloads: IntCounterVec,
    /// 0 while the configuration file is invalid and an earlier version of it is in force; otherwise 1.
    pub config_good: IntGauge,
    /// Log lines lost because the reader of standard error was too slow, or because writing them failed.
    pub log_lines_lost: IntCounter,
    /// Log lines about clients without a login that were not written because there were too many, by message.
    pub log_lines_suppressed: IntCounterVec,
    /// Connections without a login that were closed to make room for new ones, by listener.
    pub connections_evicted: IntCounterVec,
    /// Seconds since 1970 at which the validity of a certificate ends, by its file.
    pub certificate_expiry: IntGaugeVec,
}

/// Metrics by upstream.
pub struct Upstreams {
    up: IntGaugeVec,
    connections: IntGaugeVec,
    waiting: IntGaugeVec,
    opened: IntCounterVec,
    reused: IntCounterVec,
    failures: IntCounterVec,
    /// Number of [`UpstreamMetrics`] for each name of an upstream. It can be 2: after a change of the configuration,
    /// the new upstream begins before the old one of the same name ends. The lock is held to count them, and to remove
    /// the metrics of a name that is no longer in use.
    counting: Mutex<HashMap<String, usize>>,
}

/// Metrics of one upstream. They are removed when the upstream was removed and all connections to it are closed.
pub struct UpstreamMetrics {
    name: String,
    all: Arc<Upstreams>,
    /// 1 while Weir considers the upstream usable, otherwise 0.
    pub up: IntGauge,
    /// Open connections, busy or idle.
    connections: IntGauge,
    /// Idle connections, which wait for a message.
    pub waiting: IntGauge,
    /// Connections opened.
    pub opened: IntCounter,
    /// Times that an open connection was reused for another message.
    pub reused: IntCounter,
    /// Times that the upstream could not be reached, did not answer in time, or sent an invalid answer.
    pub failures: IntCounter,
}

/// Guard that counts a delayed session until it is dropped.
pub struct Delayed(IntGauge);

impl Drop for Delayed {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Guard that counts an open connection until it is dropped.
pub struct Counted(Arc<UpstreamMetrics>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

impl Upstreams {
    /// Returns the metrics of the upstream of this name.
    pub fn of(self: &Arc<Self>, name: &str) -> Arc<UpstreamMetrics> {
        let mut counting = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        *counting.entry(name.to_owned()).or_default() += 1;
        let Self { up, connections, waiting, opened, reused, failures, .. } = &**self;
        Arc::new(UpstreamMetrics {
            up: up.with_label_values(&[name]),
            connections: connections.with_label_values(&[name]),
            waiting: waiting.with_label_values(&[name]),
            opened: opened.with_label_values(&[name]),
            reused: reused.with_label_values(&[name]),
            failures: failures.with_label_values(&[name]),
            name: name.to_owned(),
            all: self.clone(),
        })
    }

    fn forget(&self, name: &str) {
        let Self { up, connections, waiting, opened, reused, failures, .. } = self;
        for gauges in [up, connections, waiting] {
            let _ = gauges.remove_label_values(&[name]);
        }
        for counters in [opened, reused, failures] {
            let _ = counters.remove_label_values(&[name]);
        }
    }
}

impl UpstreamMetrics {
    /// Counts a connection until the guard is dropped.
    pub fn count_connection(self: &Arc<Self>) -> Counted {
        self.connections.inc();
        Counted(self.clone())
    }
}

impl Drop for UpstreamMetrics {
    fn drop(&mut self) {
        let mut counting = self.all.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = counting.get_mut(&self.name) else { return };
        *count -= 1;
        if *count == 0 {
            counting.remove(&self.name);
            self.all.forget(&self.name);
        }
    }
}

fn counter(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
    let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn gauges(registry: &Registry, name: &str, help: &str, label: &str) -> Result<IntGaugeVec, prometheus::Error> {
    let metric = IntGaugeVec::new(Opts::new(name, help), &[label])?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

impl Upstreams {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| counter(registry, name, help, &["upstream"]);
        let gauges = |name: &str, help: &str| gauges(registry, name, help, "upstream");
        Ok(Self {
            up: gauges("weir_upstream_up", "1 while the upstream is of use, as far as is known")?,
            connections: gauges("weir_upstream_connections", "Connections to the upstream, busy or waiting")?,
            waiting: gauges(
                "weir_upstream_connections_waiting",
                "Connections to the upstream that wait for a message",
            )?,
            opened: counter("weir_upstream_connections_opened_total", "Connections opened to the upstream")?,
            reused: counter("weir_upstream_connections_reused_total", "Connections used for a further message")?,
            failures: counter(
                "weir_upstream_failures_total",
                "Times the upstream could not be reached, was silent or not understood",
            )?,
            counting: Mutex::default(),
        })
    }
}

impl Metrics {
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| counter(&registry, name, help, labels);
        let gauges = |name: &str, help: &str, label: &str| gauges(&registry, name, help, label);
        let gauge = |name: &str, help: &str| {
            let metric = IntGauge::new(name, help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let upstreams = Upstreams::register(&registry)?;
        gauges("weir_build_info", "1, with the version of this Weir", "version")?
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        let clock_jumps = IntCounter::new("weir_clock_jumps_total", "Jumps of the wall clock since the start")?;
        registry.register(Box::new(clock_jumps.clone()))?;
        let admit = HistogramOpts::new(
            "weir_admit_seconds",
            "Time until what is charged or given back is durable, or given up",
        )
        .buckets(vec![0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]);
        let admit_seconds = Histogram::with_opts(admit)?;
        registry.register(Box::new(admit_seconds.clone()))?;
        let delay = HistogramOpts::new("weir_delay_seconds", "Time by which a limit has an answer be late")
            .buckets(vec![0.1, 0.3, 1.0, 3.0, 10.0, 20.0, 45.0]);
        let delay_seconds = Histogram::with_opts(delay)?;
        registry.register(Box::new(delay_seconds.clone()))?;
        let logins = counter("weir_logins_total", "Logins", &["result"])?;
        let messages = counter("weir_messages_total", "Messages that reached their end", &["result"])?;
        // Created with the value 0, so that Prometheus sees the first login and message of each result as a change.
        for result in ["right", "wrong", "busy"] {
            logins.with_label_values(&[result]);
        }
        let reloads = counter("weir_reloads_total", "Readings of the configuration since the start", &["result"])?;
        for result in ["taken", "refused"] {
            reloads.with_label_values(&[result]);
        }
        let config_good =
            gauge("weir_config_good", "0 while the configuration file is bad and a former one is in force")?;
        config_good.set(1);
        let log_lines_lost =
            IntCounter::new("weir_log_lines_lost_total", "Log lines that standard error did not take in time")?;
        registry.register(Box::new(log_lines_lost.clone()))?;
        for result in ["delivered", "refused", "upstream-away"] {
            messages.with_label_values(&[result]);
        }
        Ok(Self {
            sessions: gauges("weir_sessions", "Sessions under way", "listener")?,
            max_connections: gauge(
                "weir_max_connections",
                "Connections at once that are in force, over all listeners",
            )?,
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
            limit_hits: counter(
                "weir_over_total",
                "Commands over a limit that did not refuse them: it warns, delays, routes or notifies, or is not in force",
                &["limit", "stage", "mode"],
            )?,
            delay_seconds,
            delayed: gauge("weir_delayed_sessions", "Sessions that wait at present, as a limit says")?,
            suspensions: counter("weir_suspensions_total", "Suspensions that a limit began", &["limit"])?,
            grants_in_force: gauge("weir_grants", "Grants in force")?,
            suspensions_in_force: gauge("weir_suspensions", "Suspensions in force, whoever began them")?,
            notices: counter("weir_notices_total", "Notices that went out", &["notify", "limit"])?,
            upstreams: Arc::new(upstreams),
            admit_seconds,
            state_degraded: gauge("weir_state_degraded", "1 while the state file is not as it should be")?,
            budgets: gauge("weir_budgets", "Budgets in memory")?,
            new_budgets_shared: counter(
                "weir_new_budgets_shared_total",
                "Times that a new key shared a budget, as its limit had made max-new-budgets in the last hour",
                &["limit"],
            )?,
            journal_octets: gauge("weir_state_journal_bytes", "Changes in the state file's journal, to be folded")?,
            wal_octets: gauge("weir_state_wal_bytes", "Length of the state file's write-ahead log")?,
            wal_held: gauge(
                "weir_state_wal_held",
                "1 while a reader of the state file prevents the reset of its write-ahead log",
            )?,
            clock_jumps,
            clock_ahead: gauge(
                "weir_clock_ahead_seconds",
                "Seconds by which the wall clock has jumped ahead of the time that Weir goes by",
            )?,
            reloads,
            config_good,
            log_lines_lost,
            log_lines_suppressed: counter(
                "weir_log_lines_suppressed_total",
                "Log lines that were left out, as one client or all strangers caused too many",
                &["message"],
            )?,
            connections_evicted: counter(
                "weir_connections_evicted_total",
                "Connections without a login that were closed to make room for others",
                &["listener"],
            )?,
            certificate_expiry: gauges(
                "weir_certificate_expiry_timestamp_seconds",
                "End of a certificate's validity, in seconds since 1970",
                "certificate",
            )?,
            registry,
        })
    }

    /// Shows the counters of a limit that is in force with 0, so that Prometheus sees their first event as a change.
    pub fn show_limit(&self, limit: &str, suspends: bool, bounds_new_budgets: bool) {
        for (counter, is_shown) in [(&self.suspensions, suspends), (&self.new_budgets_shared, bounds_new_budgets)] {
            if is_shown {
                counter.with_label_values(&[limit]);
            }
        }
    }

    /// Counts a delay of this length, and counts a session as delayed until the returned guard is dropped.
    pub fn count_delayed(&self, time: Duration) -> Delayed {
        self.delay_seconds.observe(time.as_secs_f64());
        self.delayed.inc();
        Delayed(self.delayed.clone())
    }

    /// Renders all metrics in the text format of Prometheus.
    pub fn render(&self) -> String {
        let mut out = Vec::new();
        // Encoding to memory fails only for a metric without a name, and such a metric cannot be registered.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut out);
        String::from_utf8(out).unwrap_or_default()
    }
}
