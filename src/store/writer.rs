//! The writer, the only task that writes the state file. It appends the changes of many transactions to the journal
//! in one commit. Later it writes ("folds") the changed budgets into the table, a slice of the budgets at a time.
//!
//! The writer is a task of the async runtime, because waking another thread for each commit costs more than the commit.
//! A short commit blocks the runtime's thread for some microseconds. Everything longer is done in [`blocking`].

mod folding;
mod notices;
mod pass;
mod queue_ids;
mod refusals;

use super::core::{CATCHING_UP, COMMIT_TIMEOUT, Core, slow_disk};
use super::file::{self, File};
use super::hashed_key::HashedKey;
use super::health::{Attempt, HealthChange};
use super::journal::Entry;
use super::options::Durability;
use super::writer_job::WriterJob;
use crate::policy::budgets::Budget;
use pass::Pass;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinHandle;

/// Handle on the writer's task.
pub struct Writer {
    core: Arc<Core>,
    task: JoinHandle<()>,
}

/// Guard that ends the waiting of all transactions when the writer ends, even if it ends by a panic.
struct EndGuard(Arc<Core>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.health.record(Attempt::Append, Err("the writer ended by a fault of Weir's own".to_owned()));
        }
        self.0.queue.close();
    }
}

/// State of the writer.
struct Task {
    core: Arc<Core>,
    /// The state file; `None` until the file is opened.
    file: Option<File>,
    /// Octets in the journal.
    journal_octets: usize,
    pass: Option<Pass>,
    /// Time when the last fold pass ended.
    last_fold: Instant,
    /// Octets of the journal at which the next fold pass begins.
    fold_at_octets: usize,
    /// True if changes in memory are missing in the journal, because it could not be written. A fold pass that begins
    /// later writes them to the table.
    behind: bool,
    /// Epoch of the queue when the writer last took work.
    epoch: u64,
    /// True if the last commit took longer than [`COMMIT_TIMEOUT`], the time for which replies wait.
    is_slow: bool,
    /// Attempts that fail at present, each with the time of the last failure.
    failed: BTreeMap<Attempt, Instant>,
    /// Errors of the jobs that failed when they were run last, by their names.
    failed_jobs: BTreeMap<&'static str, String>,
    /// Number of queue ids in the file; `None` until it is counted.
    stored_queue_ids: Option<u64>,
}

/// Minimum number of rows that are folded in one commit. A commit folds as many rows as the last commit had changes,
/// between this minimum and [`MAX_SLICE_ROWS`]. Transactions wait for these rows, too.
const MIN_SLICE_ROWS: usize = 64;
/// Maximum number of rows that are folded in one commit.
const MAX_SLICE_ROWS: usize = 2_000;

/// Maximum octets that a folded row adds to the write-ahead log, without its filter.
const PAGE_OCTETS: usize = 4096;

/// Bounds for the length of the journal at which a fold pass begins. Within these bounds, a pass begins when the
/// journal has twice as many octets as the last pass wrote. A pass also begins after `FOLD_AFTER`, and when the writer
/// has been idle for [`IDLE_AFTER`]. In this way, many changes of a budget need only one write to the table, and the
/// journal is not much longer than the table.
const FOLD_AT_OCTETS: std::ops::RangeInclusive<usize> = 4 << 20..=128 << 20;
/// A fold pass begins when the writer has had no work for this time.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Maximum octets of an entry whose commit is short.
const SHORT_OCTETS: usize = 256 << 10;

/// Maximum octets of the journal. A longer journal gets no more entries, because folding fails or is not fast enough.
const MAX_JOURNAL_OCTETS: usize = 256 << 20;

/// Time after which an attempt that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Writer {
    /// Starts the writer, in the current async runtime, and the watcher thread. `file` contains the open file and the
    /// octets of its journal. If `file` is `None`, the writer opens the file as soon as that is possible.
    pub fn start(core: Arc<Core>, file: Option<(File, usize)>) -> std::io::Result<Self> {
        let (mut file, journal) = file.map_or((None, 0), |(file, journal)| (Some(file), journal));
        let failed = file.is_none().then(|| (Attempt::Open, Instant::now())).into_iter().collect();
        // First fold the journal that the previous process has left.
        let left = file.as_mut().filter(|_| journal > 0);
        let pass = left.map(|file| Pass::new(file.end_journal_part(), journal, None));
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
            failed_jobs: BTreeMap::new(),
            stored_queue_ids: None,
        };
        let (watched, runtime) = (core.clone(), Handle::current());
        let watch = move || watch_for_stalls(&watched, &runtime);
        std::thread::Builder::new().name("weir-state-wait".to_owned()).spawn(watch)?;
        let task = tokio::spawn(async move {
            let _ending = EndGuard(task.core.clone());
            task.run().await;
        });
        Ok(Self { core, task })
    }

    /// Makes the writer end after its last commit.
    pub fn stop(self) -> JoinHandle<()> {
        self.core.queue.stop();
        self.task
    }
}

