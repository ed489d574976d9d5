//! Totals of each limit over a replay. For a limit that applied to no message, also the reasons.

use super::history_csv::Message;
use super::origin::Origin;
use crate::policy::limit::{Count, Limit};
use crate::policy::matching::{SkipExplanation, SkipReason};
use crate::policy::request::{Event, Stage};
use crate::policy::verdict::{Ruling, Verdict};
use crate::time::Timestamp;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

/// Totals of one limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Number of recipients (for a limit at RCPT) or messages (for other limits) to which the limit applied.
    pub events: u64,
    /// Number of these recipients or messages that the limit refused, or would have refused if it were not in shadow or
    /// soft mode.
    pub refused: u64,
    /// Number of recipients or messages for which the limit gave a warning.
    pub warned: u64,
    /// Number of recipients that were refused because the limit had suspended the user, client or sender.
    pub suspended: u64,
    /// Number of refused recipients or messages of each origin.
    pub refused_by_origin: HashMap<Origin, u64>,
    pub first: Option<(Timestamp, Origin)>,
    /// Number of the message of `first`.
    first_number: u64,
    /// Name of the events that the limit needs and the history lacks; the limit is disabled if this is set.
    missing: Option<&'static str>,
    /// Number of messages for which the replay asked why the limit did not apply. The replay stops asking after the
    /// limit has applied to a message.
    reasons_asked: u64,
    /// Facts that the limit needs and the history lacks, according to the reasons found.
    unknown: BTreeSet<String>,
    /// Whether, for at least one message, the history has all facts that the limit needs, but the limit's conditions
    /// did not match.
    is_for_others: bool,
}

/// Results of all limits for one message, in the order of the policy.
#[derive(Clone)]
pub struct Marks(Vec<Mark>);

#[derive(Clone, Copy, Default)]
pub struct Mark {
    /// Whether the limit applied to the message.
    holds: bool,
    /// Number of events (MAIL, RCPT, DATA, end) that the limit counted.
    counted: u64,
    /// Whether the limit refused MAIL, and thereby all recipients.
    refused_mail: bool,
    /// Number of events after MAIL that the limit refused.
    refused: u64,
    warned: u64,
}

/// Facts that are unknown for a message.
#[derive(Clone, Copy)]
pub struct Lacks {
    /// Whether the groups of users are unknown, because there is no users file.
    pub groups: bool,
    /// Whether the user is unknown, because the session has no login.
    pub user: bool,
    /// Whether the address of the client is unknown.
    pub client: bool,
}

impl Lacks {
    /// Returns the missing fact if a limit finds no value for the field `name`. Returns `None` if nothing is missing: a
    /// user can have no group. For a session without a login, the missing fact is the user.
    fn missing(self, name: Cow<'_, str>) -> Option<String> {
        match &*name {
            "group" | "own-sender" | "registered-network" if self.user => Some("user".to_owned()),
            "group" if !self.groups => None,
            // The location follows from the address. No database knows all addresses.
            "country" | "asn" | "registered-network" => self.client.then(|| "client".to_owned()),
            _ => Some(without_widths(&name)),
        }
    }
}

/// Maximum number of messages for which the replay asks why a limit did not apply.
const MAX_REASONS_ASKED: u64 = 100;

impl Marks {
    pub fn new(limits: usize) -> Self {
        Self(vec![Mark::default(); limits])
    }

    pub fn clear(&mut self) {
        self.0.fill(Mark::default());
    }

    pub fn hold(&mut self, limit: usize) {
        self.0[limit].holds = true;
    }

    pub fn count(&mut self, limit: usize) {
        self.0[limit].counted += 1;
    }

    /// Records for each limit whether it refused an event, would have refused it in another mode, or warned.
    pub fn note(&mut self, event: &Event, verdict: &Verdict) {
        let mut refuse = |limit: usize| match event {
            Event::Mail => self.0[limit].refused_mail = true,
            _ => self.0[limit].refused += 1,
        };
        if let Ruling::Refuse(refusal) = &verdict.ruling {
            refusal.indices.iter().for_each(|limit| refuse(*limit));
        }
        verdict.limit_hits.iter().filter(|hit| hit.refuses).for_each(|hit| refuse(hit.index));
        verdict.limit_hits.iter().filter(|hit| !hit.refuses).for_each(|hit| self.0[hit.index].warned += 1);
    }

