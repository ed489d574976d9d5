//! The writers of the state file: the only parts of Weir that write to it.
//!
//! A commit appends the changes of transactions to the journal. A session makes a short commit itself
//! ([`commit_now`]); the journal writer makes all others. The database writer later writes ("folds") the changed budgets
//! into the table, a slice of the budgets at a time. Commits do not wait for it, except as [`super::pace`] says.

mod database_writer;
mod folding;
mod journal_writer;
mod notices;
mod pass;
mod queue_ids;
mod refusals;

pub use journal_writer::commit_now;

use super::append_turn::{AppendTurn, RETRY_AFTER};
use super::core::{COMMIT_TIMEOUT, Core, slow_disk};
use super::file::JournalAppender;
use super::health::{Attempt, HealthChange};
use super::recovery::OpenFile;
use database_writer::DatabaseWriter;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Handle on the writers.
pub struct Writer {
    core: Arc<Core>,
    task: JoinHandle<()>,
}

/// Time without work after which a writer is idle.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Guard that ends the waiting of all transactions when the journal writer ends, even if it ends by a panic. The
/// database writer then ends, too.
struct JournalEndGuard(Arc<Core>);

impl Drop for JournalEndGuard {
    fn drop(&mut self) {
        record_panic(&self.0, Attempt::Append, "the writer of the journal");
        self.0.queue.close();
        self.0.jobs.stop();
    }
}

/// Guard that ends all waiting for the database writer when it ends, even if it ends by a panic. Commits continue.
struct DatabaseEndGuard(Arc<Core>);

impl Drop for DatabaseEndGuard {
    fn drop(&mut self) {
        record_panic(&self.0, Attempt::Fold, "the writer of the database");
        self.0.jobs.end();
        self.0.pending_exceptions.give_up();
        self.0.pace.end(None);
    }
}

/// Degrades the health if a writer or a commit ends by a panic. `what` names it.
fn record_panic(core: &Core, attempt: Attempt, what: &str) {
    if std::thread::panicking() {
        core.health.record(attempt, Err(format!("{what} ended by a fault of Weir's own")));
    }
}

impl Writer {
    /// Starts the journal writer in the current async runtime, the thread of the database writer, and the watcher
    /// thread. If `opened` is `None`, the database writer opens the file as soon as that is possible.
    pub fn start(core: Arc<Core>, opened: Option<OpenFile>) -> std::io::Result<Self> {
        let appender = opened.as_ref().map(|opened| JournalAppender::new(opened.journal.clone()));
        core.queue.give_turn(AppendTurn::new(appender));
        let database = DatabaseWriter::new(core.clone(), opened);
        let (watched, runtime) = (core.clone(), Handle::current());
        let watch = move || watch_for_stalls(&watched, &runtime);
        std::thread::Builder::new().name("weir-state-wait".to_owned()).spawn(watch)?;
        let (ending, ended) = oneshot::channel::<()>();
        let ending_guard = DatabaseEndGuard(core.clone());
        let write = move || {
            let _ending = (ending_guard, ending);
            database.run();
        };
        std::thread::Builder::new().name("weir-state-write".to_owned()).spawn(write)?;
        let guard = JournalEndGuard(core.clone());
        let task = tokio::spawn(async move {
            journal_writer::run(&guard.0).await;
            drop(guard);
            // The sender is dropped when the thread ends.
            let _ = ended.await;
        });
        Ok(Self { core, task })
    }

    /// Makes the writers end: the journal writer after its last commit, and then the database writer.
    pub fn stop(self) -> JoinHandle<()> {
        self.core.queue.stop();
        self.core.pace.stop();
        self.task
    }
}

/// Runs the watcher thread: ends the waiting of transactions that have waited for [`COMMIT_TIMEOUT`], because a commit
/// hangs in an access to the disk.
fn watch_for_stalls(core: &Core, runtime: &Handle) {
    while let Some(hanging) = core.queue.wait_for_stall(COMMIT_TIMEOUT) {
        // The thread that hangs perhaps was the one that waits for I/O and for timers. No other thread takes its place
        // before it is woken, and perhaps none of the transactions below still waits.
        runtime.spawn(async {});
        // Set the health before the transactions continue. Log it afterwards, because the log may be on the same disk
        // and hang, too.
        let change = core.health.update(Attempt::Append, Err(slow_disk("no commit")));
        drop(hanging);
        change.into_iter().for_each(HealthChange::log);
    }
}