/// Runs `work`, which takes long. Meanwhile another thread runs the other tasks of this one.
fn blocking<R>(work: impl FnOnce() -> R) -> R {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        // There is no other thread.
        _ => work(),
    }
}

/// Runs the watcher thread: ends the waiting of transactions that have waited for [`COMMIT_TIMEOUT`], because the
/// writer hangs in an access to the disk.
fn watch_for_stalls(core: &Core, runtime: &Handle) {
    while let Some(hanging) = core.queue.wait_for_stall(COMMIT_TIMEOUT) {
        // The thread that hangs perhaps was the one that waits for I/O and for timers. No other thread takes its place
        // before it is woken, and perhaps none of the transactions below still waits.
        runtime.spawn(async {});
        // Set the health before the transactions continue. Log it afterwards, because the log may be on the same disk
        // and hang, too.
        let change = core.health.update(Attempt::Append, Err(slow_disk("no commit")));
        let histogram = core.metrics.state.transaction_seconds.local();
        hanging.into_iter().for_each(|waiting| waiting.cancel(|time| histogram.observe(time.as_secs_f64())));
        drop(histogram);
        change.into_iter().for_each(HealthChange::log);
    }
}

impl Task {
    async fn run(&mut self) {
        let (mut records, mut spare) = (0, Entry::default());
        loop {
            // First take the budgets that are to be folded, and then take the changes. In this order, every state in
            // the slice is written to the journal before it is written to the table.
            let slice = self.next_slice(records.clamp(MIN_SLICE_ROWS, MAX_SLICE_ROWS));
            let patience = if self.pass.is_some() { Duration::ZERO } else { IDLE_AFTER };
            let mut work = self.core.queue.take(patience, std::mem::take(&mut spare)).await;
            if work.epoch != self.epoch {
                self.epoch = work.epoch;
                self.mark_behind();
            }
            if work.stop {
                // At shutdown every failed attempt is tried once more, without a pause.
                self.failed.clear();
            }
            records = work.entry.records();
            if records > 0 || self.is_probe_due(work.idle) {
                match self.is_commit_short(&work.entry) {
                    true => self.commit(&mut work.entry),
                    false => blocking(|| self.commit(&mut work.entry)),
                }
            }
            spare = work.entry;
            spare.clear();
            if work.idle || self.pass.is_some() || !work.jobs.is_empty() || !self.failed.is_empty() {
                blocking(|| self.write(&slice, work.idle, work.jobs));
            } else {
                self.advance(work.idle);
            }
            let has_failed = self.failed.contains_key(&Attempt::Open) || self.failed.contains_key(&Attempt::Append);
            if !has_failed && !self.is_slow && self.journal_octets <= MAX_JOURNAL_OCTETS {
                // This also clears an error that a transaction recorded when its wait timed out.
                self.core.health.record(Attempt::Append, Ok(()));
            }
            if work.stop {
                break;
            }
        }
        blocking(|| self.finish());
    }

    /// Returns whether a commit takes only microseconds, if the disk does not hang.
    fn is_commit_short(&self, entry: &Entry) -> bool {
        self.core.options.durability == Durability::Process
            && entry.octets() <= SHORT_OCTETS
            && self.failed.is_empty()
            && !self.is_slow
            && !self.core.health.is_write_failing()
            && self.file.is_some()
    }

    /// Folds the slice and does the other work.
    fn write(&mut self, slice: &[(HashedKey, Budget)], idle: bool, jobs: Vec<WriterJob>) {
        if let Some(file) = &mut self.file {
            // Do this before folding. After a load, the log is then truncated by a commit that only folds.
            file.set_keep_wal(self.core.keep_wal.load(Ordering::Relaxed));
        }
        self.fold(slice);
        self.advance(idle);
        self.write_exceptions();
        self.run_jobs(jobs);
    }

    /// Records that changes in memory are missing in the journal.
    fn mark_behind(&mut self) {
        self.behind = true;
        self.core.health.record(Attempt::CatchUp, Err(CATCHING_UP.to_owned()));
    }

    /// Returns whether a commit is needed even if there are no changes. Such a commit shows whether a failed attempt
    /// now succeeds, or whether commits are fast again.
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

    /// Appends the taken changes to the journal, as one entry. If this fails, the waiting transactions continue, and
    /// the health is degraded.
    fn commit(&mut self, entry: &mut Entry) {
        if !self.may_retry(Attempt::Append) || !self.open() {
            return self.core.queue.discard();
        }
        if self.journal_octets > MAX_JOURNAL_OCTETS {
            let reason = "the journal has grown too large, since it could not be folded".to_owned();
            self.core.health.record(Attempt::Append, Err(reason));
            return self.core.queue.discard();
        }
        let began = Instant::now();
        let outcome = self.append(entry);
        let time = began.elapsed();
        self.is_slow = time >= COMMIT_TIMEOUT;
        let is_durable = outcome.is_ok();
        let metrics = &self.core.metrics.state;
        metrics.commit_seconds.observe(time.as_secs_f64());
        metrics.commit_failures.inc_by(u64::from(!is_durable));
        if is_durable {
            let histogram = self.core.metrics.state.transaction_seconds.local();
            self.core.queue.complete(|time| histogram.observe(time.as_secs_f64()));
        }
        self.record(Attempt::Append, outcome);
        if !is_durable {
            // Discard after the health is set, because the transactions that continue check the health.
            self.core.queue.discard();
        }
        if self.is_slow {
            let reason = format!("the disk is slow: a commit took {:.1} s", time.as_secs_f64());
            self.core.health.record(Attempt::Append, Err(reason));
        }
    }

