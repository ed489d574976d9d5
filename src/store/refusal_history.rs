//! History of refusals: records them, and finds them by their references.

use super::Store;
use super::core::COMMIT_TIMEOUT;
use super::file::{self, File};
use super::refusals::{Filter, Refusal, RefusalMemory, RefusalOptions, RefusalRow};
use crate::reference::Reference;
use crate::time::Timestamp;
use std::sync::Arc;

/// Record that was found, with its ID. A record that is not in the state file yet has no ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub id: Option<i64>,
    pub row: RefusalRow,
}

/// Reason why the record of a reference cannot be returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingRefusal {
    /// No record has this reference.
    Unknown {
        /// Number of records in the state file.
        records: u64,
        /// Time of the oldest record.
        oldest: Option<Timestamp>,
    },
    /// The configuration says that no records are kept.
    NotKept,
    /// The state file cannot be read, for this reason.
    Unreadable(String),
}

/// Handle that records refusals. It never waits for the state file.
#[derive(Clone)]
pub struct RefusalRecorder(Arc<RefusalMemory>);

impl RefusalRecorder {
    /// Counts a refusal. Returns true if the refusal needs a record, whose content goes to [`Self::add`]: in a flood,
    /// most refusals are only counted.
    pub fn count(&self, reference: &Reference) -> bool {
        self.0.count(reference)
    }

    /// Adds a refusal with its content.
    pub fn add(&self, reference: &Reference, refusal: Refusal) {
        self.0.add(reference, refusal);
    }
}

impl Store {
    /// Returns the bounds of the stored refusals.
    pub fn refusal_options(&self) -> RefusalOptions {
        self.core.refusals.options()
    }

    /// Returns whether refusals are recorded.
    pub fn keeps_refusals(&self) -> bool {
        !self.refusal_options().keep.is_zero()
    }

    /// Returns a handle that records refusals.
    pub fn refusal_recorder(&self) -> RefusalRecorder {
        RefusalRecorder(self.core.refusals.clone())
    }

    /// Returns the record of a reference: the single one, or else the coalesced one that has it.
    pub async fn refusal(&self, reference: Reference) -> Result<RefusalRow, MissingRefusal> {
        let unwritten = self.core.refusals.unwritten(|row| row.has(&reference));
        let best = unwritten.into_iter().min_by_key(RefusalRow::inexactness);
        if let Some(row) = best.as_ref().filter(|row| row.inexactness() == 0) {
            return Ok(row.clone());
        }
        let read = self.read_refusals(move |file| Ok((file.refusal(&reference)?, file.refusal_extent()?))).await;
        match (read, best) {
            (Ok((Some(row), _)), best) => Ok(best.filter(|best| best.inexactness() < row.inexactness()).unwrap_or(row)),
            (_, Some(best)) => Ok(best),
            (Ok((None, _)), None) if !self.keeps_refusals() => Err(MissingRefusal::NotKept),
            (Ok((None, (records, oldest))), None) => Err(MissingRefusal::Unknown { records, oldest }),
            (Err(why), None) => Err(MissingRefusal::Unreadable(why)),
        }
    }

    /// Returns at most `at_most` records that a filter selects, the newest first. The records that are not in the state
    /// file yet are on the first page only. Returns an error with the reason if the state file cannot be read.
    pub async fn refusals(&self, filter: Filter, at_most: usize) -> Result<Vec<Found>, String> {
        let mut found: Vec<Found> = Vec::new();
        if filter.before.is_none() {
            let unwritten = self.core.refusals.unwritten(|row| filter.has(row));
            found.extend(unwritten.into_iter().map(|row| Found { id: None, row }));
            found.sort_by_key(|found| std::cmp::Reverse(found.row.last));
        }
        let rows = self.read_refusals(move |file| file.refusals(&filter, at_most)).await?;
        for (id, row) in rows {
            // A record can have been written since the records in memory were read.
            found.retain(|known| known.row != row);
            found.push(Found { id: Some(id), row });
        }
        found.truncate(at_most);
        Ok(found)
    }

    async fn read_refusals<R: Send + 'static>(
        &self,
        read: impl FnOnce(&File) -> rusqlite::Result<R> + Send + 'static,
    ) -> Result<R, String> {
        let read = |file: &File| read(file).map_err(|error| file::describe(&error));
        self.read_file(&self.core.admin_reads, COMMIT_TIMEOUT, read).await
    }
}
