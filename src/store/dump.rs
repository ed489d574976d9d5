//! What administrators do with a state file: look into it, dump and load it as JSON lines, copy it while it is in use.

use super::audit::AuditRecord;
use super::file::{self, File, OpenError};
use super::hashed_key::HashedKey;
use super::journal::Replayed;
use super::jsonl::{self, Line};
use super::{Durability, OnFailure, Options};
use crate::policy::Budget;
use crate::policy::exception::{Grant, Suspension};
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, Read as _, Write};
use std::path::{Path, PathBuf};

/// Why something could not be done with a state file.
#[derive(Debug)]
pub enum DumpError {
    Open(OpenError),
    Sqlite(PathBuf, rusqlite::Error),
    /// Some of the budgets could not be read; the others were.
    Damaged {
        path: PathBuf,
        reason: String,
    },
    /// What is to be loaded cannot be read.
    Input(std::io::Error),
    /// A line to be loaded is not what it should be, for this reason.
    Line(u64, &'static str, String),
    Output(std::io::Error),
    /// There is a file already where the copy is to be, or it cannot be made.
    Target(PathBuf, std::io::Error),
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => write!(f, "{error}"),
            Self::Sqlite(path, error) => write!(f, "state file {}: {}", path.display(), file::words(error)),
            Self::Damaged { path, reason } => {
                write!(f, "state file {}: it is damaged, and some budgets are missing: {reason}", path.display())
            }
            Self::Input(error) => write!(f, "what is to be loaded cannot be read: {error}"),
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

/// What is in a state file.
pub struct Info {
    /// Octets of the file, of its pages that are unused, and of its write-ahead log.
    pub octets: i64,
    pub unused: i64,
    pub log: i64,
    /// Entries of its journal, and their octets.
    pub entries: i64,
    pub journal: i64,
    /// Of each limit: its budgets.
    pub kinds: BTreeMap<String, Kind>,
    /// Those that hold, or did until a moment ago.
    pub grants: Vec<Grant>,
    pub suspensions: Vec<Suspension>,
    /// How many things that were done are remembered.
    pub records: usize,
}

/// What was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    pub budgets: u64,
    pub exceptions: u64,
    pub records: u64,
}

/// The budgets of a limit.
pub struct Kind {
    pub budgets: u64,
    /// When the one was last charged that has been silent for longest, and the latest.
    pub oldest: Timestamp,
    pub latest: Timestamp,
}

/// Budgets of a journal, and what reading it and the table has missed.
struct Reading<'a> {
    path: &'a Path,
    file: File,
    journal: Replayed,
    missed: Missed,
}

/// What could not be read: how often, and why.
#[derive(Default)]
struct Missed {
    failures: usize,
    reason: Option<String>,
}

/// Exceptions, and what was done about them.
type Known = (Vec<Grant>, Vec<Suspension>, Vec<AuditRecord>);

/// So many stretches of the order are read one by one.
const STRETCHES: i64 = 256;

/// A stretch of a damaged file that is not divided further; and so many failures after which none is.
const NARROW: i64 = 1 << 40;
const MOST_FAILURES: usize = 2_000;

/// The longest line that is read: more than the largest filter takes.
const MOST_LINE: u64 = 16 << 20;

impl<'a> Reading<'a> {
    fn open(path: &'a Path) -> Result<Self, DumpError> {
        let file = File::read(path)?;
        Ok(Self { path, file, journal: Replayed::default(), missed: Missed::default() })
    }

