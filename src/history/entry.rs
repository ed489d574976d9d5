//! Entry: the content of one log line about one message.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

/// Result of parsing a line.
#[derive(Debug, PartialEq)]
pub enum Parsed<'a> {
    Entry(Entry<'a>),
    /// Line of the program that concerns no message.
    Irrelevant,
    /// Line of another program.
    Foreign,
    /// Line that should be an entry, and the reason why it is none.
    Bad(&'static str),
}

impl Parsed<'_> {
    /// Returns the entry for a line of this host.
    pub fn of_host<'a>(self, host: &'a str) -> Parsed<'a>
    where
        Self: 'a,
    {
        match self {
            Self::Entry(entry) => Parsed::Entry(Entry { host, ..entry }),
            other => other,
        }
    }
}

/// Content of a log line about one message. A field that the line lacks is empty.
#[derive(Debug, Default, PartialEq)]
pub struct Entry<'a> {
    pub kind: Kind,
    /// Host that wrote the line, if syslog names one.
    pub host: &'a str,
    /// Id of the message in the server's queue, or of the session; empty for a refusal before the message had one.
    pub id: Cow<'a, str>,
    pub client: Option<IpAddr>,
    pub user: Option<Cow<'a, str>>,
    /// Envelope sender; `<>` is the null sender.
    pub sender: Option<Cow<'a, str>>,
    pub size: Option<u64>,
    pub recipients: Vec<(Cow<'a, str>, Outcome)>,
    /// The line names all recipients of the envelope.
    pub has_all_recipients: bool,
    /// Recipients that the line counts, but does not name, and their outcome.
    pub unnamed: Option<(u64, Outcome)>,
    /// Id under which the next server queued the message.
    pub next_id: Option<&'a str>,
    /// The message was in the queue before: a content filter returned it.
    pub is_continuation: bool,
    /// Time between the beginning of the message and the line.
    pub age: Duration,
}

/// Part of a message's life that a line is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A client or a local program sends the message.
    Begin,
    /// The server processes the message. If it has not begun, the server made it: a bounce or a forwarded message.
    Process,
    #[default]
    Progress,
    /// The message leaves the queue.
    End,
    /// The line is about the whole message, from beginning to end.
    Whole,
}

/// Outcome of a message for one recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Sent,
    /// The last attempt failed for a time; the log ends, or the message left the queue, before another.
    Deferred,
    Bounced,
    /// The server refused the recipient or the message, so that it was never queued.
    Refused,
    /// The log has no attempt to deliver.
    Unknown,
}

impl Outcome {
    pub const ALL: [Self; 5] = [Self::Sent, Self::Deferred, Self::Bounced, Self::Refused, Self::Unknown];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Deferred => "deferred",
            Self::Bounced => "bounced",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }

    /// Returns whether a later attempt can change the outcome.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Deferred | Self::Unknown)
    }
}

/// Returns the address between `<` and `>`; the null sender keeps its brackets, so that it is not an empty text.
pub fn sender(address: &str) -> Cow<'_, str> {
    if address.is_empty() { "<>".into() } else { address.into() }
}

/// Returns the address in the last brackets of `name[192.0.2.7]:25`.
pub fn bracketed_address(text: &str) -> Option<IpAddr> {
    let start = text.rfind('[')? + 1;
    let end = start + text[start..].find(']')?;
    // Exim and Postfix may write IPv6 addresses as in SMTP literals.
    let address = text[start..end].trim_start_matches("IPv6:");
    address.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}
