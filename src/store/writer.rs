//! The only thread that writes the state file: group commits to the journal, which is folded into the table of budgets
//! slice by slice.

use super::cache::SHARDS;
use super::file::{self, File};
use super::hashed_key::HashedKey;
use super::health::{Attempt, HealthChange};
use super::journal::{Entry, Seen};
use super::queue::WriterJob;
use super::{CATCHING_UP, Core, slow_disk};
use crate::policy::Budget;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
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

/// A fold pass: writes all changed budgets to their table, then deletes the journal entries that are covered.
struct Pass {
    /// Keys of the current shard that are still to be folded, in reverse order.
    hashed_keys: Vec<HashedKey>,
    /// Index of the next shard.
    shard: usize,
    /// Last entry of the journal when the pass began, and the octets of the journal then.
    last_entry: i64,
    octets: usize,
    /// Epoch in which changes were last lost before the pass began; `None` if none were.
    behind: Option<u64>,
    /// Approximate octets written so far.
    written: usize,
    /// Budgets whose pages are damaged, and the error.
    damaged: Vec<HashedKey>,
    fault: Option<String>,
}

/// Rows folded in one transaction: as many as changes come, within these bounds. Commits wait for them.
const MIN_SLICE_ROWS: usize = 64;
const MAX_SLICE_ROWS: usize = 2_000;

/// Octets of a row beside its key and its filter.
const ROW_OVERHEAD: usize = 18;

/// Approximate octets folded in one transaction: filters may be large.
const SLICE_OCTETS: usize = 512 << 10;

/// Octets that a folded row, or a commit, adds to the write-ahead log at most, beside filters and entries.
const PAGE_OCTETS: usize = 4096;

/// Journal entries deleted at once.
const DISCARD_AT_ONCE: i64 = 64;

/// Octets of journal that start a fold pass: twice what the last pass wrote, within these bounds. A pass also starts
/// after [`FOLD_AFTER`], and when the writer has been idle for [`IDLE_AFTER`]. Budgets that change often are thus
/// written more seldom, and the journal stays in proportion to the budgets.
const FOLD_AT_OCTETS: std::ops::RangeInclusive<usize> = 4 << 20..=128 << 20;
const FOLD_AFTER: Duration = Duration::from_secs(60);
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Octets at which the journal takes no more entries: it cannot be folded, or not fast enough.
const MAX_JOURNAL_OCTETS: usize = 256 << 20;

