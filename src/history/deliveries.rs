//! Lines of a log about deliveries, read one at a time as the server writes them.

use super::Program;
use super::entry::{Kind, Outcome, Parsed};
use super::line::Line;
use super::stamp::Stamps;
use crate::time::Timestamp;
use jiff::tz::TimeZone;
use std::net::IpAddr;

/// Reader of a log's lines.
pub struct DeliveryLines {
    program: Program,
    stamps: Stamps,
}

/// Content of a line about the delivery of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryLine {
    pub at: Timestamp,
    /// Queue id of the message.
    pub id: String,
    /// Queue id that the message had before.
    pub first_id: Option<String>,
    /// Queue id that the next server gave the message, if the next server is in a private network: another server could
    /// give any id.
    pub next_id: Option<String>,
    /// Recipients, each with the result of the delivery. A recipient is `None` if the line names none.
    pub results: Vec<(Option<String>, DeliveryResult)>,
}

/// Result of a delivery, or of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    Sent,
    Deferred,
    Bounced,
    /// The server has given up after many attempts.
    Expired,
}

impl DeliveryLines {
    /// Reader of a log of this program. `zone` is the time zone of times without an offset.
    pub fn new(program: Program, zone: TimeZone, now: Timestamp) -> Self {
        Self { program, stamps: Stamps::new(zone, None, now) }
    }

    /// Reads a line. Returns `None` if it reports no delivery.
    pub fn read(&mut self, text: String) -> Option<DeliveryLine> {
        let (at, after_time) = self.stamps.read(&text).ok()?;
        let line = Line { at, time_error: None, is_repeated: false, text, after_time, file: "".into(), number: 0 };
        let Parsed::Entry(entry) = self.program.parse(&line) else { return None };
        let result = |outcome| match outcome {
            Outcome::Sent => Some(DeliveryResult::Sent),
            Outcome::Deferred => Some(DeliveryResult::Deferred),
            Outcome::Bounced if entry.is_expired => Some(DeliveryResult::Expired),
            Outcome::Bounced => Some(DeliveryResult::Bounced),
            Outcome::Refused | Outcome::Discarded | Outcome::Unknown => None,
        };
        let named = entry.recipients.iter().filter_map(|(to, outcome)| Some((Some(to.to_string()), result(*outcome)?)));
        let mut results: Vec<_> = named.collect();
        if results.is_empty() && entry.is_expired {
            results.push((None, DeliveryResult::Expired));
        }
        let next_id = entry.next_id.filter(|_| entry.next_host.is_some_and(is_private)).map(str::to_owned);
        let first_id = entry.first_id.filter(|_| entry.kind == Kind::Begin).map(str::to_owned);
        if entry.id.is_empty() || results.is_empty() && first_id.is_none() {
            return None;
        }
        Some(DeliveryLine { at, id: entry.id.into_owned(), first_id, next_id, results })
    }
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_private(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unique_local(),
    }
}
