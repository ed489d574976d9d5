//! Permits to count outcomes of deliveries, and to take reports.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore};

/// Permits to count outcomes of deliveries, and to take reports.
pub struct OutcomePermits {
    /// Two parties that count at once could count an outcome twice. The lock is held while the state file is read and
    /// written.
    counting: Mutex<()>,
    /// Reports are read one at a time: a report of many short lines takes some fifty times its octets.
    reading: Mutex<()>,
    reports: Arc<Semaphore>,
}

/// Maximum number of reports that arrive at once. Strangers can send reports, so this bounds the memory: each takes at
/// most 1 MiB.
const MAX_REPORTS: usize = 32;

/// Maximum time until the outcomes of others have been counted.
const COUNTING_TIMEOUT: Duration = Duration::from_secs(60);

impl Default for OutcomePermits {
    fn default() -> Self {
        Self { counting: Mutex::default(), reading: Mutex::default(), reports: Arc::new(Semaphore::new(MAX_REPORTS)) }
    }
}

impl OutcomePermits {
    /// Waits for the permit to count outcomes. Returns an error with the reason if this takes too long.
    pub(super) async fn count(&self) -> Result<MutexGuard<'_, ()>, String> {
        let permit = tokio::time::timeout(COUNTING_TIMEOUT, self.counting.lock()).await;
        permit.map_err(|_| "too many outcomes wait to be counted".to_owned())
    }

    /// Waits for the permit to read a report that has arrived.
    pub(super) async fn read(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().await
    }

    /// Returns a permit to take a report; `None` if too many reports arrive at once.
    pub(super) fn report(&self) -> Option<OwnedSemaphorePermit> {
        self.reports.clone().try_acquire_owned().ok()
    }
}
