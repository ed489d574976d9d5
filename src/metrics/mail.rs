//! Metrics of messages and recipients.

use super::builder::Builder;
use prometheus::{Error, Histogram, IntCounterVec};

/// Metrics of messages and recipients.
pub struct MailMetrics {
    /// Messages that clients began to send (DATA or BDAT), by result: delivered, refused by the upstream, or the reason
    /// why the transfer stopped.
    pub messages: IntCounterVec,
    /// Recipients, by result: accepted by the upstream in a delivered message, or refused by the upstream.
    pub recipients: IntCounterVec,
    /// Senders as which a user may not send, by listener, part of the message, and consequence.
    pub sender_mismatches: IntCounterVec,
    /// Octets of delivered messages.
    pub size: Histogram,
    /// Seconds from MAIL to the reply to the message, for delivered messages.
    pub duration: Histogram,
}

impl MailMetrics {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        let messages = build.counters("weir_messages_total", "Messages that reached their end", &["result"])?;
        // Create the counters with the value 0, so that Prometheus sees the first message with each result as a change.
        for result in ["delivered", "refused", "upstream-away"] {
            messages.with_label_values(&[result]);
        }
        Ok(Self {
            messages,
            recipients: build.counters(
                "weir_recipients_total",
                "Recipients, delivered to or refused by the upstream",
                &["result"],
            )?,
            sender_mismatches: build.counters(
                "weir_sender_mismatches_total",
                "Senders, of an envelope or a From header, as which the user may not send",
                &["listener", "part", "action"],
            )?,
            size: build.histogram(
                "weir_message_size_bytes",
                "Sizes of delivered messages",
                &[1e3, 1e4, 1e5, 1e6, 3e6, 1e7, 3e7, 1e8],
            )?,
            duration: build.histogram(
                "weir_message_duration_seconds",
                "Time from MAIL to the reply to the message, of delivered messages",
                &[0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0],
            )?,
        })
    }
}
