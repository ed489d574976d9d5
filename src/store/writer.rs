//! The only thread that writes the state file: group commits to the journal, which is folded into the table of budgets
//! slice by slice.

mod folding;
mod pass;

use super::commit_queue::WriterJob;
use super::core::{CATCHING_UP, COMMIT_TIMEOUT, Core, slow_disk};
use super::file::{self, File};
use super::hashed_key::HashedKey;
use super::health::{Attempt, HealthChange};
use super::journal::Entry;
use crate::policy::budgets::Budget;
use pass::Pass;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Handle on the writer thread.
pub struct Writer {
    core: Arc<Core>,
    thread: JoinHandle<()>,
}

/// Guard that frees all waiting transactions when the writer ends, even by a panic.
struct EndGuard(Arc<Core>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.health.record(Attempt::Append, Err("the writer ended by a fault of Weir's own".to_owned()));
        }
        self.0.queue.close();
    }
}

/// State of the writer thread.
struct Task {
    core: Arc<Core>,
    /// The state file; `None` until it could be opened.
    file: Option<File>,
    /// Octets in the journal.
    journal_octets: usize,
    pass: Option<Pass>,
    /// End of the last fold pass, and the octets of journal that start the next.
    last_fold: Instant,
    fold_at_octets: usize,
    /// Changes were lost before they reached the journal: a pass that begins after that writes them to the table.
    behind: bool,
    /// Epoch of the queue when work was last taken.
    epoch: u64,
    /// The last commit took longer than replies may wait.
    is_slow: bool,
    /// Attempts that failed, each with the time of the last failure.
    failed: BTreeMap<Attempt, Instant>,
}

/// Rows folded in one transaction: as many as changes come, within these bounds. Commits wait for them.
const MIN_SLICE_ROWS: usize = 64;
const MAX_SLICE_ROWS: usize = 2_000;

/// Octets that a folded row, or a commit, adds to the write-ahead log at most, beside filters and entries.
const PAGE_OCTETS: usize = 4096;

/// Octets of journal that start a fold pass: twice what the last pass wrote, within these bounds. A pass also starts
/// after `FOLD_AFTER`, and when the writer has been idle for [`IDLE_AFTER`]. Budgets that change often are thus
/// written more seldom, and the journal stays in proportion to the budgets.
const FOLD_AT_OCTETS: std::ops::RangeInclusive<usize> = 4 << 20..=128 << 20;
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Octets at which the journal takes no more entries: it cannot be folded, or not fast enough.
const MAX_JOURNAL_OCTETS: usize = 256 << 20;

/// Time between two tries of an attempt that failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Writer {
    /// Starts the writer with an open file and the octets of its journal. With `None` the writer opens the file when
    /// that is possible.
    pub fn start(core: Arc<Core>, file: Option<(File, usize)>) -> std::io::Result<Self> {
        let (file, journal) = file.map_or((None, 0), |(file, journal)| (Some(file), journal));
        let failed = file.is_none().then(|| (Attempt::Open, Instant::now())).into_iter().collect();
        // Fold first the journal that a former process left.
        let left = file.as_ref().filter(|_| journal > 0);
        let pass = left.map(|file| Pass::new(file.last_entry(), journal, None));
        let mut task = Task {
            core: core.clone(),
            file,
            journal_octets: journal,
            pass,
            last_fold: Instant::now(),
            fold_at_octets: *FOLD_AT_OCTETS.start(),
            behind: false,
            epoch: 0,
            is_slow: false,
            failed,
        };
        let watched = core.clone();
        std::thread::Builder::new().name("weir-state-wait".to_owned()).spawn(move || watch_for_stalls(&watched))?;
        let thread = std::thread::Builder::new().name("weir-state-write".to_owned()).spawn(move || {
            let _ending = EndGuard(task.core.clone());
            task.run();
        });
        let thread = thread.inspect_err(|_| core.queue.close())?;
        Ok(Self { core, thread })
    }

    /// Has the thread end after its last commit.
    pub fn stop(self) -> JoinHandle<()> {
        self.core.queue.stop();
        self.thread
    }
}

