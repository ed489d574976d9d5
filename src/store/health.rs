//! Health of the state file: its present errors.

use crate::metrics::Metrics;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Health of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Good,
    /// The state file has an error: limits go on, but their counts may not be durable.
    Degraded(String),
}

/// Operation on the file that may fail, and succeed again by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attempt {
    Open,
    /// Finding the file at its path.
    FindFile,
    Append,
    /// Writing pending exceptions and audit records.
    WriteExceptions,
    /// Writing the charges made while the file could not be written.
    CatchUp,
    Fold,
    Load,
    Checkpoint,
    /// Reading the whole file.
    Check,
    /// Holding all budgets in memory.
    HoldInMemory,
}

/// Attempts without which no charge is durable. While one fails, transactions do not wait.
const WRITE_ATTEMPTS: [Attempt; 3] = [Attempt::Open, Attempt::FindFile, Attempt::Append];

/// The present errors. The lock is held to record an outcome, never over anything that waits.
pub struct HealthMonitor {
    reasons: Mutex<BTreeMap<Attempt, String>>,
    is_degraded: AtomicBool,
    is_write_failing: AtomicBool,
    metrics: Arc<Metrics>,
}

/// Change of health, for the log.
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

    /// Records the outcome of an attempt. Logs the first failure and the last recovery.
    pub fn record(&self, attempt: Attempt, outcome: Result<(), String>) {
        self.update(attempt, outcome).into_iter().for_each(HealthChange::log);
    }

    /// Records the outcome without logging, as the log may hang. Returns the change to be logged.
    pub fn update(&self, attempt: Attempt, outcome: Result<(), String>) -> Option<HealthChange> {
        // The common case takes no lock.
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
        self.metrics.state_degraded.set((!reasons.is_empty()).into());
        change
    }

    /// Returns whether any attempt fails at present.
    pub fn is_degraded(&self) -> bool {
        self.is_degraded.load(Ordering::Relaxed)
    }

    /// Returns whether writing fails at present: limits are then kept in memory alone.
    pub fn is_write_failing(&self) -> bool {
        self.is_write_failing.load(Ordering::Relaxed)
    }

    /// Returns the error of an attempt; `None` if it succeeded last.
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