    pub fn of(&self, limit: usize) -> Mark {
        self.0[limit]
    }
}

impl Tally {
    pub fn new(missing: Option<&'static str>) -> Self {
        Self { missing, ..Self::default() }
    }

    /// Adds the results of the limit for one message.
    pub fn add(&mut self, limit: &Limit, mark: Mark, message: &Message) {
        if self.missing.is_some() {
            return;
        }
        let (events, refused, warned) = match limit.stage {
            Stage::Rcpt if mark.refused_mail => (mark.counted, message.recipients.len() as u64, mark.warned),
            Stage::Rcpt => (mark.counted, mark.refused, mark.warned),
            _ => {
                let is_refused = mark.refused_mail || mark.refused > 0;
                (u64::from(mark.holds), u64::from(is_refused), mark.warned.min(1))
            }
        };
        self.events += events;
        self.warned += warned;
        if refused > 0 {
            self.refused += refused;
            *self.refused_by_origin.entry(message.origin()).or_default() += refused;
            if self.first.is_none() {
                (self.first, self.first_number) = (Some((message.at, message.origin())), message.number);
            }
        }
    }

    /// Adds the totals of the same limit over other messages of the same history.
    pub fn merge(&mut self, other: Self) {
        self.events += other.events;
        self.refused += other.refused;
        self.warned += other.warned;
        self.suspended += other.suspended;
        for (origin, refused) in other.refused_by_origin {
            *self.refused_by_origin.entry(origin).or_default() += refused;
        }
        if other.first.is_some() && (self.first.is_none() || other.first_number < self.first_number) {
            (self.first, self.first_number) = (other.first, other.first_number);
        }
        self.reasons_asked += other.reasons_asked;
        self.unknown.extend(other.unknown);
        self.is_for_others |= other.is_for_others;
    }

    /// Returns whether to ask why the limit did not apply to the message. The number of the message counts, too: several
    /// threads then ask for the same messages as one.
    pub fn wants_reason(&self, message: &Message) -> bool {
        let is_early = message.number < MAX_REASONS_ASKED && self.reasons_asked < MAX_REASONS_ASKED;
        self.events == 0 && self.missing.is_none() && is_early
    }

    /// Records why the limit did not apply to a message. There is one reason for each stage of the message.
    pub fn add_reasons(&mut self, reasons: impl Iterator<Item = SkipExplanation>, lacks: Lacks) {
        self.reasons_asked += 1;
        for reason in reasons.filter(|reason| reason.why != SkipReason::Elsewhere) {
            let missing: Vec<String> = reason.unknown().filter_map(|name| lacks.missing(name)).collect();
            let is_known = missing.is_empty();
            // The recipient is unknown only at the stages before RCPT; the history does not lack it.
            self.unknown.extend(missing.into_iter().filter(|name| !name.starts_with("recipient")));
            let is_of_match =
                matches!(reason.why, SkipReason::NoMatch | SkipReason::Except(_) | SkipReason::NoRecipient);
            self.is_for_others |=
                is_known && (is_of_match || matches!(reason.why, SkipReason::NotExceeded | SkipReason::NotSuspicious));
        }
    }

    /// Returns the facts that the limit needs and the history lacks, for a limit that applied to no message. Returns
    /// nothing if the reason is that the limit's conditions did not match.
    pub fn unknown(&self, limit: &Limit) -> Vec<String> {
        match self.missing {
            Some(missing) => vec![missing.to_owned()],
            None if self.is_for_others => Vec::new(),
            None if !self.unknown.is_empty() => self.unknown.iter().cloned().collect(),
            // No other reason is known: the history has no events of the kind that the limit counts.
            None => vec![missing_events(limit).to_owned()],
        }
    }
}

/// Returns the unit of a limit's totals: recipients for a limit at RCPT, messages for other limits.
pub fn unit(limit: &Limit) -> &'static str {
    if limit.stage == Stage::Rcpt { "recipients" } else { "messages" }
}

fn missing_events(limit: &Limit) -> &'static str {
    match (limit.watch, limit.stage) {
        (Some(_), Stage::Connect) => Count::Connections.name(),
        (Some(_), Stage::Auth) => Count::Logins.name(),
        _ => limit.count.name(),
    }
}

/// Removes the widths of networks from the name of a field: `client/24` becomes `client`.
fn without_widths(field: &str) -> String {
    field.split('/').next().unwrap_or(field).to_owned()
}
