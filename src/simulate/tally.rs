//! What limits did to the mail of the past, counted; and why those did nothing that never held.

use super::history::Message;
use crate::policy::event::{Event, Stage};
use crate::policy::limit::{Count, Limit};
use crate::policy::skip_reason::{Reason, SkipReason};
use crate::policy::verdict::{Ruling, Verdict};
use crate::time::Timestamp;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What a limit did.
#[derive(Debug, Default, PartialEq)]
pub struct Tally {
    /// Recipients or messages that came, where the limit held.
    pub events: u64,
    /// Those that it refused or, in shadow and soft, would have refused.
    pub refused: u64,
    /// Those of which it warned.
    pub warned: u64,
    /// Refused events by user.
    pub hit: HashMap<Arc<str>, u64>,
    pub first: Option<(Timestamp, Arc<str>)>,
    /// What the history does not say, so that the limit was set aside.
    unsaid: Option<&'static str>,
    /// Of a limit that never held: of how many messages it was asked why, and what the history does not say.
    wondered: u64,
    unknown: BTreeSet<String>,
    /// It looks at what the history has, and is for others.
    is_for_others: bool,
}

/// What limits said to one message, one a limit.
pub struct Marks(Vec<Mark>);

#[derive(Clone, Copy, Default)]
pub struct Mark {
    /// It had to do with the message at all.
    holds: bool,
    /// How many events it counted.
    counted: u64,
    /// It refused MAIL, and with that everything.
    refused_mail: bool,
    /// How many other events it refused.
    refused: u64,
    warned: u64,
}

/// Of so many messages a limit that never held is asked why.
const MOST_WONDERED: u64 = 100;

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

    /// Notes who refused an event, or would have.
    pub fn note(&mut self, event: &Event, verdict: &Verdict) {
        let mut refuse = |limit: usize| match event {
            Event::Mail => self.0[limit].refused_mail = true,
            _ => self.0[limit].refused += 1,
        };
        if let Ruling::Refuse(refusal) = &verdict.ruling {
            refusal.places.iter().for_each(|limit| refuse(*limit));
        }
        verdict.remarks.iter().filter(|remark| remark.refuses).for_each(|remark| refuse(remark.place));
        verdict.remarks.iter().filter(|remark| !remark.refuses).for_each(|remark| self.0[remark.place].warned += 1);
    }

    pub fn of(&self, limit: usize) -> Mark {
        self.0[limit]
    }
}

impl Tally {
    pub fn new(unsaid: Option<&'static str>) -> Self {
        Self { unsaid, ..Self::default() }
    }

    /// Adds what the limit said to a message.
    pub fn add(&mut self, limit: &Limit, mark: Mark, message: &Message) {
        if self.unsaid.is_some() {
            return;
        }
        // What is judged at RCPT counts recipients, all else messages.
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
            *self.hit.entry(message.user.clone()).or_default() += refused;
            self.first.get_or_insert_with(|| (message.at, message.user.clone()));
        }
    }

    /// Whether it would be of use to know why the limit did not hold for a message.
    pub fn wants_reason(&self) -> bool {
        self.events == 0 && self.unsaid.is_none() && self.wondered < MOST_WONDERED
    }

    /// Notes why the limit did not hold for a message, by the reasons that it has at each of its stages.
    pub fn wonder(&mut self, reasons: impl Iterator<Item = Reason>) {
        self.wondered += 1;
        for reason in reasons.filter(|reason| reason.why != SkipReason::Elsewhere) {
            // A recipient is not known before RCPT, but then.
            self.unknown
                .extend(reason.unknown().filter(|name| !name.starts_with("recipient")).map(|name| plain(&name)));
            let is_known = reason.unknown().next().is_none();
            self.is_for_others |=
                is_known && matches!(reason.why, SkipReason::NoMatch | SkipReason::Except(_) | SkipReason::NoRecipient);
        }
    }

    /// What the history does not say, of a limit that never held; nothing, if it is for others.
    pub fn unknown(&self, limit: &Limit) -> Vec<String> {
        match self.unsaid {
            Some(unsaid) => vec![unsaid.to_owned()],
            None if self.is_for_others => Vec::new(),
            None if !self.unknown.is_empty() => self.unknown.iter().cloned().collect(),
            // It has none of the events that it counts.
            None => vec![unsaid_events(limit).to_owned()],
        }
    }
}

fn unsaid_events(limit: &Limit) -> &'static str {
    match (limit.watch, limit.stage) {
        (Some(_), Stage::Connect) => Count::Connections.name(),
        (Some(_), Stage::Auth) => Count::Logins.name(),
        _ => limit.count.name(),
    }
}

/// A field without widths of networks.
fn plain(field: &str) -> String {
    field.split('/').next().unwrap_or(field).to_owned()
}
