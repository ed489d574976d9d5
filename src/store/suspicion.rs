//! Suspicion scores of users, from the points of signs that the store keeps.

use super::Store;
use super::cache::SHARDS;
use super::core::Core;
use crate::engine::State;
use crate::policy::budgets::KeyRef;
use crate::policy::{SuspicionClass, SuspicionScore};
use crate::time::Timestamp;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Counter of the users in each class of suspicion, for the metrics.
#[derive(Default)]
pub struct SuspicionCounter {
    /// Time of the last count.
    counted: Option<Instant>,
}

/// Time between two counts. A count looks at the key of each budget in memory.
const INTERVAL: Duration = Duration::from_secs(30);

impl Store {
    /// Returns the suspicion score of a user. `user` is normalized. The error says why the points cannot be read.
    pub async fn suspicion(&self, user: &str, now: Timestamp) -> Result<SuspicionScore, String> {
        let policy = self.policy();
        let budgets = self.look(&policy.sign_keys(user)).await?;
        Ok(policy.suspicion_score(budgets.into_iter().map(|budget| budget.map(|budget| budget.state)), now))
    }
}

impl SuspicionCounter {
    /// Counts the users in each class, if the last count is old. `now`: the time of the last decision.
    pub fn count_if_due(&mut self, core: &Core, now: Timestamp) {
        if self.counted.is_none_or(|counted| counted.elapsed() >= INTERVAL) {
            self.counted = Some(Instant::now());
            count(core, now);
        }
    }
}

/// Counts the users in each class, among the users whose signs are in memory.
fn count(core: &Core, now: Timestamp) {
    let policy = core.policy();
    let mut scores: HashMap<Box<str>, f64> = HashMap::new();
    let mut add = |key: KeyRef<'_>, state: State| {
        let Some((user, points)) = policy.counted_points(key, state, now) else { return };
        match scores.get_mut(user) {
            Some(score) => *score += points,
            None => drop(scores.insert(user.into(), points)),
        }
    };
    if !policy.signs().is_empty() {
        core.shared.iter().for_each(|shared| shared.for_each(&mut add));
        (0..SHARDS).for_each(|index| core.cache.for_each_in_shard(index, &mut add));
    }
    let classes: Vec<SuspicionClass> = scores.into_values().filter_map(|score| policy.suspicion.class(score)).collect();
    for class in SuspicionClass::ALL {
        let users = classes.iter().filter(|reached| **reached >= class).count();
        let users = i64::try_from(users).unwrap_or(i64::MAX);
        core.metrics.suspicion.users.with_label_values(&[class.name()]).set(users);
    }
}
