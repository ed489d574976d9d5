//! Log of a smart host, followed from the place where an earlier run has stopped.

use super::links::Links;
use super::{Kind, Outcome};
use crate::followed_log::{FollowError, FollowedLog};
use crate::history::{DeliveryLines, DeliveryResult, Program};
use crate::time::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Log of a smart host that is read once, or followed.
pub struct DeliveryLog {
    log: FollowedLog,
    lines: DeliveryLines,
    links: Links,
}

/// State of the reader that the position file contains beside the position.
#[derive(Serialize, Deserialize)]
struct Remembered {
    /// Later queue ids of messages, each with the first id.
    links: Vec<(String, String)>,
}

impl DeliveryLog {
    /// Opens a log at the place that the file `position` has. Without this file, opens the log at its beginning.
    pub fn open(
        program: Program,
        path: &Path,
        position_path: &Path,
        zone: TimeZone,
        now: Timestamp,
    ) -> Result<Self, FollowError> {
        let (log, remembered) = FollowedLog::open::<Remembered>(path, position_path)?;
        let mut links = Links::default();
        remembered.iter().flat_map(|one| &one.links).for_each(|(later, first)| links.add(first, later));
        Ok(Self { log, lines: DeliveryLines::new(program, zone, now), links })
    }

    /// Returns the next outcomes, about `at_most`. Returns none at the present end of the log.
    pub fn read(&mut self, at_most: usize) -> Result<Vec<Outcome>, FollowError> {
        let mut found = Vec::new();
        while found.len() < at_most {
            let Some(line) = self.log.next_line()? else { break };
            self.add(line, &mut found);
        }
        Ok(found)
    }

    /// Saves the present place. The outcomes of all lines before it must have been counted.
    pub fn save(&mut self) -> Result<(), FollowError> {
        let links = self.links.pairs().map(|(later, first)| (later.to_owned(), first.to_owned())).collect();
        self.log.save(Remembered { links })
    }

    fn add(&mut self, line: String, found: &mut Vec<Outcome>) {
        let Some(line) = self.lines.read(line) else { return };
        if let Some(first) = &line.first_id {
            self.links.add(first, &line.id);
        }
        if let Some(next) = &line.next_id {
            self.links.add(&line.id, next);
        }
        let first = self.links.first(&line.id);
        for (recipient, result) in line.results {
            let kind = match result {
                // A content filter has the message now: it is not delivered yet.
                DeliveryResult::Sent if line.next_id.is_some() => continue,
                DeliveryResult::Sent => Kind::Sent,
                DeliveryResult::Deferred => Kind::Deferred,
                DeliveryResult::Bounced => Kind::Bounced,
                DeliveryResult::Expired => Kind::Expired,
            };
            let queue_ids = vec![first.to_owned()];
            let at = Some(line.at);
            found.push(Outcome { kind, queue_ids, message_id: None, recipient, other_name: None, at });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write as _;

    fn open(folder: &Path) -> Result<DeliveryLog, FollowError> {
        let now = Timestamp::from_micros(1_800_000_000_000_000);
        DeliveryLog::open(Program::Postfix, &folder.join("log"), &folder.join("place"), TimeZone::UTC, now)
    }

    fn bounce(id: &str, to: &str) -> String {
        format!(
            "2026-11-22T10:00:00Z mx postfix/smtp[1]: {id}: to=<{to}@example.net>, relay=mx[192.0.2.9]:25, delay=1, \
             dsn=5.1.1, status=bounced (host mx[192.0.2.9] said: 550 5.1.1 no)\n"
        )
    }

    fn append(path: &Path, text: &str) {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn recipients(log: &mut DeliveryLog) -> Vec<String> {
        log.read(100).unwrap().into_iter().map(|outcome| outcome.recipient.unwrap()).collect()
    }

    #[test]
    fn a_log_continues_where_it_ended_also_after_rotation_and_truncation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        append(&path, &bounce("4A8D2280F15", "a"));
        append(&path, &bounce("4A8D2280F15", "b")[..40]);
        let mut log = open(folder.path()).unwrap();
        assert_eq!(recipients(&mut log), ["a@example.net"], "the last line is incomplete");
        log.save().unwrap();
        append(&path, &bounce("4A8D2280F15", "b")[40..]);
        // While nothing reads the log, it is rotated.
        std::fs::rename(&path, folder.path().join("log.1")).unwrap();
        append(&path, &bounce("4A8D2280F15", "c"));
        let mut log = open(folder.path()).unwrap();
        assert_eq!(recipients(&mut log), ["b@example.net", "c@example.net"]);
        assert_eq!(recipients(&mut log), [""; 0]);
        log.save().unwrap();
        std::fs::write(&path, "").unwrap();
        append(&path, "short\n");
        assert_eq!(recipients(&mut log), [""; 0]);
        append(&path, &bounce("4A8D2280F15", "d"));
        assert_eq!(recipients(&mut log), ["d@example.net"]);
        std::fs::write(folder.path().join("place"), "{").unwrap();
        assert!(matches!(open(folder.path()), Err(FollowError::Position(..))));
    }

    #[test]
    fn a_content_filter_keeps_the_first_queue_id_and_a_foreign_server_gives_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for (relay, next) in
            [("127.0.0.1[127.0.0.1]:10025", "4B8D2280F15"), ("mx.example[192.0.2.9]:25", "4C8D2280F15")]
        {
            append(
                &path,
                &format!(
                    "2026-11-22T10:00:00Z mx postfix/smtp[1]: 4A8D2280F15: to=<a@example.net>, relay={relay}, delay=1, \
                     dsn=2.0.0, status=sent (250 2.0.0 Ok: queued as {next})\n"
                ),
            );
        }
        append(&path, &"x".repeat(200_000));
        append(&path, "\n\u{0}\u{1b}\n");
        append(&path, &bounce("4B8D2280F15", "a"));
        append(&path, &bounce("4C8D2280F15", "a"));
        let found = open(folder.path()).unwrap().read(100).unwrap();
        let found: Vec<_> = found.iter().map(|outcome| (outcome.kind, &*outcome.queue_ids[0])).collect();
        let expected = [(Kind::Sent, "4A8D2280F15"), (Kind::Bounced, "4A8D2280F15"), (Kind::Bounced, "4C8D2280F15")];
        assert_eq!(found, expected);
    }
}
