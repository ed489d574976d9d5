//! The state file: SQLite with the schema of `schema.sql`.

use super::{Durability, entry};
use crate::engine::State;
use crate::policy::Budget;
use crate::policy::key::Key;
use crate::time::Timestamp;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Transaction, params};
use std::fmt;
use std::fs::TryLockError;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An open state file.
pub struct File {
    path: PathBuf,
    connection: Connection,
    /// Sequence number of the last journal entry.
    last: i64,
    /// Keeps other processes out while it is open.
    _lock: Option<std::fs::File>,
}

/// Marks a file as Weir's: "Weir" in ASCII.
const APPLICATION_ID: i64 = 0x5765_6972;

/// The schema's version. A change of the schema adds a migration.
const VERSION: i64 = 2;

/// How long to wait for another program that holds the file. Replies wait as long, so it is short; then limits go on in memory.
const BUSY: Duration = Duration::from_millis(100);

const SCHEMA: &str = include_str!("schema.sql");

/// What makes the schema of a version that of the next: the first of version 1.
const MIGRATIONS: [&str; VERSION as usize - 1] = ["ALTER TABLE budget ADD COLUMN seen BLOB"];

/// Why the state file cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// Another process has it.
    InUse(PathBuf),
    Lock(PathBuf, std::io::Error),
    /// It is another program's database.
    Foreign(PathBuf),
    /// A newer Weir made it.
    Newer {
        path: PathBuf,
        version: i64,
    },
    /// An entry of the journal cannot be read.
    Damaged {
        path: PathBuf,
        seq: i64,
    },
    Sqlite(PathBuf, rusqlite::Error),
    Thread(std::io::Error),
}

