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
    PendingExceptions,
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
pub struct HealthMonitor {
    reasons: Mutex<BTreeMap<Attempt, String>>,
    any: AtomicBool,
    writing: AtomicBool,
    metrics: Arc<Metrics>,
}

/// What there is to be said about them.
pub enum News {
    Degraded(String),
    Further(String),
    Recovered,
}

impl News {
    pub fn log(self) {
        match self {
            Self::Degraded(reason) => tracing::error!(reason, "state degraded"),
            Self::Further(reason) => tracing::error!(reason, "state degraded further"),
            Self::Recovered => tracing::info!("state recovered"),
        }
    }
}

impl HealthMonitor {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { reasons: Mutex::default(), any: AtomicBool::new(false), writing: AtomicBool::new(false), metrics }
    }

    /// Notes how an attempt went. The first failure and the last success are logged.
    pub fn note(&self, attempt: Attempt, outcome: Result<(), String>) {
        self.set(attempt, outcome).into_iter().for_each(News::log);
    }

    /// The same, but for the log, which may hang.
    pub fn set(&self, attempt: Attempt, outcome: Result<(), String>) -> Option<News> {
        // The common case costs no lock.
        if outcome.is_ok() && !self.any() {
            return None;
        }
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        let was_good = reasons.is_empty();
        let news = match outcome {
            Ok(()) => {
                reasons.remove(&attempt);
                (!was_good && reasons.is_empty()).then_some(News::Recovered)
            }
            Err(reason) => match reasons.insert(attempt, reason.clone()) {
                None if was_good => Some(News::Degraded(reason)),
                None => Some(News::Further(reason)),
                Some(_) => None,
            },
        };
        self.any.store(!reasons.is_empty(), Ordering::Relaxed);
        self.writing.store(WRITING.iter().any(|attempt| reasons.contains_key(attempt)), Ordering::Relaxed);
        self.metrics.state_degraded.set((!reasons.is_empty()).into());
        news
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