/// Frees transactions that have waited too long, because the writer hangs in the disk.
fn watch_for_stalls(core: &Core) {
    while let Some(hanging) = core.queue.wait_for_stall(COMMIT_TIMEOUT) {
        // Set the health before the transactions go on, but log it after: the log may be on the same disk.
        let change = core.health.update(Attempt::Append, Err(slow_disk("no commit")));
        let histogram = core.metrics.admit_seconds.local();
        hanging.into_iter().for_each(|waiting| waiting.cancel(|time| histogram.observe(time.as_secs_f64())));
        drop(histogram);
        change.into_iter().for_each(HealthChange::log);
    }
}

impl Task {
    fn run(&mut self) {
        let (mut records, mut spare) = (0, Entry::default());
        loop {
            // The states are taken before the changes, so that the journal has a state before the table has it.
            let mut slice = self.next_slice(records.clamp(MIN_SLICE_ROWS, MAX_SLICE_ROWS));
            let patience = if self.pass.is_some() { Duration::ZERO } else { IDLE_AFTER };
            let mut work = self.core.queue.take(patience, std::mem::take(&mut spare));
            if work.epoch != self.epoch {
                self.epoch = work.epoch;
                self.mark_behind();
            }
            if work.stop {
                // At shutdown everything is tried once more, without a pause.
                self.failed.clear();
            }
            if let Some(file) = &mut self.file {
                // Before folding, so that after a load a commit of folding truncates the log, and no transaction waits
                // for that.
                file.set_keep_wal(self.core.keep_wal.load(Ordering::Relaxed));
            }
            records = work.entry.records();
            if records > 0 || self.is_probe_due(work.idle) {
                self.commit(&mut work.entry, &mut slice);
            }
            spare = work.entry;
            spare.clear();
            self.fold(&slice);
            self.advance(work.idle);
            self.write_exceptions();
            self.run_jobs(work.jobs);
            let has_failed = self.failed.contains_key(&Attempt::Open) || self.failed.contains_key(&Attempt::Append);
            if !has_failed && !self.is_slow && self.journal_octets <= MAX_JOURNAL_OCTETS {
                // A transaction that timed out may have recorded the error after its commit was done.
                self.core.health.record(Attempt::Append, Ok(()));
            }
            if work.stop {
                break;
            }
        }
        self.finish();
    }

    /// Records that a change is not in the journal.
    fn mark_behind(&mut self) {
        self.behind = true;
        self.core.health.record(Attempt::CatchUp, Err(CATCHING_UP.to_owned()));
    }

    /// Returns whether to commit although there are no changes, to see whether an attempt that failed succeeds again.
    fn is_probe_due(&self, idle: bool) -> bool {
        let failed = |attempt| self.failed.contains_key(&attempt) && self.may_retry(attempt);
        self.is_slow && idle || failed(Attempt::Append) || failed(Attempt::Open)
    }

    fn may_retry(&self, attempt: Attempt) -> bool {
        self.failed.get(&attempt).is_none_or(|at| at.elapsed() >= RETRY_AFTER)
    }

    fn record(&mut self, attempt: Attempt, outcome: Result<(), String>) {
        match &outcome {
            Ok(()) => self.failed.remove(&attempt),
            Err(_) => self.failed.insert(attempt, Instant::now()),
        };
        self.core.health.record(attempt, outcome);
    }

    /// Writes the taken changes as one entry, together with the slice. If that fails mail flows all the same, and the
    /// store says that it is degraded. Rows of the slice that were written are removed from it.
    fn commit(&mut self, entry: &mut Entry, slice: &mut Vec<(HashedKey, Budget)>) {
        if !self.may_retry(Attempt::Append) || !self.open() {
            return self.core.queue.discard();
        }
        if self.journal_octets > MAX_JOURNAL_OCTETS {
            let reason = "the journal has grown too large, since it could not be folded".to_owned();
            self.core.health.record(Attempt::Append, Err(reason));
            return self.core.queue.discard();
        }
        let began = Instant::now();
        let outcome = self.append(entry, slice);
        let time = began.elapsed();
        self.is_slow = time >= COMMIT_TIMEOUT;
        let is_durable = outcome.is_ok();
        if is_durable {
            let histogram = self.core.metrics.admit_seconds.local();
            self.core.queue.complete(|time| histogram.observe(time.as_secs_f64()));
        }
        self.record(Attempt::Append, outcome);
        if !is_durable {
            // A transaction that goes on finds the degraded health.
            self.core.queue.discard();
        }
        if self.is_slow {
            let reason = format!("the disk is slow: a commit took {:.1} s", time.as_secs_f64());
            self.core.health.record(Attempt::Append, Err(reason));
        }
    }

