//! Records of refusals that are not in the state file yet.

use super::RefusalOptions;
use super::coalescer::{Coalescer, Course, PERIOD_MILLIS};
use super::row::{Refusal, RefusalRow};
use crate::reference::Reference;
use crate::time::Timestamp;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which records wait to be written. When the process is killed, the records of this time are lost, and the
/// counts of the current minute of a flood.
const WRITE_AFTER: Duration = Duration::from_secs(2);

/// Time after which the writer is asked again to write records.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Maximum octets of records that wait to be written. While the state file cannot be written, the excess is dropped.
const MAX_PENDING_OCTETS: usize = 4 << 20;

/// Maximum octets of records that are written in one commit: other commits wait for it.
const COMMIT_OCTETS: usize = 256 << 10;

/// Records in memory.
pub struct RefusalMemory {
    options: RefusalOptions,
    /// The lock is confined to this file. It is never held across `.await`, an access to the disk, or the building of a
    /// record.
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    coalescer: Coalescer,
    /// Time when the first coalesced record of the current period was seen by [`RefusalMemory::is_due`].
    coalesced_since: Option<Instant>,
    pending: Vec<RefusalRow>,
    pending_octets: usize,
    pending_since: Option<Instant>,
    /// The batch that the writer is writing.
    writing: Vec<RefusalRow>,
    asked: Option<Instant>,
    latest: Option<Timestamp>,
    /// Time of the last refusal before which old records were deleted.
    pruned: Option<Timestamp>,
    /// Approximate octets of all records in the file, once known.
    stored_octets: Option<u64>,
}

impl RefusalMemory {
    pub fn new(options: RefusalOptions) -> Self {
        Self { options, inner: Mutex::default() }
    }

    pub fn options(&self) -> RefusalOptions {
        self.options
    }

    /// Counts a refusal. Returns true if the refusal needs a record: the caller then passes its content to
    /// [`RefusalMemory::add`].
    pub fn count(&self, reference: &Reference) -> bool {
        if self.options.keep.is_zero() {
            return false;
        }
        let mut inner = self.lock();
        let ended = inner.coalescer.end_period(reference.millis);
        if !ended.is_empty() {
            inner.coalesced_since = None;
        }
        inner.queue(ended);
        inner.latest = inner.latest.max(Some(reference.time()));
        inner.coalescer.count(reference) == Course::Wanted
    }

    /// Adds a refusal with its content.
    pub fn add(&self, reference: &Reference, refusal: Refusal) {
        let mut inner = self.lock();
        let row = inner.coalescer.add(reference, refusal);
        inner.queue(row);
    }

    /// Returns whether the writer has to be asked to write records now. The writer ignores this while it cannot write,
    /// so it is asked again after some time. Also ends the period of a flood that has ended.
    pub fn is_due(&self) -> bool {
        let mut inner = self.lock();
        match inner.coalesced_since {
            None if inner.coalescer.has_coalesced() => inner.coalesced_since = Some(Instant::now()),
            Some(since) if since.elapsed() >= Duration::from_millis(PERIOD_MILLIS) => {
                let ended = inner.coalescer.end();
                inner.coalesced_since = None;
                inner.queue(ended);
            }
            _ => {}
        }
        let is_old = inner.pending_since.is_some_and(|since| since.elapsed() >= WRITE_AFTER);
        let is_asked = inner.asked.is_some_and(|at| at.elapsed() < ASK_AGAIN_AFTER);
        let is_due = is_old && !is_asked;
        if is_due {
            inner.asked = Some(Instant::now());
        }
        is_due
    }

    /// Ends the current period, so that all its records are written.
    pub fn end_period(&self) {
        let mut inner = self.lock();
        let ended = inner.coalescer.end();
        inner.queue(ended);
    }

    /// Returns whether any record waits to be written.
    pub fn is_pending(&self) -> bool {
        !self.lock().pending.is_empty()
    }

