//! Totals of each limit over a replay; for a limit that never held, also the reasons.

use super::history::Message;
use crate::policy::limit::{Count, Limit};
use crate::policy::matching::{SkipExplanation, SkipReason};
use crate::policy::request::{Event, Stage};
use crate::policy::verdict::{Ruling, Verdict};
use crate::time::Timestamp;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Totals of one limit.
#[derive(Debug, Default, PartialEq)]
pub struct Tally {
    /// Recipients or messages for which the limit held.
    pub events: u64,
    /// Events that the limit refused; in shadow and soft mode: would have refused.
    pub refused: u64,
    /// Events that the limit warned of.
    pub warned: u64,
    /// Refused events by user.
    pub refused_by_user: HashMap<Arc<str>, u64>,
    pub first: Option<(Timestamp, Arc<str>)>,
    /// Fact that the history lacks; the limit is disabled because of it.
    missing: Option<&'static str>,
    /// For a limit that never held: number of messages whose skip reasons were collected, and the facts that the
    /// history lacks.
    reasons_asked: u64,
    unknown: BTreeSet<String>,
    /// The limit needs only known facts, and its conditions do not match.
    is_for_others: bool,
}

/// Results of all limits for one message, in their order.
pub struct Marks(Vec<Mark>);

#[derive(Clone, Copy, Default)]
pub struct Mark {
    /// The limit held for the message.
    holds: bool,
    /// Number of events that the limit counted.
    counted: u64,
    /// The limit refused MAIL, and so all recipients.
    refused_mail: bool,
    /// Number of other events that the limit refused.
    refused: u64,
    warned: u64,
}

/// Maximum of messages whose skip reasons are collected for a limit.
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

    /// Records the limits that refused an event or would have, and those that warned.
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

    /// Adds the results for one message.
    pub fn add(&mut self, limit: &Limit, mark: Mark, message: &Message) {
        if self.missing.is_some() {
            return;
        }
        // Limits at RCPT count recipients; all others count messages.
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
            *self.refused_by_user.entry(message.user.clone()).or_default() += refused;
            self.first.get_or_insert_with(|| (message.at, message.user.clone()));
        }
    }

    /// Returns whether to collect another skip reason of the limit.
    pub fn wants_reason(&self) -> bool {
        self.events == 0 && self.missing.is_none() && self.reasons_asked < MAX_REASONS_ASKED
    }

    /// Records why the limit did not hold for a message: one reason for each stage.
    pub fn add_reasons(&mut self, reasons: impl Iterator<Item = SkipExplanation>) {
        self.reasons_asked += 1;
        for reason in reasons.filter(|reason| reason.why != SkipReason::Elsewhere) {
            // The recipient is unknown only before RCPT, so it is not missing from the history.
            self.unknown.extend(
                reason.unknown().filter(|name| !name.starts_with("recipient")).map(|name| without_widths(&name)),
            );
            let is_known = reason.unknown().next().is_none();
            self.is_for_others |=
                is_known && matches!(reason.why, SkipReason::NoMatch | SkipReason::Except(_) | SkipReason::NoRecipient);
        }
    }

    /// Returns the facts that the history lacks, for a limit that never held. Empty if the limit's conditions do not
    /// match.
    pub fn unknown(&self, limit: &Limit) -> Vec<String> {
        match self.missing {
            Some(missing) => vec![missing.to_owned()],
            None if self.is_for_others => Vec::new(),
            None if !self.unknown.is_empty() => self.unknown.iter().cloned().collect(),
            // The history has no events of the kind that the limit counts.
            None => vec![missing_events(limit).to_owned()],
        }
    }
}

fn missing_events(limit: &Limit) -> &'static str {
    match (limit.watch, limit.stage) {
        (Some(_), Stage::Connect) => Count::Connections.name(),
        (Some(_), Stage::Auth) => Count::Logins.name(),
        _ => limit.count.name(),
    }
}

/// Removes the network widths from a field's name.
fn without_widths(field: &str) -> String {
    field.split('/').next().unwrap_or(field).to_owned()
}