    fn append(&mut self, entry: &mut Entry) -> Result<(), String> {
        let Some(file) = &mut self.file else { return Err("the state file is not open".to_owned()) };
        let entry = entry.seal();
        file.append(entry).map_err(|error| file::describe_journal(&error))?;
        self.journal_octets += entry.len();
        self.core.metrics.state.journal_octets.set(i64::try_from(self.journal_octets).unwrap_or(i64::MAX));
        Ok(())
    }

    /// Opens the file if it is not open and a retry is due. Returns whether the file is open.
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

    /// Writes changed exceptions and audit records that are not in the file yet.
    fn write_exceptions(&mut self) {
        let core = self.core.clone();
        if !core.pending_exceptions.is_pending() {
            // This also clears an error that an administrator's command recorded when its wait timed out.
            return self.record(Attempt::WriteExceptions, Ok(()));
        }
        if !self.may_retry(Attempt::WriteExceptions) || !self.open() {
            return core.pending_exceptions.give_up();
        }
        let Some(file) = &mut self.file else { return };
        let batch = core.pending_exceptions.take();
        // The batch lists the exceptions that have changed, and each is written with its present values. An exception that
        // changes after the batch was taken is also in the next batch.
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

    /// Runs jobs. If any attempt fails at present, the jobs are dropped, and each job is sent again later.
    fn run_jobs(&mut self, jobs: Vec<WriterJob>) {
        let Some(file) = self.file.as_mut().filter(|_| self.failed.is_empty()) else { return };
        for job in jobs {
            let name = job.name();
            let outcome = match job {
                WriterJob::DeleteBudgets(mut rows) => {
                    // Do not delete a row of a budget that has changed in memory: the journal may contain only the
                    // values learnt since that row was written.
                    rows.retain(|(hashed_key, _)| self.core.cache.is_folded(hashed_key));
                    file.delete_budgets(&rows)
                }
                WriterJob::Checkpoint => file.checkpoint().map(|_| ()),
                WriterJob::RecordKinds(names, now) => file.record_kinds(&names, now),
                WriterJob::DeleteKinds(names) => file.delete_kinds(&names),
                WriterJob::WriteLogins => write_logins(&self.core, file),
                WriterJob::DeleteLogins(rows) => file.delete_logins(&rows),
                WriterJob::WriteRefusals => refusals::write(&self.core, file),
                WriterJob::PruneRefusals(before) => refusals::prune(&self.core, file, before),
                WriterJob::WriteNotices => notices::write(&self.core, file),
                WriterJob::WriteQueueIds => queue_ids::write(&self.core, file, &mut self.stored_queue_ids),
                WriterJob::PruneAudit(before) => file.prune_audit(before),
                // The job only wakes the writer, which writes exceptions before it runs jobs.
                WriterJob::WriteExceptions => Ok(()),
            };
            report_job(&self.core, &mut self.failed_jobs, name, outcome.map_err(|error| file::describe(&error)));
        }
    }
}

impl Task {
    /// Writes the logins that are not in the file yet, before the writer ends.
    fn write_remaining_logins(&mut self, deadline: Instant) {
        let Some(file) = self.file.as_mut().filter(|_| self.failed.is_empty()) else { return };
        while self.core.logins.is_pending() && Instant::now() < deadline && write_logins(&self.core, file).is_ok() {}
    }
}

/// Counts a job that failed. Logs the error when it begins, changes or ends. The health does not change: if the whole
/// file is affected, the next commit fails, and degrades the health.
fn report_job(
    core: &Core,
    failed: &mut BTreeMap<&'static str, String>,
    task: &'static str,
    outcome: Result<(), String>,
) {
    let Err(error) = outcome else {
        if failed.remove(task).is_some() {
            tracing::info!(task, "a task of the state file succeeds again");
        }
        return;
    };
    core.metrics.state.task_failures.with_label_values(&[task]).inc();
    if failed.get(task) != Some(&error) {
        tracing::warn!(task, error, "a task of the state file fails, and is tried again later");
        failed.insert(task, error);
    }
}

/// Writes a batch of logins. If that fails, the logins are written later.
fn write_logins(core: &Core, file: &mut File) -> rusqlite::Result<()> {
    let batch = core.logins.take();
    let outcome = file.add_logins(&batch);
    core.logins.written(outcome.is_ok());
    core.wal_written.fetch_add(batch.len() * PAGE_OCTETS, Ordering::Relaxed);
    outcome
}
