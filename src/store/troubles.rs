//! What is wrong with the state file, if anything is.

use super::Health;
use crate::metrics::Metrics;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What is done with the file, each of which may fail and succeed again by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attempt {
    Open,
    /// The file is still where it was.
    Find,
    Append,
    /// What was done about exceptions is in the file.
    Book,
    /// What was counted while it could not be written is in the file.
    CatchUp,
    Fold,
    Load,
    Checkpoint,
    /// All of it can be read.
    Check,
    /// Budgets have room in memory.
    Hold,
}

/// Where one of these fails, nothing that is charged is durable, and nobody waits for that.
const WRITING: [Attempt; 3] = [Attempt::Open, Attempt::Find, Attempt::Append];

/// The troubles there are now. The lock is held to note one, and never over anything that waits.
pub struct Troubles {
    reasons: Mutex<BTreeMap<Attempt, String>>,
    any: AtomicBool,
    writing: AtomicBool,
    metrics: Arc<Metrics>,
}

impl Troubles {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { reasons: Mutex::default(), any: AtomicBool::new(false), writing: AtomicBool::new(false), metrics }
    }

    /// Notes how an attempt went. The first failure and the last success are logged.
    pub fn note(&self, attempt: Attempt, outcome: Result<(), String>) {
        // The common case costs no lock.
        if outcome.is_ok() && !self.any() {
            return;
        }
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        let was_good = reasons.is_empty();
        match outcome {
            Ok(()) => drop(reasons.remove(&attempt)),
            Err(reason) => {
                if was_good {
                    tracing::error!(reason, "state degraded");
                } else if !reasons.contains_key(&attempt) {
                    tracing::error!(reason, "state degraded further");
                }
                reasons.insert(attempt, reason);
            }
        }
        if !was_good && reasons.is_empty() {
            tracing::info!("state recovered");
        }
        self.any.store(!reasons.is_empty(), Ordering::Relaxed);
        self.writing.store(WRITING.iter().any(|attempt| reasons.contains_key(attempt)), Ordering::Relaxed);
        self.metrics.state_degraded.set((!reasons.is_empty()).into());
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Whether there are any with writing: then limits are kept in memory alone.
    pub fn with_writing(&self) -> bool {
        self.writing.load(Ordering::Relaxed)
    }

    /// What is wrong with an attempt, if anything is.
    pub fn reason(&self, attempt: Attempt) -> Option<String> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).get(&attempt).cloned()
    }

    pub fn health(&self) -> Health {
        let reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        if reasons.is_empty() {
            return Health::Good;
        }
        Health::Degraded(reasons.values().cloned().collect::<Vec<_>>().join("; "))
    }
}
