//! Log of a smart host, read from the place where an earlier run has stopped.

use super::links::Links;
use super::{Kind, Outcome};
use crate::history::{DeliveryLines, DeliveryResult, Program};
use crate::time::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Maximum length of a line in octets; the rest of a longer line is skipped.
const MAX_LINE: u64 = 64 << 10;

/// Maximum octets of a file with a position: that of the greatest number of links takes less.
const MAX_POSITION: u64 = 64 << 20;

/// Log that is read once, or followed.
pub struct FollowedLog {
    path: PathBuf,
    position_path: PathBuf,
    input: BufReader<File>,
    inode: u64,
    /// Octets of the log that have been read.
    offset: u64,
    lines: DeliveryLines,
    links: Links,
}

/// Place in a log, as a file of JSON.
#[derive(Serialize, Deserialize)]
struct Position {
    log: PathBuf,
    inode: u64,
    offset: u64,
    /// Later queue ids of messages, each with the first id.
    links: Vec<(String, String)>,
}

/// Reason why a log cannot be read.
#[derive(Debug)]
pub enum FollowError {
    Log(PathBuf, io::Error),
    Position(PathBuf, io::Error),
    /// The file has the position in another log.
    OtherLog(PathBuf, PathBuf),
}

impl FollowedLog {
    /// Opens a log at the place that the file `position` has. Without this file, opens the log at its beginning.
    pub fn open(
        program: Program,
        path: &Path,
        position_path: &Path,
        zone: TimeZone,
        now: Timestamp,
    ) -> Result<Self, FollowError> {
        let log_error = |error| FollowError::Log(path.to_owned(), error);
        let position = read_position(position_path).map_err(|e| FollowError::Position(position_path.to_owned(), e))?;
        let mut links = Links::default();
        let (mut place, mut file) = (0, File::open(path).map_err(log_error)?);
        if let Some(position) = position {
            if position.log != path {
                return Err(FollowError::OtherLog(position_path.to_owned(), position.log));
            }
            position.links.iter().for_each(|(later, first)| links.add(first, later));
            // The log can have been rotated since: first read the rest of the former file.
            if let Some(former) = file_of_inode(path, position.inode).map_err(log_error)? {
                (place, file) = (position.offset, former);
            }
        }
        let metadata = file.metadata().map_err(log_error)?;
        // A log that was truncated begins anew.
        let offset = if place <= metadata.len() { place } else { 0 };
        let mut input = BufReader::with_capacity(1 << 16, file);
        input.seek(SeekFrom::Start(offset)).map_err(log_error)?;
        Ok(Self {
            path: path.to_owned(),
            position_path: position_path.to_owned(),
            input,
            inode: metadata.ino(),
            offset,
            lines: DeliveryLines::new(program, zone, now),
            links,
        })
    }

    /// Returns the next outcomes, about `at_most`. Returns none at the present end of the log.
    pub fn read(&mut self, at_most: usize) -> Result<Vec<Outcome>, FollowError> {
        let mut found = Vec::new();
        while found.len() < at_most {
            match self.next_line().map_err(|error| FollowError::Log(self.path.clone(), error))? {
                Some(line) => self.add(line, &mut found),
                None if self.begin_next_file().map_err(|error| FollowError::Log(self.path.clone(), error))? => {}
                None => break,
            }
        }
        Ok(found)
    }

    /// Saves the present place. The outcomes of all lines before it must have been counted.
    pub fn save(&self) -> Result<(), FollowError> {
        let links = self.links.pairs().map(|(later, first)| (later.to_owned(), first.to_owned())).collect();
        let position = Position { log: self.path.clone(), inode: self.inode, offset: self.offset, links };
        let save = || {
            let new = self.position_path.with_extension("new");
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec(&position)?)?;
            std::fs::rename(&new, &self.position_path)
        };
        save().map_err(|error| FollowError::Position(self.position_path.clone(), error))
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

    /// Reads a whole line. Returns `None` at the end of the file, also if the last line has no end yet.
    fn next_line(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        let read = self.input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? as u64;
        if line.last() == Some(&b'\n') {
            self.offset += read;
            return Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()));
        }
        if read == MAX_LINE {
            self.offset += read + self.input.skip_until(b'\n')? as u64;
            return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
        }
        self.input.seek(SeekFrom::Start(self.offset))?;
        Ok(None)
    }

    /// At the end of the file, opens the file that has the log's name now, if that is another one or a truncated one.
    /// Returns whether it has.
    fn begin_next_file(&mut self) -> io::Result<bool> {
        let present = match File::open(&self.path) {
            Ok(file) => file,
            // Between two steps of the rotation, the log does not exist.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let metadata = present.metadata()?;
        if metadata.ino() == self.inode && metadata.len() >= self.offset {
            return Ok(false);
        }
        (self.inode, self.offset) = (metadata.ino(), 0);
        self.input = BufReader::with_capacity(1 << 16, present);
        Ok(true)
    }
}

/// Opens the file with this inode: the log itself, or a rotated log beside it, whose name begins with the log's name.
fn file_of_inode(path: &Path, inode: u64) -> io::Result<Option<File>> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_of_log = entry.file_name().as_encoded_bytes().starts_with(name.as_encoded_bytes());
        if is_of_log && entry.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.ino() == inode) {
            return File::open(entry.path()).map(Some);
        }
    }
    Ok(None)
}

fn read_position(path: &Path) -> io::Result<Option<Position>> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_POSITION).read_to_end(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(serde_json::from_slice(&text)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path) -> Result<FollowedLog, FollowError> {
        let now = Timestamp::from_micros(1_800_000_000_000_000);
        FollowedLog::open(Program::Postfix, &folder.join("log"), &folder.join("place"), TimeZone::UTC, now)
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

    fn recipients(log: &mut FollowedLog) -> Vec<String> {
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
