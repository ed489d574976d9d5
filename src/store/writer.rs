//! The one thread that writes the state file: group commits to the journal, folded into the budgets in small slices.

use super::entry;
use super::file::{File, OpenError};
use super::hot::{Attempt, Batch, Hot, Work};
use crate::metrics::Metrics;
use crate::policy::Budget;
use crate::policy::key::Key;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A handle on the writer's thread.
pub struct Writer {
    hot: Arc<Hot>,
    thread: JoinHandle<()>,
}

/// Frees whoever waits for the writer, however it ends.
struct Ending(Arc<Hot>);

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.note(Attempt::Append, Err("the writer ended by a fault of Weir's own".to_owned()));
        }
        self.0.writer_ended();
    }
}

/// What the thread keeps.
struct Task {
    file: File,
    hot: Arc<Hot>,
    metrics: Arc<Metrics>,
    /// Changes that are in the journal and not in the budgets table.
    unfolded: HashMap<Key, Budget>,
    /// Changes that could not be written yet.
    unsaved: HashMap<Key, Budget>,
    journal_bytes: usize,
    /// The journal is folded when it has grown beyond this: later, after a fold that failed.
    fold_at: usize,
    /// When budgets that could not be read were last tried again.
    tried: Instant,
    /// The last batch taken, and the last that is in the journal.
    taken: u64,
    committed: u64,
}

/// Rows folded in one transaction: commits wait for no more than that.
const SLICE: usize = 500;

/// The journal is folded when it has grown by this much, or when nothing has happened for a while.
const MAX_JOURNAL: usize = 4 << 20;
const IDLE: Duration = Duration::from_secs(1);

impl Writer {
    pub fn start(file: File, hot: Arc<Hot>, metrics: Arc<Metrics>) -> Result<Self, OpenError> {
        let mut task = Task {
            file,
            hot: hot.clone(),
            metrics,
            unfolded: HashMap::new(),
            unsaved: HashMap::new(),
            journal_bytes: 0,
            fold_at: MAX_JOURNAL,
            tried: Instant::now(),
            taken: 0,
            committed: 0,
        };
        let thread = std::thread::Builder::new().name("weir-state".to_owned()).spawn(move || {
            let _ending = Ending(task.hot.clone());
            task.run();
        });
        Ok(Self { hot, thread: thread.map_err(OpenError::Thread)? })
    }

    /// Ends the thread after its last commit. Blocks.
    pub fn stop(self) {
        self.hot.stop();
        let _ = self.thread.join();
    }
}

impl Task {
    fn run(&mut self) {
        loop {
            match self.hot.next_work(IDLE) {
                Work::Commit(batch) => {
                    self.commit(batch);
                    // Where there is always something to commit, nothing is ever idle.
                    if self.tried.elapsed() > IDLE {
                        self.load_unread();
                    }
                }
                Work::Idle => self.settle(),
                Work::Stop => break,
            }
            if self.journal_bytes > self.fold_at {
                self.fold();
            }
        }
        self.settle();
        // What was counted while the file could not be read may only now have found its place.
        if let Work::Commit(batch) = self.hot.next_work(Duration::ZERO) {
            self.commit(batch);
            self.settle();
        }
        let unsaved = self.unsaved.len() + self.hot.unread().len();
        if unsaved > 0 {
            tracing::error!(budgets = unsaved, "stopping with charges that could not be written: they are lost");
        }
    }

    fn commit(&mut self, batch: Batch) {
        self.unsaved.extend(batch.changes);
        self.taken = batch.number;
        self.save();
        // Whether it is in the file or not: mail flows, and the store says that it is degraded.
        for waiting in batch.waiting {
            let _ = waiting.send(());
        }
    }

    /// Writes what is unsaved as one entry. When that fails it stays, to be written with the next.
    fn save(&mut self) {
        let mut bytes = Vec::new();
        self.unsaved.iter().for_each(|(key, budget)| entry::write(&mut bytes, key, budget));
        match self.file.append(&bytes) {
            Ok(()) => {
                self.unfolded.extend(self.unsaved.drain());
                self.journal_bytes += bytes.len();
                self.committed = self.taken;
                self.note(Attempt::Append, Ok(()));
            }
            Err(error) => self.note(Attempt::Append, Err(error)),
        }
    }

    /// Nothing is going on: tries again what failed, and folds.
    fn settle(&mut self) {
        if !self.unsaved.is_empty() {
            self.save();
        }
        if self.journal_bytes > 0 {
            self.fold();
        }
        self.load_unread();
        self.metrics.budgets.set(i64::try_from(self.hot.len()).unwrap_or(i64::MAX));
    }

    /// Brings the budgets table up to date and empties the journal. Between slices, commits go on.
    fn fold(&mut self) {
        let (upto, last, bytes) = (self.committed, self.file.last_entry(), self.journal_bytes);
        let rows: Vec<(Key, Budget)> = std::mem::take(&mut self.unfolded).into_iter().collect();
        let mut folded = 0;
        for slice in rows.chunks(SLICE) {
            if let Err(error) = self.file.fold(slice) {
                self.note(Attempt::Fold, Err(error));
                break;
            }
            folded += slice.len();
            if let Work::Commit(batch) = self.hot.next_work(Duration::ZERO) {
                self.commit(batch);
            }
        }
        let rest = &rows[folded..];
        if !rest.is_empty() {
            // What could not be folded stays in the journal, and here unless it has changed since.
            for (key, budget) in rest {
                self.unfolded.entry(key.clone()).or_insert_with(|| budget.clone());
            }
            self.fold_at = self.journal_bytes + MAX_JOURNAL;
            return;
        }
        let discarded = self.file.discard(last);
        if discarded.is_ok() {
            self.journal_bytes -= bytes;
            self.hot.folded(upto);
        }
        self.fold_at = MAX_JOURNAL;
        self.note(Attempt::Fold, discarded);
    }

    /// Tries again what could not be read.
    fn load_unread(&mut self) {
        self.tried = Instant::now();
        for key in self.hot.unread() {
            match self.file.load(&key) {
                Ok(stored) => self.hot.loaded(&key, stored),
                Err(error) => return self.note(Attempt::Load, Err(error)),
            }
        }
        self.note(Attempt::Load, Ok(()));
    }

    fn note(&self, attempt: Attempt, outcome: rusqlite::Result<()>) {
        let degraded = self.hot.note(attempt, outcome.map_err(|error| error.to_string()));
        self.metrics.state_degraded.set(degraded.into());
    }
}
