//! Commands on a state file, and on budgets in Redis: show their sizes and contents, dump them as lines of JSON, load such
//! lines, copy the file.
//! All commands except the loading also work while a Weir process is using the file.

use super::dump_error::DumpError;
use super::file::{self, CopyError, File, OpenError};
use super::jsonl::{self, Line};
use super::pending_exceptions::ReadExceptions;
use super::refusals;
use super::shared::SharedBulk;
use super::shared_writer::SharedWriter;
use super::whole_file::{StateReader, fill};
use crate::policy::budgets::{Budget, Key};
use crate::policy::egress::EgressEntry;
use crate::policy::exception::Exceptions;
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, BufWriter, Read as _, Seek as _, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    /// The budgets of the nodes, if they are in Redis. Those of the file are then not in use.
    pub shared: Option<SharedInfo>,
    /// Exceptions in the file. Some may have expired and not been deleted yet.
    pub exceptions: ReadExceptions,
    /// Number of records in the audit trail.
    pub records: usize,
    /// Number of rows of the login history.
    pub logins: u64,
    /// Number of records of refusals, and the time of the oldest one.
    pub refusals: (u64, Option<Timestamp>),
}

/// Budgets in Redis.
pub struct SharedInfo {
    /// Statistics of the budgets of each limit, as in [`Info`].
    pub kinds: BTreeMap<String, Kind>,
    /// Reason why some budgets are not counted, or damaged.
    pub skipped: Option<DumpError>,
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

/// Maximum octets of an input line, more than a budget with the largest filter needs.
const MAX_LINE_OCTETS: u64 = 16 << 20;

/// Returns the sizes and contents of a state file. Works also while a Weir process is using the file. `shared`: the
/// budgets of the nodes, if they are in Redis.
pub fn info(path: &Path, shared: Option<&SharedBulk>) -> Result<Info, DumpError> {
    let mut reader = StateReader::open(path)?;
    let (octets, unused) = reader.file.sizes().map_err(|error| DumpError::Sqlite(path.to_owned(), error))?;
    let journal = reader.file.journal_extent().map_err(|error| OpenError::Io(path.to_owned(), error))?;
    let (entries, journal) = (journal.entries, journal.octets as i64);
    let log = std::fs::metadata(file::wal_path(path)).map_or(0, |metadata| metadata.len().cast_signed());
    let mut kinds = BTreeMap::new();
    reader.each(|hashed_key, budget| {
        Kind::count(&mut kinds, &hashed_key.key, &budget);
        Ok(())
    })?;
    let (exceptions, records) = reader.exceptions()?;
    let logins = reader.file.count_logins().map_err(|error| DumpError::Sqlite(path.to_owned(), error))?;
    let refusals = reader.file.refusal_extent().map_err(|error| DumpError::Sqlite(path.to_owned(), error))?;
    reader.end()?;
    let (shared, records) = (shared.map(shared_info).transpose()?, records.len());
    Ok(Info { octets, unused, log, entries, journal, kinds, shared, exceptions, records, logins, refusals })
}

fn shared_info(shared: &SharedBulk) -> Result<SharedInfo, DumpError> {
    let mut kinds = BTreeMap::new();
    let skipped = shared.each(|budgets| {
        budgets.iter().for_each(|(key, budget)| Kind::count(&mut kinds, key, budget));
        Ok::<(), DumpError>(())
    })?;
    Ok(SharedInfo { kinds, skipped: DumpError::of_skipped(shared, skipped) })
}

/// Reads the register of direct ways from a state file, with a quarantine for each suspension of a client. Works also
/// while a Weir process is using the file.
pub fn read_egress(path: &Path) -> Result<Vec<EgressEntry>, DumpError> {
    let read = File::open_to_read(path)?.exceptions();
    let ReadExceptions { mut entries, suspensions, .. } =
        read.map_err(|error| DumpError::Sqlite(path.to_owned(), error))?;
    let mut exceptions = Exceptions::default();
    suspensions.into_iter().for_each(|suspension| exceptions.suspend(Arc::new(suspension)));
    entries.extend(exceptions.quarantines_of_suspensions());
    Ok(entries)
}

/// Writes to `out` every budget, exception, audit record, row of the login history and record of refusals as a line of
/// JSON. Works also while a Weir process is using the file; the states of the budgets are then not from the same moment.
/// A slow `out` does not delay that process. `shared`: the budgets are those in Redis; those of the file are not in use,
/// and are left out.
pub fn dump(path: &Path, shared: Option<&SharedBulk>, out: &mut dyn Write) -> Result<(), DumpError> {
    let mut reader = StateReader::open(path)?;
    let mut print =
        |key: &Key, budget: &Budget| writeln!(out, "{}", jsonl::of_budget(key, budget)).map_err(DumpError::Output);
    let skipped = match shared {
        None => {
            reader.each(|hashed_key, budget| print(&hashed_key.key, &budget))?;
            None
        }
        Some(shared) => {
            let skipped = shared.each(|budgets| budgets.iter().try_for_each(|(key, budget)| print(key, budget)))?;
            DumpError::of_skipped(shared, skipped)
        }
    };
    let (ReadExceptions { grants, suspensions, entries }, records) = reader.exceptions()?;
    let exceptions = grants.iter().map(jsonl::of_grant).chain(suspensions.iter().map(jsonl::of_suspension));
    let exceptions = exceptions.chain(entries.iter().map(jsonl::of_entry));
    let mut lines = exceptions.chain(records.iter().map(jsonl::of_record));
    let outcome = lines.try_for_each(|line| writeln!(out, "{line}"));
    let outcome = outcome.and_then(|()| reader.logins(|key, row| writeln!(out, "{}", jsonl::of_login(key, row))));
    let outcome = outcome.and_then(|()| reader.refusals(|row| writeln!(out, "{}", refusals::jsonl::of_refusal(row))));
    outcome.and_then(|()| out.flush()).map_err(DumpError::Output)?;
    reader.end().and(skipped.map_or(Ok(()), Err))
}

/// Reads the output of [`dump`] from `input`, and writes its contents into the state file at `path`. No Weir process is
/// allowed to use that file during the loading. The file is created if it does not exist. A loaded budget,
/// exception or login replaces that of the same key. If a line is wrong, nothing is changed.
///
/// With `shared`, budgets are written to Redis instead, while other nodes may be using them: see [`SharedWriter`]. If that
/// fails, the file is not changed, but Redis may have some of the budgets; the loading can then be repeated.
pub fn load(path: &Path, shared: Option<SharedWriter<'_>>, input: impl BufRead) -> Result<Loaded, DumpError> {
    let lines = Lines { input, number: 0 };
    let wrong = |error| DumpError::Sqlite(path.to_owned(), error);
    fill(path, |writer| {
        let mut loaded = Loaded::default();
        // No budget goes to Redis before all lines have proved right.
        let mut spool = shared.as_ref().map(|_| Spool::new(path)).transpose()?;
        for line in lines {
            let (text, line) = line?;
            loaded.count(&line);
            match (&mut spool, &line) {
                (Some(spool), Line::Budget(..)) => spool.add(&text)?,
                _ => writer.put(line).map_err(wrong)?,
            }
        }
        if let (Some(spool), Some(mut shared)) = (spool, shared) {
            for line in spool.lines()? {
                if let (_, Line::Budget(hashed_key, budget)) = line? {
                    shared.put(hashed_key.key, budget)?;
                }
            }
            shared.end()?;
        }
        Ok(loaded)
    })
}

impl Loaded {
    fn count(&mut self, line: &Line) {
        match line {
            Line::Budget(..) => self.budgets += 1,
            Line::Grant(_) | Line::Suspension(_) | Line::EgressEntry(_) => self.exceptions += 1,
            Line::AuditRecord(_) => self.records += 1,
            Line::Login(..) => self.logins += 1,
            Line::Refusal(_) => self.refusals += 1,
        }
    }
}

impl Kind {
    /// Counts a budget among those of its kind.
    fn count(kinds: &mut BTreeMap<String, Self>, key: &Key, budget: &Budget) {
        let at = budget.state.at;
        let kind = kinds.entry(key.kind()).or_insert(Self { budgets: 0, oldest: at, latest: at });
        kind.budgets += 1;
        kind.oldest = kind.oldest.min(at);
        kind.latest = kind.latest.max(at);
    }
}

/// Lines that wait on disk, in a file without a name beside the state file.
struct Spool(BufWriter<std::fs::File>);

impl Spool {
    fn new(path: &Path) -> Result<Self, DumpError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::tempfile_in(folder).map_err(|error| OpenError::Io(folder.to_owned(), error))?;
        Ok(Self(BufWriter::new(file)))
    }

    fn add(&mut self, line: &str) -> Result<(), DumpError> {
        writeln!(self.0, "{line}").map_err(DumpError::Spool)
    }

    /// Returns the lines.
    fn lines(self) -> Result<Lines<BufReader<std::fs::File>>, DumpError> {
        let mut file = self.0.into_inner().map_err(|error| DumpError::Spool(error.into_error()))?;
        file.rewind().map_err(DumpError::Spool)?;
        Ok(Lines { input: BufReader::new(file), number: 0 })
    }
}

/// Iterator over the input, which parses the lines and skips empty lines. An item is a line and its meaning.
struct Lines<R> {
    input: R,
    number: u64,
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = Result<(String, Line), DumpError>;

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
                    let line = Line::read(text).map_err(|(what, why)| DumpError::Line(number, what, why));
                    return Some(line.map(|line| (text.to_owned(), line)));
                }
                Err(error) => return wrong(error.to_string()),
            }
        }
    }
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
    damaged.first().map_or(Ok(()), |place| Err(DumpError::damaged_entry(path, place)))
}
