//! Records of refusals in the state file.

use super::File;
use crate::reference::{Reference, Tag};
use crate::store::refusals::{Filter, Refusal, RefusalRow};
use crate::time::Timestamp;
use rusqlite::{Connection, Row, params};

/// Columns in the order of [`refusal_row`].
const COLUMNS: &str = "id, at, tag, number, last, times, user, client, of_limit, body";

/// Maximum rows that one transaction deletes: commits of charges wait for it.
const DELETED_AT_ONCE: i64 = 2_000;

/// Time before a reference in which a coalesced record with this reference can begin, in milliseconds: more than a
/// minute, because the clock may be slewed.
const COALESCED_MILLIS: u64 = 120_000;

impl File {
    /// Appends records, in one transaction. If all records together have more than `max_octets`, deletes the oldest
    /// ones. `stored` are the octets of all records in the file. Returns the new octets.
    pub fn add_refusals(&mut self, rows: &[RefusalRow], stored: u64, max_octets: u64) -> rusqlite::Result<u64> {
        let transaction = self.connection.transaction()?;
        let mut octets = stored;
        for row in rows {
            put_refusal(&transaction, row)?;
            octets += row.octets() as u64;
        }
        if octets > max_octets {
            octets = octets.saturating_sub(delete_oldest(&transaction, octets - max_octets)?);
        }
        transaction.commit()?;
        Ok(octets)
    }

    /// Returns the octets of all records.
    pub fn refusal_octets(&self) -> rusqlite::Result<u64> {
        let sum = "SELECT coalesce(sum(octets), 0) FROM refusal";
        self.connection.query_row(sum, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
    }

    /// Returns the number of records, and the time of the oldest one.
    pub fn refusal_extent(&self) -> rusqlite::Result<(u64, Option<Timestamp>)> {
        self.connection.query_row("SELECT count(*), min(at) FROM refusal", [], |row| {
            let oldest = row.get::<_, Option<i64>>(1)?.map(|at| Timestamp::from_micros(at.saturating_mul(1_000)));
            Ok((row.get::<_, i64>(0)?.unsigned_abs(), oldest))
        })
    }

    /// Deletes records whose last refusal is before `before`. Returns whether more remain, and the octets of the deleted
    /// ones.
    pub fn prune_refusals(&mut self, before: Timestamp) -> rusqlite::Result<(bool, u64)> {
        let transaction = self.connection.transaction()?;
        let sql = "DELETE FROM refusal WHERE id IN (SELECT id FROM refusal WHERE last < ?1 LIMIT ?2) RETURNING octets";
        let (rows, octets) = deleted(&transaction, sql, [before.micros() / 1_000, DELETED_AT_ONCE])?;
        transaction.commit()?;
        Ok((rows == DELETED_AT_ONCE, octets))
    }

    /// Returns the record of a reference: the single one, or else the coalesced one that has it.
    pub fn refusal(&self, reference: &Reference) -> rusqlite::Result<Option<RefusalRow>> {
        let sql = format!("SELECT {COLUMNS} FROM refusal WHERE at BETWEEN ?1 AND ?2 AND last >= ?2");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let range = [reference.millis.saturating_sub(COALESCED_MILLIS), reference.millis];
        let mut rows = statement.query(range.map(sqlite_millis))?;
        let mut best: Option<RefusalRow> = None;
        while let Some(row) = rows.next()? {
            let (_, row) = refusal_row(row)?;
            if row.has(reference) && best.as_ref().is_none_or(|best| row.inexactness() < best.inexactness()) {
                best = Some(row);
            }
        }
        Ok(best)
    }

    /// Returns at most `at_most` records that a filter selects, the newest first, each with its ID.
    pub fn refusals(&self, filter: &Filter, at_most: usize) -> rusqlite::Result<Vec<(i64, RefusalRow)>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM refusal WHERE id < ?1 AND last >= ?2 AND (?3 IS NULL OR of_limit = ?3) ORDER BY id DESC"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let Filter { limit, since, before, .. } = filter;
        let since = since.map_or(i64::MIN, |since| since.micros() / 1_000);
        let mut rows = statement.query(params![before.unwrap_or(i64::MAX), since, limit])?;
        let mut found = Vec::new();
        while found.len() < at_most
            && let Some(row) = rows.next()?
        {
            let text = |at| Ok::<_, rusqlite::Error>(row.get_ref(at)?.as_str_or_null().ok().flatten());
            // SQL does not know the normal forms of names and addresses.
            if filter.has_owner(text(6)?, text(7)?) {
                found.push(refusal_row(row)?);
            }
        }
        Ok(found)
    }

