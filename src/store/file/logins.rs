//! The login history in the state file.

use super::File;
use crate::store::login_history::{LoginKey, LoginRow, MAX_NAMES, MAX_ROWS_PER_USER};
use crate::time::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use std::sync::Arc;

/// Separator of EHLO names. No name contains it, because names are printable.
const SEPARATOR: char = ' ';

impl File {
    /// Reads the history of a user.
    pub fn logins_of(&self, user: &str) -> rusqlite::Result<Vec<(LoginKey, LoginRow)>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT user, network, first, last, logins, country, tls, mechanism, helo FROM login WHERE user = ?1 LIMIT ?2",
        )?;
        let rows = statement.query_map(params![user, MAX_ROWS_PER_USER as i64], keyed_row)?;
        rows.collect()
    }

    /// Reads at most `at_most` rows of the history that follow `last` in the order of the table.
    pub fn logins_after(&self, last: Option<&LoginKey>, at_most: usize) -> rusqlite::Result<Vec<(LoginKey, LoginRow)>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT user, network, first, last, logins, country, tls, mechanism, helo FROM login \
             WHERE (user, network) > (?1, ?2) ORDER BY user, network LIMIT ?3",
        )?;
        let (user, network) = last.map_or(("", ""), |key| (&*key.user, &*key.network));
        let rows = statement.query_map(params![user, network, at_most as i64], keyed_row)?;
        rows.collect()
    }

    /// Adds logins to the history, in one transaction.
    pub fn add_logins(&mut self, rows: &[(LoginKey, LoginRow)]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for (key, row) in rows {
            let mut known = transaction.prepare_cached(
                "SELECT first, last, logins, country, tls, mechanism, helo FROM login WHERE user = ?1 AND network = ?2",
            )?;
            let known = known.query_row(params![key.user, key.network], |known| login_row(known, 0)).optional()?;
            let is_new = known.is_none();
            let mut row = row.clone();
            known.into_iter().for_each(|known| row.merge(known));
            put_login(&transaction, key, &row)?;
            if is_new {
                forget_oldest(&transaction, &key.user)?;
            }
        }
        transaction.commit()
    }

    /// Deletes each of these rows, unless there was a login since the given time.
    pub fn delete_logins(&mut self, rows: &[(LoginKey, Timestamp)]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        let mut statement =
            transaction.prepare_cached("DELETE FROM login WHERE user = ?1 AND network = ?2 AND last = ?3")?;
        for (key, last) in rows {
            statement.execute(params![key.user, key.network, last.micros()])?;
        }
        drop(statement);
        transaction.commit()
    }

    /// Returns the number of rows of the history.
    pub fn count_logins(&self) -> rusqlite::Result<u64> {
        self.connection.query_row("SELECT count(*) FROM login", [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
    }
}

/// Writes a row of the history. Replaces the row of the same user and network.
pub fn put_login(connection: &Connection, key: &LoginKey, row: &LoginRow) -> rusqlite::Result<()> {
    let LoginRow { first, last, logins, country, tls, mechanism, helo } = row;
    let helo = (!helo.is_empty()).then(|| helo.join(SEPARATOR.encode_utf8(&mut [0; 4])));
    let logins = i64::try_from(*logins).unwrap_or(i64::MAX);
    let sql = "INSERT OR REPLACE INTO login (user, network, first, last, logins, country, tls, mechanism, helo) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let row = params![
        key.user,
        key.network,
        first.micros(),
        last.micros(),
        logins,
        country.as_deref(),
        tls.as_deref(),
        mechanism.as_deref(),
        helo
    ];
    connection.prepare_cached(sql)?.execute(row).map(|_| ())
}

/// Deletes the networks of a user with the oldest latest login, if there are more than [`MAX_ROWS_PER_USER`].
fn forget_oldest(connection: &Connection, user: &str) -> rusqlite::Result<()> {
    let sql = "DELETE FROM login WHERE user = ?1 AND network IN \
               (SELECT network FROM login WHERE user = ?1 ORDER BY last DESC, network LIMIT -1 OFFSET ?2)";
    connection.prepare_cached(sql)?.execute(params![user, MAX_ROWS_PER_USER as i64]).map(|_| ())
}

fn keyed_row(row: &Row<'_>) -> rusqlite::Result<(LoginKey, LoginRow)> {
    let text = |at| Ok::<Box<str>, rusqlite::Error>(row.get_ref(at)?.as_str()?.into());
    Ok((LoginKey { user: text(0)?, network: text(1)? }, login_row(row, 2)?))
}

/// Reads a row, whose time of the first login is in the column at index `at`. A text that is damaged, and so not UTF-8, is
/// left out: otherwise one such row would end each walk through the history, and fail each write of its user.
fn login_row(row: &Row<'_>, at: usize) -> rusqlite::Result<LoginRow> {
    let text = |at| Ok::<_, rusqlite::Error>(row.get_ref(at)?.as_str_or_null().ok().flatten());
    let names = text(at + 6)?.unwrap_or_default();
    Ok(LoginRow {
        first: Timestamp::from_micros(row.get(at)?),
        last: Timestamp::from_micros(row.get(at + 1)?),
        logins: row.get::<_, i64>(at + 2)?.unsigned_abs(),
        country: text(at + 3)?.map(Arc::from),
        tls: text(at + 4)?.map(Arc::from),
        mechanism: text(at + 5)?.map(Arc::from),
        helo: names.split(SEPARATOR).filter(|name| !name.is_empty()).take(MAX_NAMES).map(Arc::from).collect(),
    })
}
