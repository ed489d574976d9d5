//! The state file: SQLite with the schema of `schema.sql`, and every statement that is said to it.

mod exceptions;

use super::hashed_key::HashedKey;
use super::journal::{self, Replayed};
use super::jsonl::Line;
use super::schema::{self, Unfit, Whose};
use super::{Durability, Options};
use crate::engine::State;
use crate::policy::Budget;
use crate::policy::key::Key;
use crate::time::Timestamp;
use rusqlite::{Connection, InterruptHandle, OpenFlags, OptionalExtension as _, Row, Transaction, params};
use std::fmt;
use std::fs::TryLockError;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An open state file.
pub struct File {
    connection: Connection,
    /// Sequence numbers of the first and the last journal entry; the first is one more than the last when there is none.
    first: i64,
    last: i64,
    /// The write-ahead log keeps its length when it begins anew, as [`File::keep_log`] was last told.
    keeps_log: bool,
    /// Keeps other processes out while it is open.
    _lock: Option<std::fs::File>,
}

/// A row of the budgets table, without the values seen.
pub struct Kept {
    pub place: HashedKey,
    pub state: State,
    /// When the newer generation of the values seen began.
    pub epoch: Option<Timestamp>,
}

/// How long to wait for another program that holds the file. Replies wait as long, so it is short; then limits go on in memory.
const BUSY: Duration = Duration::from_millis(100);

/// Memory for pages of the file, for each connection: KiB, as SQLite wants it.
const CACHE: i64 = -16_384;

/// What the write-ahead log is cut to when it begins anew, under load: octets.
const LOG_KEPT: i64 = 64 << 20;

/// Why the state file cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// Another Weir has it.
    InUse(PathBuf),
    Io(PathBuf, std::io::Error),
    /// It is another program's database.
    Foreign(PathBuf),
    /// There is nothing in it to be read.
    Empty(PathBuf),
    /// A newer Weir made it.
    Newer {
        path: PathBuf,
        version: i64,
    },
    /// An older Weir made it, and it cannot be changed here.
    Older {
        path: PathBuf,
        version: i64,
    },
    Sqlite(PathBuf, rusqlite::Error),
    Thread(std::io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(path) => write!(f, "state file {}: another Weir is using it", path.display()),
            Self::Io(path, error) => write!(f, "state file {}: {error}", path.display()),
            Self::Empty(path) => write!(f, "state file {}: it is empty", path.display()),
            Self::Foreign(path) => write!(f, "state file {}: it is not Weir's", path.display()),
            Self::Newer { path, version } => write!(
                f,
                "state file {}: it has version {version}, made by a newer Weir; this one knows up to {}",
                path.display(),
                schema::VERSION
            ),
            Self::Older { path, version } => write!(
                f,
                "state file {}: it has version {version}, made by an older Weir; started once, this one brings it up to date",
                path.display()
            ),
            Self::Sqlite(path, error) => write!(f, "state file {}: {}", path.display(), words(error)),
            Self::Thread(error) => write!(f, "cannot start a thread for the state: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl OpenError {
    fn of(path: &Path, unfit: Unfit) -> Self {
        let path = path.to_owned();
        match unfit {
            Unfit::Foreign => Self::Foreign(path),
            Unfit::Newer(version) => Self::Newer { path, version },
            Unfit::Sqlite(error) => Self::Sqlite(path, error),
        }
    }
}

/// Budgets as the file has them, over a connection of its own.
pub fn look(path: &Path, places: &[HashedKey]) -> Result<Vec<Option<Budget>>, String> {
    let unreadable = |why: String| format!("budgets cannot be read: {why}");
    let file = File::read(path).map_err(|error| unreadable(error.to_string()))?;
    let load = |place| file.load(place).map_err(|error| unreadable(words(&error)));
    places.iter().map(load).collect()
}

/// What can be done about a file that is damaged.
pub const ADVICE: &str =
    "to make it anew: save what can be read with `weir state dump`, stop Weir, move the file away with its -wal";

/// What SQLite says, with advice where there is some.
pub fn words(error: &rusqlite::Error) -> String {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => {
            format!("{error}; {ADVICE}")
        }
        _ => error.to_string(),
    }
}

