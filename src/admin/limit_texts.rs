//! Explanations of the limits in force, and the last counts of their budgets. The daemon gives the explanations with each
//! configuration: the administration itself does not read the configuration.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Explanations of all limits.
#[derive(Clone, Debug, Default)]
pub struct LimitTexts {
    /// The configuration file with the limits.
    pub file: PathBuf,
    /// Explanations by the limits' names.
    pub limits: HashMap<String, LimitText>,
}

/// Explanation of a limit.
#[derive(Clone, Debug, Default)]
pub struct LimitText {
    pub sentence: String,
    /// Consequences of the limit, a sentence each.
    pub details: Vec<String>,
}

impl LimitTexts {
    /// Returns the explanation of a limit. It is empty while a reload has replaced the limits, but not yet the
    /// explanations.
    pub fn of(&self, limit: &str) -> LimitText {
        self.limits.get(limit).cloned().unwrap_or_default()
    }
}

/// Explanations of the configuration in force. A clone refers to the same explanations.
#[derive(Clone, Default)]
pub struct CurrentLimitTexts {
    /// The lock is held to replace or clone the reference, never across an `.await`.
    texts: Arc<Mutex<Arc<LimitTexts>>>,
}

impl CurrentLimitTexts {
    pub fn set(&self, texts: LimitTexts) {
        *self.texts.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(texts);
    }

    pub fn get(&self) -> Arc<LimitTexts> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
