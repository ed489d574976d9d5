//! Commands on a state file: show its sizes and contents, dump it as lines of JSON, load such lines into it, copy it.
//! All commands except the loading also work while a Weir process is using the file.

use super::audit::AuditRecord;
use super::file::{self, CopyError, File, OpenError};
use super::hashed_key::HashedKey;
use super::journal::Replayed;
use super::jsonl::{self, Line};
use super::login_history::{LoginKey, LoginRow};
use super::options::{Durability, OnFailure, Options};
use super::refusals::{self, RefusalOptions, RefusalRow};
use crate::policy::budgets::Budget;
use crate::policy::exception::{Grant, Suspension};
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, Read as _, Write};
use std::path::{Path, PathBuf};

/// Error of an operation on a state file.
#[derive(Debug)]
pub enum DumpError {
    Open(OpenError),
    Sqlite(PathBuf, rusqlite::Error),
    Copy(PathBuf, CopyError),
    /// Some budgets could not be read; the other budgets were read.
    Damaged {
        path: PathBuf,
        reason: String,
    },
    /// The input with the lines to load cannot be read.
    Input(std::io::Error),
    /// A line of the input is wrong. The values are the number of the line, the expected content (such as "a budget"),
    /// and the reason why the line is wrong.
    Line(u64, &'static str, String),
    Output(std::io::Error),
    /// The copy cannot be written, or a file with its name exists already.
    Target(PathBuf, std::io::Error),
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => write!(f, "{error}"),
            Self::Sqlite(path, error) => write!(f, "state file {}: {}", path.display(), file::describe(error)),
            Self::Copy(path, error) => write!(f, "state file {}: {error}", path.display()),
            Self::Damaged { path, reason } => {
                write!(f, "state file {}: it is damaged, and some budgets are missing: {reason}", path.display())
            }
            Self::Input(error) => write!(f, "cannot read the input: {error}"),
            Self::Line(number, what, why) => write!(f, "line {number} is not {what}: {why}; nothing was loaded"),
            Self::Output(error) => write!(f, "standard output: {error}"),
            Self::Target(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for DumpError {}

impl From<OpenError> for DumpError {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

/// Sizes and contents of a state file.
pub struct Info {
    /// Octets of the file, with its unused pages.
    pub octets: i64,
    /// Octets of the unused pages of the file.
    pub unused: i64,
    /// Octets of the write-ahead log.
    pub log: i64,
    /// Number of journal entries.
    pub entries: usize,
    /// Octets of all journal entries.
    pub journal: i64,
    /// Statistics of the budgets of each limit. The key is the limit's name, count, algorithm and fields, such as
    /// `l/recipients/ewma/user`.
    pub kinds: BTreeMap<String, Kind>,
    /// Grants in the file. Some may have expired and not been deleted yet.
    pub grants: Vec<Grant>,
    /// Suspensions in the file. Some may have expired and not been deleted yet.
    pub suspensions: Vec<Suspension>,
    /// Number of records in the audit trail.
    pub records: usize,
    /// Number of rows of the login history.
    pub logins: u64,
    /// Number of records of refusals, and the time of the oldest one.
    pub refusals: (u64, Option<Timestamp>),
}

/// Numbers of loaded budgets, exceptions, audit records, rows of the login history, and records
/// of refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    pub budgets: u64,
    pub exceptions: u64,
    pub records: u64,
    pub logins: u64,
    pub refusals: u64,
}

/// Statistics of a limit's budgets.
pub struct Kind {
    pub budgets: u64,
    /// Time of the last change of the budget that has been unchanged for the longest time.
    pub oldest: Timestamp,
    /// Time of the last change of the budget that was changed most recently.
    pub latest: Timestamp,
}

/// Reader of a whole state file. Keeps the budgets found in its journal, and the failures of reading.
struct StateReader<'a> {
    path: &'a Path,
    file: File,
    journal: Replayed,
    missed: ReadFailures,
}

/// Number of failed reads of the table, and the last error.
#[derive(Default)]
struct ReadFailures {
    failures: usize,
    reason: Option<String>,
}

/// Exceptions and their audit trail.
type Exceptions = (Vec<Grant>, Vec<Suspension>, Vec<AuditRecord>);

/// Number of ranges of hashes. The table of budgets is read range by range.
const RANGES: i64 = 256;

/// A range of hashes that cannot be read is divided into halves, unless it has at most this many hashes.
const MIN_RANGE: i64 = 1 << 40;
/// After this many failed reads, no range is divided any more.
const MAX_FAILURES: usize = 2_000;

/// Number of rows of the login history that are read at once.
const LOGINS_AT_ONCE: usize = 1_000;

/// Number of records of refusals that are read at once, each with at most 64 kB.
const REFUSALS_AT_ONCE: usize = 100;

/// Maximum octets of an input line, more than a budget with the largest filter needs.
const MAX_LINE_OCTETS: u64 = 16 << 20;

impl<'a> StateReader<'a> {
    fn open(path: &'a Path) -> Result<Self, DumpError> {
        let file = File::open_to_read(path)?;
        Ok(Self { path, file, journal: Replayed::default(), missed: ReadFailures::default() })
    }

    /// Calls `take` with every budget, in a state that the budget had at some moment after this call. Damaged budgets
    /// are left out.
    ///
    /// The journal, and each range of the table, is read in its own transaction. No transaction is open while `take`
    /// runs. The reason is that `take` may wait for hours for a pager that shows the output, and SQLite could not reset
    /// the write-ahead log during that time. A budget in the journal is passed to `take` in its state when the journal
    /// was read, even if its row has changed since. Any other budget is passed in the state of its row when the range
    /// was read. Every budget is passed exactly once, because its hash never changes. To read all budgets at the same
    /// moment, a temporary copy of the whole file would be needed; [`backup`] makes a permanent copy.
    fn each(&mut self, mut take: impl FnMut(HashedKey, Budget)) -> Result<(), DumpError> {
        match self.in_transaction(|file| file.replay())? {
            Ok((journal, damaged, _)) => {
                self.journal = journal;
                self.missed.reason = damaged.first().map(|place| format!("the entry of its journal {place}"));
            }
            Err(error) => self.missed.reason = Some(error.to_string()),
        }
        let width = (i128::from(i64::MAX) - i128::from(i64::MIN) + 1) / i128::from(RANGES);
        for n in 0..RANGES {
            let low = (i128::from(i64::MIN) + width * i128::from(n)) as i64;
            let high = (i128::from(low) + width - 1) as i64;
            let (mut missed, mut rows) = (std::mem::take(&mut self.missed), Vec::new());
            self.in_transaction(|file| {
                read_range(file, (low, high), &mut missed, &mut |hashed_key, budget| rows.push((hashed_key, budget)))
            })?;
            self.missed = missed;
            for (hashed_key, budget) in rows {
                // The state of the budget in the journal is at least as new as the state of the row when the journal
                // was read.
                let budget = self.journal.0.remove(&hashed_key).unwrap_or(budget);
                take(hashed_key, budget);
            }
        }
        let mut new: Vec<_> = std::mem::take(&mut self.journal).0.into_iter().collect();
        new.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        new.into_iter().for_each(|(hashed_key, budget)| take(hashed_key, budget));
        Ok(())
    }

    /// Reads the exceptions and their audit trail in one transaction.
    fn exceptions(&mut self) -> Result<Exceptions, DumpError> {
        let read = self.in_transaction(|file| {
            file.exceptions().and_then(|known| Ok((known, file.audit_trail(None, usize::MAX)?)))
        })?;
        let ((grants, suspensions), records) = read.unwrap_or_else(|error| {
            self.missed.reason = Some(file::describe(&error));
            Default::default()
        });
        Ok((grants, suspensions, records.into_iter().map(|(_, record)| record).collect()))
    }

    /// Calls `take` with each row of the login history, until `take` returns an error. Reads a part of the rows at a
    /// time, because `take` may wait for a pager. If a row is damaged, the rows that follow are left out.
    fn logins(&mut self, mut take: impl FnMut(&LoginKey, &LoginRow) -> std::io::Result<()>) -> std::io::Result<()> {
        let mut last: Option<LoginKey> = None;
        loop {
            let rows = self.file.logins_after(last.as_ref(), LOGINS_AT_ONCE).unwrap_or_else(|error| {
                self.missed.reason = Some(format!("its login history: {}", file::describe(&error)));
                Vec::new()
            });
            rows.iter().try_for_each(|(key, row)| take(key, row))?;
            match rows.into_iter().next_back() {
                Some((key, _)) => last = Some(key),
                None => return Ok(()),
            }
        }
    }

    /// Calls `take` with each record of refusals, until `take` returns an error, like [`Self::logins`].
    fn refusals(&mut self, mut take: impl FnMut(&RefusalRow) -> std::io::Result<()>) -> std::io::Result<()> {
        let mut last = i64::MIN;
        loop {
            let rows = self.file.refusals_after(last, REFUSALS_AT_ONCE).unwrap_or_else(|error| {
                self.missed.reason = Some(format!("its refusals: {}", file::describe(&error)));
                Vec::new()
            });
            rows.iter().try_for_each(&mut take)?;
            match rows.last() {
                Some(row) => last = row.id,
                None => return Ok(()),
            }
        }
    }

    /// Runs `read` in one transaction, so that `read` sees the file in its state at one moment.
    fn in_transaction<R>(&self, read: impl FnOnce(&File) -> R) -> Result<R, DumpError> {
        self.file.begin_read().map_err(|error| DumpError::Sqlite(self.path.to_owned(), error))?;
        let read = read(&self.file);
        self.file.end_read();
        Ok(read)
    }

    fn end(self) -> Result<(), DumpError> {
        let path = self.path.to_owned();
        self.missed.reason.map_or(Ok(()), |reason| Err(DumpError::Damaged { path, reason }))
    }
}

/// Reads a range of hashes from the table. If that fails, reads each half of the range, so that only the rows of
/// damaged pages are missing.
fn read_range(
    file: &File,
    (low, high): (i64, i64),
    missed: &mut ReadFailures,
    take: &mut impl FnMut(HashedKey, Budget),
) {
    let mut rows = Vec::new();
    match file.rows_between(low, high, |hashed_key, budget| rows.push((hashed_key, budget))) {
        Ok(()) => rows.into_iter().for_each(|(hashed_key, budget)| take(hashed_key, budget)),
        Err(_) if high.abs_diff(low) > MIN_RANGE.unsigned_abs() && missed.failures < MAX_FAILURES => {
            drop(rows);
            missed.failures += 1;
            let middle = low.midpoint(high);
            read_range(file, (low, middle), missed, take);
            read_range(file, (middle + 1, high), missed, take);
        }
        Err(error) => {
            rows.into_iter().for_each(|(hashed_key, budget)| take(hashed_key, budget));
            missed.reason = Some(error.to_string());
        }
    }
}

/// Returns the sizes and contents of a state file. Works also while a Weir process is using the file.
pub fn info(path: &Path) -> Result<Info, DumpError> {
    let mut reader = StateReader::open(path)?;
    let (octets, unused) = reader.file.sizes().map_err(|error| DumpError::Sqlite(path.to_owned(), error))?;
    let journal = reader.file.journal_extent().map_err(|error| OpenError::Io(path.to_owned(), error))?;
    let (entries, journal) = (journal.entries, journal.octets as i64);
    let log = std::fs::metadata(file::wal_path(path)).map_or(0, |metadata| metadata.len().cast_signed());
    let mut kinds = BTreeMap::new();
    reader.each(|hashed_key, budget| {
        let at = budget.state.at;
        let kind = kinds.entry(hashed_key.key.kind()).or_insert(Kind { budgets: 0, oldest: at, latest: at });
        kind.budgets += 1;
        kind.oldest = kind.oldest.min(at);
        kind.latest = kind.latest.max(at);
    })?;
    let (grants, suspensions, records) = reader.exceptions()?;
    let logins = reader.file.count_logins().map_err(|error| DumpError::Sqlite(path.to_owned(), error))?;
    let refusals = reader.file.refusal_extent().map_err(|error| DumpError::Sqlite(path.to_owned(), error))?;
    reader.end()?;
    let records = records.len();
    Ok(Info { octets, unused, log, entries, journal, kinds, grants, suspensions, records, logins, refusals })
}

/// Writes to `out` every budget, exception, audit record, row of the login history and record of refusals as a line of
/// JSON. Works also while a Weir process is using the file; the states of the budgets are then not from the same moment. A slow `out` does not delay that process.
pub fn dump(path: &Path, out: &mut dyn Write) -> Result<(), DumpError> {
    let mut reader = StateReader::open(path)?;
    let mut outcome = Ok(());
    reader.each(|hashed_key, budget| {
        if outcome.is_ok() {
            outcome = writeln!(out, "{}", jsonl::of_budget(&hashed_key.key, &budget));
        }
    })?;
    let (grants, suspensions, records) = reader.exceptions()?;
    let exceptions = grants.iter().map(jsonl::of_grant).chain(suspensions.iter().map(jsonl::of_suspension));
    let mut lines = exceptions.chain(records.iter().map(jsonl::of_record));
    let outcome = outcome.and_then(|()| lines.try_for_each(|line| writeln!(out, "{line}")));
    let outcome = outcome.and_then(|()| reader.logins(|key, row| writeln!(out, "{}", jsonl::of_login(key, row))));
    let outcome = outcome.and_then(|()| reader.refusals(|row| writeln!(out, "{}", refusals::jsonl::of_refusal(row))));
    outcome.and_then(|()| out.flush()).map_err(DumpError::Output)?;
    reader.end()
}

/// Reads the output of [`dump`] from `input`, and writes its contents into the state file at `path`. No Weir process is
/// allowed to use that file during the loading. The file is created if it does not exist. A loaded budget,
/// exception or login replaces that of the same key. If a line is wrong, the file is not changed.
pub fn load(path: &Path, input: impl BufRead) -> Result<Loaded, DumpError> {
    // No reply to a client waits for this commit. The commit can therefore take the time to be safe from a power cut.
    let options = Options {
        path: path.to_owned(),
        durability: Durability::Power,
        on_failure: OnFailure::Allow,
        shared: None,
        refusals: RefusalOptions::default(),
        outcomes: None,
    };
    let mut file = File::open(&options)?;
    let sqlite = |error| DumpError::Sqlite(path.to_owned(), error);
    let replayed = file.replay().map_err(|error| OpenError::Io(path.to_owned(), error));
    let (journal, damaged, _) = replayed?;
    if let Some(place) = damaged.first() {
        // When a server starts, it logs the loss of this entry. Here, the administrator would not notice the loss.
        return Err(damaged_entry(path, place));
    }
    let lines = Lines { input, number: 0 };
    let mut loaded = Loaded::default();
    let count = |line: &Result<Line, _>| match line {
        Ok(Line::Budget(..)) => loaded.budgets += 1,
        Ok(Line::Grant(_) | Line::Suspension(_)) => loaded.exceptions += 1,
        Ok(Line::AuditRecord(_)) => loaded.records += 1,
        Ok(Line::Login(..)) => loaded.logins += 1,
        Ok(Line::Refusal(_)) => loaded.refusals += 1,
        Err(_) => {}
    };
    let journal = journal.0.into_iter().map(|(hashed_key, budget)| Ok(Line::Budget(hashed_key, budget)));
    let rows = journal.chain(lines.inspect(count)).map(|row| row.map_err(LoadError::Dump));
    match file.write_all(rows) {
        Ok(()) => Ok(loaded),
        Err(LoadError::Dump(error)) => Err(error),
        Err(LoadError::Sqlite(error)) => Err(sqlite(error)),
    }
}

/// Iterator over the input, which parses the lines and skips empty lines.
struct Lines<R> {
    input: R,
    number: u64,
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = Result<Line, DumpError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut line = Vec::new();
            self.number += 1;
            let wrong = |why: String| Some(Err(DumpError::Line(self.number, "a budget", why)));
            match (&mut self.input).take(MAX_LINE_OCTETS).read_until(b'\n', &mut line) {
                Err(error) => return Some(Err(DumpError::Input(error))),
                Ok(0) => return None,
                Ok(_) if line.len() as u64 == MAX_LINE_OCTETS => return wrong("it is too long".to_owned()),
                Ok(_) => {}
            }
            match str::from_utf8(&line).map(str::trim) {
                Ok("") => {}
                Ok(text) => {
                    let number = self.number;
                    return Some(Line::read(text).map_err(|(what, why)| DumpError::Line(number, what, why)));
                }
                Err(error) => return wrong(error.to_string()),
            }
        }
    }
}

