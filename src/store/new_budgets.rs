//! Maximum number of new budgets for keys that clients can choose freely, such as senders. Each limit has a token
//! bucket in memory for its new budgets.

use crate::policy::budgets::Key;
use crate::policy::{MaxNewBudgets, NewBudget};
use crate::time::Timestamp;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Token buckets, one for each limit. Each new budget takes one token. The lock is held only while tokens are counted,
/// never while a thread waits.
#[derive(Default)]
pub struct NewBudgets {
    /// Token buckets. The key is the prefix that all keys of a limit's budgets have.
    allowances: Mutex<HashMap<Box<str>, Allowance>>,
}

/// Token bucket of one limit.
struct Allowance {
    left: f64,
    at: Timestamp,
    /// Time when it was last logged that the bucket is empty.
    last_logged: Option<Timestamp>,
}

/// New key that does not get its own budget, because the limit has no token left.
#[derive(Debug)]
pub struct Excess {
    pub limit: Arc<str>,
    pub key: Key,
    /// True if this event must be logged, because nothing was logged about this limit in the last hour.
    pub is_to_be_logged: bool,
}

/// Time in which a limit is allowed to create the configured number of new budgets.
const HOUR: Duration = Duration::from_secs(3_600);

impl NewBudgets {
    /// Takes one token for each budget that is about to be created. If a limit has no token left, takes no tokens at
    /// all, and returns the keys that cannot get a budget.
    pub fn reserve(
        &self,
        unknown: &[NewBudget<'_>],
        MaxNewBudgets(max): MaxNewBudgets,
        now: Timestamp,
    ) -> Result<(), Vec<Excess>> {
        if unknown.is_empty() {
            return Ok(());
        }
        let mut allowances = self.lock();
        let mut excess = Vec::new();
        let (mut taken, max) = (Vec::new(), f64::from(max));
        for NewBudget { limit, key, .. } in unknown {
            if !allowances.contains_key(limit.prefix()) {
                allowances.insert(limit.prefix().into(), Allowance { left: max, at: now, last_logged: None });
            }
            let Some(allowance) = allowances.get_mut(limit.prefix()) else { continue };
            allowance.fill(max, now);
            if allowance.left >= 1.0 {
                allowance.left -= 1.0;
                taken.push(limit.prefix());
                continue;
            }
            let is_to_be_logged = allowance.last_logged.is_none_or(|last_logged| now.since(last_logged) >= HOUR);
            if is_to_be_logged {
                allowance.last_logged = Some(now);
            }
            excess.push(Excess { limit: limit.name.clone(), key: key.owned(), is_to_be_logged });
        }
        if excess.is_empty() {
            return Ok(());
        }
        taken.into_iter().for_each(|prefix| give_back(&mut allowances, prefix));
        Err(excess)
    }

    /// Puts tokens back into the buckets, because the budgets for these tokens were not created.
    pub fn give_back<'a>(&self, unused: impl Iterator<Item = &'a NewBudget<'a>>) {
        let mut unused = unused.peekable();
        if unused.peek().is_some() {
            let mut allowances = self.lock();
            unused.for_each(|unknown| give_back(&mut allowances, unknown.limit.prefix()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Allowance>> {
        self.allowances.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn give_back(allowances: &mut HashMap<Box<str>, Allowance>, prefix: &str) {
    if let Some(allowance) = allowances.get_mut(prefix) {
        allowance.left += 1.0;
    }
}

impl Allowance {
    /// Adds the tokens for the time since the last call. `max` is the number of tokens per hour, and the size of the
    /// bucket. It may have changed since the last call.
    fn fill(&mut self, max: f64, now: Timestamp) {
        let new = max * now.since(self.at).as_secs_f64() / HOUR.as_secs_f64();
        self.left = (self.left + new).min(max);
        self.at = now;
    }
}