/// Time between two tries of an attempt that failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A commit that takes longer degrades the health: replies wait for it.
pub const COMMIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Time to fold at shutdown; the rest stays in the journal.
const FINAL_FOLD_TIME: Duration = Duration::from_secs(2);

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
                // Folding at leisure after a load may truncate the log, so that no transaction waits for that.
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

    /// Returns the next budgets to fold, as they are at present.
    fn next_slice(&mut self, rows: usize) -> Vec<(HashedKey, Budget)> {
        let Some(pass) = &mut self.pass else { return Vec::new() };
        let (mut slice, mut octets) = (Vec::with_capacity(rows), 0);
        while slice.len() < rows && octets < SLICE_OCTETS {
            let Some(hashed_key) = pass.next(&self.core) else { break };
            if let Some(budget) = self.core.cache.begin_fold(&hashed_key) {
                octets +=
                    ROW_OVERHEAD + hashed_key.key.as_str().len() + budget.seen.as_ref().map_or(0, |seen| seen.octets());
                slice.push((hashed_key, budget));
            }
        }
        pass.written += octets;
        slice
    }

    fn fold(&mut self, slice: &[(HashedKey, Budget)]) {
        let Some(file) = self.file.as_mut().filter(|_| !slice.is_empty()) else { return };
        let outcome = file.fold(slice);
        self.core.wal_written.fetch_add(slice.len() * PAGE_OCTETS, Ordering::Relaxed);
        let Err(error) = outcome else { return self.core.cache.end_fold(slice, Some(self.core.queue.epoch())) };
        if file::is_page_damage(&error) && slice.len() > 1 {
            // The other pages may be intact.
            let (one, other) = slice.split_at(slice.len() / 2);
            self.fold(one);
            return self.fold(other);
        }
        self.core.cache.end_fold(slice, None);
        match &mut self.pass {
            Some(pass) if file::is_page_damage(&error) => {
                pass.damaged.extend(slice.iter().map(|(hashed_key, _)| hashed_key.clone()));
                pass.fault = Some(file::describe(&error));
            }
            _ => self.abort_pass(file::describe(&error)),
        }
    }

    /// Aborts the pass; the next pass does the rest.
    fn abort_pass(&mut self, reason: String) {
        if let Some(pass) = self.pass.take() {
            self.core.cache.put_back(pass.hashed_keys.into_iter());
        }
        self.record(Attempt::Fold, Err(reason));
    }

    /// Continues the pass, or begins one if it is due.
    fn advance(&mut self, idle: bool) {
        let is_allowed = self.may_retry(Attempt::Fold) && !self.failed.contains_key(&Attempt::Append);
        let is_crowded = self.core.cache.is_crowded();
        let Some(file) = &mut self.file else { return };
        let Some(pass) = &mut self.pass else {
            let is_due = self.journal_octets > self.fold_at_octets
                || self.behind
                || is_crowded && self.core.cache.has_changed()
                || (idle || self.last_fold.elapsed() > FOLD_AFTER)
                    && (self.journal_octets > 0 || self.core.cache.has_changed());
            if is_due && is_allowed {
                self.pass = Some(Pass::new(file.last_entry(), self.journal_octets, self.behind.then_some(self.epoch)));
            }
            return;
        };
        if !pass.is_folded() {
            return;
        }
        if !pass.damaged.is_empty() {
            let hashed_keys = std::mem::take(&mut pass.damaged);
            return self.keep_in_journal(&hashed_keys);
        }
        match file.discard(pass.last_entry, DISCARD_AT_ONCE) {
            Ok(true) => {}
            Ok(false) => self.end_pass(),
            Err(error) => self.abort_pass(file::describe(&error)),
        }
    }

    /// Writes budgets that cannot be written to the table into the journal once more, so that all older entries can be
    /// deleted.
    fn keep_in_journal(&mut self, hashed_keys: &[HashedKey]) {
        let mut entry = Entry::default();
        for hashed_key in hashed_keys {
            // The present budget: entries since the pass began are older, or come later.
            if let Some(budget) = self.core.cache.begin_fold(hashed_key) {
                entry.push(hashed_key.key.borrowed(), &budget, Seen::Whole);
                self.core.cache.end_fold(&[(hashed_key.clone(), budget)], None);
            }
        }
        let Some(file) = &mut self.file else { return };
        match file.append(entry.seal(), &[]) {
            Ok(()) => self.journal_octets += entry.octets(),
            Err(error) => self.abort_pass(file::describe(&error)),
        }
    }

    fn end_pass(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        self.journal_octets -= pass.octets;
        self.last_fold = Instant::now();
        self.fold_at_octets = (2 * pass.written).clamp(*FOLD_AT_OCTETS.start(), *FOLD_AT_OCTETS.end());
        self.core.metrics.journal_octets.set(i64::try_from(self.journal_octets).unwrap_or(i64::MAX));
        self.record(Attempt::Fold, pass.fault.map_or(Ok(()), Err));
        // The pass did not cover changes that were lost since it began.
        let Some(epoch) = pass.behind else { return };
        let _catch_up = self.core.catch_up_lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.core.queue.epoch() == epoch {
            self.behind = false;
            self.core.health.record(Attempt::CatchUp, Ok(()));
        }
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

    /// Folds as much as time allows before the thread ends. The rest is in the journal.
    fn finish(&mut self) {
        let deadline = Instant::now() + FINAL_FOLD_TIME;
        while Instant::now() < deadline
            && (self.pass.is_some() || self.journal_octets > 0 || self.core.cache.has_changed())
        {
            let slice = self.next_slice(MAX_SLICE_ROWS);
            self.fold(&slice);
            self.advance(true);
            if self.file.is_none() || self.pass.is_none() && !self.failed.is_empty() {
                break;
            }
        }
        if self.core.cache.has_counted_unread() {
            let reason = "some of what was counted could not be added to the file".to_owned();
            self.core.health.record(Attempt::CatchUp, Err(reason));
        }
    }
}

impl Pass {
    fn new(last_entry: i64, octets: usize, behind: Option<u64>) -> Self {
        Self {
            hashed_keys: Vec::new(),
            shard: 0,
            last_entry,
            octets,
            behind,
            written: 0,
            damaged: Vec::new(),
            fault: None,
        }
    }

    fn next(&mut self, core: &Core) -> Option<HashedKey> {
        while self.hashed_keys.is_empty() && self.shard < SHARDS {
            self.hashed_keys = core.cache.take_changed(self.shard);
            self.hashed_keys.reverse();
            self.shard += 1;
        }
        self.hashed_keys.pop()
    }

    fn is_folded(&self) -> bool {
        self.hashed_keys.is_empty() && self.shard == SHARDS
    }
}
