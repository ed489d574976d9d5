//! Permit to count outcomes of deliveries.

use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// Permit to count outcomes of deliveries.
#[derive(Default)]
pub struct OutcomePermits {
    /// Two parties that count at once could count an outcome twice. The lock is held while the state file is read and
    /// written.
    counting: Mutex<()>,
}

/// Maximum time until the outcomes of others have been counted.
const COUNTING_TIMEOUT: Duration = Duration::from_secs(60);

impl OutcomePermits {
    /// Waits for the permit to count outcomes. Returns an error with the reason if this takes too long.
    pub(super) async fn count(&self) -> Result<MutexGuard<'_, ()>, String> {
        let permit = tokio::time::timeout(COUNTING_TIMEOUT, self.counting.lock()).await;
        permit.map_err(|_| "too many outcomes wait to be counted".to_owned())
    }
}
