//! Totals of a simulation over all limits: what happened to the honest mail of the history.

use super::history_csv::Message;
use super::origin::Origin;
use super::replay::{Outcome, Refused};
use crate::time::Timestamp;
use foldhash::fast::RandomState;
use std::collections::HashSet;
use std::time::Duration;

/// Totals over the messages of the history, without the mail of an attack.
#[derive(Clone, Default)]
pub struct Totals {
    pub messages: u64,
    pub recipients: u64,
    pub origins: HashSet<Origin, RandomState>,
    span: Option<(Timestamp, Timestamp)>,
    pub refused: RefusedRecipients,
    /// Origins with at least one refused recipient.
    pub refused_origins: HashSet<Origin>,
    /// Refused recipients of the attacked account's own mail, after the attack began.
    pub of_attacked: u64,
}

/// Numbers of recipients that got no mail, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedRecipients {
    /// An enforced limit refused the recipient, or MAIL.
    pub by_limits: u64,
    /// The owner was suspended or locked.
    pub while_suspended: u64,
    /// The recipient was accepted, and the whole message was refused later, at DATA or at its end.
    pub with_message: u64,
}

impl RefusedRecipients {
    /// Counts the recipients of one message.
    pub fn of(outcome: &Outcome) -> Self {
        let mut refused = Self::default();
        for recipient in &outcome.recipients {
            match (recipient, &outcome.message) {
                (Some(Refused::Limit(_)), _) => refused.by_limits += 1,
                (Some(Refused::Suspension(_)), _) => refused.while_suspended += 1,
                (None, Some(_)) => refused.with_message += 1,
                (None, None) => {}
            }
        }
        refused
    }

    pub fn sum(self) -> u64 {
        self.by_limits + self.while_suspended + self.with_message
    }
}

impl Totals {
    /// Adds a message of the history. `is_of_attacked`: the message is of an account that is under attack at that time.
    pub fn add(&mut self, message: &Message, outcome: &Outcome, is_of_attacked: bool) {
        self.messages += 1;
        self.recipients += message.recipients.len() as u64;
        self.origins.insert(message.origin());
        let (first, _) = self.span.unwrap_or((message.at, message.at));
        self.span = Some((first, message.at));
        let refused = RefusedRecipients::of(outcome);
        if refused.sum() > 0 {
            self.refused.by_limits += refused.by_limits;
            self.refused.while_suspended += refused.while_suspended;
            self.refused.with_message += refused.with_message;
            self.refused_origins.insert(message.origin());
            self.of_attacked += if is_of_attacked { refused.sum() } else { 0 };
        }
    }

    /// Adds the totals over other messages of the same history.
    pub fn merge(&mut self, other: Self) {
        self.messages += other.messages;
        self.recipients += other.recipients;
        self.origins.extend(other.origins);
        let spans = self.span.into_iter().chain(other.span);
        self.span =
            spans.reduce(|(first, last), (other_first, other_last)| (first.min(other_first), last.max(other_last)));
        self.refused.by_limits += other.refused.by_limits;
        self.refused.while_suspended += other.refused.while_suspended;
        self.refused.with_message += other.refused.with_message;
        self.refused_origins.extend(other.refused_origins);
        self.of_attacked += other.of_attacked;
    }

    pub fn duration(&self) -> Duration {
        self.span.map_or(Duration::ZERO, |(first, last)| last.since(first))
    }

    /// Returns whether a time is between the first and the last message.
    pub fn spans(&self, at: Timestamp) -> bool {
        self.span.is_some_and(|(first, last)| first <= at && at <= last)
    }

    /// Returns a line for programs.
    pub fn json(&self) -> serde_json::Value {
        let refused = self.refused;
        serde_json::json!({ "total": {
            "messages": self.messages, "recipients": self.recipients, "origins": self.origins.len(),
            "refused": refused.sum(), "refused-by-limits": refused.by_limits,
            "refused-while-suspended": refused.while_suspended, "refused-with-message": refused.with_message,
            "origins-hit": self.refused_origins.len(), "refused-of-attacked-account": self.of_attacked } })
    }

    /// Returns sentences for people.
    pub fn summary(&self) -> String {
        let (refused, all) = (self.refused, self.recipients);
        let share = 100.0 * refused.sum() as f64 / all.max(1) as f64;
        let mut text = format!("refused in all: {} of {all} recipients ({share:.4} %)", refused.sum());
        if refused.sum() == 0 {
            return text + "\n";
        }
        let (hit, origins) = (self.refused_origins.len(), Origin::counted(self.origins.iter()));
        text += &format!(
            ", of {hit} of {origins}\n  {} by limits, {} of suspended or locked senders, {} with their whole message\n",
            refused.by_limits, refused.while_suspended, refused.with_message
        );
        if self.of_attacked > 0 {
            text += &format!("  {} of them are of the attacked account's own mail\n", self.of_attacked);
        }
        text
    }
}
