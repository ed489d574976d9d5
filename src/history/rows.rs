//! Rows of the history in CSV: one row for each recipient of each message, sorted by time.

use super::entry::Outcome;
use super::message::{Message, Origin};
use super::sort::Sorter;
use super::summary::Summary;
use super::{HistoryError, Options};
use std::borrow::Cow;
use std::io::{self, Write};

/// First line of the CSV: the columns that `weir simulate` reads, and the outcome.
const HEADER: &str = "t,client,user,sender,recipient,size,message,outcome\n";

/// Rows that have been added so far.
pub struct Rows {
    sorter: Sorter,
    has_refused: bool,
    only_authenticated: bool,
}

/// Domain of the recipients that the log counts without their addresses. The domain is reserved (RFC 2606 §2), so no
/// real recipient has it.
pub const UNNAMED_DOMAIN: &str = "unnamed.invalid";

impl Rows {
    pub fn new(options: &Options) -> Self {
        Self { sorter: Sorter::default(), has_refused: options.refused, only_authenticated: options.authenticated }
    }

    /// Adds the rows of a message, unless the options or the origin of the message exclude it from the history.
    pub fn add(&mut self, message: &Message, summary: &mut Summary) -> io::Result<()> {
        match message.origin {
            Origin::Client => {}
            Origin::Server => {
                summary.made_by_server += 1;
                return Ok(());
            }
            Origin::Continuation => {
                summary.continuations += 1;
                return Ok(());
            }
            Origin::BeforeLogs => {
                summary.leave_out_older(message.all_recipients().map(|(_, outcome)| outcome));
                return Ok(());
            }
        }
        if message.recipients.is_empty() && message.unnamed.0 == 0 {
            summary.without_recipient += 1;
            return Ok(());
        }
        // `weir simulate` does not accept a row that has neither a sender nor a user.
        if message.sender.is_none() && message.user.is_none() {
            summary.without_sender += 1;
            return Ok(());
        }
        if self.only_authenticated && message.user.is_none() {
            summary.without_login += 1;
            return Ok(());
        }
        let mut written = 0;
        for (recipient, outcome) in message.all_recipients() {
            if outcome == Outcome::Refused && !self.has_refused {
                summary.refused += 1;
                continue;
            }
            summary.count(outcome);
            summary.unnamed += u64::from(recipient.ends_with(UNNAMED_DOMAIN));
            written += 1;
            self.sorter.add(message.at, row(message, &recipient, outcome)?)?;
        }
        summary.messages += u64::from(written > 0);
        Ok(())
    }

    /// Writes the header and all rows, sorted by time.
    pub fn write(self, out: &mut impl Write) -> Result<(), HistoryError> {
        out.write_all(HEADER.as_bytes()).map_err(HistoryError::Output)?;
        self.sorter.write(out)
    }
}

impl Message {
    /// Returns the recipients with their outcomes. Each recipient without an address gets an invented address.
    fn all_recipients(&self) -> impl Iterator<Item = (Cow<'_, str>, Outcome)> {
        let named = self.recipients.iter().map(|(address, outcome)| ((**address).into(), *outcome));
        let (unnamed, outcome) = self.unnamed;
        let unnamed = (1..=unnamed).map(move |n| {
            let dot = if self.id.is_empty() { "" } else { "." };
            let name = format!("recipient-{n}{dot}{}@{UNNAMED_DOMAIN}", self.id);
            (name.into(), outcome)
        });
        named.chain(unnamed)
    }
}

/// Returns a line of CSV.
fn row(message: &Message, recipient: &str, outcome: Outcome) -> io::Result<Vec<u8>> {
    let plain = |text: &str| -> String { text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect() };
    let optional = |text: &Option<Box<str>>| text.as_deref().map(plain).unwrap_or_default();
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::with_capacity(160));
    writer.write_record([
        &message.at.rfc3339_exact(),
        &message.client.map(|client| client.to_string()).unwrap_or_default(),
        &optional(&message.user),
        &optional(&message.sender),
        &plain(recipient),
        &message.size.map(|size| size.to_string()).unwrap_or_default(),
        &plain(&message.id),
        outcome.name(),
    ])?;
    writer.into_inner().map_err(|error| io::Error::other(error.to_string()))
}
