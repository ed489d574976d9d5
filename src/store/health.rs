//! Health of the store: the present errors of the state file.

use crate::metrics::Metrics;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Health of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Good,
    /// The state file, or Redis, has an error. Limits are still enforced, but their counts may not be durable.
    Degraded(String),
}

/// Operation on the state file that can fail, and can later succeed again without an administrator's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attempt {
    Open,
    /// Finding at the configured path the same file that was opened.
    FindFile,
    Append,
    /// Writing changed exceptions and audit records.
    WriteExceptions,
    /// Writing the charges made while the file could not be written.
    CatchUp,
    Fold,
    Load,
    Checkpoint,
    /// Reading the whole file.
    Check,
    /// Sharing budgets with other nodes.
    Share,
    /// Holding all budgets in memory.
    HoldInMemory,
}

/// Attempts that are necessary for a durable charge. While one of them fails, transactions do not wait for a commit.
const WRITE_ATTEMPTS: [Attempt; 3] = [Attempt::Open, Attempt::FindFile, Attempt::Append];

/// Keeps the present error of each attempt. The lock is held only while an outcome is recorded, never while a thread
/// waits.
pub struct HealthMonitor {
    reasons: Mutex<BTreeMap<Attempt, String>>,
    is_degraded: AtomicBool,
    is_write_failing: AtomicBool,
    metrics: Arc<Metrics>,
}

/// Change of health that is to be logged.
pub enum HealthChange {
    Degraded(String),
    DegradedFurther(String),
    Recovered,
}

impl HealthChange {
    pub fn log(self) {
        match self {
            Self::Degraded(reason) => tracing::error!(reason, "state degraded"),
            Self::DegradedFurther(reason) => tracing::error!(reason, "state degraded further"),
            Self::Recovered => tracing::info!("state recovered"),
        }
    }
}

impl HealthMonitor {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            reasons: Mutex::default(),
            is_degraded: AtomicBool::new(false),
            is_write_failing: AtomicBool::new(false),
            metrics,
        }
    }

    /// Records the outcome of an attempt. Logs when an attempt begins to fail, and when no attempt fails any more.
    pub fn record(&self, attempt: Attempt, outcome: Result<(), String>) {
        self.update(attempt, outcome).into_iter().for_each(HealthChange::log);
    }

    /// Records the outcome of an attempt. Returns the change to be logged, for callers that must not wait for the log
    /// now.
    pub fn update(&self, attempt: Attempt, outcome: Result<(), String>) -> Option<HealthChange> {
        // In the common case no lock is taken.
        if outcome.is_ok() && !self.is_degraded() {
            return None;
        }
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        let was_good = reasons.is_empty();
        let change = match outcome {
            Ok(()) => {
                reasons.remove(&attempt);
                (!was_good && reasons.is_empty()).then_some(HealthChange::Recovered)
            }
            Err(reason) => match reasons.insert(attempt, reason.clone()) {
                None if was_good => Some(HealthChange::Degraded(reason)),
                None => Some(HealthChange::DegradedFurther(reason)),
                Some(_) => None,
            },
        };
        self.is_degraded.store(!reasons.is_empty(), Ordering::Relaxed);
        self.is_write_failing
            .store(WRITE_ATTEMPTS.iter().any(|attempt| reasons.contains_key(attempt)), Ordering::Relaxed);
        self.metrics.state.degraded.set((!reasons.is_empty()).into());
        change
    }

    /// Returns whether any attempt fails at present.
    pub fn is_degraded(&self) -> bool {
        self.is_degraded.load(Ordering::Relaxed)
    }

    /// Returns whether the file cannot be written at present. Budgets are then changed only in memory.
    pub fn is_write_failing(&self) -> bool {
        self.is_write_failing.load(Ordering::Relaxed)
    }

    /// Returns the present error of an attempt; `None` if the attempt does not fail.
    pub fn reason(&self, attempt: Attempt) -> Option<String> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).get(&attempt).cloned()
    }

    pub fn current(&self) -> Health {
        let reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        if reasons.is_empty() {
            return Health::Good;
        }
        Health::Degraded(reasons.values().cloned().collect::<Vec<_>>().join("; "))
    }
}
