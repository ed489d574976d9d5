//! Where the state of budgets lives: hot in memory, durable in SQLite before any reply that depends on it.
//!
//! [`Store::admit`] is the one act of a stage: load, decide, keep, commit. Decisions are made in memory under one lock; the
//! [`writer`] commits what they changed, many decisions in one transaction.

mod entry;
mod file;
mod hot;
mod writer;

use crate::metrics::Metrics;
use crate::policy::event::Asked;
use crate::policy::key::Key;
use crate::policy::verdict::Verdict;
use crate::policy::{self, Loaded, Policy, Question};
use crate::time::Timestamp;
use file::File;
pub use file::OpenError;
use hot::{Decided, Hot};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use writer::Writer;

/// Where and how to keep state.
#[derive(Clone, Debug)]
pub struct Options {
    pub path: PathBuf,
    pub durability: Durability,
}

/// What an acknowledged charge survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process, however sudden.
    Process,
    /// The end of the power, too: one fsync a commit.
    Power,
}

/// The budgets of all limits.
pub struct Store {
    policy: Policy,
    hot: Arc<Hot>,
    /// For budgets that are not in memory. Held only on threads that may block.
    cold: Arc<Mutex<File>>,
    writer: Writer,
    metrics: Arc<Metrics>,
}

/// How the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Good,
    /// Limits are kept in memory alone, for this reason.
    Degraded(String),
}

impl Store {
    /// Opens the state file, replays its journal and starts the writer.
    pub fn open(options: &Options, policy: Policy, metrics: Arc<Metrics>) -> Result<Self, OpenError> {
        let mut file = File::open(&options.path, options.durability)?;
        file.replay()?;
        let cold = file.reader()?;
        let hot = Arc::new(Hot::default());
        let writer = Writer::start(file, hot.clone(), metrics.clone())?;
        Ok(Self { policy, hot, cold: Arc::new(Mutex::new(cold)), writer, metrics })
    }

    /// Decides a run of events at `now` and charges what passes, as one act. When this returns, the charges are durable, unless the
    /// store is degraded.
    pub async fn admit(&self, now: Timestamp, asked: &Asked) -> Vec<Verdict> {
        let question = Question::new(&self.policy, asked);
        let decide = |now, loaded: &mut Loaded| policy::decide(&self.policy, now, asked, &question, loaded);
        if question.keys().is_empty() {
            return decide(now, &mut Loaded::default());
        }
        let _timer = self.metrics.admit_seconds.start_timer();
        loop {
            match self.hot.decide(now, question.keys(), decide) {
                Decided::Free(verdicts) => return verdicts,
                Decided::Charged(verdicts, commit) => {
                    // An error means that the writer has ended, which is logged: mail flows all the same.
                    let _ = commit.await;
                    return verdicts;
                }
                Decided::Missing { keys, evictions } => self.load(keys, evictions).await,
            }
        }
    }

    pub fn health(&self) -> Health {
        self.hot.health()
    }

    /// Commits what is left, folds the journal and closes the file.
    pub async fn close(self) {
        // Joining the writer's thread blocks.
        let _ = tokio::task::spawn_blocking(move || self.writer.stop()).await;
    }

    async fn load(&self, keys: Vec<Key>, evictions: u64) {
        let cold = self.cold.clone();
        let wanted = keys.clone();
        let read = tokio::task::spawn_blocking(move || {
            let file = cold.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.iter().map(|key| file.load(key)).collect::<Result<Vec<_>, _>>()
        });
        match read.await.map_err(|error| error.to_string()).and_then(|read| read.map_err(|error| error.to_string())) {
            Ok(states) => self.hot.insert(keys.into_iter().zip(states), evictions),
            Err(error) => {
                let degraded = self.hot.insert_unread(keys, format!("budgets cannot be read: {error}"));
                self.metrics.state_degraded.set(degraded.into());
            }
        }
    }
}

#[cfg(test)]
mod tests;
