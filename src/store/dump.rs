//! Offline work on a state file: inspect it, dump and load it as JSON lines, copy it. All but loading also work while
//! Weir is using the file.

use super::audit::AuditRecord;
use super::file::{self, File, OpenError};
use super::hashed_key::HashedKey;
use super::journal::Replayed;
use super::jsonl::{self, Line};
use super::options::{Durability, OnFailure, Options};
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
    /// Some budgets could not be read; the others were.
    Damaged {
        path: PathBuf,
        reason: String,
    },
    /// The input to be loaded cannot be read.
    Input(std::io::Error),
    /// A line of the input is wrong: its number, the expected kind of line, and the reason.
    Line(u64, &'static str, String),
    Output(std::io::Error),
    /// A file of the target's name exists already, or the copy cannot be made.
    Target(PathBuf, std::io::Error),
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => write!(f, "{error}"),
            Self::Sqlite(path, error) => write!(f, "state file {}: {}", path.display(), file::describe(error)),
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

/// Contents of a state file.
pub struct Info {
    /// Octets of the file, of its unused pages, and of its write-ahead log.
    pub octets: i64,
    pub unused: i64,
    pub log: i64,
    /// Number of journal entries, and their octets.
    pub entries: i64,
    pub journal: i64,
    /// Budgets of each limit.
    pub kinds: BTreeMap<String, Kind>,
    /// Exceptions that hold, or held until a moment ago.
    pub grants: Vec<Grant>,
    pub suspensions: Vec<Suspension>,
    /// Number of records in the audit trail.
    pub records: usize,
}

/// Numbers of loaded lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    pub budgets: u64,
    pub exceptions: u64,
    pub records: u64,
}

/// Statistics of a limit's budgets.
pub struct Kind {
    pub budgets: u64,
    /// Last charge of the budget that has been idle for longest, and of the budget charged last.
    pub oldest: Timestamp,
    pub latest: Timestamp,
}

/// Reader of a state file: the budgets of its journal, and the read failures so far.
struct StateReader<'a> {
    path: &'a Path,
    file: File,
    journal: Replayed,
    missed: ReadFailures,
}

/// Failed reads: their number and the last reason.
#[derive(Default)]
struct ReadFailures {
    failures: usize,
    reason: Option<String>,
}

/// Exceptions and their audit trail.
type Exceptions = (Vec<Grant>, Vec<Suspension>, Vec<AuditRecord>);

/// Number of ranges in which the table is read.
const RANGES: i64 = 256;

/// Bounds on dividing damaged ranges: a smaller range is not divided, and none is after so many failures.
const MIN_RANGE: i64 = 1 << 40;
const MAX_FAILURES: usize = 2_000;

/// Octets of the longest line that is read: more than the largest filter takes.
const MAX_LINE_OCTETS: u64 = 16 << 20;

impl<'a> StateReader<'a> {
    fn open(path: &'a Path) -> Result<Self, DumpError> {
        let file = File::open_to_read(path)?;
        Ok(Self { path, file, journal: Replayed::default(), missed: ReadFailures::default() })
    }

    /// Hands out every budget, each as it is at some moment since the call. Damaged budgets are left out.
    ///
    /// The journal and every range of the table are read in transactions of their own. No transaction is open while
    /// `take` runs: that may wait for a pager for hours, and the write-ahead log could not be reset meanwhile. A budget
    /// of the journal is handed out as it was when the journal was read, whatever has become of its row since. Any
    /// other budget is handed out as its row is when the range is read. No budget is missed, as a key stays in its
    /// range, and none comes twice. One moment for all budgets would need a temporary copy of the whole file;
    /// [`backup`] makes a permanent one.
    fn each(&mut self, mut take: impl FnMut(HashedKey, Budget)) -> Result<(), DumpError> {
        match self.in_transaction(|file| file.replay())? {
            Ok((journal, damaged, _)) => {
                self.journal = journal;
                self.missed.reason = damaged.first().map(|seq| format!("entry {seq} of its journal"));
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
                // The budget in the journal is newer than the row, or has been written to the row since.
                let budget = self.journal.0.remove(&hashed_key).unwrap_or(budget);
                take(hashed_key, budget);
            }
        }
        let mut new: Vec<_> = std::mem::take(&mut self.journal).0.into_iter().collect();
        new.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        new.into_iter().for_each(|(hashed_key, budget)| take(hashed_key, budget));
        Ok(())
    }

