//! Writes the contents of a dump into the state file.

use super::{File, exceptions, logins, refusals, renew_journal_id};
use crate::store::budget_rows::upsert;
use crate::store::jsonl::Line;

impl File {
    /// Writes the lines into the tables and begins an empty journal, in one transaction. A line replaces the budget,
    /// exception or login of the same key. If `rows` returns an error, nothing is changed.
    pub fn write_all<E: From<rusqlite::Error>>(
        &mut self,
        rows: impl Iterator<Item = Result<Line, E>>,
    ) -> Result<(), E> {
        let transaction = self.connection.transaction()?;
        for row in rows {
            match row? {
                Line::Budget(hashed_key, budget) => upsert(&transaction, &[(hashed_key, budget)])?,
                Line::Grant(grant) => exceptions::put_grant(&transaction, &grant)?,
                Line::Suspension(suspension) => exceptions::put_suspension(&transaction, &suspension)?,
                Line::AuditRecord(record) => exceptions::put_record(&transaction, &record)?,
                Line::Refusal(row) => refusals::put_refusal(&transaction, &row)?,
                Line::Login(key, row) => logins::put_login(&transaction, &key, &row)?,
            }
        }
        renew_journal_id(&transaction)?;
        transaction.commit()?;
        // Files that cannot be deleted now are not replayed any more.
        let last = self.journal.end_file();
        let _ = self.journal.discard(last);
        Ok(())
    }
}
