//! Records of refusals in the state file.

use super::File;
use crate::reference::{Reference, Tag};
use crate::store::refusals::{COMMIT_OCTETS, EvidenceRow, Filter, Refusal, RefusalRow};
use crate::time::Timestamp;
use rusqlite::{Connection, Row, params};

/// Columns in the order of [`refusal_row`].
const COLUMNS: &str = "id, at, tag, number, last, times, user, client, of_limit, body, owner, shadow";

/// Maximum rows, and approximate maximum octets of these rows, that one transaction deletes: commits of charges wait for
/// it. More octets are deleted than a commit of records adds, so that the table does not grow.
const DELETED_ROWS: i64 = 200;
const DELETED_OCTETS: u64 = 2 * COMMIT_OCTETS as u64;

/// Time before a reference in which a coalesced record with this reference can begin, in milliseconds: more than a
/// minute, because the clock may be slewed.
const COALESCED_MILLIS: u64 = 120_000;

impl File {
    /// Appends records, in one transaction. If all records together have more than `max_octets`, deletes some of the
    /// oldest ones.
    pub fn add_refusals(&mut self, rows: &[RefusalRow], max_octets: u64) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        rows.iter().try_for_each(|row| put_refusal(&transaction, row))?;
        delete_excess(&transaction, max_octets)?;
        transaction.commit()
    }

    /// Returns the number of records of refusals, and the time of the oldest one.
    pub fn refusal_extent(&self) -> rusqlite::Result<(u64, Option<Timestamp>)> {
        let oldest = "(SELECT at FROM refusal WHERE shadow = 0 ORDER BY at LIMIT 1)";
        let sql = format!("SELECT records, {oldest} FROM refusal_sum");
        self.connection.query_row(&sql, [], |row| {
            let oldest = row.get::<_, Option<i64>>(1)?.map(|at| Timestamp::from_micros(at.saturating_mul(1_000)));
            Ok((row.get::<_, i64>(0)?.unsigned_abs(), oldest))
        })
    }

    /// Returns the time of the oldest record, also of shadow or soft mode.
    pub fn oldest_record(&self) -> rusqlite::Result<Option<Timestamp>> {
        let at: Option<i64> = self.connection.query_row("SELECT min(at) FROM refusal", [], |row| row.get(0))?;
        Ok(at.map(|at| Timestamp::from_micros(at.saturating_mul(1_000))))
    }

    /// Deletes some of the records whose last refusal is before `before`, and some of the oldest records if all records
    /// together have more than `max_octets`. Returns whether more have to be deleted.
    pub fn prune_refusals(&mut self, before: Timestamp, max_octets: u64) -> rusqlite::Result<bool> {
        let transaction = self.connection.transaction()?;
        // The index of `at` finds the rows. A coalesced record can have begun before `before`, and ended after it.
        let sql = "SELECT id, octets FROM refusal WHERE at < ?1 AND last < ?1 ORDER BY at LIMIT ?2";
        let is_partial = delete(&transaction, sql, before.micros() / 1_000, u64::MAX)?;
        if !is_partial {
            delete_excess(&transaction, max_octets)?;
        }
        let has_more = is_partial || refusal_octets(&transaction)? > max_octets;
        transaction.commit()?;
        Ok(has_more)
    }

    /// Returns the records that have a reference and are equally exact: those of this refusal alone, or else the
    /// coalesced ones of its owner, or else those of all owners.
    pub fn refusals_of(&self, reference: &Reference) -> rusqlite::Result<Vec<RefusalRow>> {
        let sql = format!("SELECT {COLUMNS} FROM refusal WHERE at BETWEEN ?1 AND ?2 AND last >= ?2 AND shadow = 0");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let range = [reference.millis.saturating_sub(COALESCED_MILLIS), reference.millis];
        let mut rows = statement.query(range.map(sqlite_integer))?;
        let mut found: Vec<RefusalRow> = Vec::new();
        while let Some(row) = rows.next()? {
            let row = refusal_row(row)?;
            if row.has(reference) {
                found.push(row);
            }
        }
        Ok(RefusalRow::most_exact(found))
    }

    /// Returns at most `at_most` records that a filter selects, the newest first.
    pub fn refusals(&self, filter: &Filter, at_most: usize) -> rusqlite::Result<Vec<RefusalRow>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM refusal WHERE id < ?1 AND last >= ?2 AND (?3 IS NULL OR of_limit = ?3) \
             AND shadow = ?4 ORDER BY id DESC"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let Filter { limit, is_shadow, since, before, .. } = filter;
        let since = since.map_or(i64::MIN, |since| since.micros() / 1_000);
        let mut rows = statement.query(params![before.unwrap_or(i64::MAX), since, limit, is_shadow])?;
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

    /// Returns what the records of a limit count, of those whose last refusal is not before `since`.
    pub fn evidence(&self, limit: &str, since: Timestamp) -> rusqlite::Result<Vec<EvidenceRow>> {
        let sql = "SELECT id, owner, shadow, times, at, last, tag, number FROM refusal INDEXED BY refusal_evidence \
                   WHERE of_limit = ?1 AND last >= ?2";
        let mut statement = self.connection.prepare_cached(sql)?;
        statement.query_map(params![limit, since.micros() / 1_000], evidence_row)?.collect()
    }

    /// Returns at most `at_most` records that follow the record with the ID `after`, in the order of the table.
    pub fn refusals_after(&self, after: i64, at_most: usize) -> rusqlite::Result<Vec<RefusalRow>> {
        let sql = format!("SELECT {COLUMNS} FROM refusal WHERE id > ?1 ORDER BY id LIMIT ?2");
        self.connection.prepare_cached(&sql)?.query_map([after, at_most as i64], refusal_row)?.collect()
    }
}

