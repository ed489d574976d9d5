//! Queue of the jobs of the thread that writes the database.

use super::database_job::DatabaseJob;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Queue of jobs. The lock is held only while jobs are added or taken, never while the thread waits or works.
#[derive(Default)]
pub struct JobQueue {
    inner: Mutex<Inner>,
    /// Wakes the thread.
    work: Condvar,
}

#[derive(Default)]
struct Inner {
    jobs: Vec<DatabaseJob>,
    /// True if the thread has to look whether a fold pass is due.
    is_woken: bool,
    stopping: bool,
    /// The thread has ended.
    ended: bool,
}

/// Jobs that the thread has taken.
pub struct TakenJobs {
    pub jobs: Vec<DatabaseJob>,
    /// True if the thread was not woken during the whole time that it was willing to wait.
    pub is_timeout: bool,
    /// True if the thread must end after these jobs.
    pub stop: bool,
}

impl JobQueue {
    /// Adds a job.
    pub fn send(&self, job: DatabaseJob) {
        self.edit(|inner| {
            if !inner.ended {
                inner.jobs.push(job);
            }
        });
    }

    /// Makes the thread look whether a fold pass is due.
    pub fn wake(&self) {
        self.edit(|inner| inner.is_woken = true);
    }

    /// Makes the thread end after its jobs.
    pub fn stop(&self) {
        self.edit(|inner| inner.stopping = true);
    }

    /// Records that the thread has ended: no job will be done.
    pub fn end(&self) {
        self.edit(|inner| (inner.ended, inner.jobs) = (true, Vec::new()));
    }

    /// Waits for jobs, for at most `patience`, and takes them.
    pub fn take(&self, patience: Duration) -> TakenJobs {
        let is_waiting = |inner: &mut Inner| inner.jobs.is_empty() && !inner.is_woken && !inner.stopping;
        let waited = self.work.wait_timeout_while(self.lock(), patience, is_waiting);
        let (mut inner, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        inner.is_woken = false;
        TakenJobs { jobs: std::mem::take(&mut inner.jobs), is_timeout: timeout.timed_out(), stop: inner.stopping }
    }

    fn edit(&self, change: impl FnOnce(&mut Inner)) {
        change(&mut self.lock());
        self.work.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
