//! Writes changes of notices and episodes.

use crate::store::core::Core;
use crate::store::database_job::DatabaseJob;
use crate::store::file::File;
use crate::store::wal_checkpoint::PAGE_OCTETS;
use std::sync::atomic::Ordering;

/// Writes a batch of changes. If that fails, the changes are written later.
pub fn write(core: &Core, file: &mut File) -> rusqlite::Result<()> {
    let batch = core.notices.take();
    if batch.is_empty() {
        core.notices.end_batch(batch, true);
        return Ok(());
    }
    let outcome = file.write_notices(&batch);
    let octets: usize = batch.notices.iter().filter_map(|(_, row)| row.as_ref()).map(|row| row.octets()).sum();
    core.wal_written.fetch_add(octets + 2 * PAGE_OCTETS, Ordering::Relaxed);
    core.notices.end_batch(batch, outcome.is_ok());
    if outcome.is_ok() && core.notices.is_pending() {
        core.jobs.send(DatabaseJob::WriteNotices);
    }
    outcome
}
