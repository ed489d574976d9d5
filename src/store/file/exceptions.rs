//! Exceptions (grants, suspensions and the register of direct ways) and their audit trail in the state file.

use super::File;
use crate::policy::KnownTo;
use crate::policy::budgets::Owner;
use crate::policy::egress::{EgressEntry, EgressRule, NetworkText, parse_network};
use crate::policy::exception::{By, Exceptions, Grant, NewPassword, PasswordFingerprint, Suspension, Term};
use crate::store::audit::{Act, AuditRecord};
use crate::store::pending_exceptions::{Batch, ExceptionKey, ReadExceptions};
use crate::time::Timestamp;
use rusqlite::{Connection, Row, params};

/// Maximum number of audit records in the file, regardless of their age. A client that causes the suspension of many
/// owners creates many records.
const MAX_AUDIT_RECORDS: i64 = 100_000;

impl File {
    /// Reads all exceptions, expired ones included.
    pub fn exceptions(&self) -> rusqlite::Result<ReadExceptions> {
        let mut statement = self.connection.prepare(
            "SELECT of_limit, owner, rate, since, until, author, reason, lenient, password, known_to FROM exception \
             ORDER BY of_limit, owner",
        )?;
        let (mut grants, mut suspensions) = (Vec::new(), Vec::new());
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let term = term(row, 3)?;
            let owner = owner(row, 1)?;
            match row.get(2)? {
                Some(rate) => grants.push(Grant { limit: row.get(0)?, owner, rate, term }),
                None => {
                    let (is_strict, new_password) = (!row.get::<_, bool>(7)?, new_password(row, 8)?);
                    let known_to = row.get_ref(9)?.as_str_or_null()?.and_then(KnownTo::parse);
                    suspensions.push(Suspension { owner, term, is_strict, known_to, new_password });
                }
            }
        }
        Ok(ReadExceptions { grants, suspensions, entries: self.entries()? })
    }

    /// Reads the register of direct ways, with expired entries. Entries that an administrator has made unreadable by
    /// hand are left out.
    fn entries(&self) -> rusqlite::Result<Vec<EgressEntry>> {
        let mut statement = self
            .connection
            .prepare("SELECT network, rule, owner, since, until, author, reason, quarantine FROM egress")?;
        let (mut entries, mut rows) = (Vec::new(), statement.query([])?);
        while let Some(row) = rows.next()? {
            let network = parse_network(row.get_ref(0)?.as_str()?).ok();
            let rule = EgressRule::parse(row.get_ref(1)?.as_str()?);
            let entry = network.zip(rule).map(|(network, rule)| {
                Ok::<_, rusqlite::Error>(EgressEntry { network, rule, owner: row.get(2)?, term: term(row, 3)? })
            });
            let is_right = |entry: &EgressEntry| {
                row.get(7) == Ok(entry.key().is_quarantine) && !entry.owner.contains(char::is_control)
            };
            let Some(entry) = entry.transpose()?.filter(is_right) else {
                tracing::warn!(
                    network = row.get::<_, String>(0)?,
                    "an entry of the register of direct ways cannot be read"
                );
                continue;
            };
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Writes a batch in one transaction: its audit records, and each changed exception in its present state in
    /// `exceptions`. A changed exception that is not in `exceptions` is deleted from the file.
    pub fn write_batch(&mut self, batch: &Batch, exceptions: &Exceptions) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for key in &batch.changed {
            let done = match key {
                ExceptionKey::Grant(limit, owner) => {
                    exceptions.grant_of(limit, owner).map(|grant| put_grant(&transaction, grant))
                }
                ExceptionKey::Suspension(owner) => {
                    exceptions.suspension_of(owner).map(|one| put_suspension(&transaction, one))
                }
                ExceptionKey::Egress(key) => exceptions.egress().get(*key).map(|entry| put_entry(&transaction, entry)),
            };
            done.unwrap_or_else(|| delete(&transaction, key))?;
        }
        batch.records.iter().try_for_each(|record| put_record(&transaction, record))?;
        transaction.commit()
    }

    /// Reads the newest `last` audit records, each with its ID, the newest at the end. With `before`, reads the records
    /// whose ID is lower.
    pub fn audit_trail(&self, before: Option<i64>, last: usize) -> rusqlite::Result<Vec<(i64, AuditRecord)>> {
        let mut statement = self.connection.prepare(
            "SELECT at, act, of_limit, owner, rate, until, was, author, reason, id FROM \
             (SELECT * FROM audit WHERE id < ?2 ORDER BY id DESC LIMIT ?1) ORDER BY id",
        )?;
        let range = [i64::try_from(last).unwrap_or(i64::MAX), before.unwrap_or(i64::MAX)];
        let rows = statement.query_map(range, |row| {
            let act: String = row.get(1)?;
            let record = AuditRecord {
                at: Timestamp::from_micros(row.get(0)?),
                // Weir writes only names that it knows, but an administrator may have edited the table.
                act: Act::parse(&act).unwrap_or(Act::Ended),
                limit: row.get(2)?,
                owner: owner(row, 3)?,
                rate: row.get(4)?,
                until: row.get::<_, Option<i64>>(5)?.map(Timestamp::from_micros),
                was: row.get(6)?,
                by: by(row, 7)?,
                reason: row.get(8)?,
            };
            Ok((row.get(9)?, record))
        })?;
        rows.collect()
    }

    /// Deletes audit records from before `before`. Also deletes the oldest records if there are more than
    /// [`MAX_AUDIT_RECORDS`].
    pub fn prune_audit(&mut self, before: Timestamp) -> rusqlite::Result<()> {
        let sql = "DELETE FROM audit WHERE at < ?1 OR id <= (SELECT max(id) FROM audit) - ?2";
        self.connection.execute(sql, params![before.micros(), MAX_AUDIT_RECORDS]).map(|_| ())
    }
}

