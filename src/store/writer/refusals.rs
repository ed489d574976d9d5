//! Writes and deletes records of refusals.

use super::{Core, File, PAGE_OCTETS, Task, WriterJob};
use crate::time::Timestamp;
use std::sync::atomic::Ordering;
use std::time::Instant;

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
        core.queue.send_job(WriterJob::WriteRefusals);
    }
    outcome
}

/// Deletes some of the records from before `before`, and of those beyond the maximum octets. If more remain, queues the
/// job again, so that commits take place in between.
pub fn prune(core: &Core, file: &mut File, before: Timestamp) -> rusqlite::Result<()> {
    let has_more = file.prune_refusals(before, core.refusals.options().max_octets)?;
    core.wal_written.fetch_add(PRUNED_OCTETS, Ordering::Relaxed);
    if has_more {
        core.queue.send_job(WriterJob::PruneRefusals(before));
    }
    Ok(())
}

/// Octets that a slice of deleted records adds to the write-ahead log, approximately.
const PRUNED_OCTETS: usize = 64 * PAGE_OCTETS;

impl Task {
    /// Writes the records that are not in the file yet, before the writer ends.
    pub(super) fn write_remaining_refusals(&mut self, deadline: Instant) {
        let Some(file) = self.file.as_mut().filter(|_| self.failed.is_empty()) else { return };
        self.core.refusals.end_period();
        while self.core.refusals.is_pending() && Instant::now() < deadline && write(&self.core, file).is_ok() {}
    }
}
