//! Replaces budgets and exceptions of the state file by loaded ones.

use super::{File, exceptions, upsert};
use crate::store::jsonl::Line;

impl File {
    /// Writes budgets and exceptions and empties the journal, in one transaction. If `rows` fails, nothing is changed.
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
            }
        }
        transaction.execute("DELETE FROM journal", [])?;
        transaction.commit()?;
        self.first = self.last + 1;
        Ok(())
    }
}
