//! Last part of a decision log, line by line.

use serde::Deserialize;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Take};
use std::path::Path;

/// Maximum octets that are read, from the end of the file.
pub const MAX_OCTETS: u64 = 64 << 20;

/// Maximum octets of a line. The longest record has less than a tenth of this length.
const MAX_LINE: u64 = 1 << 20;

/// Decision log with a fixed part that is read. The part ends at the end that the file had when it was opened.
pub struct LogFile {
    file: File,
    begin: u64,
    end: u64,
}

/// Complete lines of the part. An incomplete line at its end is still being written, and is left out.
pub struct Lines<'a> {
    reader: BufReader<Take<&'a File>>,
    /// Position of the next line in the file.
    at: u64,
}

/// Line without its line end.
pub struct Line {
    /// Position of the line in the file.
    pub begin: u64,
    pub octets: Vec<u8>,
}

/// Position of the last line of each session.
pub struct SessionEnds(HashMap<Box<str>, u64>);

/// The part of a record that tells its session.
#[derive(Deserialize)]
struct Session<'a> {
    #[serde(borrow)]
    session: Cow<'a, str>,
}

impl LogFile {
    pub fn open(path: &Path) -> Result<Self, String> {
        // Opening a named pipe would block until another process opens the pipe for writing.
        let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
        if !metadata.is_file() {
            return Err("it is no regular file".to_owned());
        }
        let file = File::open(path).map_err(|error| error.to_string())?;
        let end = file.metadata().map_err(|error| error.to_string())?.len();
        Ok(Self { file, begin: end.saturating_sub(MAX_OCTETS), end })
    }

    /// Returns whether the file has an earlier part that is not read.
    pub fn is_part(&self) -> bool {
        self.begin > 0
    }

    /// Returns the lines from the beginning of the part.
    pub fn lines(&self) -> io::Result<Lines<'_>> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.begin))?;
        let mut lines = Lines { reader: BufReader::new(file.take(self.end - self.begin)), at: self.begin };
        if self.is_part() {
            // The part begins within a line.
            lines.next()?;
        }
        Ok(lines)
    }

    /// Finds the last line of each session, until `is_late` returns true for the number of a line.
    pub fn session_ends(&self, is_late: impl Fn(u64) -> bool) -> io::Result<SessionEnds> {
        let (mut ends, mut number) = (HashMap::new(), 0);
        let mut lines = self.lines()?;
        while let Some(line) = lines.next()? {
            number += 1;
            if is_late(number) {
                break;
            }
            let Ok(Session { session }) = serde_json::from_slice(&line.octets) else { continue };
            match ends.get_mut(&*session) {
                Some(end) => *end = line.begin,
                None => drop(ends.insert(session.into(), line.begin)),
            }
        }
        Ok(SessionEnds(ends))
    }
}

impl Lines<'_> {
    /// Returns the next line. The beginning of a line that is too long is a line of its own.
    pub fn next(&mut self) -> io::Result<Option<Line>> {
        let (begin, mut octets) = (self.at, Vec::with_capacity(1024));
        let read = self.reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut octets)? as u64;
        self.at += read;
        let is_complete = octets.pop_if(|last| *last == b'\n').is_some();
        Ok((is_complete || read == MAX_LINE).then_some(Line { begin, octets }))
    }
}

impl SessionEnds {
    pub fn is_last(&self, session: &str, line: u64) -> bool {
        self.0.get(session) == Some(&line)
    }
}
