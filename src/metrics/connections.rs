//! Metrics of client connections and logins.

use super::builder::Builder;
use prometheus::{Error, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

/// Metrics of client connections and logins.
pub struct ConnectionMetrics {
    /// Open SMTP sessions, by listener.
    pub sessions: IntGaugeVec,
    /// Maximum number of concurrent connections in force. It is the configured maximum, or a lower number if the
    /// system's limit of open files does not allow so many connections.
    pub max: IntGauge,
    /// Client connections that the system accepted, by listener. Connections that Weir then refused are included.
    pub accepted: IntCounterVec,
    /// Client connections closed before an SMTP session began, by listener and reason. The reason is the configuration
    /// key of the limit that the connection exceeded.
    pub refused: IntCounterVec,
    /// Connections without a login that were closed to make room for new connections, by listener.
    pub evicted: IntCounterVec,
    /// Failures of the system to accept a connection, by listener.
    pub accept_errors: IntCounterVec,
    /// Logins, by result.
    pub logins: IntCounterVec,
    /// Logins with the right password that were refused because the client is in none of the user's login networks.
    pub logins_from_other_networks: IntCounter,
    /// Errors of Dovecot as a source of accounts.
    pub dovecot_errors: IntCounter,
}

/// Reasons for which connections are refused.
const REASONS: [&str; 3] = ["max-connections", "max-connections-per-client", "proxy-protocol"];

impl ConnectionMetrics {
    /// Returns the number of open SMTP sessions of a listener.
    pub fn open_sessions(&self, listener: &str) -> u64 {
        self.sessions.with_label_values(&[listener]).get().try_into().unwrap_or(0)
    }

    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        let logins = build.counters("weir_logins_total", "Logins whose credentials were checked", &["result"])?;
        // Create the counters with the value 0, so that Prometheus sees the first login with each result as a change.
        for result in ["right", "wrong", "unavailable"] {
            logins.with_label_values(&[result]);
        }
        Ok(Self {
            sessions: build.gauges("weir_sessions", "Open sessions", &["listener"])?,
            max: build.gauge("weir_max_connections", "Maximum of concurrent connections, over all listeners")?,
            accepted: build.counters(
                "weir_connections_total",
                "Connections accepted by the system, also those that Weir then refused",
                &["listener"],
            )?,
            refused: build.counters(
                "weir_connections_refused_total",
                "Connections closed before they had a session",
                &["listener", "reason"],
            )?,
            evicted: build.counters(
                "weir_connections_evicted_total",
                "Connections without a login that were closed to make room for others",
                &["listener"],
            )?,
            accept_errors: build.counters(
                "weir_accept_errors_total",
                "Failures of the system to accept a connection, such as a lack of open files",
                &["listener"],
            )?,
            logins,
            logins_from_other_networks: build.counter(
                "weir_logins_from_other_networks_total",
                "Right logins that were refused because the client is in none of the user's login networks",
            )?,
            dovecot_errors: build.counter(
                "weir_dovecot_errors_total",
                "Logins that Dovecot did not answer, and failed attempts to connect to it",
            )?,
        })
    }

    pub(super) fn show_listener(&self, listener: &str) {
        self.sessions.with_label_values(&[listener]);
        for counters in [&self.accepted, &self.evicted, &self.accept_errors] {
            counters.with_label_values(&[listener]);
        }
        for reason in REASONS {
            self.refused.with_label_values(&[listener, reason]);
        }
    }
}
