//! Refusals, with their meaning and their texts for the client.

use crate::engine::Wait;
use crate::policy::exception::{By, Suspension};
use crate::policy::limit::{Code, Count, Quota, Scope, Template, Verb, Words};
use crate::policy::matching::Field;
use crate::policy::request::Stage;
use crate::time::format_wait;
use std::sync::Arc;
use std::time::Duration;

/// Refusal: the limit, its level, and the wait.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub limit: Arc<str>,
    pub count: Count,
    pub quota: Quota,
    pub verb: Verb,
    /// Level of the budget: without this event, unless the limit charges attempts.
    pub level: f64,
    /// Longest wait of all limits that refuse.
    pub wait: Wait,
    /// Refused because the delay would be too long, together with earlier delays.
    pub is_late: bool,
    /// Names of other limits that refuse too.
    pub also: Vec<Arc<str>>,
    /// Indices in the policy of all these limits: several rates of a limit share its name.
    pub indices: Vec<usize>,
    pub(in crate::policy) text: Option<Arc<Template>>,
}

/// Refusal of a suspended sender.
#[derive(Clone, Debug)]
pub struct Suspended {
    pub suspension: Arc<Suspension>,
    /// Remaining time of the suspension.
    pub left: Duration,
    /// Help page for suspended users.
    pub help_url: Option<Arc<str>>,
}

/// Meaning of a refusal for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The event will be accepted after a wait.
    Later,
    /// The event will be accepted in another message.
    TooMuchForMessage,
    /// The event will be accepted in another connection.
    TooMuchForConnection,
    /// The replies of this transaction have been delayed for too long already.
    TooLate,
    /// The session will be accepted when another session has ended.
    TooManyAtOnce,
    /// The event alone is more than the limit ever allows, so no wait helps.
    TooLarge,
    /// The limit accepts no event at all.
    Never,
}

impl Refusal {
    /// Merges two refusals. The one with the stronger verb remains; if the verbs are equal, the one with the longer
    /// wait. Its wait becomes the longer of both.
    pub(in crate::policy) fn and(self, other: Self) -> Self {
        let is_less = (self.verb, self.wait) < (other.verb, other.wait);
        let (mut first, second) = if is_less { (other, self) } else { (self, other) };
        // A refusal of an event that will never pass says nothing about the wait of the other refusal.
        if let (Wait::For(own), Wait::For(others)) = (first.wait, second.wait) {
            first.wait = Wait::For(own.max(others));
        }
        first.also.push(second.limit);
        first.also.extend(second.also);
        first.indices.extend(second.indices);
        first
    }

    /// Returns whether the refusal ends the session, for an event of this stage.
    pub fn ends_session(&self, stage: Option<Stage>) -> bool {
        self.verb == Verb::Drop
            || matches!(stage, Some(Stage::Connect | Stage::Command))
            || self.code().is_some_and(|code| code.basic == 421)
    }

    /// Returns the meaning for the client.
    pub fn meaning(&self) -> Meaning {
        match (self.quota, self.wait) {
            _ if self.is_late => Meaning::TooLate,
            (Quota::Never, _) => Meaning::Never,
            (Quota::Counter { scope: Scope::Message, .. }, _) => Meaning::TooMuchForMessage,
            (Quota::Counter { scope: Scope::Connection, .. }, _) => Meaning::TooMuchForConnection,
            (Quota::Counter { scope: Scope::AtOnce, .. }, _) => Meaning::TooManyAtOnce,
            (_, Wait::Never) => Meaning::TooLarge,
            (_, Wait::For(_)) => Meaning::Later,
        }
    }

    /// Returns the reply code at the beginning of the limit's own text, if there is one.
    pub fn code(&self) -> Option<Code> {
        self.own_text().and_then(Template::code)
    }

