//! Messages in progress: the entries of each message are collected until the message has left the queue. The number of
//! messages in memory is bounded.

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
    /// Keys of messages with the time of their first line, in the order of these times. Keys of messages that have been
    /// written may still be here.
    begun: VecDeque<(Timestamp, Box<str>)>,
    /// Keys of messages that have left the queue, with the time of leaving, in the order of these times.
    left: VecDeque<(Timestamp, Box<str>)>,
    /// Ids from replies of a next server, each with the time of the reply. No line of that server about the message has
    /// been read yet: logs of two hosts, or lines of one second, can be out of order. `announcements` has the same
    /// entries, sorted by time.
    announced: HashMap<Box<str>, Timestamp>,
    announcements: VecDeque<(Timestamp, Box<str>)>,
    /// Hosts whose lines have been read. A queue id in a reply does not say which of these hosts gave the id.
    hosts: Vec<Box<str>>,
    /// Number of messages and recipients in memory, as a measure of the memory in use.
    held: usize,
    /// Key (host and id) of the line that is being added.
    key: String,
}

/// Maximum number of messages and recipients in memory: about 200 MiB. Beyond this number, the oldest messages are
/// written, although they are still in progress.
const MAX_HELD: usize = if cfg!(test) { 100 } else { 500_000 };

/// Maximum number of ids from replies for which no line of the message has been read yet.
const MAX_ANNOUNCED: usize = 100_000;

/// Maximum number of hosts for which a queue id is looked up.
const MAX_HOSTS: usize = 64;

/// Time for which a message stays in memory after it has left the queue. A content filter can return a message under a
/// new id, and the server can deliver this second message, before the lines of the first message name the new id.
const LINGER: Duration = Duration::from_secs(60);

/// Maximum age of a message in memory: Postfix and Exim give up deliveries sooner. Without this maximum, messages whose
/// last line is missing would stay in memory for ever.
const MAX_AGE: Duration = Duration::from_secs(8 * 86_400);

impl InProgress {
    /// Adds the content of a line to its message.
    pub fn add(&mut self, at: Timestamp, entry: Entry<'_>, rows: &mut Rows, summary: &mut Summary) -> io::Result<()> {
        if entry.kind == Kind::Whole || entry.id.is_empty() {
            let began = Timestamp::from_micros(at.micros().saturating_sub_unsigned(micros(entry.age)));
            return add_at_once(began, entry, rows, summary);
        }
        self.set_key(entry.host, &entry.id);
        if let Some(next) = entry.next_id {
            self.mark_continuation(at, next);
        }
        match entry.kind {
            Kind::Begin => return self.begin(at, entry, rows, summary),
            _ if self.messages.contains_key(&*self.key) => {}
            Kind::Process => return self.insert(Message::new(at, Origin::Server, entry), rows, summary),
            _ if entry.is_self_contained() => return add_at_once(at, entry, rows, summary),
            // Keep the message in memory, so that all its lines are counted as one message.
            _ => self.insert(Message::new(at, Origin::BeforeLogs, Entry::default()), rows, summary)?,
        }
        let is_end = entry.kind == Kind::End;
        if let Some(message) = self.messages.get_mut(&*self.key) {
            let before = message.recipients.len();
            message.merge(entry);
            self.held += message.recipients.len() - before;
            if is_end && !std::mem::replace(&mut message.has_left, true) {
                self.left.push_back((at, self.key.as_str().into()));
            }
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
        // Postfix uses a short queue id again for a later message: write the earlier message with this id.
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

    /// Removes the keys of messages that have been written, so that these keys do not need more memory than the
    /// messages.
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

    /// Writes the messages that left the queue more than `LINGER` ago, and the messages that are older than `MAX_AGE`.
    pub fn expire(&mut self, now: Timestamp, rows: &mut Rows, summary: &mut Summary) -> io::Result<()> {
        while let Some((at, key)) = self.left.pop_front_if(|(at, _)| now.since(*at) > LINGER) {
            // By now, a later message can have the same id; this later message is not written here.
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

    /// Writes all messages that are in memory, at the end of the logs.
    pub fn finish(mut self, rows: &mut Rows, summary: &mut Summary) -> io::Result<()> {
        let mut messages: Vec<Message> = self.messages.drain().map(|(_, message)| message).collect();
        messages.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
        messages.iter().try_for_each(|message| rows.add(message, summary))
    }

    /// Writes the oldest messages until no more than `MAX_HELD` messages and recipients are in memory.
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

    /// Marks the message `id` as a continuation of another message, which is in these logs already. If no line of the
    /// message `id` has been read yet, remembers the id, so that the message can be marked later.
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

/// Adds a message that one line reports completely. Adds it several times if the line stands for several equal lines.
fn add_at_once(began: Timestamp, entry: Entry<'_>, rows: &mut Rows, summary: &mut Summary) -> io::Result<()> {
    let times = 1 + entry.more;
    let message = Message::new(began, Origin::Client, entry);
    (0..times).try_for_each(|_| rows.add(&message, summary))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::entry::Outcome;
    use super::super::{Options, Program};
    use super::*;

    #[test]
    fn messages_that_never_end_need_bounded_memory_and_are_written_early() {
        let options = Options {
            program: Program::Postfix,
            logs: Vec::new(),
            zone: jiff::tz::TimeZone::UTC,
            year: None,
            now: Timestamp::from_micros(0),
            refused: true,
            authenticated: false,
        };
        let (mut rows, mut summary) = (Rows::new(&options), Summary::new(Program::Postfix));
        let mut messages = InProgress::default();
        // Messages with an odd number have no line about their arrival.
        for n in 0..10_000_i64 {
            let (at, id) = (Timestamp::from_micros(n), n.to_string());
            let sender = Some("<>".into());
            let begin = Entry { kind: Kind::Begin, id: (&*id).into(), sender, ..Entry::default() };
            if n % 2 == 0 {
                messages.add(at, begin, &mut rows, &mut summary).unwrap();
            }
            let recipients = vec![("b@example.net".into(), Outcome::Deferred)];
            let delivery = Entry { id: (&*id).into(), recipients, ..Entry::default() };
            messages.add(at, delivery, &mut rows, &mut summary).unwrap();
            assert!(messages.held <= MAX_HELD && messages.messages.len() <= MAX_HELD);
        }
        let keys = [messages.begun.len(), messages.left.len(), messages.announcements.len()];
        assert!(keys.into_iter().all(|keys| keys <= 2 * MAX_HELD + 1000), "{keys:?}");
        messages.finish(&mut rows, &mut summary).unwrap();
        assert_eq!((summary.messages, summary.older), (5000, 5000));
        assert_eq!(summary.written_early, 10_000 - MAX_HELD as u64 / 2);
    }
}