    /// Hands out every budget, each as it is at some moment since this began. What is damaged is left out.
    ///
    /// The journal and every stretch of the table are read by themselves, and no transaction is open while `take` runs: it may wait for
    /// a pager for hours, and meanwhile the write-ahead log could not begin anew. A budget of the journal is handed out as it was when
    /// that was read, whatever has become of its row since; another one as its row is when its turn comes. None is missed, as a key
    /// stays in its stretch, and none comes twice. To keep one moment for all, a copy of the whole file would have to be made and
    /// removed again: whoever needs that makes one with [`backup`].
    fn each(&mut self, mut take: impl FnMut(HashedKey, Budget)) -> Result<(), DumpError> {
        match self.look(|file| file.replay())? {
            Ok((journal, damaged, _)) => {
                self.journal = journal;
                self.missed.reason = damaged.first().map(|seq| format!("entry {seq} of its journal"));
            }
            Err(error) => self.missed.reason = Some(error.to_string()),
        }
        let width = (i128::from(i64::MAX) - i128::from(i64::MIN) + 1) / i128::from(STRETCHES);
        for n in 0..STRETCHES {
            let low = (i128::from(i64::MIN) + width * i128::from(n)) as i64;
            let high = (i128::from(low) + width - 1) as i64;
            let (mut missed, mut rows) = (std::mem::take(&mut self.missed), Vec::new());
            self.look(|file| {
                read_stretch(file, (low, high), &mut missed, &mut |place, budget| rows.push((place, budget)))
            })?;
            self.missed = missed;
            for (place, budget) in rows {
                // What stood in the journal is newer, or was written to the table since.
                let budget = self.journal.0.remove(&place).unwrap_or(budget);
                take(place, budget);
            }
        }
        let mut new: Vec<_> = std::mem::take(&mut self.journal).0.into_iter().collect();
        new.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        new.into_iter().for_each(|(place, budget)| take(place, budget));
        Ok(())
    }

    /// Reads the exceptions and what was done about them, as they are at one moment.
    fn exceptions(&mut self) -> Result<Known, DumpError> {
        let read = self.look(|file| file.exceptions().and_then(|known| Ok((known, file.trail(usize::MAX)?))))?;
        let ((grants, suspensions), records) = read.unwrap_or_else(|error| {
            self.missed.reason = Some(file::words(&error));
            Default::default()
        });
        Ok((grants, suspensions, records))
    }

    /// Reads something as it is at one moment, in a transaction that ends with this.
    fn look<R>(&self, read: impl FnOnce(&File) -> R) -> Result<R, DumpError> {
        self.file.begin_look().map_err(|error| DumpError::Sqlite(self.path.to_owned(), error))?;
        let read = read(&self.file);
        self.file.end_look();
        Ok(read)
    }

    fn end(self) -> Result<(), DumpError> {
        let path = self.path.to_owned();
        self.missed.reason.map_or(Ok(()), |reason| Err(DumpError::Damaged { path, reason }))
    }
}

/// Reads a stretch of the table; where that fails, its halves, so that only what is on a damaged page is missed.
fn read_stretch(file: &File, (low, high): (i64, i64), missed: &mut Missed, take: &mut impl FnMut(HashedKey, Budget)) {
    let mut rows = Vec::new();
    match file.stretch(low, high, |place, budget| rows.push((place, budget))) {
        Ok(()) => rows.into_iter().for_each(|(place, budget)| take(place, budget)),
        Err(_) if high.abs_diff(low) > NARROW.unsigned_abs() && missed.failures < MOST_FAILURES => {
            drop(rows);
            missed.failures += 1;
            let middle = low.midpoint(high);
            read_stretch(file, (low, middle), missed, take);
            read_stretch(file, (middle + 1, high), missed, take);
        }
        Err(error) => {
            rows.into_iter().for_each(|(place, budget)| take(place, budget));
            missed.reason = Some(error.to_string());
        }
    }
}

