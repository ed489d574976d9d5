//! The state file, an SQLite database with the schema of `schema.sql`, and its journal. Most SQL statements are here.

mod error;
mod exceptions;
mod journal_files;
mod logins;
mod names;
mod notices;
mod open_journal;
mod queue_ids;
mod refusals;
mod replace;

use super::budget_rows::{self, budget, state};
use super::hashed_key::HashedKey;
use super::journal::{self, Replayed};
use super::options::{Durability, Options};
use super::schema::{self, DatabaseKind};
use crate::engine::State;
use crate::policy::budgets::{Budget, Key};
use crate::time::Timestamp;
pub use error::{ADVICE, CopyError, OpenError, describe, describe_journal, is_page_damage};
use journal_files::{JournalExtent, JournalFiles};
pub use open_journal::{JournalAppender, OpenJournal};
use prometheus::IntGauge;
pub use replace::TableWriter;
use rusqlite::{Connection, InterruptHandle, OpenFlags, Row, Transaction, params};
use std::fs::TryLockError;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// An open state file.
pub struct File {
    connection: Connection,
    journal: JournalFiles,
    /// True if the write-ahead log keeps its length when SQLite resets it: the last value given to
    /// [`File::set_keep_wal`].
    keeps_wal: bool,
    /// Lock that prevents other Weir processes from opening the file for writing.
    _lock: Option<std::fs::File>,
}

/// A row of the table of budgets, without the filter.
pub struct BudgetRow {
    pub hashed_key: HashedKey,
    pub state: State,
    /// Time when the newer generation of the budget's Bloom filter began; `None` if the budget has no filter.
    pub epoch: Option<Timestamp>,
}

/// Time that an operation waits while another program has locked the file. Replies to clients wait for the same time,
/// so the time is short. After this time, budgets are kept in memory only.
const BUSY_TIMEOUT: Duration = Duration::from_millis(100);

/// Size of each connection's page cache, in KiB. The number is negative, because SQLite's `cache_size` takes a negative
/// number as KiB.
const CACHE_KIB: i64 = -2_048;

/// Number of attempts to copy the file while a Weir process folds its journal.
const COPY_ATTEMPTS: usize = 5;

/// Octets to which the write-ahead log is truncated when SQLite resets it under load.
const WAL_KEPT_OCTETS: i64 = 64 << 20;

/// Reads budgets from the table, with a new connection to the file.
pub fn read_budgets(path: &Path, hashed_keys: &[HashedKey]) -> Result<Vec<Option<Budget>>, String> {
    let unreadable = |why: String| format!("budgets cannot be read: {why}");
    let file = File::open_to_read(path).map_err(|error| unreadable(error.to_string()))?;
    let load = |hashed_key| file.load(hashed_key).map_err(|error| unreadable(describe(&error)));
    hashed_keys.iter().map(load).collect()
}

