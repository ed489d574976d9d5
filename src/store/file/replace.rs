//! Writes the contents of a dump into the state file.

use super::{File, exceptions, logins, refusals, renew_journal_id};
use crate::policy::budgets::Budget;
use crate::store::budget_rows::{load, upsert};
use crate::store::hashed_key::HashedKey;
use crate::store::jsonl::Line;
use rusqlite::Transaction;

/// Transaction that writes into the tables.
pub struct TableWriter<'t>(Transaction<'t>);

impl TableWriter<'_> {
    /// Writes a line. It replaces the budget, exception or login of the same key.
    pub fn put(&self, line: Line) -> rusqlite::Result<()> {
        let transaction = &self.0;
        match line {
            Line::Budget(hashed_key, budget) => upsert(transaction, &[(hashed_key, budget)]),
            Line::Grant(grant) => exceptions::put_grant(transaction, &grant),
            Line::Suspension(suspension) => exceptions::put_suspension(transaction, &suspension),
            Line::EgressEntry(entry) => exceptions::put_entry(transaction, &entry),
            Line::AuditRecord(record) => exceptions::put_record(transaction, &record),
            Line::Refusal(row) => refusals::put_refusal(transaction, &row),
            Line::Login(key, row) => logins::put_login(transaction, &key, &row),
        }
    }

    /// Reads a budget, perhaps one that this transaction has written.
    pub fn budget(&self, hashed_key: &HashedKey) -> rusqlite::Result<Option<Budget>> {
        load(&self.0, hashed_key)
    }
}

impl File {
    /// Lets `fill` write into the tables, and begins an empty journal, in one transaction. If `fill` returns an error,
    /// nothing is changed. `wrong` makes an error of the file.
    pub fn write_all<R, E>(
        &mut self,
        wrong: impl Fn(rusqlite::Error) -> E,
        fill: impl FnOnce(&TableWriter<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let writer = TableWriter(self.connection.transaction().map_err(&wrong)?);
        let filled = fill(&writer)?;
        renew_journal_id(&writer.0).and_then(|()| writer.0.commit()).map_err(wrong)?;
        // Files that cannot be deleted now are not replayed any more.
        let _ = self.journal.delete(&self.journal.numbers);
        Ok(filled)
    }
}
