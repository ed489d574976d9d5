//! Throttle of notifications about one budget. It exists in memory only, so a restart forgets earlier notifications.

use crate::bounded_map::BoundedMap;
use crate::policy::budgets::{Budget, Key};
use crate::policy::verdict::Notice;
use crate::time::Timestamp;
use std::sync::{Arc, Mutex, PoisonError};

/// Notifications that have been sent.
#[derive(Default)]
pub struct NotificationThrottle {
    /// Sent notifications by name of the notification, limit and key of the budget. The lock is held for one look-up
    /// and change.
    sent: Mutex<BoundedMap<Name, Budget, MAX_BUDGETS>>,
}

type Name = (Arc<str>, Arc<str>, Option<Key>);

/// Maximum entries in memory. If there are more, the entry with the oldest notification is removed. Weir then perhaps
/// sends one notification too many about the budget of that entry.
const MAX_BUDGETS: usize = 10_000;

impl NotificationThrottle {
    /// Returns whether a notification is permitted now. If so, counts it as sent.
    pub fn permits(&self, notice: &Notice, now: Timestamp) -> bool {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (notice.notification.name.clone(), notice.limit.clone(), notice.key.clone());
        let Some(budget) = notice.notification.goes_out(sent.get(&name), now) else { return false };
        sent.insert(name, budget, |budget| budget.state.at);
        true
    }
}
