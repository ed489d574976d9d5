//! How often somebody is told of one budget: a process remembers it as long as it lasts.

use crate::policy::Budget;
use crate::policy::key::Key;
use crate::policy::verdict::Notice;
use crate::time::Timestamp;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What has gone out.
#[derive(Default)]
pub struct NotificationThrottle {
    /// By notification and limit, and the budget that was full. The lock is held to look one up and to change it.
    sent: Mutex<HashMap<Named, Budget>>,
}

type Named = (Arc<str>, Arc<str>, Option<Key>);

/// So many budgets are remembered. Beyond that the one that was told of longest ago is forgotten, and somebody is told once too often.
const MOST: usize = 10_000;

impl NotificationThrottle {
    /// Whether a notice may go out now; if so, it does.
    pub fn lets_out(&self, notice: &Notice, now: Timestamp) -> bool {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (notice.notification.name.clone(), notice.limit.clone(), notice.key.clone());
        let former = sent.get(&name);
        let Some(budget) = notice.notification.goes_out(former, now) else { return false };
        if sent.len() >= MOST && former.is_none() {
            let oldest = sent.iter().min_by_key(|(_, budget)| budget.state.at).map(|(name, _)| name.clone());
            oldest.and_then(|oldest| sent.remove(&oldest));
        }
        sent.insert(name, budget);
        true
    }
}
