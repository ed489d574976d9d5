//! Report of a replay, and the count of refusals by owner.

use crate::decisions::DecisionRecord;
use crate::policy::request::Stage;
use crate::time::{Timestamp, format_duration};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;
use utoipa::ToSchema;

/// Maximum number of owners in a report.
const MAX_OWNERS: usize = 100;

/// Mail that a limit would have refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// Name of the limit.
    pub limit: String,
    /// Times of the first and the last event that were counted.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub first: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last: Option<Timestamp>,
    /// Number of accepted events of the log that were counted.
    pub events: u64,
    /// Number of these events to which the limit applied.
    pub applied: u64,
    /// Recipients that Weir accepted then.
    pub recipients: u64,
    /// Messages that Weir accepted then.
    pub messages: u64,
    /// Accepted recipients that would have been refused: themselves, with the whole message, or with the session.
    pub recipients_refused: u64,
    /// Accepted messages of which no recipient would have got a copy.
    pub messages_refused: u64,
    /// Refusals that clients would have got. A refused message or connection is one refusal.
    pub refusals: u64,
    /// Accepted events whose reply would have been delayed, and the sum of the delays in seconds.
    pub delayed: u64,
    pub delay_seconds: f64,
    /// Owners whose mail would have been refused, the one with most refusals first.
    pub owners: Vec<OwnerReport>,
    /// Number of owners that `owners` leaves out.
    pub more_owners: usize,
    /// Lines of the log that could not be read.
    pub unreadable_lines: u64,
    /// Sentences about everything that the replay cannot know.
    pub notes: Vec<String>,
}

/// Refusals of one owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct OwnerReport {
    /// Owner: `user=alice`, or `all` if the limit has one budget for everybody.
    pub owner: String,
    pub refused: u64,
    #[schema(value_type = String, format = DateTime)]
    pub first: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub last: Timestamp,
}

/// Refusals by owner.
#[derive(Default)]
pub struct Counter(HashMap<Box<str>, (u64, Timestamp, Timestamp)>);

impl Counter {
    pub fn refuse(&mut self, owner: &str, at: Timestamp) {
        match self.0.get_mut(owner) {
            Some((refused, _, last)) => (*refused, *last) = (*refused + 1, at),
            None => drop(self.0.insert(owner.into(), (1, at, at))),
        }
    }

    /// Writes the counts into the report.
    pub fn fill(&mut self, report: &mut Report) {
        let owners = self.0.drain().map(|(owner, (refused, first, last))| {
            report.refusals += refused;
            OwnerReport { owner: owner.into(), refused, first, last }
        });
        let mut owners: Vec<_> = owners.collect();
        owners.sort_by(|one, other| (Reverse(one.refused), &one.owner).cmp(&(Reverse(other.refused), &other.owner)));
        report.more_owners = owners.len().saturating_sub(MAX_OWNERS);
        owners.truncate(MAX_OWNERS);
        report.owners = owners;
    }
}

impl Report {
    pub fn add_event(&mut self, record: &DecisionRecord) {
        self.events += 1;
        self.first.get_or_insert(record.time);
        self.last = Some(record.time);
        self.recipients += u64::from(record.stage == Stage::Rcpt);
        self.messages += u64::from(record.stage == Stage::End);
    }

    pub fn add_delay(&mut self, delay: Duration) {
        self.delayed += u64::from(!delay.is_zero());
        self.delay_seconds += delay.as_secs_f64();
    }

    /// Returns the report in a sentence or two.
    pub fn sentence(&self) -> String {
        let Self { limit, recipients, messages, recipients_refused, messages_refused, .. } = self;
        let time = |time: Option<Timestamp>| time.map_or_else(String::new, Timestamp::rfc3339);
        let (first, last) = (time(self.first), time(self.last));
        let mut text = format!(
            "From {first} to {last}, Weir accepted {} in {}. ",
            counted(*recipients, "recipient"),
            counted(*messages, "message"),
        );
        text += &match self.refusals {
            0 => format!("The limit {limit} would have refused nothing."),
            refusals => format!(
                "The limit {limit} would have refused {recipients_refused} of these recipients and \
                 {messages_refused} of these messages, with {} to {}.",
                counted(refusals, "refusal"),
                counted((self.owners.len() + self.more_owners) as u64, "owner"),
            ),
        };
        if self.delayed > 0 {
            let delay = format_duration(Duration::from_secs_f64(self.delay_seconds));
            text += &format!(" It would have delayed {}, by {delay} in all.", counted(self.delayed, "event"));
        }
        text
    }
}

fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
