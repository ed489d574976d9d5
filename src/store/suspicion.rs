//! Suspicion scores of users, from the points of signs that the store keeps.

use super::Store;
use crate::policy::SuspicionScore;
use crate::time::Timestamp;

impl Store {
    /// Returns the suspicion score of a user. `user` is normalized. The error says why the points cannot be read.
    pub async fn suspicion(&self, user: &str, now: Timestamp) -> Result<SuspicionScore, String> {
        let policy = self.policy();
        let budgets = self.look(&policy.sign_keys(user)).await?;
        Ok(policy.suspicion_score(budgets.into_iter().map(|budget| budget.map(|budget| budget.state)), now))
    }
}
