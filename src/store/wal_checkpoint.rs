//! Checkpoints of the write-ahead log (WAL): they copy its pages into the state file, so that SQLite can reset the log.

use super::core::Core;
use super::database_job::DatabaseJob;
use super::file::{self, File};
use super::options::Durability;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time without writes to the write-ahead log after which the load is considered to have ended.
const CALM_AFTER: Duration = Duration::from_secs(1);

/// A checkpoint is due when about this number of octets was written to the write-ahead log since the last checkpoint.
pub const CHECKPOINT_AT_OCTETS: usize = 16 << 20;
/// A checkpoint is due after this time, if anything was written to the write-ahead log since the last checkpoint.
const CHECKPOINT_AFTER: Duration = Duration::from_secs(10);

/// Maximum octets that a changed row adds to the write-ahead log, without its filter.
pub const PAGE_OCTETS: usize = 4096;

/// If the write-ahead log has been too long for this time, a reader of the file must be preventing its reset. If there
/// is only load and no such reader, the log is reset within a second.
const HELD_AFTER: Duration = Duration::from_secs(10);

/// Maximum number of pages in the write-ahead log. A longer log must be reset, even if commits have to wait for the
/// reset.
const MAX_WAL_PAGES: i64 = 16_384;

/// Checkpoints the write-ahead log when that is due.
pub struct Checkpointer {
    /// Time of the last checkpoint of new pages.
    at: Instant,
    /// Value of [`Core::wal_written`] at the last checkpoint.
    written: usize,
    /// True if the last checkpoint copied all pages that the log had when the checkpoint began. The field `written`
    /// shows whether there were commits after that.
    is_whole: bool,
    /// Time when the log became too long; `None` if the log is not too long.
    long_since: Option<Instant>,
    /// Number of pages in the log at the last checkpoint.
    pages: i64,
}

impl Checkpointer {
    pub fn new() -> Self {
        Self { at: Instant::now(), written: 0, is_whole: true, long_since: None, pages: 0 }
    }

    /// Returns whether the log is too long, and there was a checkpoint a short time ago: the next one is urgent.
    pub fn is_urgent(&self, core: &Core) -> bool {
        core.is_wal_long.load(Ordering::Relaxed) && self.at.elapsed() < CALM_AFTER
    }

    /// Checkpoints the write-ahead log (copies its pages into the file), if enough was written to the log since the
    /// last checkpoint. Commits need not wait. If the log is too long, this function also asks the writer to copy the
    /// last pages, so that the next commit can reset the log.
    ///
    /// SQLite resets the log only at a commit. Until then the log keeps its length. After a load has ended, the next
    /// commit that resets a long log also truncates it.
    pub fn checkpoint(&mut self, core: &Core, file: &File) -> rusqlite::Result<()> {
        let written = core.wal_written.load(Ordering::Relaxed);
        let new = written.wrapping_sub(self.written);
        let time = self.at.elapsed();
        let kept = core.keep_wal.load(Ordering::Relaxed);
        let keep = should_keep_wal_length(core.options.durability, kept, new, time);
        core.keep_wal.store(keep, Ordering::Relaxed);
        let length = file::wal_path(&core.options.path).metadata().map_or(0, |metadata| metadata.len());
        core.metrics.state.wal_octets.set(length.cast_signed());
        let is_to_be_cut = !keep && time >= CALM_AFTER && length > CHECKPOINT_AT_OCTETS as u64;
        let is_to_begin_anew = is_to_be_cut || core.is_wal_long.load(Ordering::Relaxed);
        let is_due = match new {
            0 => is_to_begin_anew && !self.is_whole,
            new => is_to_begin_anew || new >= CHECKPOINT_AT_OCTETS || time >= CHECKPOINT_AFTER,
        };
        if !is_due {
            return Ok(());
        }
        let (pages, copied) = file.checkpoint()?;
        let at = if new > 0 { Instant::now() } else { self.at };
        let is_long = pages > MAX_WAL_PAGES;
        let has_grown = pages > self.pages;
        *self = Self { at, written, is_whole: copied >= pages, long_since: self.long_since, pages };
        self.report_held_wal(core, is_long, has_grown);
        core.is_wal_long.store(is_long, Ordering::Relaxed);
        if (is_long || is_to_be_cut) && new > 0 {
            // Copy also the pages that were written during the first checkpoint, so that the writer has to copy only a
            // few.
            file.checkpoint()?;
            core.jobs.send(DatabaseJob::Checkpoint);
        }
        Ok(())
    }

    /// Logs that a program that reads the file prevents the reset of the write-ahead log, and logs when the log has
    /// been reset. The log takes more and more of the disk, but charges are still durable, so the health is not
    /// degraded.
    ///
    /// Called after a checkpoint. When all pages are copied, the next commit resets the log, unless a reader still
    /// needs the log. So if a log is long but does not grow, perhaps there has been no commit yet.
    fn report_held_wal(&mut self, core: &Core, is_long: bool, has_grown: bool) {
        let was_held = core.metrics.state.wal_held.get() > 0;
        if !is_long {
            self.long_since = None;
            if was_held {
                core.metrics.state.wal_held.set(0);
                tracing::info!("the write-ahead log of the state file has been reset");
            }
            return;
        }
        let since = *self.long_since.get_or_insert_with(Instant::now);
        if has_grown && !was_held && since.elapsed() >= HELD_AFTER {
            core.metrics.state.wal_held.set(1);
            tracing::warn!(
                bytes = core.metrics.state.wal_octets.get(),
                "a program that reads the state file prevents the reset of its write-ahead log, which grows: \
                 end that program, such as a shell of sqlite3"
            );
        }
    }
}

/// Returns whether the write-ahead log must keep its length when SQLite resets it. `new` is the number of octets
/// written to the log since the last checkpoint. `time` is the time since that checkpoint. `kept` is the result of the
/// previous call.
///
/// Under load, the log will soon have the same length again. If the log keeps its length, the file system has less
/// work. Without load, the old pages of a long log leave the kernel's page cache. A commit overwrites only parts of
/// such pages, because frames of the log are longer than pages. The kernel must therefore first read these pages from
/// the disk. This takes several times as long as appending to a short log. But if each commit is synced to the disk,
/// appending takes longer than overwriting. Appending makes the file longer, so the file system must also sync its own
/// journal.
pub fn should_keep_wal_length(durability: Durability, kept: bool, new: usize, time: Duration) -> bool {
    let is_fast = new as u128 * CHECKPOINT_AFTER.as_millis() > CHECKPOINT_AT_OCTETS as u128 * time.as_millis();
    durability == Durability::Power || is_fast || kept && time < CALM_AFTER
}