impl File {
    /// Opens the file for writing. Creates it if it does not exist.
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        let path = &*options.path;
        let sqlite = |error| OpenError::Sqlite(path.to_owned(), error);
        let lock = lock(path)?;
        // Create the file before the first connection to it: see `open_existing`.
        create_private(path).map_err(|error| OpenError::Io(path.to_owned(), error))?;
        let mut connection = Connection::open(path).map_err(sqlite)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(sqlite)?;
        // Identify the file before anything is written: another program's file must not be changed.
        schema::identify(&connection).map_err(|unfit| OpenError::of(path, unfit))?;
        configure(&connection, options.durability).map_err(sqlite)?;
        schema::create_or_migrate(&mut connection).map_err(|unfit| OpenError::of(path, unfit))?;
        Self::with_journal(path, connection, Some(lock))
    }

    /// Opens the file for reading. Another connection or process can write to the file at the same time.
    pub fn open_to_read(path: &Path) -> Result<Self, OpenError> {
        Self::open_existing(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
    }

    /// Opens the file for checkpoints of its write-ahead log, while the writer has another connection.
    pub fn open_for_checkpoint(path: &Path) -> Result<Self, OpenError> {
        Self::open_existing(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
    }

    fn open_existing(path: &Path, flags: OpenFlags) -> Result<Self, OpenError> {
        let sqlite = |error| OpenError::Sqlite(path.to_owned(), error);
        // Check whether the file exists, because SQLite's own message would not say why the file cannot be opened. The
        // check must not open the file. Closing the file would release all locks that SQLite holds on it in this
        // process (POSIX). Another program could then assume that the file is unused.
        std::fs::metadata(path).map_err(|error| OpenError::Io(path.to_owned(), error))?;
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(sqlite)?;
        connection.pragma_update(None, "cache_size", CACHE_KIB).map_err(sqlite)?;
        match schema::identify(&connection).map_err(|unfit| OpenError::of(path, unfit))? {
            DatabaseKind::Weir { version: schema::VERSION } => {}
            DatabaseKind::Weir { version } => return Err(OpenError::Older { path: path.to_owned(), version }),
            DatabaseKind::Empty => return Err(OpenError::Empty(path.to_owned())),
        }
        Self::with_journal(path, connection, None)
    }

    fn with_journal(path: &Path, connection: Connection, lock: Option<std::fs::File>) -> Result<Self, OpenError> {
        let id = connection.query_row("SELECT id FROM journal_id", [], |row| row.get(0));
        let id = id.map_err(|error| OpenError::Sqlite(path.to_owned(), error))?;
        let journal = JournalFiles::of(path, id);
        let journal = journal.map_err(|error| OpenError::Io(path.to_owned(), error))?;
        Ok(Self { connection, journal, keeps_wal: true, _lock: lock })
    }

    /// Replays the journal. Returns the resulting budgets, the places of damaged entries, and the octets of all
    /// entries.
    pub fn replay(&self) -> std::io::Result<(Replayed, Vec<String>, usize)> {
        replay(&self.journal, &self.connection)
    }

    /// Opens the journal for appending. `octets` are the octets of its entries, which `gauge` shows.
    pub fn open_journal(&self, durability: Durability, octets: usize, gauge: IntGauge) -> Arc<OpenJournal> {
        OpenJournal::new(self.journal.clone(), durability, octets, gauge)
    }

    /// Writes budgets to the table, in one transaction.
    pub fn fold(&mut self, rows: &[(HashedKey, Budget)]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        budget_rows::upsert(&transaction, rows)?;
        transaction.commit()
    }

    /// Deletes each of these budgets, unless its row has changed since the given time.
    pub fn delete_budgets(&mut self, rows: &[(HashedKey, Timestamp)]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        let mut statement =
            transaction.prepare_cached("DELETE FROM budget WHERE hash = ?1 AND key = ?2 AND at = ?3")?;
        for (hashed_key, at) in rows {
            statement.execute(params![hashed_key.order, hashed_key.key.as_str(), at.micros()])?;
        }
        drop(statement);
        transaction.commit()
    }

    /// Reads a budget from the table.
    pub fn load(&self, hashed_key: &HashedKey) -> rusqlite::Result<Option<Budget>> {
        budget_rows::load(&self.connection, hashed_key)
    }

    /// Begins a read transaction: all reads in this transaction see the file at the same moment.
    pub fn begin_read(&self) -> rusqlite::Result<()> {
        self.connection.prepare_cached("BEGIN")?.execute([]).map(|_| ())
    }

    /// Ends the transaction that [`File::begin_read`] began.
    pub fn end_read(&self) {
        // This fails only if SQLite has already ended the transaction, after an error.
        let _ = self.connection.prepare_cached("COMMIT").and_then(|mut end| end.execute([]));
    }

    /// Reads at most `at_most` budgets of the table that follow `last` in the order of the table.
    pub fn rows_after(&self, last: Option<&HashedKey>, at_most: usize) -> rusqlite::Result<Vec<BudgetRow>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT hash, key, at, level, substr(seen, 1, ?4) FROM budget WHERE (hash, key) > (?1, ?2) \
             ORDER BY hash, key LIMIT ?3",
        )?;
        let (order, key) = last.map_or((i64::MIN, ""), |hashed_key| (hashed_key.order, hashed_key.key.as_str()));
        let rows = statement.query_map(params![order, key, at_most as i64, journal::SEEN_HEAD as i64], |row| {
            let epoch = row.get_ref(4)?.as_blob_or_null()?.and_then(journal::seen_epoch);
            Ok(BudgetRow { hashed_key: hashed_key(row)?, state: state(row, 2)?, epoch })
        })?;
        rows.collect()
    }

    /// Calls `take` with each budget whose hash is from `low` to `high`.
    pub fn rows_between(&self, low: i64, high: i64, mut take: impl FnMut(HashedKey, Budget)) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(
            "SELECT hash, key, at, level, seen, times FROM budget WHERE hash BETWEEN ?1 AND ?2 ORDER BY hash, key",
        )?;
        let mut rows = statement.query([low, high])?;
        while let Some(row) = rows.next()? {
            take(hashed_key(row)?, budget(row, 2)?);
        }
        Ok(())
    }

    /// Returns the octets of the file, and the octets of its unused pages.
    pub fn sizes(&self) -> rusqlite::Result<(i64, i64)> {
        let number = |pragma| self.connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        let page = number("page_size")?;
        Ok((page * number("page_count")?, page * number("freelist_count")?))
    }

    /// Returns the number of journal entries and their octets.
    pub fn journal_extent(&self) -> std::io::Result<JournalExtent> {
        self.journal.read(|_, _| ())
    }

    /// Writes a copy of the file and of its journal, in their state at one moment, into the empty file at `path`.
    /// Returns the places of damaged entries of the journal, which the copy lacks.
    pub fn copy_to(&self, path: &Path) -> Result<Vec<String>, CopyError> {
        let name = path.to_str().ok_or_else(|| rusqlite::Error::InvalidPath(path.to_owned()))?;
        for _ in 0..COPY_ATTEMPTS {
            let journal = self.journal.again()?;
            self.connection.execute("VACUUM INTO ?1", [name])?;
            let mut copy = Connection::open(path)?;
            let (replayed, damaged, _) = replay(&journal, &copy)?;
            // Budgets that were folded after the table was copied are in neither of the two.
            if journal.is_complete() {
                let transaction = copy.transaction()?;
                budget_rows::upsert(&transaction, &replayed.0.into_iter().collect::<Vec<_>>())?;
                renew_journal_id(&transaction)?;
                transaction.commit()?;
                return Ok(damaged);
            }
            drop(copy);
            std::fs::OpenOptions::new().write(true).truncate(true).open(path)?;
        }
        Err(CopyError::Busy)
    }

    /// Returns the recorded kinds of limits (see [`DatabaseJob::RecordKinds`](super::database_job::DatabaseJob)), each with
    /// the time when a limit of this kind was last in force.
    pub fn kinds(&self) -> rusqlite::Result<Vec<(String, Timestamp)>> {
        let mut statement = self.connection.prepare("SELECT name, in_force FROM kind ORDER BY name")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, Timestamp::from_micros(row.get(1)?))))?;
        rows.collect()
    }

    /// Records that these kinds of limits are in force at `now`.
    pub fn record_kinds(&mut self, names: &[String], now: Timestamp) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for name in names {
            transaction.execute("INSERT OR REPLACE INTO kind VALUES (?1, ?2)", params![name, now.micros()])?;
        }
        transaction.commit()
    }

    /// Deletes the records of these kinds of limits.
    pub fn delete_kinds(&mut self, names: &[String]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for name in names {
            transaction.execute("DELETE FROM kind WHERE name = ?1", [name])?;
        }
        transaction.commit()
    }

    /// Checkpoints the write-ahead log as far as possible without delaying a commit. Returns the number of pages in the
    /// log, and the number of these pages that have been copied into the file.
    pub fn checkpoint(&self) -> rusqlite::Result<(i64, i64)> {
        self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?)))
    }

    /// Sets whether the write-ahead log keeps its length when SQLite resets it. Otherwise SQLite truncates the log to
    /// the part in use.
    pub fn set_keep_wal(&mut self, keep: bool) {
        if self.keeps_wal != keep {
            // This pragma only changes a number in memory and cannot fail.
            let _ = self.connection.pragma_update(None, "journal_size_limit", if keep { WAL_KEPT_OCTETS } else { 0 });
            self.keeps_wal = keep;
        }
    }

    /// Checks the whole file for damage. Returns the first fault; `None` if there is none.
    pub fn quick_check(&self) -> rusqlite::Result<Option<String>> {
        let fault: String = self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        Ok(Some(fault).filter(|fault| fault != "ok"))
    }

    /// Returns a handle with which another thread can interrupt a statement of this connection.
    pub fn interrupt_handle(&self) -> InterruptHandle {
        self.connection.get_interrupt_handle()
    }
}

