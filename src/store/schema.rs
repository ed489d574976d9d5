//! The schema of the state file: made, recognised, and brought up to date.

use super::hashed_key::HashedKey;
use super::journal;
use crate::policy::key::Key;
use rusqlite::{Connection, Row, Transaction, params};

/// Marks a file as Weir's: "Weir" in ASCII.
const APPLICATION_ID: i64 = 0x5765_6972;

/// The schema's version. A change of the schema adds a migration.
pub const VERSION: i64 = 4;

/// Makes what is not there.
const SCHEMA: &str = include_str!("schema.sql");

/// What makes the schema of a version that of the next: the first of version 1.
const MIGRATIONS: [fn(&Transaction<'_>) -> rusqlite::Result<()>; VERSION as usize - 1] =
    [add_seen, sort_by_hash, add_exceptions];

/// Why a file is not one of ours.
#[derive(Debug)]
pub enum Unfit {
    Foreign,
    /// It has this version, which a newer Weir made.
    Newer(i64),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Unfit {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Whose file it is.
pub enum Whose {
    Nobodys,
    Ours { version: i64 },
}

/// Looks at a file without changing it.
pub fn recognise(connection: &Connection) -> Result<Whose, Unfit> {
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (application, version) = (number("application_id")?, number("user_version")?);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (application, version) {
        (APPLICATION_ID, version @ 1..=VERSION) => Ok(Whose::Ours { version }),
        (APPLICATION_ID, version) => Err(Unfit::Newer(version)),
        (0, 0) if tables == 0 => Ok(Whose::Nobodys),
        _ => Err(Unfit::Foreign),
    }
}

/// Makes the schema in an empty file, and brings one of ours up to date.
pub fn establish(connection: &mut Connection) -> Result<(), Unfit> {
    let transaction = connection.transaction()?;
    match recognise(&transaction)? {
        Whose::Ours { version: VERSION } => return Ok(()),
        Whose::Ours { version } => {
            MIGRATIONS.iter().skip(version as usize - 1).try_for_each(|step| step(&transaction))?;
        }
        Whose::Nobodys => {
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

/// Budgets lie by the hash of their keys, and what is kept as blobs has a checksum.
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

/// Grants and suspensions are kept, and who made them.
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