    /// Reads the exceptions and their audit trail as they are at one moment.
    fn exceptions(&mut self) -> Result<Exceptions, DumpError> {
        let read =
            self.in_transaction(|file| file.exceptions().and_then(|known| Ok((known, file.audit_trail(usize::MAX)?))))?;
        let ((grants, suspensions), records) = read.unwrap_or_else(|error| {
            self.missed.reason = Some(file::describe(&error));
            Default::default()
        });
        Ok((grants, suspensions, records))
    }

    /// Runs a read in one transaction, so that it sees one moment.
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

/// Reads a range of the table. If that fails, reads its halves, so that only the rows of damaged pages are missed.
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

/// Inspects a state file, even while Weir is using it.
pub fn info(path: &Path) -> Result<Info, DumpError> {
    let mut reader = StateReader::open(path)?;
    let sizes = reader.file.sizes().map_err(|error| DumpError::Sqlite(path.to_owned(), error))?;
    let (octets, unused, entries, journal) = sizes;
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
    reader.end()?;
    Ok(Info { octets, unused, log, entries, journal, kinds, grants, suspensions, records: records.len() })
}

/// Writes every budget and every exception as a line of JSON, even while Weir is using the file. Budgets that change
/// meanwhile are not all of the same moment. `out` may stall without harm to the writer of the file.
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
    outcome.and_then(|()| out.flush()).map_err(DumpError::Output)?;
    reader.end()
}

/// Loads budgets and exceptions that [`dump`] has written into a file that no Weir is using; creates the file if there
/// is none. Existing budgets and exceptions are replaced. Loads all lines or nothing.
pub fn load(path: &Path, input: impl BufRead) -> Result<Loaded, DumpError> {
    // No reply waits for this, so it can survive a power cut.
    let options = Options { path: path.to_owned(), durability: Durability::Power, on_failure: OnFailure::Allow };
    let mut file = File::open(&options)?;
    let sqlite = |error| DumpError::Sqlite(path.to_owned(), error);
    let (journal, damaged, _) = file.replay().map_err(sqlite)?;
    if let Some(seq) = damaged.first() {
        // A starting Weir logs the loss; here the loss would be silent.
        return Err(DumpError::Damaged { path: path.to_owned(), reason: format!("entry {seq} of its journal") });
    }
    let lines = Lines { input, number: 0 };
    let mut loaded = Loaded::default();
    let count = |line: &Result<Line, _>| match line {
        Ok(Line::Budget(..)) => loaded.budgets += 1,
        Ok(Line::Grant(_) | Line::Suspension(_)) => loaded.exceptions += 1,
        Ok(Line::AuditRecord(_)) => loaded.records += 1,
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

/// Iterator over the parsed lines; skips empty lines.
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

/// Reason why loading stopped.
enum LoadError {
    Dump(DumpError),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for LoadError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Copies a state file to a new file, even while Weir is using it.
pub fn backup(path: &Path, target: &Path) -> Result<(), DumpError> {
    let file = File::open_to_read(path)?;
    let wrong = |error| DumpError::Target(target.to_owned(), error);
    if target.exists() {
        return Err(wrong(std::io::Error::other("there is a file of this name already")));
    }
    // The copy gets its final name when it is complete.
    let mut half = target.as_os_str().to_owned();
    half.push(".new");
    let half = PathBuf::from(half);
    let _ = std::fs::remove_file(&half);
    file::create_private(&half).map_err(wrong)?;
    if let Err(error) = file.copy_to(&half) {
        let _ = std::fs::remove_file(&half);
        return Err(DumpError::Sqlite(path.to_owned(), error));
    }
    std::fs::rename(&half, target).map_err(wrong)
}
