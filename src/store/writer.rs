//! The writers of the state file: the only parts of Weir that write to it.
//!
//! The journal writer appends the changes of many transactions to the journal, in one commit. The database writer later
//! writes ("folds") the changed budgets into the table, a slice of the budgets at a time. Commits do not wait for it,
//! except as [`Pace`] says.

mod database_writer;
mod folding;
mod journal_writer;
mod notices;
mod pace;
mod pass;
mod queue_ids;
mod refusals;

use super::core::{COMMIT_TIMEOUT, Core, slow_disk};
use super::file::JournalAppender;
use super::health::{Attempt, HealthChange};
use super::recovery::OpenFile;
use database_writer::DatabaseWriter;
use journal_writer::JournalWriter;
use pace::Pace;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Handle on the writers.
pub struct Writer {
    core: Arc<Core>,
    pace: Arc<Pace>,
    task: JoinHandle<()>,
}

/// Time without work after which a writer is idle.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Time after which an attempt that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Guard that ends the waiting of all transactions when the journal writer ends, even if it ends by a panic. The
/// database writer then ends, too.
struct JournalEndGuard(Arc<Core>);

impl Drop for JournalEndGuard {
    fn drop(&mut self) {
        record_panic(&self.0, Attempt::Append, "journal");
        self.0.queue.close();
        self.0.jobs.stop();
    }
}

/// Guard that ends all waiting for the database writer when it ends, even if it ends by a panic. Commits continue.
struct DatabaseEndGuard(Arc<Core>, Arc<Pace>);

impl Drop for DatabaseEndGuard {
    fn drop(&mut self) {
        record_panic(&self.0, Attempt::Fold, "database");
        self.0.jobs.end();
        self.0.pending_exceptions.give_up();
        self.1.end(None);
    }
}

/// Degrades the health if the writer of this part of the state file ends by a panic.
fn record_panic(core: &Core, attempt: Attempt, part: &str) {
    if std::thread::panicking() {
        core.health.record(attempt, Err(format!("the writer of the {part} ended by a fault of Weir's own")));
    }
}

impl Writer {
    /// Starts the journal writer in the current async runtime, the thread of the database writer, and the watcher
    /// thread. If `opened` is `None`, the database writer opens the file as soon as that is possible.
    pub fn start(core: Arc<Core>, opened: Option<OpenFile>) -> std::io::Result<Self> {
        let pace = Arc::new(Pace::new());
        let appender = opened.as_ref().map(|opened| JournalAppender::new(opened.journal.clone()));
        let mut journal = JournalWriter::new(core.clone(), pace.clone(), appender);
        let database = DatabaseWriter::new(core.clone(), pace.clone(), opened);
        let (watched, runtime) = (core.clone(), Handle::current());
        let watch = move || watch_for_stalls(&watched, &runtime);
        std::thread::Builder::new().name("weir-state-wait".to_owned()).spawn(watch)?;
        let (ending, ended) = oneshot::channel::<()>();
        let ending_guard = DatabaseEndGuard(core.clone(), pace.clone());
        let write = move || {
            let _ending = (ending_guard, ending);
            database.run();
        };
        std::thread::Builder::new().name("weir-state-write".to_owned()).spawn(write)?;
        let guard = JournalEndGuard(core.clone());
        let task = tokio::spawn(async move {
            journal.run().await;
            drop(guard);
            // The sender is dropped when the thread ends.
            let _ = ended.await;
        });
        Ok(Self { core, pace, task })
    }

    /// Makes the writers end: the journal writer after its last commit, and then the database writer.
    pub fn stop(self) -> JoinHandle<()> {
        self.core.queue.stop();
        self.pace.stop();
        self.task
    }
}

/// Runs the watcher thread: ends the waiting of transactions that have waited for [`COMMIT_TIMEOUT`], because the
/// journal writer hangs in an access to the disk.
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