/// Looks into a state file, also while it is in use.
pub fn info(path: &Path) -> Result<Info, DumpError> {
    let mut reading = Reading::open(path)?;
    let sizes = reading.file.sizes().map_err(|error| DumpError::Sqlite(path.to_owned(), error))?;
    let (octets, unused, entries, journal) = sizes;
    let log = std::fs::metadata(file::log_of(path)).map_or(0, |metadata| metadata.len().cast_signed());
    let mut kinds = BTreeMap::new();
    reading.each(|place, budget| {
        let at = budget.state.at;
        let kind = kinds.entry(place.key.kind()).or_insert(Kind { budgets: 0, oldest: at, latest: at });
        kind.budgets += 1;
        kind.oldest = kind.oldest.min(at);
        kind.latest = kind.latest.max(at);
    })?;
    let (grants, suspensions, records) = reading.exceptions()?;
    reading.end()?;
    Ok(Info { octets, unused, log, entries, journal, kinds, grants, suspensions, records: records.len() })
}

/// Writes every budget and every exception as a line of JSON, also while the file is in use. Budgets that change meanwhile are not all
/// of the same moment; `out` may stall without harm to whoever writes the file.
pub fn dump(path: &Path, out: &mut dyn Write) -> Result<(), DumpError> {
    let mut reading = Reading::open(path)?;
    let mut outcome = Ok(());
    reading.each(|place, budget| {
        if outcome.is_ok() {
            outcome = writeln!(out, "{}", jsonl::of_budget(&place.key, &budget));
        }
    })?;
    let (grants, suspensions, records) = reading.exceptions()?;
    let exceptions = grants.iter().map(jsonl::of_grant).chain(suspensions.iter().map(jsonl::of_suspension));
    let mut lines = exceptions.chain(records.iter().map(jsonl::of_record));
    let outcome = outcome.and_then(|()| lines.try_for_each(|line| writeln!(out, "{line}")));
    outcome.and_then(|()| out.flush()).map_err(DumpError::Output)?;
    reading.end()
}

/// Reads budgets and exceptions as [`dump`] has written them into a file that no Weir is using, making it where there is none. Those
/// that it has already are replaced. All or nothing.
pub fn load(path: &Path, input: impl BufRead) -> Result<Loaded, DumpError> {
    // Nothing waits for it: it may as well survive a power cut.
    let options = Options { path: path.to_owned(), durability: Durability::Power, on_failure: OnFailure::Allow };
    let mut file = File::open(&options)?;
    let sqlite = |error| DumpError::Sqlite(path.to_owned(), error);
    let (journal, damaged, _) = file.replay().map_err(sqlite)?;
    if let Some(seq) = damaged.first() {
        // A Weir that starts says what is lost; here it would go without a word.
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
    let journal = journal.0.into_iter().map(|(place, budget)| Ok(Line::Budget(place, budget)));
    let rows = journal.chain(lines.inspect(count)).map(|row| row.map_err(Stop::Bad));
    match file.write_all(rows) {
        Ok(()) => Ok(loaded),
        Err(Stop::Bad(error)) => Err(error),
        Err(Stop::Sqlite(error)) => Err(sqlite(error)),
    }
}

/// What lines say, without those that are empty.
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
            match (&mut self.input).take(MOST_LINE).read_until(b'\n', &mut line) {
                Err(error) => return Some(Err(DumpError::Input(error))),
                Ok(0) => return None,
                Ok(_) if line.len() as u64 == MOST_LINE => return wrong("it is too long".to_owned()),
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

/// Why loading stopped.
enum Stop {
    Bad(DumpError),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Copies a state file, also while it is in use, to where there is none.
pub fn backup(path: &Path, target: &Path) -> Result<(), DumpError> {
    let file = File::read(path)?;
    let wrong = |error| DumpError::Target(target.to_owned(), error);
    if target.exists() {
        return Err(wrong(std::io::Error::other("there is a file of this name already")));
    }
    // Half a copy is none: it has another name until it is whole.
    let mut half = target.as_os_str().to_owned();
    half.push(".new");
    let half = PathBuf::from(half);
    let _ = std::fs::remove_file(&half);
    file::private(&half).map_err(wrong)?;
    if let Err(error) = file.copy_to(&half) {
        let _ = std::fs::remove_file(&half);
        return Err(DumpError::Sqlite(path.to_owned(), error));
    }
    std::fs::rename(&half, target).map_err(wrong)
}