/// What can be done about a file that cannot be mended.
const ANEW: &str = "moved away, it is made anew, and all budgets begin empty";

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(path) => write!(f, "state file {}: another Weir is using it", path.display()),
            Self::Lock(path, error) => write!(f, "state file {}: {error}", path.display()),
            Self::Foreign(path) => write!(f, "state file {}: it is not Weir's", path.display()),
            Self::Newer { path, version } => write!(
                f,
                "state file {}: it has version {version}, made by a newer Weir; this one knows up to {VERSION}",
                path.display()
            ),
            Self::Damaged { path, seq } => {
                write!(f, "state file {}: entry {seq} of its journal is damaged; {ANEW}", path.display())
            }
            Self::Sqlite(path, error) => write!(f, "state file {}: {error}; {ANEW}", path.display()),
            Self::Thread(error) => write!(f, "cannot start the thread that writes state: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl File {
    /// Opens the file to write, making it where there is none.
    pub fn open(path: &Path, durability: Durability) -> Result<Self, OpenError> {
        let sqlite = |error| OpenError::Sqlite(path.to_owned(), error);
        let lock = lock(path)?;
        make(path).map_err(|error| OpenError::Lock(path.to_owned(), error))?;
        let connection = Connection::open(path).map_err(sqlite)?;
        connection.busy_timeout(BUSY).map_err(sqlite)?;
        let mut file = Self { path: path.to_owned(), connection, last: 0, _lock: Some(lock) };
        file.check()?;
        file.configure(durability).map_err(sqlite)?;
        file.last = file
            .connection
            .query_row("SELECT coalesce(max(seq), 0) FROM journal", [], |row| row.get(0))
            .map_err(sqlite)?;
        Ok(file)
    }

    /// A second connection, to read budgets by.
    pub fn reader(&self) -> Result<Self, OpenError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags);
        let connection = connection.map_err(|error| OpenError::Sqlite(self.path.clone(), error))?;
        Ok(Self { path: self.path.clone(), connection, last: 0, _lock: None })
    }

    /// Folds what a former process left in the journal.
    pub fn replay(&mut self) -> Result<(), OpenError> {
        let sqlite = |error| OpenError::Sqlite(self.path.clone(), error);
        let mut statement = self.connection.prepare("SELECT seq, entry FROM journal ORDER BY seq").map_err(sqlite)?;
        let mut rows = statement.query([]).map_err(sqlite)?;
        let mut changes = std::collections::HashMap::new();
        while let Some(row) = rows.next().map_err(sqlite)? {
            let (seq, bytes): (i64, Vec<u8>) = row.try_into().map_err(sqlite)?;
            let damaged = || OpenError::Damaged { path: self.path.clone(), seq };
            changes.extend(entry::read(&bytes).ok_or_else(damaged)?);
        }
        drop(rows);
        drop(statement);
        let changes: Vec<(Key, Budget)> = changes.into_iter().collect();
        let last = self.last;
        let folded = self.fold(&changes).and_then(|()| self.discard(last));
        folded.map_err(|error| OpenError::Sqlite(self.path.clone(), error))
    }

    /// Appends an entry to the journal. When this returns it is as durable as was asked.
    pub fn append(&mut self, entry: &[u8]) -> rusqlite::Result<()> {
        let seq = self.last + 1;
        self.connection
            .prepare_cached("INSERT INTO journal (seq, entry) VALUES (?1, ?2)")?
            .execute(params![seq, entry])?;
        self.last = seq;
        Ok(())
    }

    /// Sequence number of the last journal entry.
    pub fn last_entry(&self) -> i64 {
        self.last
    }

    /// Writes states to the budgets table, in one transaction.
    pub fn fold(&mut self, rows: &[(Key, Budget)]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        upsert(&transaction, rows)?;
        transaction.commit()
    }

    /// Removes journal entries up to and with this one: they are folded.
    pub fn discard(&mut self, last: i64) -> rusqlite::Result<()> {
        self.connection.prepare_cached("DELETE FROM journal WHERE seq <= ?1")?.execute([last])?;
        Ok(())
    }

    /// A budget as the table has it.
    pub fn load(&self, key: &Key) -> rusqlite::Result<Option<Budget>> {
        let mut statement = self.connection.prepare_cached("SELECT at, level, seen FROM budget WHERE key = ?1")?;
        let row = statement.query_row([key.as_str()], |row| {
            let (at, level, seen): (_, _, Option<Vec<u8>>) = row.try_into()?;
            let state = State { at: Timestamp::from_micros(at), level };
            Ok(Budget { state, seen: seen.and_then(|bytes| entry::read_seen(&bytes)) })
        });
        row.optional()
    }

    /// Makes the schema in an empty file; refuses a file that is not Weir's or from the future.
    fn check(&mut self) -> Result<(), OpenError> {
        let sqlite = |error| OpenError::Sqlite(self.path.clone(), error);
        let number = |pragma: &str| self.connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        let (application, version) = (number("application_id"), number("user_version"));
        let (application, version) = (application.map_err(sqlite)?, version.map_err(sqlite)?);
        let tables: i64 =
            self.connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(sqlite)?;
        match (application, version) {
            (APPLICATION_ID, VERSION) => Ok(()),
            (APPLICATION_ID, version @ 1..VERSION) => {
                self.migrate(version).map_err(|error| OpenError::Sqlite(self.path.clone(), error))
            }
            (APPLICATION_ID, version) => Err(OpenError::Newer { path: self.path.clone(), version }),
            (0, 0) if tables == 0 => self.create().map_err(|error| OpenError::Sqlite(self.path.clone(), error)),
            _ => Err(OpenError::Foreign(self.path.clone())),
        }
    }

    fn create(&mut self) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        transaction.execute_batch(SCHEMA)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()
    }

    fn migrate(&mut self, version: i64) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        MIGRATIONS.iter().skip(version as usize - 1).try_for_each(|step| transaction.execute_batch(step))?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()
    }

    fn configure(&self, durability: Durability) -> rusqlite::Result<()> {
        let synchronous = match durability {
            // In WAL a commit then is one write to the page cache, which outlives the process.
            Durability::Process => "NORMAL",
            Durability::Power => "FULL",
        };
        self.connection.pragma_update(None, "journal_mode", "WAL")?;
        self.connection.pragma_update(None, "synchronous", synchronous)
    }
}

fn upsert(transaction: &Transaction<'_>, rows: &[(Key, Budget)]) -> rusqlite::Result<()> {
    let mut statement = transaction.prepare_cached(
        "INSERT INTO budget (key, at, level, seen) VALUES (?1, ?2, ?3, ?4) \
         ON CONFLICT (key) DO UPDATE SET at = excluded.at, level = excluded.level, seen = excluded.seen",
    )?;
    rows.iter().try_for_each(|(key, Budget { state, seen })| {
        let seen = seen.as_deref().map(entry::seen_bytes);
        statement.execute(params![key.as_str(), state.at.micros(), state.level, seen]).map(|_| ())
    })
}

/// Files that nobody else may read or lock: they tell who sends how much.
fn private() -> std::fs::OpenOptions {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    options
}

/// Makes an empty file where there is none, for SQLite to open; its companions get the same permissions.
fn make(path: &Path) -> std::io::Result<()> {
    private().open(path).map(|_| ())
}

/// Locks a file beside the state file: two writers would each believe in their own memory.
fn lock(path: &Path) -> Result<std::fs::File, OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    let opened = private().open(PathBuf::from(name));
    let file = opened.map_err(|error| OpenError::Lock(path.to_owned(), error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(OpenError::Lock(path.to_owned(), error)),
    }
}
