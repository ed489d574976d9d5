//! Outcomes of deliveries: records the queue ids of messages, and finds the message of an outcome.

use super::Store;
use super::core::{COMMIT_TIMEOUT, slow_disk};
use super::database_job::DatabaseJob;
use super::file::{self, File};
use super::queue_ids::{AddressHash, Marks, OutcomeOptions, QueueIdKey, SentMessage};
use crate::time::Timestamp;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Outcome of a message, of which the message has to be found.
#[derive(Clone, Debug)]
pub struct OutcomeQuery {
    /// Word of the kind. One kind counts once for a recipient of a message.
    pub kind: &'static str,
    /// Queue ids that can be the one of the message. The first one that Weir knows is the one.
    pub queue_ids: Vec<String>,
    /// `Message-ID`, which is used if Weir knows none of the queue ids.
    pub message_id: Option<String>,
    /// Name of the upstream, if it is known.
    pub upstream: Option<String>,
    pub recipient: Option<String>,
    /// Other name of the recipient, which counts if the message has no recipient with the first name.
    pub other_name: Option<String>,
    /// Time of the outcome.
    pub at: Timestamp,
    /// True if anyone can have written the outcome: its recipient must be one of the message.
    pub is_of_report: bool,
}

/// Result of the search for the message of an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribution {
    To {
        message: Box<SentMessage>,
        /// The recipient, by the name by which the outcome counts.
        recipient: Option<String>,
    },
    /// The outcome has been counted before.
    Repeated,
    /// Weir knows no such message, or several.
    Unknown,
}

/// Time by which the clock of an upstream can be behind Weir's.
const MAX_SKEW: Duration = Duration::from_secs(60);

/// Time that a report waits for the state file.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of outcomes that are counted for a message, for each of its recipients, and in addition: an upstream
/// can replace a recipient by several others.
const MAX_MARKS_PER_RECIPIENT: usize = 4;
const MAX_MORE_MARKS: usize = 16;

impl Store {
    /// Returns the bounds of the stored queue ids; `None` if none are stored.
    pub fn outcome_options(&self) -> Option<OutcomeOptions> {
        self.core.options.outcomes
    }

    /// Stores the queue id of a message. Does not wait for the state file.
    pub fn record_queue_id(&self, message: SentMessage) {
        if !self.core.queue_ids.add(message) {
            self.core.metrics.outcomes.queue_ids_dropped.inc();
        }
    }

    /// Finds the messages of outcomes, and marks these outcomes as counted. On return the marks are in the state file:
    /// if Weir is killed now, an outcome is lost rather than counted twice. Concurrent calls could count an outcome
    /// twice, so the caller must make one call at a time. Returns an error with the reason if the state file cannot be
    /// read or written; then the outcomes can be given again.
    pub async fn attribute(&self, outcomes: Vec<OutcomeQuery>) -> Result<Vec<Attribution>, String> {
        let Some(options) = self.outcome_options() else {
            return Err("no queue ids are stored: the configuration has no [outcomes]".to_owned());
        };
        self.write_queue_ids().await?;
        let find = move |file: &File| {
            let mut finder = Finder {
                file,
                options,
                known: HashMap::new(),
                at: None,
                marks: BTreeMap::new(),
                new_marks: Vec::new(),
            };
            let found: rusqlite::Result<Vec<_>> = outcomes.iter().map(|outcome| finder.attribute(outcome)).collect();
            found.map(|found| (found, finder.new_marks)).map_err(|error| file::describe(&error))
        };
        let (found, marks) = self.read_file(&self.core.admin_reads, TIMEOUT, find).await?;
        if !self.core.queue_ids.mark(marks.clone()) {
            return Err("too many outcomes wait to be written".to_owned());
        }
        let written = self.write_queue_ids().await;
        if written.is_err() {
            self.core.queue_ids.withdraw(&marks.into_iter().collect());
        }
        written.map(|()| found)
    }

    /// Waits until all queue ids and marks are in the state file.
    async fn write_queue_ids(&self) -> Result<(), String> {
        if !self.core.queue_ids.is_pending() {
            return Ok(());
        }
        self.core.jobs.send(DatabaseJob::WriteQueueIds);
        let written = tokio::time::timeout(TIMEOUT.max(COMMIT_TIMEOUT), self.core.queue_ids.written());
        written.await.map_err(|_| slow_disk("the state file could not be written"))
    }
}

