//! Schema of the state file: creation, identification, migration.

use super::hashed_key::HashedKey;
use super::journal;
use crate::policy::budgets::Key;
use rusqlite::{Connection, Row, Transaction, params};

/// Marks a file as Weir's: "Weir" in ASCII.
const APPLICATION_ID: i64 = 0x5765_6972;

/// Version of the schema. A change of the schema adds a migration.
pub const VERSION: i64 = 4;

/// Creates the tables that are missing.
const SCHEMA: &str = include_str!("schema.sql");

/// Migrations, each to the next version; the first is from version 1.
const MIGRATIONS: [fn(&Transaction<'_>) -> rusqlite::Result<()>; VERSION as usize - 1] =
    [add_seen, sort_by_hash, add_exceptions];

/// Reason why a file cannot be used.
#[derive(Debug)]
pub enum SchemaError {
    Foreign,
    /// A newer Weir has made the file, with this version.
    Newer(i64),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for SchemaError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Program that a database belongs to.
pub enum DatabaseKind {
    Empty,
    Weir { version: i64 },
}

/// Identifies a file without changing it.
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

/// Creates the schema in an empty file, and migrates an older file of Weir's.
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

/// Version 3 sorts budgets by the hash of their keys, and puts a checksum before each blob.
fn sort_by_hash(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch("ALTER TABLE budget RENAME TO former; ALTER TABLE journal RENAME TO former_journal")?;
    transaction.execute_batch(SCHEMA)?;
    let mut insert = transaction.prepare("INSERT INTO budget VALUES (?1, ?2, ?3, ?4, ?5)")?;
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

/// Version 4 keeps grants, suspensions and the audit trail.
fn add_exceptions(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
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
