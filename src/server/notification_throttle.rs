//! Throttle of notifications: how often administrators are told of one budget. Lives in memory, as long as the process.

use crate::bounded_map::BoundedMap;
use crate::policy::budgets::{Budget, Key};
use crate::policy::verdict::Notice;
use crate::time::Timestamp;
use std::sync::{Arc, Mutex, PoisonError};

/// Notifications that have gone out.
#[derive(Default)]
pub struct NotificationThrottle {
    /// By notification, limit and key of the full budget. The lock is held for one look-up and change.
    sent: Mutex<BoundedMap<Name, Budget, MAX_BUDGETS>>,
}

type Name = (Arc<str>, Arc<str>, Option<Key>);

/// Maximum budgets in memory. Beyond that the one with the oldest notification is evicted, and may be notified once too
/// often.
const MAX_BUDGETS: usize = 10_000;

impl NotificationThrottle {
    /// Returns whether a notification may go out now. If so, counts it as sent.
    pub fn permits(&self, notice: &Notice, now: Timestamp) -> bool {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (notice.notification.name.clone(), notice.limit.clone(), notice.key.clone());
        let Some(budget) = notice.notification.goes_out(sent.get(&name), now) else { return false };
        sent.insert(name, budget, |budget| budget.state.at);
        true
    }
}