/// Finder of messages, with the marks that the outcomes of one call have added.
struct Finder<'a> {
    file: &'a File,
    options: OutcomeOptions,
    /// Messages by queue id, for outcomes of the time `at`. Each outcome of a report has the time and the queue ids of the
    /// report: a stranger can send a report with 1000 outcomes and 50 queue ids.
    known: HashMap<String, Vec<SentMessage>>,
    at: Option<Timestamp>,
    /// Marks of the messages that have been found.
    marks: BTreeMap<QueueIdKey, Vec<u64>>,
    new_marks: Vec<(QueueIdKey, u64)>,
}

impl Finder<'_> {
    fn attribute(&mut self, outcome: &OutcomeQuery) -> rusqlite::Result<Attribution> {
        let Some(message) = self.find(outcome)? else { return Ok(Attribution::Unknown) };
        let recipient = recipient(&message, outcome).map(str::to_owned);
        let mark = Marks::mark(outcome.kind, recipient.as_deref());
        let most = message.recipients.len() * MAX_MARKS_PER_RECIPIENT + MAX_MORE_MARKS;
        let marks = self.marks.entry(message.key.clone()).or_insert_with(|| message.marks.0.clone());
        if marks.contains(&mark) || marks.len() >= most {
            return Ok(Attribution::Repeated);
        }
        marks.push(mark);
        self.new_marks.push((message.key.clone(), mark));
        Ok(Attribution::To { message: Box::new(message), recipient })
    }

    /// Returns the message of an outcome. Returns `None` if there is none, or if it is not certain which one it is.
    fn find(&mut self, outcome: &OutcomeQuery) -> rusqlite::Result<Option<SentMessage>> {
        let to = outcome.at.after(MAX_SKEW);
        let keep = i64::try_from(self.options.keep.as_micros()).unwrap_or(i64::MAX);
        let from = Timestamp::from_micros(outcome.at.micros().saturating_sub(keep));
        if self.at != Some(outcome.at) {
            self.known.clear();
            self.at = Some(outcome.at);
        }
        for id in &outcome.queue_ids {
            if !self.known.contains_key(id) {
                self.known.insert(id.clone(), self.file.messages_of_queue_id(id, from, to)?);
            }
            if let Some(message) = self.known.get(id).and_then(|messages| newest(messages, outcome)) {
                return Ok(Some(message.clone()));
            }
        }
        let Some(message_id) = &outcome.message_id else { return Ok(None) };
        // A client chooses the Message-ID, and can send several messages with one.
        let mut found = self.file.messages_of_message_id(message_id, from, to)?;
        found.retain(|message| is_possible(message, outcome) && has_recipient(message, outcome));
        Ok(found.pop().filter(|_| found.is_empty()))
    }
}

/// Returns the newest of these messages that an outcome can have. A server can use a queue id again, and an outcome is of
/// the message that had the id at that time. Returns `None` if several upstreams have used the id.
fn newest<'a>(found: &'a [SentMessage], outcome: &OutcomeQuery) -> Option<&'a SentMessage> {
    let mut found = found.iter().filter(|message| is_possible(message, outcome));
    let first = found.next()?;
    let is_certain = found.all(|message| message.key.upstream == first.key.upstream);
    Some(first).filter(|_| is_certain)
}

fn is_possible(message: &SentMessage, outcome: &OutcomeQuery) -> bool {
    let is_of_upstream = outcome.upstream.as_deref().is_none_or(|upstream| *message.key.upstream == *upstream);
    is_of_upstream && (!outcome.is_of_report || has_recipient(message, outcome))
}

/// Returns whether the recipient of an outcome, if it has one, is one of the message.
fn has_recipient(message: &SentMessage, outcome: &OutcomeQuery) -> bool {
    recipient(message, outcome).is_none_or(|recipient| is_recipient(message, recipient))
}

/// Returns the recipient of an outcome by the first name that is one of a recipient of the message. If no name is, as after
/// an alias at the upstream, returns its first name.
fn recipient<'a>(message: &SentMessage, outcome: &'a OutcomeQuery) -> Option<&'a str> {
    let names = [&outcome.recipient, &outcome.other_name].map(Option::as_deref);
    let mut found = names.into_iter().flatten().filter(|name| is_recipient(message, name));
    found.next().or(names[0]).or(names[1])
}

fn is_recipient(message: &SentMessage, address: &str) -> bool {
    message.recipients.contains(&AddressHash::of(address))
}