/// Writes a grant. Replaces a grant of the same limit and owner.
pub fn put_grant(connection: &Connection, grant: &Grant) -> rusqlite::Result<()> {
    put(connection, (&grant.limit, Some(&grant.rate)), &grant.owner, &grant.term, (false, None, None))
}

/// Writes a suspension. Replaces a suspension of the same owner.
pub fn put_suspension(connection: &Connection, suspension: &Suspension) -> rusqlite::Result<()> {
    let password = match suspension.new_password {
        NewPassword::Keeps => None,
        NewPassword::Ends(fingerprint) => Some(fingerprint.as_ref().map_or_else(String::new, ToString::to_string)),
    };
    let known_to = suspension.known_to.map(KnownTo::name);
    let kind = (!suspension.is_strict, password.as_deref(), known_to);
    put(connection, ("", None), &suspension.owner, &suspension.term, kind)
}

/// Writes an entry of the register of direct ways. Replaces an entry of the same key.
pub fn put_entry(connection: &Connection, entry: &EgressEntry) -> rusqlite::Result<()> {
    let EgressEntry { network, rule, owner, term: Term { since, until, by, reason } } = entry;
    let sql = "INSERT OR REPLACE INTO egress (network, quarantine, rule, owner, since, until, author, reason) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let (network, is_quarantine) = (NetworkText(*network).to_string(), entry.key().is_quarantine);
    let (since, until, by) = (since.micros(), until.micros(), by.to_string());
    let row = params![network, is_quarantine, rule.name(), &**owner, since, until, by, &**reason];
    connection.prepare_cached(sql)?.execute(row).map(|_| ())
}

fn delete(connection: &Connection, key: &ExceptionKey) -> rusqlite::Result<()> {
    let of_exception = "DELETE FROM exception WHERE of_limit = ?1 AND owner = ?2";
    let deleted = match key {
        ExceptionKey::Grant(limit, owner) => connection.execute(of_exception, params![&**limit, owner.as_str()]),
        ExceptionKey::Suspension(owner) => connection.execute(of_exception, params!["", owner.as_str()]),
        ExceptionKey::Egress(key) => {
            let key = params![NetworkText(key.network).to_string(), key.is_quarantine];
            connection.execute("DELETE FROM egress WHERE network = ?1 AND quarantine = ?2", key)
        }
    };
    deleted.map(|_| ())
}

fn put(
    connection: &Connection,
    (limit, rate): (&str, Option<&str>),
    owner: &Owner,
    term: &Term,
    (is_lenient, password, known_to): (bool, Option<&str>, Option<&str>),
) -> rusqlite::Result<()> {
    let Term { since, until, by, reason } = term;
    let sql = "INSERT OR REPLACE INTO exception \
               (of_limit, owner, rate, since, until, author, reason, lenient, password, known_to) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let (since, until) = (since.micros(), until.micros());
    let by = by.to_string();
    let row = params![limit, owner.as_str(), rate, since, until, by, &**reason, is_lenient, password, known_to];
    connection.prepare_cached(sql)?.execute(row).map(|_| ())
}

/// Appends an audit record, unless the file has a record of the same action at the same time.
pub fn put_record(connection: &Connection, record: &AuditRecord) -> rusqlite::Result<()> {
    let AuditRecord { at, act, limit, owner, rate, until, was, by, reason } = record;
    let sql = "INSERT INTO audit (at, act, of_limit, owner, rate, until, was, author, reason) \
               SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 WHERE NOT EXISTS \
               (SELECT 1 FROM audit WHERE at = ?1 AND act = ?2 AND of_limit IS ?3 AND owner = ?4)";
    let row = params![
        at.micros(),
        act.name(),
        limit.as_deref(),
        owner.as_str(),
        rate.as_deref(),
        until.map(Timestamp::micros),
        was.as_deref(),
        by.to_string(),
        &**reason
    ];
    connection.prepare_cached(sql)?.execute(row).map(|_| ())
}

fn owner(row: &Row<'_>, at: usize) -> rusqlite::Result<Owner> {
    Ok(Owner::from_stored(row.get_ref(at)?.as_str()?))
}

fn new_password(row: &Row<'_>, at: usize) -> rusqlite::Result<NewPassword> {
    let stored = row.get_ref(at)?.as_str_or_null()?;
    Ok(stored.map_or(NewPassword::Keeps, |text| NewPassword::Ends(PasswordFingerprint::parse(text))))
}

/// Reads a term from four columns: beginning, end, author and reason.
fn term(row: &Row<'_>, at: usize) -> rusqlite::Result<Term> {
    Ok(Term {
        since: Timestamp::from_micros(row.get(at)?),
        until: Timestamp::from_micros(row.get(at + 1)?),
        by: by(row, at + 2)?,
        reason: row.get(at + 3)?,
    })
}

fn by(row: &Row<'_>, at: usize) -> rusqlite::Result<By> {
    Ok(By::from_stored(row.get_ref(at)?.as_str()?))
}
