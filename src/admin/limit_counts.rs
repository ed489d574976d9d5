//! Numbers of the limits' budgets in memory, and of those that are nearly full.

use crate::policy::{BudgetViews, Policy};
use crate::store::Store;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// Numbers of a limit's budgets in memory. A budget that was not used for long is in the state file alone, and is not
/// counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BudgetCounts {
    pub in_memory: u64,
    /// Budgets whose level is 80 % of the limit or more; null if the quota is a share of the mail.
    pub near: Option<u64>,
    /// Budgets in which not even one more unit passes; null if the quota is a share of the mail.
    pub full: Option<u64>,
}

/// Part of the limit from which a budget counts as nearly full.
const NEAR: f64 = 0.8;

/// Counts by the names of the limits.
pub type Counts = HashMap<Arc<str>, BudgetCounts>;

/// Bounds of the time for which counts are good enough.
const MIN_AGE: Duration = Duration::from_millis(500);
const MAX_AGE: Duration = Duration::from_secs(10);

/// Counts are good enough for this many times the time that the count took. A count reads all budgets in memory, so pages
/// that are open in many browsers must not each cause one.
const AGE_PER_COST: u32 = 50;

/// The last counts.
#[derive(Default)]
pub struct LimitCounts {
    /// The lock is held to replace or clone the last counts, never across an `.await`.
    last: Mutex<Option<LastCounts>>,
}

#[derive(Clone)]
struct LastCounts {
    at: Timestamp,
    /// Time for which the counts are good enough.
    age: Duration,
    counts: Arc<Counts>,
}

impl Default for BudgetCounts {
    fn default() -> Self {
        Self { in_memory: 0, near: Some(0), full: Some(0) }
    }
}

impl BudgetCounts {
    fn add(&mut self, other: &Self) {
        let sum = |one: Option<u64>, other: Option<u64>| one.zip(other).map(|(one, other)| one + other);
        self.in_memory += other.in_memory;
        self.near = sum(self.near, other.near);
        self.full = sum(self.full, other.full);
    }
}

impl LimitCounts {
    /// Returns the counts at `now`, or those of the last seconds.
    pub async fn at(&self, store: &Store, policy: &Policy, now: Timestamp) -> Arc<Counts> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // If the clock was set back, the last counts are not of the last seconds.
        if let Some(last) = last.filter(|last| last.at <= now && now.since(last.at) < last.age) {
            return last.counts;
        }
        let began = Instant::now();
        let counts = Arc::new(count(store, policy, now).await);
        let age = (AGE_PER_COST * began.elapsed()).clamp(MIN_AGE, MAX_AGE);
        let last = LastCounts { at: now, age, counts: counts.clone() };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
        counts
    }
}

/// Counts the budgets in memory of all limits.
async fn count(store: &Store, policy: &Policy, now: Timestamp) -> Counts {
    let views = BudgetViews::new(policy, now);
    let mut counts = vec![BudgetCounts::default(); policy.limits.len()];
    store
        .scan_budgets(|key, state| {
            let Some(view) = views.of(key, None) else { return };
            let is_full = view.is_full(state, now);
            let is_near = is_full.map(|is_full| is_full || view.fullness(state, now) >= NEAR);
            if let Some(counts) = counts.get_mut(view.index) {
                counts.add(&BudgetCounts { in_memory: 1, near: is_near.map(u64::from), full: is_full.map(u64::from) });
            }
        })
        .await;
    let mut of_name = Counts::new();
    for (limit, counts) in policy.limits.iter().zip(&counts) {
        of_name.entry(limit.name.clone()).or_default().add(counts);
    }
    of_name
}
