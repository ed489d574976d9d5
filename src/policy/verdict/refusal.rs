//! Refusals, with their meaning and their texts for the client.

use crate::engine::{Rule, Wait};
use crate::policy::exception::{By, Length, Suspension, Term, UNTIL_RELEASED};
use crate::policy::limit::{Code, Count, Likelihood, Quota, Scope, Template, Thing, Verb, Words, plain_period};
use crate::policy::matching::Field;
use crate::policy::request::Stage;
use crate::time::format_wait;
use std::sync::Arc;
use std::time::Duration;

/// Refusal: the limit, the level of its budget, and the wait.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub limit: Arc<str>,
    pub thing: Thing,
    pub quota: Quota,
    /// Level from which the limit refuses, as a multiple of the quota.
    pub at: f64,
    pub verb: Verb,
    /// Level of the budget. The level includes this event only if the limit charges attempts.
    pub level: f64,
    /// Longest wait of all limits that refuse.
    pub wait: Wait,
    /// Length of the suspension or lock that the refusal starts: the longest among all limits that suspend.
    pub suspends: Option<Length>,
    /// Facts about the suspension, for the reply.
    pub suspension: Option<SuspensionNotice>,
    /// The event is refused because its delay, together with the earlier delays, would be too long.
    pub is_late: bool,
    /// Names of other limits that refuse too.
    pub also: Vec<Arc<str>>,
    /// Indices in the policy of all limits that refuse. Names are not enough, because several rates of a limit have the
    /// same name.
    pub indices: Vec<usize>,
    pub(in crate::policy) text: Option<Arc<Template>>,
}

/// Refusal of a suspended sender.
#[derive(Clone, Debug)]
pub struct Suspended {
    pub suspension: Arc<Suspension>,
    /// Remaining time of the suspension; `None` if only a command ends the suspension.
    pub left: Option<Duration>,
    pub notice: SuspensionNotice,
    /// Help page for suspended users.
    pub help_url: Option<Arc<str>>,
}

/// Facts about a suspension, for the reply to the suspended client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspensionNotice {
    /// Time when the suspension ends, in the time zone of the policy: `2026-11-26 08:24 CET`. `None` if only a command
    /// ends the suspension.
    pub until: Option<Arc<str>>,
    /// Person or place that helps.
    pub contact: Option<Arc<str>>,
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
    /// The replies of this transaction have already been delayed for too long.
    TooLate,
    /// The session will be accepted when another session has ended.
    TooManyAtOnce,
    /// The event alone is more than the limit ever allows, so no wait helps.
    TooLarge,
    /// The event will be accepted after an administrator has reset the budget.
    NotByWaiting,
    /// The limit accepts no event at all.
    Never,
}

impl Refusal {
    /// Merges two refusals. The refusal with the stronger verb remains. If the verbs are equal, the refusal with the
    /// longer suspension remains. If the suspensions are equal too, the refusal with the longer wait remains. If both
    /// waits end, the result has the longer wait.
    pub(in crate::policy) fn and(self, other: Self) -> Self {
        let rank = |refusal: &Self| (refusal.verb, refusal.suspends, refusal.wait);
        let (mut first, second) = if rank(&self) < rank(&other) { (other, self) } else { (self, other) };
        // A wait of `Never` says nothing about the wait of the other refusal.
        if let (Wait::For(own), Wait::For(others)) = (first.wait, second.wait) {
            first.wait = Wait::For(own.max(others));
        }
        first.also.push(second.limit);
        first.also.extend(second.also);
        first.indices.extend(second.indices);
        first
    }

