//! Reading and filling of a whole state file. The reading also works while a Weir process is using the file.

use super::audit::AuditRecord;
use super::dump_error::DumpError;
use super::file::{self, File, OpenError, TableWriter};
use super::hashed_key::HashedKey;
use super::journal::Replayed;
use super::jsonl::Line;
use super::login_history::{LoginKey, LoginRow};
use super::options::{Durability, OnFailure, Options};
use super::pending_exceptions::ReadExceptions;
use super::refusals::{RefusalOptions, RefusalRow};
use crate::policy::budgets::Budget;
use std::path::Path;

/// Reader of a whole state file. Keeps the budgets found in its journal, and the failures of reading.
pub struct StateReader<'a> {
    path: &'a Path,
    pub file: File,
    journal: Replayed,
    missed: ReadFailures,
}

/// Number of failed reads of the table, and the last error.
#[derive(Default)]
struct ReadFailures {
    failures: usize,
    reason: Option<String>,
}

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

impl<'a> StateReader<'a> {
    pub fn open(path: &'a Path) -> Result<Self, DumpError> {
        let file = File::open_to_read(path)?;
        Ok(Self { path, file, journal: Replayed::default(), missed: ReadFailures::default() })
    }

    /// Calls `take` with every budget, in a state that the budget had at some moment after this call, until `take` returns
    /// an error. Damaged budgets are left out.
    ///
    /// The journal, and each range of the table, is read in its own transaction. No transaction is open while `take`
    /// runs. The reason is that `take` may wait for hours for a pager that shows the output, and SQLite could not reset
    /// the write-ahead log during that time. A budget in the journal is passed to `take` in its state when the journal
    /// was read, even if its row has changed since. Any other budget is passed in the state of its row when the range
    /// was read. Every budget is passed exactly once, because its hash never changes. To read all budgets at the same
    /// moment, a temporary copy of the whole file would be needed; [`backup`](super::dump::backup) makes a permanent copy.
    pub fn each(&mut self, mut take: impl FnMut(HashedKey, Budget) -> Result<(), DumpError>) -> Result<(), DumpError> {
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
                take(hashed_key, budget)?;
            }
        }
        let mut new: Vec<_> = std::mem::take(&mut self.journal).0.into_iter().collect();
        new.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        new.into_iter().try_for_each(|(hashed_key, budget)| take(hashed_key, budget))
    }

    /// Reads the exceptions and their audit trail in one transaction.
    pub fn exceptions(&mut self) -> Result<(ReadExceptions, Vec<AuditRecord>), DumpError> {
        let read = self.in_transaction(|file| {
            file.exceptions().and_then(|known| Ok((known, file.audit_trail(None, usize::MAX)?)))
        })?;
        let (exceptions, records) = read.unwrap_or_else(|error| {
            self.missed.reason = Some(file::describe(&error));
            Default::default()
        });
        Ok((exceptions, records.into_iter().map(|(_, record)| record).collect()))
    }

    /// Calls `take` with each row of the login history, until `take` returns an error. Reads a part of the rows at a
    /// time, because `take` may wait for a pager. If a row is damaged, the rows that follow are left out.
    pub fn logins(&mut self, mut take: impl FnMut(&LoginKey, &LoginRow) -> std::io::Result<()>) -> std::io::Result<()> {
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
    pub fn refusals(&mut self, mut take: impl FnMut(&RefusalRow) -> std::io::Result<()>) -> std::io::Result<()> {
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

    pub fn end(self) -> Result<(), DumpError> {
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

/// Lets `write` write into the state file at `path`, in one transaction. No Weir process is allowed to use that file
/// meanwhile. The file is created if it does not exist. If `write` returns an error, the file is not changed.
pub fn fill<R>(path: &Path, write: impl FnOnce(&TableWriter<'_>) -> Result<R, DumpError>) -> Result<R, DumpError> {
    // No reply to a client waits for this commit. The commit can therefore take the time to be safe from a power cut.
    let options = Options {
        path: path.to_owned(),
        durability: Durability::Power,
        on_failure: OnFailure::Allow,
        shared: None,
        budget_octets: super::BUDGET_OCTETS,
        refusals: RefusalOptions::default(),
        outcomes: None,
    };
    let mut file = File::open(&options)?;
    let sqlite = |error| DumpError::Sqlite(path.to_owned(), error);
    let replayed = file.replay().map_err(|error| OpenError::Io(path.to_owned(), error));
    let (journal, damaged, _) = replayed?;
    if let Some(place) = damaged.first() {
        // When a server starts, it logs the loss of this entry. Here, the administrator would not notice the loss.
        return Err(DumpError::damaged_entry(path, place));
    }
    file.write_all(sqlite, |writer| {
        for (hashed_key, budget) in journal.0 {
            writer.put(Line::Budget(hashed_key, budget)).map_err(sqlite)?;
        }
        write(writer)
    })
}