impl File {
    /// Opens the file to write, making it where there is none.
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        let path = &*options.path;
        let sqlite = |error| OpenError::Sqlite(path.to_owned(), error);
        let lock = lock(path)?;
        // Before there is any connection to it: see below.
        private(path).map_err(|error| OpenError::Io(path.to_owned(), error))?;
        let mut connection = Connection::open(path).map_err(sqlite)?;
        connection.busy_timeout(BUSY).map_err(sqlite)?;
        // A file that is not ours is left as it is.
        schema::recognise(&connection).map_err(|unfit| OpenError::of(path, unfit))?;
        configure(&connection, options.durability).map_err(sqlite)?;
        schema::establish(&mut connection).map_err(|unfit| OpenError::of(path, unfit))?;
        let ends = "SELECT coalesce(min(seq), 1), coalesce(max(seq), 0) FROM journal";
        let (first, last) = connection.query_row(ends, [], |row| row.try_into()).map_err(sqlite)?;
        Ok(Self { connection, first, last, keeps_log: true, _lock: Some(lock) })
    }

    /// Opens the file to read, beside whoever writes it.
    pub fn read(path: &Path) -> Result<Self, OpenError> {
        Self::beside(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
    }

    /// Opens the file to bring its write-ahead log home, beside whoever writes it.
    pub fn maintain(path: &Path) -> Result<Self, OpenError> {
        Self::beside(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
    }

    fn beside(path: &Path, flags: OpenFlags) -> Result<Self, OpenError> {
        let sqlite = |error| OpenError::Sqlite(path.to_owned(), error);
        // SQLite would only say that it cannot. It is not opened here: to close it again would end all locks that SQLite holds on it
        // for this process, as POSIX has it, and any other program could take it for unused.
        std::fs::metadata(path).map_err(|error| OpenError::Io(path.to_owned(), error))?;
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
        connection.busy_timeout(BUSY).map_err(sqlite)?;
        connection.pragma_update(None, "cache_size", CACHE).map_err(sqlite)?;
        match schema::recognise(&connection).map_err(|unfit| OpenError::of(path, unfit))? {
            Whose::Ours { version: schema::VERSION } => {}
            Whose::Ours { version } => return Err(OpenError::Older { path: path.to_owned(), version }),
            Whose::Nobodys => return Err(OpenError::Empty(path.to_owned())),
        }
        Ok(Self { connection, first: 1, last: 0, keeps_log: true, _lock: None })
    }

    /// Reads the journal: the budgets as it leaves them, the sequence numbers of entries of which something is damaged, and its octets.
    pub fn replay(&self) -> rusqlite::Result<(Replayed, Vec<i64>, usize)> {
        let mut statement = self.connection.prepare("SELECT seq, entry FROM journal ORDER BY seq")?;
        let mut rows = statement.query([])?;
        let (mut replayed, mut damaged, mut octets) = (Replayed::default(), Vec::new(), 0);
        while let Some(row) = rows.next()? {
            let (seq, bytes) = (row.get(0)?, row.get_ref(1)?.as_blob()?);
            octets += bytes.len();
            if replayed.apply(bytes, |place| self.load(place).ok().flatten()).is_err() {
                damaged.push(seq);
            }
        }
        Ok((replayed, damaged, octets))
    }

    /// Appends an entry to the journal, and writes budgets to their table, in one transaction. When this returns they are as durable
    /// as was asked.
    pub fn append(&mut self, entry: &[u8], rows: &[(HashedKey, Budget)]) -> rusqlite::Result<()> {
        let seq = self.last + 1;
        let insert = |connection: &Connection| {
            let mut statement = connection.prepare_cached("INSERT INTO journal (seq, entry) VALUES (?1, ?2)")?;
            statement.execute(params![seq, entry])
        };
        if rows.is_empty() {
            insert(&self.connection)?;
        } else {
            let transaction = self.connection.transaction()?;
            insert(&transaction)?;
            upsert(&transaction, rows)?;
            // As Transaction::commit, which has SQLite read the word anew each time.
            transaction.prepare_cached("COMMIT")?.execute([])?;
        }
        self.last = seq;
        Ok(())
    }

    /// Sequence number of the last journal entry.
    pub fn last_entry(&self) -> i64 {
        self.last
    }

    /// Writes budgets to their table, in one transaction.
    pub fn fold(&mut self, rows: &[(HashedKey, Budget)]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        upsert(&transaction, rows)?;
        transaction.commit()
    }

    /// Removes journal entries up to and with this one, which are folded, but not more than so many. True: more are left.
    pub fn discard(&mut self, upto: i64, at_most: i64) -> rusqlite::Result<bool> {
        let end = upto.min(self.first + at_most - 1);
        self.connection.prepare_cached("DELETE FROM journal WHERE seq <= ?1")?.execute([end])?;
        self.first = end + 1;
        Ok(end < upto)
    }

    /// Removes budgets that have not changed since.
    pub fn forget(&mut self, rows: &[(HashedKey, Timestamp)]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        let mut statement =
            transaction.prepare_cached("DELETE FROM budget WHERE hash = ?1 AND key = ?2 AND at = ?3")?;
        for (place, at) in rows {
            statement.execute(params![place.order, place.key.as_str(), at.micros()])?;
        }
        drop(statement);
        transaction.commit()
    }

    /// A budget as the table has it.
    pub fn load(&self, place: &HashedKey) -> rusqlite::Result<Option<Budget>> {
        let mut statement =
            self.connection.prepare_cached("SELECT at, level, seen FROM budget WHERE hash = ?1 AND key = ?2")?;
        let row = statement.query_row(params![place.order, place.key.as_str()], |row| {
            let seen = row.get_ref(2)?.as_blob_or_null()?;
            Ok(Budget { state: state(row, 0)?, seen: seen.and_then(journal::unseal_seen) })
        });
        row.optional()
    }

    /// From now on everything is read as it is at this moment.
    pub fn begin_look(&self) -> rusqlite::Result<()> {
        self.connection.prepare_cached("BEGIN")?.execute([]).map(|_| ())
    }

    /// Ends what [`File::begin_look`] began.
    pub fn end_look(&self) {
        // It fails only where there is none: SQLite has ended it after an error.
        let _ = self.connection.prepare_cached("COMMIT").and_then(|mut end| end.execute([]));
    }

    /// The next budgets of the table, at most so many, after this last one.
    pub fn rows_after(&self, last: Option<&HashedKey>, at_most: usize) -> rusqlite::Result<Vec<Kept>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT hash, key, at, level, substr(seen, 1, ?4) FROM budget WHERE (hash, key) > (?1, ?2) \
             ORDER BY hash, key LIMIT ?3",
        )?;
        let (order, key) = last.map_or((i64::MIN, ""), |place| (place.order, place.key.as_str()));
        let rows = statement.query_map(params![order, key, at_most as i64, journal::SEEN_HEAD as i64], |row| {
            let epoch = row.get_ref(4)?.as_blob_or_null()?.and_then(journal::seen_epoch);
            Ok(Kept { place: place(row)?, state: state(row, 2)?, epoch })
        })?;
        rows.collect()
    }

    /// The budgets of a stretch of the order, both ends among them, handed out one by one.
    pub fn stretch(&self, low: i64, high: i64, mut take: impl FnMut(HashedKey, Budget)) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(
            "SELECT hash, key, at, level, seen FROM budget WHERE hash BETWEEN ?1 AND ?2 ORDER BY hash, key",
        )?;
        let mut rows = statement.query([low, high])?;
        while let Some(row) = rows.next()? {
            let seen = row.get_ref(4)?.as_blob_or_null()?;
            take(place(row)?, Budget { state: state(row, 2)?, seen: seen.and_then(journal::unseal_seen) });
        }
        Ok(())
    }

    /// Writes budgets and exceptions, and empties the journal, all at once; if `rows` fails, nothing has changed.
    pub fn write_all<E: From<rusqlite::Error>>(
        &mut self,
        rows: impl Iterator<Item = Result<Line, E>>,
    ) -> Result<(), E> {
        let transaction = self.connection.transaction()?;
        for row in rows {
            match row? {
                Line::Budget(place, budget) => upsert(&transaction, &[(place, budget)])?,
                Line::Grant(grant) => exceptions::put_grant(&transaction, &grant)?,
                Line::Suspension(suspension) => exceptions::put_suspension(&transaction, &suspension)?,
                Line::AuditRecord(record) => exceptions::put_record(&transaction, &record)?,
            }
        }
        transaction.execute("DELETE FROM journal", [])?;
        transaction.commit()?;
        self.first = self.last + 1;
        Ok(())
    }

    /// Octets of the file and of its unused pages; the number of journal entries, and their octets.
    pub fn sizes(&self) -> rusqlite::Result<(i64, i64, i64, i64)> {
        let number = |pragma| self.connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        let page = number("page_size")?;
        let journal = "SELECT count(*), coalesce(sum(length(entry)), 0) FROM journal";
        let (entries, octets) = self.connection.query_row(journal, [], |row| row.try_into())?;
        Ok((page * number("page_count")?, page * number("freelist_count")?, entries, octets))
    }

    /// Writes a copy, as the file is at one moment, to a path where there is an empty file.
    pub fn copy_to(&self, path: &Path) -> rusqlite::Result<()> {
        let path = path.to_str().ok_or_else(|| rusqlite::Error::InvalidPath(path.to_owned()))?;
        self.connection.execute("VACUUM INTO ?1", [path]).map(|_| ())
    }

    /// The limits that budgets belong to, and when each was last in force.
    pub fn kinds(&self) -> rusqlite::Result<Vec<(String, Timestamp)>> {
        let mut statement = self.connection.prepare("SELECT name, in_force FROM kind ORDER BY name")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, Timestamp::from_micros(row.get(1)?))))?;
        rows.collect()
    }

    /// Notes that these limits are in force.
    pub fn note_kinds(&mut self, names: &[String], now: Timestamp) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for name in names {
            transaction.execute("INSERT OR REPLACE INTO kind VALUES (?1, ?2)", params![name, now.micros()])?;
        }
        transaction.commit()
    }

    /// Forgets that there were limits.
    pub fn drop_kinds(&mut self, names: &[String]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for name in names {
            transaction.execute("DELETE FROM kind WHERE name = ?1", [name])?;
        }
        transaction.commit()
    }

    /// Brings the write-ahead log home, as far as nobody has to wait for it: pages in the log, and of these how many are home.
    pub fn checkpoint(&self) -> rusqlite::Result<(i64, i64)> {
        self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?)))
    }

    /// Whether the write-ahead log is to keep its length when it begins anew, or is cut to what is in use then.
    pub fn keep_log(&mut self, keep: bool) {
        if self.keeps_log != keep {
            // It touches no file, and cannot fail.
            let _ = self.connection.pragma_update(None, "journal_size_limit", if keep { LOG_KEPT } else { 0 });
            self.keeps_log = keep;
        }
    }

    /// Reads the whole file; the first fault, if there is one.
    pub fn quick_check(&self) -> rusqlite::Result<Option<String>> {
        let fault: String = self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        Ok(Some(fault).filter(|fault| fault != "ok"))
    }

    /// Ends what the connection is doing, from another thread.
    pub fn interrupt_handle(&self) -> InterruptHandle {
        self.connection.get_interrupt_handle()
    }
}