/// Returns device and inode of a state file and of its write-ahead log; `None` if one of the two does not exist. If
/// another file has replaced one of the two, the inode is different.
pub fn identity(path: &Path) -> Option<[(u64, u64); 2]> {
    let one = |path: &Path| std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    Some([one(path)?, one(&wal_path(path))?])
}

/// Returns the path of the write-ahead log of the state file at `path`.
pub fn wal_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// Replays a journal over the table of budgets. Returns the resulting budgets, the places of damaged entries, and the
/// octets of all entries.
fn replay(journal: &JournalFiles, table: &Connection) -> std::io::Result<(Replayed, Vec<String>, usize)> {
    let (mut replayed, mut damaged) = (Replayed::default(), Vec::new());
    let extent = journal.read(|entry, place| {
        if replayed.apply(entry, |hashed_key| budget_rows::load(table, hashed_key).ok().flatten()).is_err() {
            damaged.push(place());
        }
    })?;
    Ok((replayed, damaged, extent.octets))
}

/// Gives the state file another journal. The entries of its present journal no longer belong to it.
fn renew_journal_id(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute("UPDATE journal_id SET id = random()", []).map(|_| ())
}

fn hashed_key(row: &Row<'_>) -> rusqlite::Result<HashedKey> {
    Ok(HashedKey { order: row.get(0)?, key: Key::from_stored(row.get_ref(1)?.as_str()?) })
}

