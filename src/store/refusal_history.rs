//! History of refusals: records them, and finds them by their references.

use super::Store;
use super::core::COMMIT_TIMEOUT;
use super::file::{self, File};
use super::refusals::{
    Evidence, EvidenceRow, Filter, Refusal, RefusalGroup, RefusalMemory, RefusalOptions, RefusalRow,
};
use crate::reference::Reference;
use crate::time::Timestamp;
use std::collections::HashSet;
use std::sync::Arc;

/// Record of a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRefusal {
    pub row: RefusalRow,
    /// Number of other records that have the reference, too. If there are any, nothing says which record is the one of
    /// the asked refusal.
    pub others: usize,
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
    pub fn count(&self, group: &RefusalGroup<'_>, reference: &Reference) -> bool {
        self.0.count(group, reference)
    }

    /// Adds a refusal with its content.
    pub fn add(&self, group: &RefusalGroup<'_>, reference: &Reference, refusal: Refusal) {
        self.0.add(group, reference, refusal);
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

    /// Returns the record of a reference: the one of this refusal alone, or else the coalesced one that has it.
    pub async fn refusal(&self, reference: Reference) -> Result<FoundRefusal, MissingRefusal> {
        let mut rows = self.core.refusals.unwritten(|row| row.has(&reference));
        let read = self.read_refusals(move |file| Ok((file.refusals_of(&reference)?, file.refusal_extent()?))).await;
        let extent = read.map(|(written, extent)| {
            rows.extend(written);
            extent
        });
        // A record can have been written since the records in memory were read.
        rows.sort_by_key(|row| row.id);
        rows.dedup_by_key(|row| row.id);
        let mut found = RefusalRow::most_exact(rows).into_iter();
        match (found.next(), extent) {
            (Some(row), _) => Ok(FoundRefusal { row, others: found.count() }),
            (None, Ok(_)) if !self.keeps_refusals() => Err(MissingRefusal::NotKept),
            (None, Ok((records, oldest))) => Err(MissingRefusal::Unknown { records, oldest }),
            (None, Err(why)) => Err(MissingRefusal::Unreadable(why)),
        }
    }

    /// Returns at most `at_most` records that a filter selects, the newest first. A record has its place before it is
    /// written, so the next page continues after the last record of this one. Returns an error with the reason if the
    /// state file cannot be read.
    pub async fn refusals(&self, filter: Filter, at_most: usize) -> Result<Vec<RefusalRow>, String> {
        let mut rows = self.core.refusals.unwritten(|row| filter.has(row));
        rows.extend(self.read_refusals(move |file| file.refusals(&filter, at_most)).await?);
        rows.sort_by_key(|row| std::cmp::Reverse(row.id));
        // A record can have been written since the records in memory were read.
        rows.dedup_by_key(|row| row.id);
        rows.truncate(at_most);
        Ok(rows)
    }

    /// Returns how often a limit has refused each owner since a time, or would have refused if it had been enforced.
    /// Also returns the time of the oldest record of any refusal. Returns an error with the reason if the state file
    /// cannot be read.
    pub async fn evidence(
        &self,
        limit: &str,
        since: Timestamp,
        max_owners: usize,
    ) -> Result<(Evidence, Option<Timestamp>), String> {
        let filter = Filter { limit: Some(limit.to_owned()), since: Some(since), ..Filter::default() };
        let shadow = Filter { is_shadow: true, ..filter.clone() };
        let unwritten = self.core.refusals.unwritten(|row| filter.has(row) || shadow.has(row));
        let limit = limit.to_owned();
        let (written, oldest) =
            self.read_refusals(move |file| Ok((file.evidence(&limit, since)?, file.oldest_record()?))).await?;
        let in_memory = || self.core.refusals.unwritten(|_| true).iter().map(RefusalRow::time).min();
        let oldest = oldest.or_else(in_memory);
        // A record can have been written since the records in memory were read.
        let known: HashSet<i64> = unwritten.iter().map(|row| row.id).collect();
        let written = written.into_iter().filter(|row| !known.contains(&row.id));
        Ok((Evidence::of(unwritten.iter().map(EvidenceRow::from).chain(written), max_owners), oldest))
    }

    async fn read_refusals<R: Send + 'static>(
        &self,
        read: impl FnOnce(&File) -> rusqlite::Result<R> + Send + 'static,
    ) -> Result<R, String> {
        let read = |file: &File| read(file).map_err(|error| file::describe(&error));
        self.read_file(&self.core.admin_reads, COMMIT_TIMEOUT, read).await
    }
}
