//! Thread that writes to the database of the state file: it folds changed budgets into the table, and does the jobs of
//! the other parts of the store.
//!
//! It is always the same thread. The allocator keeps memory apart for each thread, so that the same work in different
//! threads takes a multiple of the memory.

use super::pass::Pass;
use super::{IDLE_AFTER, RETRY_AFTER, notices, queue_ids, refusals};
use crate::store::core::Core;
use crate::store::database_job::DatabaseJob;
use crate::store::file::{self, File, JournalAppender};
use crate::store::health::Attempt;
use crate::store::recovery::OpenFile;
use crate::store::wal_checkpoint::PAGE_OCTETS;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// State of the database writer.
pub struct DatabaseWriter {
    pub(super) core: Arc<Core>,
    /// The state file; `None` until the file is opened.
    pub(super) opened: Option<OpenFile>,
    pub(super) pass: Option<Pass>,
    /// Time when the last fold pass ended.
    pub(super) last_fold: Instant,
    /// Octets of the journal when the writer last waited for [`IDLE_AFTER`].
    octets_before: usize,
    /// Attempts that fail at present, each with the time of the last failure.
    pub(super) failed: BTreeMap<Attempt, Instant>,
    /// Errors of the jobs that failed when they were run last, by their names.
    failed_jobs: BTreeMap<&'static str, String>,
    /// Number of queue ids in the file; `None` until it is counted.
    pub(super) stored_queue_ids: Option<u64>,
}

impl DatabaseWriter {
    /// If `opened` is `None`, the writer opens the file as soon as that is possible.
    pub fn new(core: Arc<Core>, opened: Option<OpenFile>) -> Self {
        let failed = opened.is_none().then(|| (Attempt::Open, Instant::now())).into_iter().collect();
        // First fold the journal that the previous process has left.
        let has_journal = opened.as_ref().is_some_and(|opened| opened.journal.octets() > 0);
        let mut writer = Self {
            core,
            opened,
            pass: None,
            last_fold: Instant::now(),
            octets_before: 0,
            failed,
            failed_jobs: BTreeMap::new(),
            stored_queue_ids: None,
        };
        if has_journal {
            writer.begin_pass();
        }
        writer
    }

    pub fn run(mut self) {
        loop {
            let patience = if self.pass.is_some() { Duration::ZERO } else { IDLE_AFTER };
            let work = self.core.jobs.take(patience);
            if work.stop {
                // At shutdown every failed attempt is tried once more, without a pause.
                self.failed.clear();
            }
            self.open();
            let is_idle = self.pass.is_none() && work.is_timeout && self.has_rested();
            if let Some(OpenFile { file, .. }) = &mut self.opened {
                // Do this before folding. After a load, the log is then truncated by a commit that only folds.
                file.set_keep_wal(self.core.keep_wal.load(Ordering::Relaxed));
            }
            self.fold_next();
            self.advance(is_idle);
            self.write_exceptions();
            self.run_jobs(work.jobs);
            if work.stop {
                break;
            }
        }
        self.finish();
    }

    /// Returns whether nothing was appended to the journal since this function was called last.
    fn has_rested(&mut self) -> bool {
        let octets = self.opened.as_ref().map_or(0, |opened| opened.journal.octets());
        std::mem::replace(&mut self.octets_before, octets) == octets
    }

    pub(super) fn may_retry(&self, attempt: Attempt) -> bool {
        self.failed.get(&attempt).is_none_or(|at| at.elapsed() >= RETRY_AFTER)
    }

    pub(super) fn record(&mut self, attempt: Attempt, outcome: Result<(), String>) {
        match &outcome {
            Ok(()) => self.failed.remove(&attempt),
            Err(_) => self.failed.insert(attempt, Instant::now()),
        };
        self.core.health.record(attempt, outcome);
    }

    /// Opens the file if it is not open and a retry is due.
    fn open(&mut self) {
        if self.opened.is_some() || !self.may_retry(Attempt::Open) {
            return;
        }
        let outcome = self.core.open().map_err(|error| error.to_string()).map(|opened| {
            // Charges from before are only in memory.
            self.core.catch_up();
            self.core.queue.hand_over(JournalAppender::new(opened.journal.clone()));
            self.opened = Some(opened);
        });
        self.record(Attempt::Open, outcome);
    }

    /// Writes changed exceptions and audit records that are not in the file yet.
    fn write_exceptions(&mut self) {
        let core = self.core.clone();
        if !core.pending_exceptions.is_pending() {
            // This also clears an error that an administrator's command recorded when its wait timed out.
            return self.record(Attempt::WriteExceptions, Ok(()));
        }
        if !self.may_retry(Attempt::WriteExceptions) || self.opened.is_none() {
            return core.pending_exceptions.give_up();
        }
        let Some(OpenFile { file, .. }) = &mut self.opened else { return };
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
    fn run_jobs(&mut self, jobs: Vec<DatabaseJob>) {
        let Some(OpenFile { file, .. }) = self.opened.as_mut().filter(|_| self.failed.is_empty()) else { return };
        for job in jobs {
            let name = job.name();
            let outcome = match job {
                DatabaseJob::DeleteBudgets(mut rows) => {
                    // Do not delete a row of a budget that has changed in memory: the journal may contain only the
                    // values learnt since that row was written.
                    rows.retain(|(hashed_key, _)| self.core.cache.is_folded(hashed_key));
                    file.delete_budgets(&rows)
                }
                DatabaseJob::Checkpoint => file.checkpoint().map(|_| ()),
                DatabaseJob::RecordKinds(names, now) => file.record_kinds(&names, now),
                DatabaseJob::DeleteKinds(names) => file.delete_kinds(&names),
                DatabaseJob::WriteLogins => write_logins(&self.core, file),
                DatabaseJob::DeleteLogins(rows) => file.delete_logins(&rows),
                DatabaseJob::WriteRefusals => refusals::write(&self.core, file),
                DatabaseJob::PruneRefusals(before) => refusals::prune(&self.core, file, before),
                DatabaseJob::WriteNotices => notices::write(&self.core, file),
                DatabaseJob::WriteQueueIds => queue_ids::write(&self.core, file, &mut self.stored_queue_ids),
                DatabaseJob::PruneAudit(before) => file.prune_audit(before),
                // The job only wakes the writer, which writes exceptions before it runs jobs.
                DatabaseJob::WriteExceptions => Ok(()),
            };
            report_job(&self.core, &mut self.failed_jobs, name, outcome.map_err(|error| file::describe(&error)));
        }
    }

    /// Writes what is not in the file yet, before the writer ends, and until `deadline` at most.
    pub(super) fn write_remaining(&mut self, deadline: Instant) {
        let core = &*self.core;
        let Some(OpenFile { file, .. }) = self.opened.as_mut().filter(|_| self.failed.is_empty()) else { return };
        core.refusals.end_period();
        let is_time = || Instant::now() < deadline;
        while core.logins.is_pending() && is_time() && write_logins(core, file).is_ok() {}
        while core.refusals.is_pending() && is_time() && refusals::write(core, file).is_ok() {}
        while core.notices.is_pending() && is_time() && notices::write(core, file).is_ok() {}
        let stored = &mut self.stored_queue_ids;
        while core.queue_ids.is_pending() && is_time() && queue_ids::write(core, file, stored).is_ok() {}
    }
}

/// Counts a job that failed. Logs the error when it begins, changes or ends. The health does not change: if the whole
/// file is affected, the next fold fails, and degrades the health.
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