    /// Returns whether a refusal of an event of this stage ends the session.
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
            // Other mail lowers the ratio, but no wait does.
            (Quota::Likelihood(_), _) => Meaning::NotByWaiting,
            // All gaps are more regular than the limit allows.
            (Quota::Regularity(_), Wait::Never) if !self.verb.suspends() => Meaning::NotByWaiting,
            (_, Wait::Never) if !self.verb.suspends() => Meaning::TooLarge,
            _ => Meaning::Later,
        }
    }

    /// Returns the reply code at the beginning of the limit's own text, if the text has one.
    pub fn code(&self) -> Option<Code> {
        self.own_text().and_then(Template::code)
    }

    /// Returns the text for the client, with a reference to the details in the log.
    pub fn text(&self, reference: &str) -> String {
        if let Some(text) = self.own_text() {
            let level = match self.thing.count {
                // Fractions of a byte do not interest users.
                Count::Bytes => format!("{:.0}", self.level),
                _ => self.quota.level(self.level),
            };
            let limit = self.quota.most();
            let (period, wait) = (self.quota.period(), self.wait_text());
            return text.fill(&Words { level, limit, period, wait, limit_name: &self.limit, reference });
        }
        format!("{} ({reference})", self.standard_text())
    }

    /// Returns the standard text for the client, in plain English. It is used if the configuration has no text.
    fn standard_text(&self) -> String {
        let remedy = match (self.meaning(), self.suspends) {
            (Meaning::TooLate, _) => return "Delayed too often in this transaction; retry in a new message".to_owned(),
            (Meaning::Never, _) => return format!("Not allowed here, by the limit {}", self.limit),
            (Meaning::TooLarge, _) => {
                let most = self.quota.at_rung(self.at).at_once(self.thing.count).unwrap_or_default();
                let most = self.thing.plain_amount(most);
                return format!("This is more than the limit {} ever allows: {most} at once", self.limit);
            }
            (_, Some(time)) if self.verb.suspends() => {
                let notice = self.suspension.as_ref();
                let ends = notice.map_or_else(String::new, |notice| notice.until_text() + &notice.contact_text());
                let begins =
                    if self.verb == Verb::Lock { "locked, but for recipients known before," } else { "suspended" };
                match time {
                    Length::For(time) => format!("; {begins} for {}{ends}", format_wait(time)),
                    Length::UntilReleased => format!("; {begins} until released{ends}"),
                }
            }
            (Meaning::TooMuchForMessage, _) if self.thing.count == Count::Recipients => {
                "; send the rest in another".to_owned()
            }
            // A permanent refusal must not say "try again".
            _ if self.verb == Verb::Deny => String::new(),
            (Meaning::Later, _) => format!("; try again in {}", self.wait_text()),
            (Meaning::NotByWaiting, _) => "; ask the administrator".to_owned(),
            (Meaning::TooMuchForMessage, _) => String::new(),
            (Meaning::TooMuchForConnection, _) => "; connect again".to_owned(),
            (Meaning::TooManyAtOnce, _) => "; end another one first".to_owned(),
        };
        format!("{}{remedy}", self.use_text())
    }

    /// Describes the limit and its use: `99 of 99 recipients used, 100 more per day`.
    fn use_text(&self) -> String {
        let quota = self.quota.at_rung(self.at);
        match quota {
            Quota::Never | Quota::Unlimited => format!("Not allowed here, by the limit {}", self.limit),
            Quota::Share(share) => {
                let (level, of) = (quota.level(self.level), share.of.name());
                format!("{level} of {of} were rejected, {} at most", quota.amount())
            }
            Quota::Counter { scope, most } => {
                let within = match scope {
                    Scope::Message => "per message",
                    Scope::Connection => "per connection",
                    Scope::AtOnce => "at once",
                };
                format!("{} {within} at most", self.thing.plain_amount(most))
            }
            Quota::Regularity(_) => {
                let (level, most, noun) = (quota.level(self.level), quota.amount(), self.thing.noun(2.0));
                format!("The times of {noun} are {level} regular over {}, {most} at most", quota.period())
            }
            Quota::Likelihood(Likelihood { of, .. }) => {
                let (level, of, limit) = (quota.level(self.level), of.name(), &self.limit);
                format!("Too many {of} were rejected: {level} of what the limit {limit} allows")
            }
            Quota::Rate { rate, .. } => {
                let (used, most) = self.used(&quota);
                let (used, most) = (self.thing.plain_number(used), self.thing.plain_amount(most));
                let (more, period) = (self.thing.plain_number(rate.amount), plain_period(rate.period));
                format!("{used} of {most} used, {more} more per {period}")
            }
        }
    }

    /// Returns the level of a rate and the number that passes, for users. A recipient or message that has decayed only
    /// partly counts as a whole one, because it still prevents a whole one from passing.
    fn used(&self, quota: &Quota) -> (f64, f64) {
        let most = quota.at_once(self.thing.count).unwrap_or_default();
        let whole = self.level.ceil();
        match quota.rule() {
            _ if self.thing.count == Count::Bytes => (self.level, most),
            // A moving average lets more events pass one after another than at once. The level may therefore exceed
            // `most`.
            Some(Rule::Ewma(rule)) if self.level <= rule.limit() => (whole, most.max(whole)),
            Some(Rule::Ewma(rule)) => (whole, most.max(rule.limit().floor())),
            Some(rule) if self.level <= rule.burst() => (whole.min(most), most),
            _ => (whole, most),
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
    /// Returns the remaining time for programs: `2h13m7s`, or `until-released`.
    pub fn left_text(&self) -> String {
        self.left.map_or_else(|| UNTIL_RELEASED.to_owned(), format_wait)
    }

    /// Returns the text for the client, with a reference to the details in the log.
    pub fn text(&self, reference: &str) -> String {
        let Term { by, reason, .. } = &self.suspension.term;
        let by = match by {
            By::Limit(limit) => format!("by the limit {limit}"),
            By::Administrator(_) => "by the administrator".to_owned(),
        };
        let why = if reason.is_empty() { by } else { format!("{by}: {reason}") };
        let left = match self.left {
            Some(left) => format!("for another {}{}", format_wait(left), self.notice.until_text()),
            None => "until released".to_owned(),
        };
        let owner = match self.suspension.owner.fields().flatten().next() {
            Some(Field::UserDomain) => "All users of this domain are".to_owned(),
            field => format!("This {} is", field.map_or("user", Field::word)),
        };
        let help = self.help_url.as_ref().map_or_else(String::new, |url| format!("; see {url}"));
        let contact = self.notice.contact_text();
        let is = match self.suspension.is_lock() {
            true => "locked, and may write only to recipients known before,",
            false => "suspended",
        };
        format!("{owner} {is} {left}, {why}{contact}{help} ({reference})")
    }
}

impl SuspensionNotice {
    fn until_text(&self) -> String {
        self.until.as_ref().map_or_else(String::new, |until| format!(", until {until}"))
    }

    /// Returns the contact; an empty text if none is configured.
    fn contact_text(&self) -> String {
        self.contact.as_ref().map_or_else(String::new, |contact| format!("; contact: {contact}"))
    }
}