    fn append(&mut self, entry: &mut Entry, slice: &mut Vec<(HashedKey, Budget)>) -> Result<(), String> {
        let Some(file) = &mut self.file else { return Err("the state file is not open".to_owned()) };
        let entry = entry.seal();
        match file.append(entry, slice) {
            Ok(()) => {
                self.core.cache.end_fold(slice, Some(self.core.queue.epoch()));
                self.core.wal_written.fetch_add(slice.len() * PAGE_OCTETS, Ordering::Relaxed);
                slice.clear();
            }
            // The error may be in the rows of the slice: write the entry alone.
            Err(_) if !slice.is_empty() => file.append(entry, &[]).map_err(|error| file::describe(&error))?,
            Err(error) => return Err(file::describe(&error)),
        }
        self.journal_octets += entry.len();
        self.core.metrics.journal_octets.set(i64::try_from(self.journal_octets).unwrap_or(i64::MAX));
        self.core.wal_written.fetch_add(entry.len() + PAGE_OCTETS, Ordering::Relaxed);
        Ok(())
    }

    /// Opens the file if it is not open and a retry is due. Returns whether it is open.
    fn open(&mut self) -> bool {
        if self.file.is_some() {
            return true;
        }
        if !self.may_retry(Attempt::Open) {
            return false;
        }
        let opened = self.core.open().map_err(|error| error.to_string());
        let outcome = opened.map(|(file, journal)| (self.file, self.journal_octets) = (Some(file), journal));
        self.mark_behind();
        self.record(Attempt::Open, outcome);
        self.file.is_some()
    }

    /// Writes pending exceptions and audit records.
    fn write_exceptions(&mut self) {
        let core = self.core.clone();
        if !core.pending_exceptions.is_pending() {
            // A command that timed out may have recorded the error after the batch was written.
            return self.record(Attempt::WriteExceptions, Ok(()));
        }
        if !self.may_retry(Attempt::WriteExceptions) || !self.open() {
            return core.pending_exceptions.give_up();
        }
        let Some(file) = &mut self.file else { return };
        let batch = core.pending_exceptions.take();
        // Write the present exceptions: a change after this is in the next batch.
        match file.write_batch(&batch, &core.policy().exceptions) {
            Ok(()) => {
                self.core
                    .wal_written
                    .fetch_add((batch.changed.len() + batch.records.len()) * PAGE_OCTETS, Ordering::Relaxed);
                self.record(Attempt::WriteExceptions, Ok(()));
                batch.written();
            }
            Err(error) => {
                let reason = format!("grants and suspensions could not be written: {}", file::describe(&error));
                self.record(Attempt::WriteExceptions, Err(reason));
                core.pending_exceptions.put_back(batch);
            }
        }
    }

    /// Runs jobs; if the file cannot be written they are dropped, because each is sent again later.
    fn run_jobs(&mut self, jobs: Vec<WriterJob>) {
        let Some(file) = self.file.as_mut().filter(|_| self.failed.is_empty()) else { return };
        for job in jobs {
            let outcome = match job {
                WriterJob::DeleteBudgets(mut rows) => {
                    // Changes in memory alone may build on these rows.
                    rows.retain(|(hashed_key, _)| self.core.cache.is_folded(hashed_key));
                    file.delete_budgets(&rows)
                }
                WriterJob::Checkpoint => file.checkpoint().map(|_| ()),
                WriterJob::RecordKinds(names, now) => file.record_kinds(&names, now),
                WriterJob::DeleteKinds(names) => file.delete_kinds(&names),
                WriterJob::PruneAudit(before) => file.prune_audit(before),
                // Exceptions are written before all jobs, or as soon as that is possible.
                WriterJob::WriteExceptions => Ok(()),
            };
            // The same error shows in commits, too.
            if let Err(error) = outcome {
                tracing::debug!(%error, "an errand of the state file failed");
            }
        }
    }
}
