//! Rows of the table of budgets.

use super::hashed_key::HashedKey;
use super::journal;
use crate::engine::State;
use crate::policy::budgets::Budget;
use crate::time::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

/// Reads a budget from the table.
pub fn load(connection: &Connection, hashed_key: &HashedKey) -> rusqlite::Result<Option<Budget>> {
    let mut statement =
        connection.prepare_cached("SELECT at, level, seen, times FROM budget WHERE hash = ?1 AND key = ?2")?;
    let row = statement.query_row(params![hashed_key.order, hashed_key.key.as_str()], |row| budget(row, 0));
    row.optional()
}

/// Writes budgets to the table. The budgets replace the rows of the same keys.
pub fn upsert(transaction: &Transaction<'_>, rows: &[(HashedKey, Budget)]) -> rusqlite::Result<()> {
    // Because the table has no other index, SQLite finds and replaces a row with one search. With ON CONFLICT, SQLite
    // would search twice.
    let mut statement = transaction.prepare_cached(
        "INSERT OR REPLACE INTO budget (hash, key, at, level, seen, times) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    rows.iter().try_for_each(|(hashed_key, Budget { state, seen, times })| {
        let seen = seen.as_deref().map(journal::seal_seen);
        let times = times.as_deref().map(journal::times_bytes);
        let row = params![hashed_key.order, hashed_key.key.as_str(), state.at.micros(), state.level, seen, times];
        statement.execute(row).map(|_| ())
    })
}

/// Reads a budget from the columns `at`, `level`, `seen` and `times`, of which the first has this index.
pub fn budget(row: &Row<'_>, at: usize) -> rusqlite::Result<Budget> {
    let seen = row.get_ref(at + 2)?.as_blob_or_null()?.and_then(journal::unseal_seen);
    let times = row.get_ref(at + 3)?.as_blob_or_null()?.and_then(journal::read_times);
    Ok(Budget { state: state(row, at)?, seen, times })
}

/// Reads a state from the columns `at` and `level`, of which the first has this index.
pub fn state(row: &Row<'_>, first: usize) -> rusqlite::Result<State> {
    Ok(State { at: Timestamp::from_micros(row.get(first)?), level: row.get(first + 1)? })
}
