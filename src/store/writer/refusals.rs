//! Writes and deletes records of refusals.

use crate::store::core::Core;
use crate::store::database_job::DatabaseJob;
use crate::store::file::File;
use crate::store::wal_checkpoint::PAGE_OCTETS;
use crate::time::Timestamp;
use std::sync::atomic::Ordering;

/// Writes a batch of records. If that fails, the records are written later: not at once, or the writer would have no rest
/// while the table cannot be written.
pub fn write(core: &Core, file: &mut File) -> rusqlite::Result<()> {
    let batch = core.refusals.take();
    if batch.is_empty() {
        return Ok(());
    }
    let outcome = file.add_refusals(&batch, core.refusals.options().max_octets);
    core.refusals.written(outcome.is_ok());
    let octets: usize = batch.iter().map(|row| row.octets()).sum();
    core.wal_written.fetch_add(octets + PAGE_OCTETS, Ordering::Relaxed);
    if outcome.is_ok() && core.refusals.is_pending() {
        core.jobs.send(DatabaseJob::WriteRefusals);
    }
    outcome
}

/// Deletes some of the records from before `before`, and of those beyond the maximum octets. If more remain, queues the
/// job again, so that budgets are folded in between.
pub fn prune(core: &Core, file: &mut File, before: Timestamp) -> rusqlite::Result<()> {
    let has_more = file.prune_refusals(before, core.refusals.options().max_octets)?;
    core.wal_written.fetch_add(PRUNED_OCTETS, Ordering::Relaxed);
    if has_more {
        core.jobs.send(DatabaseJob::PruneRefusals(before));
    }
    Ok(())
}

/// Octets that a slice of deleted records adds to the write-ahead log, approximately.
const PRUNED_OCTETS: usize = 64 * PAGE_OCTETS;
