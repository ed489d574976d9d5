//! Counters of a session: the counters of its connection, the counters of its current message, and the keys of the
//! budgets that have counted this message.

use super::budget::Budget;
use super::key::{Key, KeyRef};
use foldhash::fast::RandomState;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Counters of a session. They are dropped when the session ends.
#[derive(Clone, Debug, Default)]
pub struct SessionCounters {
    connection: HashMap<Key, Budget, RandomState>,
    message: HashMap<Key, Budget, RandomState>,
    /// Keys of the budgets that have already counted the current message.
    counted: HashSet<Key, RandomState>,
    /// Sum of the delays of the current transaction's replies so far.
    delayed: Duration,
}

impl SessionCounters {
    /// Resets the counters of the message. Called when the message ends, whether it was sent or not.
    pub fn end_message(&mut self) {
        self.message = HashMap::default();
        self.counted = HashSet::default();
        self.delayed = Duration::ZERO;
    }

    pub(in crate::policy) fn delayed(&self) -> Duration {
        self.delayed
    }

    pub(in crate::policy) fn delay(&mut self, more: Duration) {
        self.delayed += more;
    }

    pub(in crate::policy) fn budget(&self, key: KeyRef<'_>) -> Option<Budget> {
        let key = key.as_str();
        self.connection.get(key).or_else(|| self.message.get(key)).cloned()
    }

    pub(in crate::policy) fn keep(&mut self, key: KeyRef<'_>, is_of_message: bool, budget: Budget) {
        let budgets = if is_of_message { &mut self.message } else { &mut self.connection };
        budgets.insert(key.owned(), budget);
    }

    pub(in crate::policy) fn has_counted(&self, key: KeyRef<'_>) -> bool {
        self.counted.contains(key.as_str())
    }

    pub(in crate::policy) fn count(&mut self, key: KeyRef<'_>) {
        self.counted.insert(key.owned());
    }
}