/// Appends a record, unless the file has the same record. If the file has another record with its ID, or if the record
/// has no ID, the record gets the next free ID.
pub fn put_refusal(connection: &Connection, row: &RefusalRow) -> rusqlite::Result<()> {
    let Refusal { is_shadow, owner, user, client, limit, body } = &row.refusal;
    let tag = row.tag.map_or_else(|| row.cause.clone(), |tag| tag.to_string());
    let sql = "INSERT INTO refusal (id, at, tag, number, last, times, user, client, of_limit, octets, body, owner, shadow) \
               SELECT CASE WHEN ?11 > 0 AND NOT EXISTS (SELECT 1 FROM refusal WHERE id = ?11) THEN ?11 END, \
               ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?12, ?13 WHERE NOT EXISTS \
               (SELECT 1 FROM refusal WHERE at = ?1 AND tag = ?2 AND number IS ?3 AND shadow = ?13 AND body = ?10)";
    let row = params![
        sqlite_integer(row.millis),
        tag,
        row.number.map(sqlite_integer),
        sqlite_integer(row.last),
        sqlite_integer(row.times),
        user,
        client,
        limit,
        row.octets() as i64,
        body,
        row.id,
        owner,
        is_shadow,
    ];
    connection.prepare_cached(sql)?.execute(row).map(|_| ())
}

/// Returns the octets of all records.
fn refusal_octets(connection: &Connection) -> rusqlite::Result<u64> {
    let mut statement = connection.prepare_cached("SELECT octets FROM refusal_sum")?;
    statement.query_row([], |row| row.get::<_, i64>(0)).map(|octets| u64::try_from(octets).unwrap_or(0))
}

/// Deletes some of the oldest records, if all records have more than `max_octets`.
fn delete_excess(connection: &Connection, max_octets: u64) -> rusqlite::Result<()> {
    let excess = refusal_octets(connection)?.saturating_sub(max_octets);
    if excess > 0 {
        delete(connection, "SELECT id, octets FROM refusal WHERE id > ?1 ORDER BY id LIMIT ?2", i64::MIN, excess)?;
    }
    Ok(())
}

/// Deletes the first rows that a query selects, with at least `octets` octets: at most [`DELETED_ROWS`], and about
/// [`DELETED_OCTETS`]. Returns whether the query selects more.
fn delete(connection: &Connection, query: &str, parameter: i64, octets: u64) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare_cached(query)?;
    let found = statement.query_map([parameter, DELETED_ROWS], |row| row.try_into())?;
    let found: Vec<(i64, i64)> = found.collect::<rusqlite::Result<_>>()?;
    let (mut deleted, mut rows) = (0, 0);
    let mut delete = connection.prepare_cached("DELETE FROM refusal WHERE id = ?1")?;
    for (id, of_row) in &found {
        if deleted >= octets.min(DELETED_OCTETS) {
            break;
        }
        delete.execute([id])?;
        (deleted, rows) = (deleted + of_row.unsigned_abs(), rows + 1);
    }
    Ok(rows < found.len() || found.len() as i64 == DELETED_ROWS)
}

fn refusal_row(row: &Row<'_>) -> rusqlite::Result<RefusalRow> {
    let text = |at| Ok::<_, rusqlite::Error>(row.get_ref(at)?.as_str_or_null().ok().flatten().map(str::to_owned));
    let written = text(2)?.unwrap_or_default();
    let tag: Option<Tag> = written.parse().ok();
    let refusal = Refusal {
        is_shadow: row.get(11)?,
        owner: text(10)?,
        user: text(6)?,
        client: text(7)?,
        limit: text(8)?,
        body: text(9)?.unwrap_or_default(),
    };
    let number = |at| row.get::<_, i64>(at).map(i64::unsigned_abs);
    Ok(RefusalRow {
        id: row.get(0)?,
        millis: number(1)?,
        tag,
        cause: tag.map_or(written, Tag::cause),
        number: row.get::<_, Option<i64>>(3)?.map(i64::unsigned_abs),
        last: number(4)?,
        times: number(5)?,
        refusal,
    })
}

fn evidence_row(row: &Row<'_>) -> rusqlite::Result<EvidenceRow> {
    let number = |at| row.get::<_, i64>(at).map(i64::unsigned_abs);
    let first = number(4)?;
    let tag = row.get::<_, String>(6)?.parse().ok();
    let of_one = row.get::<_, Option<i64>>(7)?.map(i64::unsigned_abs);
    let reference = tag.zip(of_one).map(|(tag, number)| Reference { millis: first, tag, number });
    let (id, owner, is_shadow) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(EvidenceRow { id, owner, is_shadow, times: number(3)?, first, last: number(5)?, reference })
}

fn sqlite_integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
