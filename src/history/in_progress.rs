//! Messages in progress: their lines are collected until they have left the queue. Their number is bounded.

use super::entry::{Entry, Kind};
use super::message::{Message, Origin};
use super::rows::Rows;
use super::summary::Summary;
use crate::time::Timestamp;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

/// Messages in progress by host and id.
#[derive(Default)]
pub struct InProgress {
    messages: HashMap<Box<str>, Message>,
    /// Keys in order of the beginning; also of messages that have been written since.
    begun: VecDeque<(Timestamp, Box<str>)>,
    /// Keys of messages that have left the queue, in order.
    left: VecDeque<(Timestamp, Box<str>)>,
    /// Ids in replies that stand before the beginning of the message: the logs of two hosts, or lines of one second, are
    /// not in order. With the time of the reply; in `announcements` in order.
    announced: HashMap<Box<str>, Timestamp>,
    announcements: VecDeque<(Timestamp, Box<str>)>,
    /// Hosts seen. A queue id in a reply does not say which of them gave it.
    hosts: Vec<Box<str>>,
    /// Messages and recipients held: the measure of memory.
    held: usize,
    /// Key of the present line.
    key: String,
}

/// Maximum of messages and recipients held: some 100 MiB. Beyond it the oldest messages are written as they are.
const MAX_HELD: usize = 500_000;

/// Maximum of ids in replies that wait for the beginning of their message.
const MAX_ANNOUNCED: usize = 100_000;

/// Maximum of hosts among which a queue id is looked up.
const MAX_HOSTS: usize = 64;

/// Time for which a message is held after it has left the queue. A content filter may return it, and the server
/// deliver it, before the log says under which id.
const LINGER: Duration = Duration::from_secs(60);

/// Maximum time in a queue: Postfix and Exim give up sooner. Without it, messages that were never queued would stay.
const MAX_AGE: Duration = Duration::from_secs(8 * 86_400);

impl InProgress {
    /// Adds the content of a line. A line about a message that did not begin in the logs is left out.
    pub fn add(&mut self, at: Timestamp, entry: Entry<'_>, rows: &mut Rows, summary: &mut Summary) -> io::Result<()> {
        if entry.kind == Kind::Whole || entry.id.is_empty() {
            let began = Timestamp::from_micros(at.micros().saturating_sub_unsigned(micros(entry.age)));
            return rows.add(&Message::new(began, Origin::Client, entry), summary);
        }
        self.set_key(entry.host, &entry.id);
        if let Some(next) = entry.next_id {
            self.mark_continuation(at, next);
        }
        match entry.kind {
            Kind::Begin => return self.begin(at, entry, rows, summary),
            Kind::Process if !self.messages.contains_key(&*self.key) => {
                return self.insert(Message::new(at, Origin::Server, entry), rows, summary);
            }
            _ => {}
        }
        let is_end = entry.kind == Kind::End;
        match self.messages.get_mut(&*self.key) {
            Some(message) => {
                let before = message.recipients.len();
                message.merge(entry);
                self.held += message.recipients.len() - before;
                if is_end && !std::mem::replace(&mut message.has_left, true) {
                    self.left.push_back((at, self.key.as_str().into()));
                }
            }
            None => summary.without_beginning += u64::from(is_end),
        }
        self.shrink(rows, summary)
    }

    fn begin(&mut self, at: Timestamp, entry: Entry<'_>, rows: &mut Rows, summary: &mut Summary) -> io::Result<()> {
        if self.hosts.len() < MAX_HOSTS && !self.hosts.iter().any(|known| **known == *entry.host) {
            self.hosts.push(entry.host.into());
        }
        let origin = if entry.is_continuation || self.announced.contains_key(&*entry.id) {
            Origin::Continuation
        } else {
            Origin::Client
        };
        // Postfix uses a short queue id again after a while.
        if let Some(former) = self.remove_current() {
            rows.add(&former, summary)?;
        }
        self.insert(Message::new(at, origin, entry), rows, summary)
    }

    fn insert(&mut self, message: Message, rows: &mut Rows, summary: &mut Summary) -> io::Result<()> {
        self.forget_written();
        self.begun.push_back((message.at, self.key.as_str().into()));
        self.held += message.weight();
        self.messages.insert(self.key.as_str().into(), message);
        self.shrink(rows, summary)
    }

    /// Removes the keys of messages that have been written: they must not need more memory than the messages.
    fn forget_written(&mut self) {
        let most = 2 * self.messages.len() + 1000;
        if self.begun.len() > most {
            self.begun.retain(|(at, key)| self.messages.get(key).is_some_and(|message| message.at == *at));
        }
        if self.left.len() > most {
            self.left.retain(|(_, key)| self.messages.get(key).is_some_and(|message| message.has_left));
        }
        if self.announcements.len() > MAX_ANNOUNCED {
            self.announcements.clear();
            self.announced.clear();
        }
    }

    /// Writes the messages that have left the queue a while ago, and those that are too old.
    pub fn expire(&mut self, now: Timestamp, rows: &mut Rows, summary: &mut Summary) -> io::Result<()> {
        while let Some((at, key)) = self.left.pop_front_if(|(at, _)| now.since(*at) > LINGER) {
            // The id may be that of a later message by now.
            if self.messages.get(&key).is_some_and(|message| message.has_left && message.at <= at) {
                self.write(&key, rows, summary)?;
            }
        }
        while let Some((at, id)) = self.announcements.pop_front_if(|(at, _)| now.since(*at) > LINGER) {
            if self.announced.get(&id) == Some(&at) {
                self.announced.remove(&id);
            }
        }
        while let Some((at, key)) = self.begun.pop_front_if(|(at, _)| now.since(*at) > MAX_AGE) {
            if self.messages.get(&key).is_some_and(|message| message.at == at) {
                self.write(&key, rows, summary)?;
            }
        }
        Ok(())
    }

    /// Writes all messages that are left.
    pub fn finish(mut self, rows: &mut Rows, summary: &mut Summary) -> io::Result<()> {
        let mut messages: Vec<Message> = self.messages.drain().map(|(_, message)| message).collect();
        messages.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
        messages.iter().try_for_each(|message| rows.add(message, summary))
    }

    /// Writes the oldest messages while too many are held.
    fn shrink(&mut self, rows: &mut Rows, summary: &mut Summary) -> io::Result<()> {
        while self.held > MAX_HELD
            && let Some((at, key)) = self.begun.pop_front()
        {
            if self.messages.get(&key).is_some_and(|message| message.at == at) {
                summary.written_early += 1;
                self.write(&key, rows, summary)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, key: &str, rows: &mut Rows, summary: &mut Summary) -> io::Result<()> {
        self.key.replace_range(.., key);
        self.remove_current().map_or(Ok(()), |message| rows.add(&message, summary))
    }

    fn remove_current(&mut self) -> Option<Message> {
        let message = self.messages.remove(&*self.key)?;
        self.held = self.held.saturating_sub(message.weight());
        Some(message)
    }

    fn set_key(&mut self, host: &str, id: &str) {
        self.key.clear();
        self.key.extend([host, " ", id]);
    }

    /// Marks the message that a server of these logs queued under this id.
    fn mark_continuation(&mut self, at: Timestamp, id: &str) {
        for host in &self.hosts {
            if let Some(message) = self.messages.get_mut(&*format!("{host} {id}")) {
                message.origin = Origin::Continuation;
                return;
            }
        }
        self.announced.insert(id.into(), at);
        self.announcements.push_back((at, id.into()));
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
