//! Schema of the state file: creation, identification, migration.

use super::budget_rows;
use super::hashed_key::HashedKey;
use super::journal::{self, Replayed};
use super::journal_damage::warn_damaged;
use crate::policy::budgets::Key;
use rusqlite::{Connection, Row, Transaction, params};

/// Application ID in the header of the database. It marks a state file of Weir, and is "Weir" in ASCII.
const APPLICATION_ID: i64 = 0x5765_6972;

/// Version of the schema. A change of the schema must increment the version and add a migration.
pub const VERSION: i64 = 10;

/// SQL that creates the tables that do not exist.
const SCHEMA: &str = include_str!("schema.sql");

/// Migrations. Each migration is from one version to the next version. The first migration is from version 1.
const MIGRATIONS: [fn(&Transaction<'_>) -> rusqlite::Result<()>; VERSION as usize - 1] = [
    add_seen,
    sort_by_hash,
    add_exceptions,
    add_logins,
    add_refusals,
    to_version_7,
    to_version_8,
    fold_journal,
    add_egress,
];

/// Reason why a database cannot be used as a state file.
#[derive(Debug)]
pub enum SchemaError {
    Foreign,
    /// A newer version of Weir has written the file. The number is the version of the file's schema.
    Newer(i64),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for SchemaError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Kind of database that can be used: an empty one, or a state file of Weir.
pub enum DatabaseKind {
    Empty,
    Weir { version: i64 },
}

/// Identifies a database without changing it.
pub fn identify(connection: &Connection) -> Result<DatabaseKind, SchemaError> {
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (application, version) = (number("application_id")?, number("user_version")?);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (application, version) {
        (APPLICATION_ID, version @ 1..=VERSION) => Ok(DatabaseKind::Weir { version }),
        (APPLICATION_ID, version) => Err(SchemaError::Newer(version)),
        (0, 0) if tables == 0 => Ok(DatabaseKind::Empty),
        _ => Err(SchemaError::Foreign),
    }
}

/// Creates the schema in an empty database, or migrates a state file of an older version of Weir.
pub fn create_or_migrate(connection: &mut Connection) -> Result<(), SchemaError> {
    let transaction = connection.transaction()?;
    match identify(&transaction)? {
        DatabaseKind::Weir { version: VERSION } => return Ok(()),
        DatabaseKind::Weir { version } => {
            MIGRATIONS.iter().skip(version as usize - 1).try_for_each(|step| step(&transaction))?;
        }
        DatabaseKind::Empty => {
            transaction.execute_batch(SCHEMA)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        }
    }
    transaction.pragma_update(None, "user_version", VERSION)?;
    Ok(transaction.commit()?)
}

fn add_seen(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch("ALTER TABLE budget ADD COLUMN seen BLOB")
}

/// Migrates to version 3, in which budgets are sorted by the hash of their keys, and each blob has a checksum before
/// it.
fn sort_by_hash(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch("ALTER TABLE budget RENAME TO former; ALTER TABLE journal RENAME TO former_journal")?;
    transaction.execute_batch(SCHEMA)?;
    transaction.execute_batch("CREATE TABLE journal (seq INTEGER PRIMARY KEY, entry BLOB NOT NULL) STRICT")?;
    let mut insert =
        transaction.prepare("INSERT INTO budget (hash, key, at, level, seen) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for_each(transaction, "SELECT key, at, level, seen FROM former", |row| {
        let (key, at, level, seen): (String, i64, f64, Option<Vec<u8>>) = row.try_into()?;
        let order = HashedKey::of(Key::from_stored(&key)).order;
        insert.execute(params![order, key, at, level, seen.map(|bytes| journal::sealed(&bytes))])
    })?;
    let mut insert = transaction.prepare("INSERT INTO journal VALUES (?1, ?2)")?;
    for_each(transaction, "SELECT seq, entry FROM former_journal", |row| {
        let (seq, bytes): (i64, Vec<u8>) = row.try_into()?;
        insert.execute(params![seq, journal::sealed(&bytes)])
    })?;
    drop(insert);
    transaction.execute_batch("DROP TABLE former; DROP TABLE former_journal")
}

/// Migrates to version 4, which adds the tables of grants, suspensions and audit records.
fn add_exceptions(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(SCHEMA)
}

/// Migrates to version 5, which adds the login history.
fn add_logins(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(SCHEMA)
}

/// Migrates to version 6, which adds the records of refusals.
fn add_refusals(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(SCHEMA)
}

/// Migrates to version 7.
fn to_version_7(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    add_kinds_of_suspension(transaction)?;
    add_refusal_evidence(transaction)?;
    add_notices(transaction)
}

/// Migrates to version 8.
fn to_version_8(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    add_locks(transaction)?;
    add_times(transaction)?;
    add_queue_ids(transaction)
}

/// Migrates to version 9, in which the journal has its own files: folds the entries of the former table of the journal.
fn fold_journal(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(SCHEMA)?;
    let mut replayed = Replayed::default();
    for_each(transaction, "SELECT entry, seq FROM journal ORDER BY seq", |row| {
        let base = |hashed_key: &HashedKey| budget_rows::load(transaction, hashed_key).ok().flatten();
        if replayed.apply(row.get_ref(0)?.as_blob()?, base).is_err() {
            warn_damaged(&row.get::<_, i64>(1)?.to_string());
        }
        Ok(0)
    })?;
    budget_rows::upsert(transaction, &replayed.0.into_iter().collect::<Vec<_>>())?;
    transaction.execute_batch("DROP TABLE journal")
}

/// Migrates to version 10, which adds the register of direct ways.
fn add_egress(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(SCHEMA)
}

/// Adds the queue ids of messages.
fn add_queue_ids(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(SCHEMA)
}

/// Adds the times of the last events of a budget.
fn add_times(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    if has_column(transaction, "budget", "times")? {
        return Ok(());
    }
    transaction.execute_batch("ALTER TABLE budget ADD COLUMN times BLOB")
}

/// Adds the column that makes a suspension a lock.
fn add_locks(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    if has_column(transaction, "exception", "known_to")? {
        return Ok(());
    }
    transaction.execute_batch("ALTER TABLE exception ADD COLUMN known_to TEXT")
}

/// Adds the columns that say which mail a suspension allows, and whether a new password ends it. Suspensions of before
/// allow none, and no new password ends them.
fn add_kinds_of_suspension(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    if has_column(transaction, "exception", "lenient")? {
        return Ok(());
    }
    transaction.execute_batch(
        "ALTER TABLE exception ADD COLUMN lenient INTEGER NOT NULL DEFAULT 0; \
         ALTER TABLE exception ADD COLUMN password TEXT",
    )
}

/// Adds the owners of refusals, the mark of shadow mode, and the sums over the table.
fn add_refusal_evidence(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    if !has_column(transaction, "refusal", "shadow")? {
        // A tag of 2 digits is that of several owners.
        transaction.execute_batch(
            "ALTER TABLE refusal ADD COLUMN owner TEXT;
             ALTER TABLE refusal ADD COLUMN shadow INTEGER NOT NULL DEFAULT 0;
             UPDATE refusal SET owner = coalesce('user=' || user, 'client=' || client) WHERE length(tag) > 2",
        )?;
    }
    transaction.execute_batch(SCHEMA)?;
    transaction.execute_batch(
        "UPDATE refusal_sum SET (records, octets) = (SELECT count(*), coalesce(sum(octets), 0) FROM refusal)",
    )
}

/// Returns whether a table has a column. An earlier step of the migration can have created the table with the columns of
/// the present version.
fn has_column(transaction: &Transaction<'_>, table: &str, column: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM pragma_table_info(?1) WHERE name = ?2";
    transaction.query_row(sql, params![table, column], |row| row.get::<_, i64>(0)).map(|count| count > 0)
}

/// Adds the notices that are to be delivered, and the episodes of notifications.
fn add_notices(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(SCHEMA)
}

fn for_each(
    transaction: &Transaction<'_>,
    query: &str,
    mut take: impl FnMut(&Row<'_>) -> rusqlite::Result<usize>,
) -> rusqlite::Result<()> {
    let mut statement = transaction.prepare(query)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        take(row)?;
    }
    Ok(())
}
