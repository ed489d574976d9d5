//! Entry: the content of one log line about one message.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

/// Result of parsing a line.
#[derive(Debug, PartialEq)]
pub enum Parsed<'a> {
    Entry(Entry<'a>),
    /// Line of the program that says nothing about a message.
    Irrelevant,
    /// Line of another program.
    Foreign,
    /// Line that has the form of an entry but cannot be parsed, with the reason.
    Bad(&'static str),
}

impl Parsed<'_> {
    /// Returns this result with the name of the host that wrote the line.
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

/// Content of a log line about one message. A field is empty if the line does not have it.
#[derive(Debug, Default, PartialEq)]
pub struct Entry<'a> {
    pub kind: Kind,
    /// Host that wrote the line, if syslog names one.
    pub host: &'a str,
    /// Id of the message in the server's queue, or of the session in Weir; empty if a message was refused before it got
    /// an id.
    pub id: Cow<'a, str>,
    pub client: Option<IpAddr>,
    pub user: Option<Cow<'a, str>>,
    /// Envelope sender; `<>` is the null sender.
    pub sender: Option<Cow<'a, str>>,
    pub size: Option<u64>,
    pub recipients: Vec<(Cow<'a, str>, Outcome)>,
    /// The line names all recipients of the envelope.
    pub has_all_recipients: bool,
    /// Number of recipients that the line counts without their addresses, and their outcome.
    pub unnamed: Option<(u64, Outcome)>,
    /// Id under which the next server queued the message, from that server's reply.
    pub next_id: Option<&'a str>,
    /// The message was in the queue before, and a content filter has returned it: it is not a new message.
    pub is_continuation: bool,
    /// Time from the beginning of the message to this line.
    pub age: Duration,
}

/// Event in the processing of a message that a line reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The message arrives from a client or a local program.
    Begin,
    /// The server processes the message. If no earlier line reports its arrival, the server made it: a bounce or a
    /// forwarded message.
    Process,
    #[default]
    Progress,
    /// The message leaves the queue.
    End,
    /// The line reports the whole message, from its arrival to its end.
    Whole,
}

/// Outcome of a message for one recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Sent,
    /// The last attempt to deliver failed temporarily, and no later one follows: the log ends, or the message left the
    /// queue.
    Deferred,
    Bounced,
    /// The server refused the recipient or the message, so that it was never queued.
    Refused,
    /// The log reports no attempt to deliver.
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

    /// Returns whether a later attempt to deliver can change the outcome.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Deferred | Self::Unknown)
    }
}

/// Returns an envelope sender that is written without its brackets. The null sender is returned as `<>`, so that it
/// differs from an unknown sender.
pub fn sender(address: &str) -> Cow<'_, str> {
    if address.is_empty() { "<>".into() } else { address.into() }
}

/// Returns the IP address in the last square brackets of `name[192.0.2.7]:25`.
pub fn bracketed_address(text: &str) -> Option<IpAddr> {
    let start = text.rfind('[')? + 1;
    let end = start + text[start..].find(']')?;
    // Exim and Postfix may write an IPv6 address with the prefix of SMTP address literals.
    let address = text[start..end].trim_start_matches("IPv6:");
    address.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}