    /// Returns the text for the client, with a reference to the details in the log.
    pub fn text(&self, reference: &str) -> String {
        if let Some(text) = self.own_text() {
            let (level, limit) = (self.quota.level(self.level), self.quota.most());
            let (period, wait) = (self.quota.period(), self.wait_text());
            return text.fill(&Words { level, limit, period, wait, limit_name: &self.limit, reference });
        }
        let (count, level, most) = (self.count.name(), self.quota.level(self.level), self.quota.most());
        match (self.meaning(), self.quota) {
            _ if self.verb == Verb::Suspend => {
                let wait = self.wait_text();
                format!("{level} of {most} {count} per {}; suspended for {wait} ({reference})", self.quota.period())
            }
            (Meaning::TooLate, _) => {
                format!("The answers have been late for long enough; go on in another message ({reference})")
            }
            // A permanent refusal must not say "try again".
            (Meaning::Later, Quota::Share(share)) if self.verb == Verb::Deny => {
                format!("{level} of {} were rejected, {most} at most ({reference})", share.of.name())
            }
            (Meaning::Later, _) if self.verb == Verb::Deny => {
                format!("{level} of {most} {count} per {} ({reference})", self.quota.period())
            }
            (Meaning::Never, _) => format!("Not allowed here, by the limit {} ({reference})", self.limit),
            (Meaning::Later, Quota::Share(share)) => {
                let (of, wait) = (share.of.name(), self.wait_text());
                format!("{level} of {of} were rejected, {most} at most; try again in {wait} ({reference})")
            }
            (Meaning::Later, _) => {
                let (amount, period, wait) = (self.quota.amount(), self.quota.period(), self.wait_text());
                match amount == most {
                    true => format!("{level} of {most} {count} per {period}; try again in {wait} ({reference})"),
                    // A bucket whose size differs from the amount of one period.
                    false => format!(
                        "{level} of {most} {count}, with {amount} more per {period}; try again in {wait} ({reference})"
                    ),
                }
            }
            (Meaning::TooMuchForMessage, _) if self.count == Count::Recipients => {
                format!("{most} recipients per message at most; send the rest in another ({reference})")
            }
            (Meaning::TooMuchForMessage, _) => format!("{most} {count} per message at most ({reference})"),
            (Meaning::TooMuchForConnection, _) if self.verb == Verb::Deny => {
                format!("{most} {count} per connection at most ({reference})")
            }
            (Meaning::TooMuchForConnection, _) => {
                format!("{most} {count} per connection at most; connect again ({reference})")
            }
            (Meaning::TooManyAtOnce, _) if self.verb == Verb::Deny => {
                format!("{most} {count} at once at most ({reference})")
            }
            (Meaning::TooManyAtOnce, _) => {
                format!("{most} {count} at once at most; end another one first ({reference})")
            }
            (Meaning::TooLarge, _) => format!(
                "This is more than the limit {} ever allows, {most} {count} per {} ({reference})",
                self.limit,
                self.quota.period()
            ),
        }
    }

    /// Returns the text from the configuration, unless the text promises a retry that can never succeed.
    fn own_text(&self) -> Option<&Template> {
        let is_true = self.verb != Verb::Defer || !matches!(self.meaning(), Meaning::TooLarge | Meaning::Never);
        // "try again in never" would confuse users.
        let is_sense = |text: &&Template| self.wait != Wait::Never || !text.names_wait();
        self.text.as_deref().filter(|_| is_true).filter(is_sense)
    }

    /// Formats the wait for people: `2h13m7s`, or `never`.
    pub fn wait_text(&self) -> String {
        match self.wait {
            Wait::For(wait) => format_wait(wait),
            Wait::Never => "never".to_owned(),
        }
    }
}

impl Suspended {
    /// Returns the text for the client, with a reference to the details in the log.
    pub fn text(&self, reference: &str) -> String {
        let why = match &self.suspension.term.by {
            By::Limit(limit) => format!("by the limit {limit}"),
            By::Administrator(_) => "by the administrator".to_owned(),
        };
        let left = format_wait(self.left);
        let whom = self.suspension.owner.fields().flatten().next().map_or("", Field::word);
        let help = self.help_url.as_ref().map_or_else(String::new, |url| format!("; see {url}"));
        format!("Nothing is taken from this {whom} for another {left}: suspended {why}{help} ({reference})")
    }
}
