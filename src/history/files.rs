//! Log files, plain or gzipped, in any order. Returns their lines sorted by time; lines of several hosts are merged.

use super::line::Line;
use super::repeats::Repeats;
use super::stamp::Stamps;
use super::summary::FileReport;
use super::{HistoryError, Options, Program, own_log};
use crate::time::Timestamp;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// All logs, sorted by the times of their first lines. A log is opened again only when its first line is the next line
/// to return. So a year of rotated files needs few open file descriptors.
pub struct Logs {
    logs: Vec<Log>,
    repeats: Repeats,
}

struct Log {
    path: PathBuf,
    program: Program,
    modified: Timestamp,
    /// State of the parser of times before the first line. The log is read again from the beginning with this state.
    start: Stamps,
    stamps: Stamps,
    input: Option<Box<dyn BufRead>>,
    /// Next line to return. Until the log is opened again: the log's first line that has a time.
    next: Option<Line>,
    is_begun: bool,
    number: u64,
    report: FileReport,
}

/// Maximum length of a line in octets; the rest of a longer line is skipped.
const MAX_LINE: u64 = 64 << 10;

/// First octets of compressed files: of gzip (RFC 1952 §2.3.1), and of formats that the administrator must decompress
/// with another program.
const GZIP: &[u8] = &[0x1f, 0x8b];
const OTHERS: [(&[u8], &str); 3] = [(b"\xfd7zXZ", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2")];

impl Logs {
    /// Reads each log up to its first line with a time, to sort the logs.
    pub fn open(options: &Options) -> Result<Self, HistoryError> {
        let mut logs = Vec::new();
        for path in &options.logs {
            logs.push(Log::open(path, options).map_err(|error| HistoryError::Open(path.clone(), error))?);
        }
        // If lines of two files have the same time, the lines of the older file come first: the lines of a message can
        // continue in the next rotated file.
        logs.sort_by_key(|log| (log.next_at(), log.modified));
        Ok(Self { repeats: Repeats::new(logs.len()), logs })
    }

    /// Returns the line with the earliest time among the next lines of all logs; `None` after the last line.
    pub fn next_line(&mut self) -> Option<Line> {
        loop {
            let logs = self.logs.iter_mut().enumerate().filter(|(_, log)| log.next.is_some());
            let (number, log) = logs.min_by_key(|(_, log)| log.next_at())?;
            if !log.is_begun {
                log.begin();
                continue;
            }
            let mut line = log.take()?;
            line.is_repeated = self.repeats.is_repeated(line.at, line.body(), number);
            log.report.repeated += u64::from(line.is_repeated);
            return Some(line);
        }
    }

    /// Returns the reports on all logs, in the order of the times of their first lines.
    pub fn reports(self) -> Vec<FileReport> {
        self.logs.into_iter().map(|log| log.report).collect()
    }
}

impl Log {
    fn open(path: &Path, options: &Options) -> io::Result<Self> {
        let is_standard_input = path == Path::new("-");
        let modified = if is_standard_input { options.now } else { modified(path)? };
        let start = Stamps::new(options.zone.clone(), options.year, modified);
        let name = if is_standard_input { "standard input".into() } else { path.display().to_string().into() };
        let mut log = Self {
            path: path.to_owned(),
            program: options.program,
            modified,
            stamps: start.clone(),
            start,
            input: Some(open(path)?),
            next: None,
            is_begun: is_standard_input,
            number: 0,
            report: FileReport::new(name, options.year.is_none().then_some(modified)),
        };
        log.read_line();
        if !is_standard_input {
            while log.next.as_ref().is_some_and(|line| line.time_error.is_some()) {
                log.read_line();
            }
            // A file without any time gets an empty first line, so that the file is still read and its lines are
            // reported.
            log.input = None;
            log.next = Some(log.next.take().unwrap_or_else(|| log.line(String::new())));
        }
        Ok(log)
    }

    fn next_at(&self) -> Option<Timestamp> {
        self.next.as_ref().map(|line| line.at)
    }

    /// Opens the log again, and reads its first line.
    fn begin(&mut self) {
        (self.stamps, self.number, self.is_begun) = (self.start.clone(), 0, true);
        self.report = FileReport::new(self.report.name.clone(), self.report.modified);
        match open(&self.path) {
            Ok(input) => self.input = Some(input),
            Err(error) => self.report.error = Some(error),
        }
        self.read_line();
    }

    /// Returns the next line, and reads the following line.
    fn take(&mut self) -> Option<Line> {
        let line = self.next.take();
        self.report.lines += 1;
        self.read_line();
        line
    }

    /// Reads a line into `next`. Sets `next` to `None` at the end of the file or after a read error.
    fn read_line(&mut self) {
        let text = self.input.as_mut().map_or(Ok(None), bounded_line).unwrap_or_else(|error| {
            self.report.error = Some(error);
            None
        });
        self.number += 1;
        self.next = text.map(|text| self.line(text));
        self.report.is_without_year = self.stamps.is_without_year;
        if self.next.is_none() {
            self.input = None;
        }
    }

    fn line(&mut self, text: String) -> Line {
        let stamp = match self.program {
            Program::Weir => own_log::time(&text).map_or_else(|| self.stamps.read(&text), |at| Ok((at, 0))),
            Program::Postfix | Program::Exim => self.stamps.read(&text),
        };
        // Times can decrease: when summer time ends, and when several processes write to the log. The lines keep the
        // order of the file.
        let last = self.report.span.map(|(_, last)| last);
        let at = stamp.as_ref().ok().map(|(at, _)| *at);
        if let Some(at) = at {
            self.report.see(at);
        }
        Line {
            at: at.or(last).unwrap_or(Timestamp::from_micros(i64::MIN)),
            after_time: stamp.as_ref().map_or(0, |(_, end)| *end),
            time_error: stamp.err(),
            is_repeated: false,
            text,
            file: self.report.name.clone(),
            number: self.number,
        }
    }
}

fn modified(path: &Path) -> io::Result<Timestamp> {
    let modified = std::fs::metadata(path)?.modified()?;
    let since = modified.duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    Ok(Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)))
}

/// Opens a file, and decompresses it if it is gzipped.
fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut input: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path)?),
    };
    let mut first = Vec::new();
    input.by_ref().take(6).read_to_end(&mut first)?;
    if let Some((_, program)) = OTHERS.iter().find(|(magic, _)| first.starts_with(magic)) {
        let remedy = format!("it is compressed with {program}: write `{program} -dc FILE | weir history … -`");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, remedy));
    }
    let is_gzip = first.starts_with(GZIP);
    let input = Cursor::new(first).chain(input);
    let input: Box<dyn Read> = if is_gzip { Box::new(MultiGzDecoder::new(input)) } else { Box::new(input) };
    Ok(Box::new(BufReader::with_capacity(1 << 16, input)))
}

/// Reads a line without its line end. Replaces octets that are not UTF-8.
fn bounded_line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let read = input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') && read as u64 == MAX_LINE {
        input.skip_until(b'\n')?;
    }
    let text = String::from_utf8(line).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    Ok((read > 0).then(|| text.trim_end().to_owned()))
}