/// What tells a file and its write-ahead log from others that have taken their names; `None` if one of them is missing.
pub fn identity(path: &Path) -> Option<[(u64, u64); 2]> {
    let one = |path: &Path| std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    Some([one(path)?, one(&log_of(path))?])
}

/// The write-ahead log of a file.
pub fn log_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// Whether an error says that a page is damaged: others may be whole.
pub fn is_local(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseCorrupt)
}

fn place(row: &Row<'_>) -> rusqlite::Result<HashedKey> {
    Ok(HashedKey { order: row.get(0)?, key: Key::from_stored(row.get_ref(1)?.as_str()?) })
}

fn state(row: &Row<'_>, first: usize) -> rusqlite::Result<State> {
    Ok(State { at: Timestamp::from_micros(row.get(first)?), level: row.get(first + 1)? })
}

fn configure(connection: &Connection, durability: Durability) -> rusqlite::Result<()> {
    let synchronous = match durability {
        // In WAL a commit then is one write to the page cache, which outlives the process.
        Durability::Process => "NORMAL",
        Durability::Power => "FULL",
    };
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", synchronous)?;
    // Another connection does it, so that no commit waits for it.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", LOG_KEPT)?;
    connection.pragma_update(None, "cache_size", CACHE)
}

/// Writes budgets to their table.
pub fn upsert(transaction: &Transaction<'_>, rows: &[(HashedKey, Budget)]) -> rusqlite::Result<()> {
    // As the table has no other index, SQLite replaces a row where it finds it; with ON CONFLICT it looks for it twice.
    let mut statement = transaction
        .prepare_cached("INSERT OR REPLACE INTO budget (hash, key, at, level, seen) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    rows.iter().try_for_each(|(place, Budget { state, seen })| {
        let seen = seen.as_deref().map(journal::seal_seen);
        let row = params![place.order, place.key.as_str(), state.at.micros(), state.level, seen];
        statement.execute(row).map(|_| ())
    })
}

/// Makes a file that nobody else may read or lock, where there is none: it tells who sends how much. Companions that SQLite makes get
/// the same owner and permissions.
pub fn private(path: &Path) -> std::io::Result<std::fs::File> {
    let is_new = !path.exists();
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if is_new && rustix::process::geteuid().is_root() {
        // Root loads or copies it, and the server, which is not root, has to write it: it is its folder.
        let folder = std::fs::metadata(folder)?;
        std::os::unix::fs::fchown(&file, Some(folder.uid()), Some(folder.gid()))?;
    }
    Ok(file)
}

/// Locks a file beside the state file: two writers would each believe in their own memory.
fn lock(path: &Path) -> Result<std::fs::File, OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    let file = private(Path::new(&name)).map_err(|error| OpenError::Io(name.clone().into(), error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(OpenError::Io(path.to_owned(), error)),
    }
}
