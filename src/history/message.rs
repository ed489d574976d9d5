//! Message, with the facts from the log lines that have been read so far.

use super::entry::{Entry, Outcome};
use crate::time::Timestamp;
use std::net::IpAddr;

/// Message, with the facts that are known so far.
#[derive(Debug)]
pub struct Message {
    pub at: Timestamp,
    pub id: Box<str>,
    pub client: Option<IpAddr>,
    pub user: Option<Box<str>>,
    pub sender: Option<Box<str>>,
    pub size: Option<u64>,
    pub recipients: Vec<(Box<str>, Outcome)>,
    /// Number of recipients that the log counts without their addresses, and their outcome.
    pub unnamed: (u64, Outcome),
    has_all_recipients: bool,
    pub origin: Origin,
    pub has_left: bool,
}

/// Origin of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client or a local program sent the message.
    Client,
    /// The server made the message: a bounce, or a message that it forwarded under a new id.
    Server,
    /// The message was already in a queue of one of these hosts: a content filter returned the message, `postsuper -r`
    /// queued it again, or another of these hosts relayed it.
    Continuation,
    /// The message arrived before the logs begin, or the line of its arrival is missing.
    BeforeLogs,
}

impl Message {
    pub fn new(at: Timestamp, origin: Origin, entry: Entry<'_>) -> Self {
        let mut message = Self {
            at,
            id: (&*entry.id).into(),
            client: None,
            user: None,
            sender: None,
            size: None,
            recipients: Vec::new(),
            unnamed: (0, Outcome::Unknown),
            has_all_recipients: false,
            origin,
            has_left: false,
        };
        message.merge(entry);
        message
    }

    pub fn weight(&self) -> usize {
        1 + self.recipients.len()
    }

    /// Adds the facts from a later line.
    pub fn merge(&mut self, entry: Entry<'_>) {
        let text = |text: std::borrow::Cow<'_, str>| Box::from(&*text);
        self.client = entry.client.or(self.client);
        self.user = entry.user.map(text).or(self.user.take());
        self.sender = entry.sender.map(text).or(self.sender.take());
        self.size = entry.size.or(self.size);
        for (address, outcome) in entry.recipients {
            self.add_recipient(&address, outcome);
        }
        self.has_all_recipients |= entry.has_all_recipients;
        if let Some(unnamed) = entry.unnamed {
            self.add_unnamed(unnamed);
        }
    }

    /// Adds recipients without addresses. If the addresses of all recipients are known, sets the open outcomes of these
    /// recipients instead.
    fn add_unnamed(&mut self, unnamed: (u64, Outcome)) {
        if !self.has_all_recipients {
            self.unnamed = unnamed;
        }
        for (_, outcome) in
            self.recipients.iter_mut().filter(|(_, outcome)| self.has_all_recipients && outcome.is_open())
        {
            *outcome = unnamed.1;
        }
    }

    /// Adds a recipient, or a later outcome of a recipient. An alias can have several deliveries: the first final
    /// outcome counts.
    fn add_recipient(&mut self, address: &str, outcome: Outcome) {
        match self.recipients.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(address)) {
            Some((_, known)) if known.is_open() => *known = outcome,
            Some(_) => {}
            None if self.has_all_recipients => {}
            None => self.recipients.push((address.into(), outcome)),
        }
    }
}