fn configure(connection: &Connection, durability: Durability) -> rusqlite::Result<()> {
    let synchronous = match durability {
        // In WAL mode, a commit with this setting is a write to the kernel's page cache, which outlives the process.
        Durability::Process => "NORMAL",
        Durability::Power => "FULL",
    };
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", synchronous)?;
    // The maintenance thread checkpoints with another connection, so that nothing else waits for a checkpoint.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", WAL_KEPT_OCTETS)?;
    connection.pragma_update(None, "cache_size", CACHE_KIB)
}

/// Creates a file, unless it exists. No other user is permitted to read or lock the file, because the state shows how
/// much each user sends. SQLite gives the write-ahead log and its other files the same owner and permissions.
pub fn create_private(path: &Path) -> std::io::Result<std::fs::File> {
    let is_new = !path.exists();
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if is_new && rustix::process::geteuid().is_root() {
        // When root loads or copies a state, the file gets the owner of its folder, which is the server's user. The
        // server does not run as root, and must be able to write the file.
        let folder = std::fs::metadata(folder)?;
        std::os::unix::fs::fchown(&file, Some(folder.uid()), Some(folder.gid()))?;
    }
    Ok(file)
}

/// Locks a file next to the state file, so that only one Weir process writes the state. Two processes would each decide
/// by the counts in their own memory.
pub fn lock(path: &Path) -> Result<std::fs::File, OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    let file = create_private(Path::new(&name)).map_err(|error| OpenError::Io(name.clone().into(), error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(OpenError::Io(path.to_owned(), error)),
    }
}
