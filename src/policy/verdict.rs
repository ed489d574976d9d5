//! What policy says to an event, and to whoever is refused.

use super::count::Count;
use super::event::Stage;
use super::exception::{By, Suspension};
use super::field::Field;
use super::key::Key;
use super::limit::Mode;
use super::quota::{Quota, Scope};
use super::template::{Template, Words};
use crate::engine::{Receipt, Rule, Wait};
use crate::time::format_wait;
use std::sync::Arc;
use std::time::Duration;

use super::action::Notification;
pub use super::action::Verb;
pub use super::template::Code;

/// What policy says to one event.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub ruling: Ruling,
    /// What limits say that the client does not hear.
    pub remarks: Vec<LimitHit>,
    /// What was charged and may have to be given back.
    pub charges: Vec<RefundableCharge>,
    /// Budgets of which a declared size has been made the true one.
    pub settled: Vec<Key>,
    /// Budgets in which this session has a place as long as it lasts.
    pub held: Vec<Key>,
    /// How late the answer is to be.
    pub delay: Duration,
    /// The upstream by which the mail is to go: at MAIL this one, else the next.
    pub route: Option<Arc<str>>,
    /// Who is suspended from now on.
    pub suspensions: Vec<Arc<Suspension>>,
    /// Of what somebody is to be told.
    pub notices: Vec<Notice>,
}

#[derive(Clone, Debug, Default)]
pub enum Ruling {
    /// Let it pass; what it costs is charged.
    #[default]
    Pass,
    /// Refuse it; only limits that count attempts charge it.
    Refuse(Box<Refusal>),
    /// Whoever it is sends nothing at present; nothing is charged.
    Suspended(Box<Suspended>),
    /// The event cannot happen, since one that it needs was refused: a RCPT after a refused MAIL. Nothing is charged.
    Skipped,
}

/// Why whoever is suspended is refused.
#[derive(Clone, Debug)]
pub struct Suspended {
    pub suspension: Arc<Suspension>,
    /// How much longer.
    pub left: Duration,
    /// Where to find help.
    pub help_url: Option<Arc<str>>,
}

/// Of what somebody is to be told.
#[derive(Clone, Debug)]
pub struct Notice {
    pub notification: Arc<Notification>,
    /// The budget that is full.
    pub key: Option<Key>,
    pub limit: Arc<str>,
    pub mode: Mode,
    pub level: String,
    pub quota: Quota,
}

/// Something to be noted about an event.
#[derive(Clone, Debug)]
pub struct LimitHit {
    /// What the limit would have said, or has said already: its refusal, if it would refuse.
    pub limit: Arc<str>,
    /// The limit's place in the policy: one of several rates has the name of the others.
    pub place: usize,
    pub mode: Mode,
    pub level: String,
    pub quota: Quota,
    /// The actions: `warn, delay 2s`; with the verb of a refusal that only the log hears of.
    pub actions: String,
    /// Whether there is such a refusal.
    pub refuses: bool,
}

/// A charge that may be given back.
#[derive(Clone, Debug)]
pub struct RefundableCharge {
    pub key: Key,
    pub receipt: Receipt,
    /// How the budget adds up.
    pub rule: Rule,
    pub until: RefundWhen,
}

/// What decides whether a charge stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefundWhen {
    /// The upstream's answer to this recipient, then to the message: given back if it was not sent.
    Sent,
    /// The upstream's answer to the message, whatever becomes of single recipients: given back if it was not sent.
    MessageSent,
    /// The true size of the message, which is charged instead of the declared one; given back, too, if it was not sent, or not.
    Size { sent: bool },
    /// The password: given back if it was right.
    Password,
    /// The answer to this command, which is late: given back if the client does not wait for it.
    Heard,
}

impl RefundWhen {
    /// Whether it is given back when nothing was sent.
    pub fn is_given_back_unsent(self) -> bool {
        matches!(self, Self::Sent | Self::MessageSent | Self::Size { sent: true })
    }

    pub fn is_of_size(self) -> bool {
        matches!(self, Self::Size { .. })
    }
}

/// Which limit refuses, how full it is, and how long to wait.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub limit: Arc<str>,
    pub count: Count,
    pub quota: Quota,
    pub verb: Verb,
    /// How much of the budget is used: without this event, unless the limit charges attempts.
    pub level: f64,
    /// The longest wait of all that refuse.
    pub wait: Wait,
    /// It is refused since the answers have been late enough, with those before it.
    pub is_late: bool,
    /// Other limits that refuse as well.
    pub also: Vec<Arc<str>>,
    /// All of them, by their places in the policy: one of several rates has the name of the others.
    pub places: Vec<usize>,
    pub(super) text: Option<Arc<Template>>,
}

/// What a refusal means to whoever hears it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It is let through after a wait.
    Later,
    /// Not in this message.
    TooMuchForMessage,
    /// Not in this connection.
    TooMuchForConnection,
    /// After others that were late enough.
    TooLate,
    /// As soon as another session has ended.
    TooManyAtOnce,
    /// It is more than would ever be let through at once.
    TooLarge,
    /// Nothing is.
    Never,
}

impl Refusal {
    /// The refusal of several limits: the strongest verb, then the longest wait. The wait is the longest of all.
    pub(super) fn and(self, other: Self) -> Self {
        let is_less = (self.verb, self.wait) < (other.verb, other.wait);
        let (mut first, second) = if is_less { (other, self) } else { (self, other) };
        // One that never fits says nothing about when the other does.
        if let (Wait::For(own), Wait::For(others)) = (first.wait, second.wait) {
            first.wait = Wait::For(own.max(others));
        }
        first.also.push(second.limit);
        first.also.extend(second.also);
        first.places.extend(second.places);
        first
    }

    /// Whether the session ends with it, at this stage.
    pub fn ends_session(&self, stage: Option<Stage>) -> bool {
        self.verb == Verb::Drop
            || matches!(stage, Some(Stage::Connect | Stage::Command))
            || self.code().is_some_and(|code| code.basic == 421)
    }

    /// What it means to whoever hears it.
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

    /// The code that the limit's own text gives.
    pub fn code(&self) -> Option<Code> {
        self.own_text().and_then(Template::code)
    }

    /// The words for the client, with a reference under which the log has more.
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
            // What is refused for good has no "again".
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
                    // A bucket that holds more or less than comes back in a period.
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

    /// The text of the configuration, unless it says "later" of something that will never be.
    fn own_text(&self) -> Option<&Template> {
        let is_true = self.verb != Verb::Defer || !matches!(self.meaning(), Meaning::TooLarge | Meaning::Never);
        // "try again in never" helps nobody.
        let is_sense = |text: &&Template| self.wait != Wait::Never || !text.names_wait();
        self.text.as_deref().filter(|_| is_true).filter(is_sense)
    }

    /// The wait, for people: `2h13m7s`, or `never`.
    pub fn wait_text(&self) -> String {
        match self.wait {
            Wait::For(wait) => format_wait(wait),
            Wait::Never => "never".to_owned(),
        }
    }

    /// How full, for the log: `97/100`.
    pub fn level_text(&self) -> String {
        self.quota.beside(&self.quota.level(self.level))
    }
}

impl Suspended {
    /// The words for the client, with a reference under which the log has more.
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

impl Notice {
    /// How full, for the log: `97/100`.
    pub fn level_text(&self) -> String {
        self.quota.beside(&self.level)
    }
}

impl LimitHit {
    /// How full, for the log: `97/100`.
    pub fn level_text(&self) -> String {
        self.quota.beside(&self.level)
    }
}