/// Error that stopped the loading.
enum LoadError {
    Dump(DumpError),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for LoadError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Returns the error for a damaged entry of the journal.
fn damaged_entry(path: &Path, place: &str) -> DumpError {
    DumpError::Damaged { path: path.to_owned(), reason: format!("the entry of its journal {place}") }
}

/// Copies a state file to a new file. If entries of its journal are damaged, the copy is made without them, and an error
/// says so. Works also while a Weir process is using the state file.
pub fn backup(path: &Path, target: &Path) -> Result<(), DumpError> {
    let file = File::open_to_read(path)?;
    let wrong = |error| DumpError::Target(target.to_owned(), error);
    if target.exists() {
        return Err(wrong(std::io::Error::other("there is a file of this name already")));
    }
    // The copy is written under another name, and renamed to its final name when it is complete.
    let mut half = target.as_os_str().to_owned();
    half.push(".new");
    let half = PathBuf::from(half);
    let _ = std::fs::remove_file(&half);
    file::create_private(&half).map_err(wrong)?;
    let damaged = file.copy_to(&half).map_err(|error| {
        let _ = std::fs::remove_file(&half);
        // The state file is only read: a full disk is that of the copy.
        match error {
            CopyError::Sqlite(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) => {
                wrong(std::io::ErrorKind::StorageFull.into())
            }
            error => DumpError::Copy(path.to_owned(), error),
        }
    })?;
    std::fs::rename(&half, target).map_err(wrong)?;
    damaged.first().map_or(Ok(()), |place| Err(damaged_entry(path, place)))
}
