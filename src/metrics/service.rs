//! Metrics of the service itself: configuration, clock, log and certificates.

use super::builder::Builder;
use crate::time::Timestamp;
use prometheus::core::Collector as _;
use prometheus::{Error, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

/// Metrics of configuration, clock, log and certificates.
pub struct ServiceMetrics {
    /// Reloads of the configuration since the start, by result.
    pub reloads: IntCounterVec,
    /// 0 while the configuration file is invalid and an earlier version of it is in force; otherwise 1.
    pub config_good: IntGauge,
    /// Seconds since 1970 at which the configuration in force was read.
    pub config_read: IntGauge,
    /// Jumps of the wall clock since the start.
    pub clock_jumps: IntCounter,
    /// Seconds by which the wall clock is ahead of Weir's time.
    pub clock_ahead: IntGauge,
    /// Log lines lost because the reader of standard error was too slow, or because writing them failed.
    pub log_lines_lost: IntCounter,
    /// Log lines about clients without a login that were not written because there were too many, by message.
    pub log_lines_suppressed: IntCounterVec,
    /// Lines of the decision log that were lost because the disk was too slow, or because writing them failed.
    pub decision_log_lines_lost: IntCounter,
    /// Seconds since 1970 at which the validity of a certificate ends, by its file.
    pub certificate_expiry: IntGaugeVec,
}

/// Cargo profile of the build. A debug build is slow, and must not serve.
const PROFILE: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

impl ServiceMetrics {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        build
            .gauges(
                "weir_build_info",
                "Always 1; the labels describe the program",
                &["version", "architecture", "profile"],
            )?
            .with_label_values(&[env!("CARGO_PKG_VERSION"), std::env::consts::ARCH, PROFILE])
            .set(1);
        let reloads =
            build.counters("weir_reloads_total", "Reloads of the configuration since the start", &["result"])?;
        // Create the counters with the value 0, so that Prometheus sees the first reload with each result as a change.
        for result in ["taken", "refused"] {
            reloads.with_label_values(&[result]);
        }
        Ok(Self {
            reloads,
            config_good: build
                .gauge("weir_config_good", "0 while the configuration file is invalid and a former one is in force")?,
            config_read: build.gauge(
                "weir_config_last_reload_success_timestamp_seconds",
                "When the configuration in force was read, in seconds since 1970",
            )?,
            clock_jumps: build.counter("weir_clock_jumps_total", "Jumps of the wall clock since the start")?,
            clock_ahead: build.gauge(
                "weir_clock_ahead_seconds",
                "Seconds by which the wall clock is ahead of Weir's time, after a jump",
            )?,
            log_lines_lost: build
                .counter("weir_log_lines_lost_total", "Log lines that standard error did not accept in time")?,
            log_lines_suppressed: build.counters(
                "weir_log_lines_suppressed_total",
                "Log lines that were left out, because clients caused too many",
                &["message"],
            )?,
            decision_log_lines_lost: build.counter(
                "weir_decision_log_lines_lost_total",
                "Lines of the decision log that its file did not accept, or not in time",
            )?,
            certificate_expiry: build.gauges(
                "weir_certificate_expiry_timestamp_seconds",
                "End of a certificate's validity, in seconds since 1970",
                &["certificate"],
            )?,
        })
    }

    /// Returns each certificate file whose end of validity is known, with this end.
    pub fn certificate_expiries(&self) -> Vec<(String, Timestamp)> {
        let families = self.certificate_expiry.collect();
        let metrics = families.iter().flat_map(|family| family.get_metric());
        let expiry = metrics.filter_map(|metric| {
            let file = metric.get_label().first()?.value().to_owned();
            let seconds = metric.get_gauge().get_value() as i64;
            Some((file, Timestamp::from_micros(seconds.saturating_mul(1_000_000))))
        });
        expiry.collect()
    }

    /// Records that a configuration is in force, which was read at the time `now`.
    pub fn config_taken(&self, now: Timestamp) {
        self.config_good.set(1);
        self.config_read.set(now.micros() / 1_000_000);
    }
}