    /// Returns at most `at_most` records that follow the record with the ID `after`, in the order of the table.
    pub fn refusals_after(&self, after: i64, at_most: usize) -> rusqlite::Result<Vec<(i64, RefusalRow)>> {
        let sql = format!("SELECT {COLUMNS} FROM refusal WHERE id > ?1 ORDER BY id LIMIT ?2");
        self.connection.prepare_cached(&sql)?.query_map([after, at_most as i64], refusal_row)?.collect()
    }
}

/// Appends a record, unless the file has the same record.
pub fn put_refusal(connection: &Connection, row: &RefusalRow) -> rusqlite::Result<()> {
    let Refusal { user, client, limit, body } = &row.refusal;
    let tag = row.tag.map_or_else(|| row.cause.clone(), |tag| tag.to_string());
    let sql = "INSERT INTO refusal (at, tag, number, last, times, user, client, of_limit, octets, body) \
               SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 WHERE NOT EXISTS \
               (SELECT 1 FROM refusal WHERE at = ?1 AND tag = ?2 AND number IS ?3 AND body = ?10)";
    let row = params![
        sqlite_millis(row.millis),
        tag,
        row.number,
        sqlite_millis(row.last),
        i64::try_from(row.times).unwrap_or(i64::MAX),
        user,
        client,
        limit,
        row.octets() as i64,
        body
    ];
    connection.prepare_cached(sql)?.execute(row).map(|_| ())
}

/// Deletes the oldest records, until at least `excess` octets are free, but not more than [`DELETED_AT_ONCE`] records.
/// Returns their octets.
fn delete_oldest(connection: &Connection, excess: u64) -> rusqlite::Result<u64> {
    let mut statement = connection.prepare_cached("SELECT id, octets FROM refusal ORDER BY id LIMIT ?1")?;
    let mut rows = statement.query([DELETED_AT_ONCE])?;
    let (mut octets, mut last) = (0, None);
    while octets < excess
        && let Some(row) = rows.next()?
    {
        last = Some(row.get::<_, i64>(0)?);
        octets += row.get::<_, i64>(1)?.unsigned_abs();
    }
    let Some(last) = last else { return Ok(0) };
    connection.prepare_cached("DELETE FROM refusal WHERE id <= ?1")?.execute([last])?;
    Ok(octets)
}

/// Runs a statement that deletes rows. Returns the number of rows, and their octets.
fn deleted(connection: &Connection, sql: &str, parameters: [i64; 2]) -> rusqlite::Result<(i64, u64)> {
    let mut statement = connection.prepare_cached(sql)?;
    let octets: Vec<i64> = statement.query_map(parameters, |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok((octets.len() as i64, octets.iter().map(|octets| octets.unsigned_abs()).sum()))
}

fn refusal_row(row: &Row<'_>) -> rusqlite::Result<(i64, RefusalRow)> {
    let text = |at| Ok::<_, rusqlite::Error>(row.get_ref(at)?.as_str_or_null().ok().flatten().map(str::to_owned));
    let written = text(2)?.unwrap_or_default();
    let tag: Option<Tag> = written.parse().ok();
    let refusal = Refusal { user: text(6)?, client: text(7)?, limit: text(8)?, body: text(9)?.unwrap_or_default() };
    let number = |at| row.get::<_, i64>(at).map(i64::unsigned_abs);
    let found = RefusalRow {
        millis: number(1)?,
        tag,
        cause: tag.map_or(written, Tag::cause),
        number: row.get(3)?,
        last: number(4)?,
        times: number(5)?,
        refusal,
    };
    Ok((row.get(0)?, found))
}

fn sqlite_millis(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}
