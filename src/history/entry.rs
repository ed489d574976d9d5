//! Entry: the content of one log line about one message.

use super::syslog::Header;
use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

/// Result of parsing a line.
#[derive(Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a parsed line lives until the next line")]
pub enum Parsed<'a> {
    Entry(Entry<'a>),
    /// Line of the same program, but not about a message.
    Irrelevant,
    /// Line about mail that cannot be in the history.
    LeftOut(LeftOut),
    /// Line of another program.
    Foreign,
    /// Line that has the form of an entry but cannot be parsed, with the reason.
    Bad(&'static str),
}

/// Reason why a line about mail cannot be in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// The server refused the client, its greeting, its login or the sender: no recipient is known yet.
    RefusedBeforeRecipient,
    /// Weir does not log every refusal of a busy session. This line has the number of refusals that were not logged.
    NotLogged(u64),
    /// Syslog did not write repetitions of the previous line; it wrote only their number.
    NotWritten(u64),
}

impl Parsed<'_> {
    /// Returns this result with the host and the number of repetitions from the header of the line.
    pub fn with_header<'a>(self, header: &Header<'a>) -> Parsed<'a>
    where
        Self: 'a,
    {
        match self {
            Self::Entry(entry) => Parsed::Entry(Entry { host: header.host, more: header.more, ..entry }),
            other => other,
        }
    }
}

/// Content of a log line about one message. A field is empty if the line does not have it.
#[derive(Debug, Default, PartialEq)]
pub struct Entry<'a> {
    pub kind: Kind,
    /// Host that wrote the line, if syslog names a host.
    pub host: &'a str,
    /// Number of further equal lines: syslog wrote only this line for all of them.
    pub more: u64,
    /// Id of the message in the server's queue; in Weir's own log, id of the session. Empty if the server refused the
    /// message before the message got an id.
    pub id: Cow<'a, str>,
    pub client: Option<IpAddr>,
    pub user: Option<Cow<'a, str>>,
    /// Envelope sender; `<>` is the null sender.
    pub sender: Option<Cow<'a, str>>,
    pub size: Option<u64>,
    pub recipients: Vec<(Cow<'a, str>, Outcome)>,
    /// The line names all recipients of the envelope.
    pub has_all_recipients: bool,
    /// Number and outcome of recipients whose addresses the line does not name. If the line reports the refusal of a
    /// whole message and does not name its recipients, the number is 1.
    pub unnamed: Option<(u64, Outcome)>,
    /// Id under which the next server queued the message, from that server's reply.
    pub next_id: Option<&'a str>,
    /// Address of the next server.
    pub next_host: Option<IpAddr>,
    /// Queue id that the message had before a content filter returned it, or before `postsuper -r`.
    pub first_id: Option<&'a str>,
    /// The server gives up the message after many attempts.
    pub is_expired: bool,
    /// The message is not new: a content filter returned it to the queue, or `postsuper -r` queued it again.
    pub is_continuation: bool,
    /// Time from the beginning of the message to this line.
    pub age: Duration,
}

/// Kind of event that a line reports about a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The message arrives from a client or a local program.
    Begin,
    /// The server processes the message. If no earlier line reports the arrival of the message, the server itself
    /// created it: a bounce or a forwarded message.
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
    /// The last attempt to deliver failed temporarily. No later attempt follows, because the log ends or the message
    /// left the queue.
    Deferred,
    Bounced,
    /// The server refused the recipient or the whole message, and did not queue the message for this recipient.
    Refused,
    /// The server accepted the recipient or the message, but delivered nothing.
    Discarded,
    /// The log reports no attempt to deliver.
    Unknown,
}

impl Outcome {
    pub const ALL: [Self; 6] =
        [Self::Sent, Self::Deferred, Self::Bounced, Self::Refused, Self::Discarded, Self::Unknown];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Deferred => "deferred",
            Self::Bounced => "bounced",
            Self::Refused => "refused",
            Self::Discarded => "discarded",
            Self::Unknown => "unknown",
        }
    }

    /// Returns whether a later attempt to deliver can change the outcome.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Deferred | Self::Unknown)
    }
}

impl Entry<'_> {
    /// Returns whether the line reports only refused or discarded recipients. Such a line has all facts, so that no
    /// earlier line is needed.
    pub fn is_self_contained(&self) -> bool {
        let is_final = |outcome: &Outcome| matches!(outcome, Outcome::Refused | Outcome::Discarded);
        let mut outcomes =
            self.recipients.iter().map(|(_, outcome)| outcome).chain(self.unnamed.iter().map(|(_, o)| o));
        self.sender.is_some() && outcomes.clone().next().is_some() && outcomes.all(is_final)
    }
}

/// Returns the envelope sender for an address that the log writes without angle brackets. Returns the null sender as
/// `<>`, so that it differs from an unknown sender.
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
