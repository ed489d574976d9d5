//! Metrics of messages and recipients.

use super::builder::Builder;
use super::labelled_counters::LabelledCounters;
use prometheus::{Error, Histogram, IntCounterVec};

/// Metrics of messages and recipients.
pub struct MailMetrics {
    /// Mail transactions by result: delivered, passed to Postfix, refused by the upstream, or the reason why there is no
    /// message.
    pub messages: LabelledCounters,
    /// Recipients, by result: accepted by the upstream in a delivered message, passed to Postfix, or refused by the
    /// upstream.
    pub recipients: LabelledCounters,
    /// Senders as which a user may not send, by listener, part of the message, and consequence.
    pub sender_mismatches: IntCounterVec,
    /// Octets of delivered messages.
    pub size: Histogram,
    /// Seconds from MAIL to the reply to the message, for delivered messages.
    pub duration: Histogram,
}

/// Results of messages.
const MESSAGE_RESULTS: [&str; 18] = [
    "delivered",
    "passed",
    "refused",
    "upstream-away",
    "over-limit",
    "sender-mismatch",
    "suspended",
    "undecided",
    "too-large",
    "ambiguous",
    "continuation",
    "loop",
    "client-gone",
    "too-slow",
    "stopping",
    "abandoned",
    "report",
    "no-report",
];

/// Results of recipients.
const RECIPIENT_RESULTS: [&str; 3] = ["delivered", "passed", "upstream-refused"];

impl MailMetrics {
    pub(super) fn new(build: &Builder<'_>) -> Result<Self, Error> {
        let messages = build.counters(
            "weir_messages_total",
            "Mail transactions that ended, with or without a message",
            &["result"],
        )?;
        let recipients = build.counters(
            "weir_recipients_total",
            "Recipients of delivered messages, and recipients that the upstream refused",
            &["result"],
        )?;
        Ok(Self {
            messages: LabelledCounters::new(messages, &MESSAGE_RESULTS),
            recipients: LabelledCounters::new(recipients, &RECIPIENT_RESULTS),
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

    pub(super) fn show_listener(&self, listener: &str) {
        for part in ["envelope", "header"] {
            for action in ["warn", "refuse"] {
                self.sender_mismatches.with_label_values(&[listener, part, action]);
            }
        }
    }
}
