//! Writes changes of notices and episodes.

use super::{Core, File, PAGE_OCTETS, Task, WriterJob};
use std::sync::atomic::Ordering;
use std::time::Instant;

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
        core.queue.send_job(WriterJob::WriteNotices);
    }
    outcome
}

impl Task {
    /// Writes the changes that are not in the file yet, before the writer ends.
    pub(super) fn write_remaining_notices(&mut self, deadline: Instant) {
        let Some(file) = self.file.as_mut().filter(|_| self.failed.is_empty()) else { return };
        while self.core.notices.is_pending() && Instant::now() < deadline && write(&self.core, file).is_ok() {}
    }
}
