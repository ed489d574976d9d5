//! Writes queue ids, and marks of counted outcomes.

use crate::store::core::Core;
use crate::store::database_job::DatabaseJob;
use crate::store::file::File;
use crate::store::wal_checkpoint::PAGE_OCTETS;
use crate::time::Timestamp;
use std::sync::atomic::Ordering;

/// Writes a batch. If that fails, the batch is written later. `stored` is the number of rows in the table, if it is known.
pub fn write(core: &Core, file: &mut File, stored: &mut Option<u64>) -> rusqlite::Result<()> {
    let Some(options) = core.options.outcomes else { return Ok(()) };
    let batch = core.queue_ids.take();
    if batch.is_empty() {
        core.queue_ids.end_batch(batch, true);
        return Ok(());
    }
    // While the clock may be wrong, no row is deleted because of its age.
    let latest = batch.messages.iter().map(|message| message.key.at).max().filter(|_| core.clock_doubt().is_none());
    let before = latest
        .map_or(i64::MIN, |at| at.micros().saturating_sub(i64::try_from(options.keep.as_micros()).unwrap_or(i64::MAX)));
    let before = Timestamp::from_micros(before);
    let rows = stored.map_or_else(|| file.count_queue_ids(), Ok);
    let outcome = rows.and_then(|rows| file.write_queue_ids(&batch, rows, options, before));
    *stored = outcome.as_ref().ok().copied();
    let rows = batch.messages.len() + batch.marks.len();
    core.wal_written.fetch_add((rows + 1) * PAGE_OCTETS, Ordering::Relaxed);
    core.queue_ids.end_batch(batch, outcome.is_ok());
    if outcome.is_ok() && core.queue_ids.is_pending() {
        core.jobs.send(DatabaseJob::WriteQueueIds);
    }
    outcome.map(drop)
}