    /// Takes rows to write. The caller must then call [`RefusalMemory::written`].
    pub fn take(&self) -> Vec<RefusalRow> {
        let mut inner = self.lock();
        let (mut octets, mut count) = (0, 0);
        for row in &inner.pending {
            octets += row.octets();
            if octets > COMMIT_OCTETS && count > 0 {
                break;
            }
            count += 1;
        }
        let batch: Vec<RefusalRow> = inner.pending.drain(..count).collect();
        inner.pending_octets = inner.pending.iter().map(RefusalRow::octets).sum();
        if inner.pending.is_empty() {
            inner.pending_since = None;
        }
        inner.asked = None;
        inner.writing.clone_from(&batch);
        batch
    }

    /// Ends the writing of the batch that was taken last. If the batch is not in the file, it is written later.
    pub fn written(&self, is_written: bool) {
        let mut inner = self.lock();
        let batch = std::mem::take(&mut inner.writing);
        if !is_written {
            inner.queue(batch);
            inner.asked = Some(Instant::now());
        }
    }

    /// Returns the octets of all records in the file, if known.
    pub fn stored_octets(&self) -> Option<u64> {
        self.lock().stored_octets
    }

    pub fn set_stored_octets(&self, octets: u64) {
        self.lock().stored_octets = Some(octets);
    }

    /// Returns the rows that are not in the file yet, and that `has` selects.
    pub fn unwritten(&self, has: impl Fn(&RefusalRow) -> bool) -> Vec<RefusalRow> {
        let inner = self.lock();
        let rows = inner.writing.iter().chain(&inner.pending).chain(inner.coalescer.current());
        rows.filter(|row| has(row)).cloned().collect()
    }

    /// Returns the time before which records are too old, if old records have to be deleted now: once an hour.
    pub fn expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let mut inner = self.lock();
        let is_recent = inner.pruned.is_some_and(|pruned| now.since(pruned).max(pruned.since(now)) < PRUNE_EVERY);
        if is_recent {
            return None;
        }
        inner.pruned = Some(now);
        let keep = i64::try_from(self.options.keep.as_micros()).unwrap_or(i64::MAX);
        Some(Timestamp::from_micros(now.micros().saturating_sub(keep)))
    }

    /// Returns the latest time of a refusal since the start.
    pub fn latest(&self) -> Option<Timestamp> {
        self.lock().latest
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time between two deletions of old records.
const PRUNE_EVERY: Duration = Duration::from_secs(3_600);

impl Inner {
    fn queue(&mut self, rows: impl IntoIterator<Item = RefusalRow>) {
        for row in rows {
            let octets = row.octets();
            if self.pending_octets + octets > MAX_PENDING_OCTETS {
                tracing::debug!("too many records of refusals wait for the state file: one is dropped");
                continue;
            }
            self.pending_octets += octets;
            self.pending.push(row);
            self.pending_since.get_or_insert_with(Instant::now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{Refusee, Tag};

    #[test]
    fn a_failed_write_keeps_the_records_and_is_not_due_at_once() {
        let memory = RefusalMemory::new(RefusalOptions::default());
        let tag = Tag::new("l", "rcpt", Refusee::User("alice"));
        let reference = Reference::new(Timestamp::from_micros(1_700_000_000_000_000), tag, 1);
        assert!(memory.count(&reference));
        memory.add(&reference, Refusal { body: "{}".to_owned(), ..Refusal::default() });
        let Some(long_ago) = Instant::now().checked_sub(2 * WRITE_AFTER) else { return };
        memory.lock().pending_since = Some(long_ago);
        assert!(memory.is_due());
        let batch = memory.take();
        memory.written(false);
        memory.lock().pending_since = Some(long_ago);
        assert!(memory.is_pending() && !memory.is_due());
        assert_eq!(memory.take(), batch);
        memory.written(true);
        assert!(!memory.is_pending());
    }
}
