//! Background task of an upstream: learns its extensions, retries it when it is down, and closes idle connections after
//! their timeout.

use super::Upstream;
use super::admin_state::Setting;
use super::capabilities::REFRESH;
use crate::relay::error::RelayError;
use crate::smtp::extensions::Extensions;
use std::time::Duration;
use tokio::time::Instant;

/// Interval at which idle connections are checked for their timeout.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Pause before the next probe if mail uses all connections.
const PROBE_PAUSE: Duration = Duration::from_secs(10);

impl Upstream {
    /// Maintains the upstream until it is removed, while it is enabled: learns the extensions if clients' connections
    /// do not; retries when it is down; closes idle connections after their timeout.
    pub async fn maintain(&self) {
        while self.connector.admin_state().changed_from(Setting::Disabled).await == Setting::Enabled {
            tokio::select! {
                () = self.refresh() => {}
                () = self.sweep() => {}
            }
        }
    }

    /// Probes the upstream when its extensions are old and when a retry is due; returns when it is no longer enabled.
    async fn refresh(&self) {
        loop {
            let fresh_for = REFRESH.saturating_sub(self.capabilities.get().map_or(REFRESH, |known| known.at.elapsed()));
            tokio::select! {
                _ = self.connector.admin_state().changed_from(Setting::Enabled) => return,
                () = self.health.retry() => {}
                () = tokio::time::sleep(fresh_for), if self.health.is_well() => {}
            }
            let one_at_a_time = self.probing.lock().await;
            let is_known = self.capabilities.get().is_some_and(|known| known.at.elapsed() < REFRESH);
            if (!is_known || !self.health.is_well()) && self.probe().await.is_err() && self.health.is_well() {
                drop(one_at_a_time);
                tokio::time::sleep(PROBE_PAUSE).await;
            }
        }
    }

    /// Closes idle connections after their timeout; never returns.
    async fn sweep(&self) {
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            for connection in self.pool.expired(Instant::now()) {
                self.quit_in_background(connection, None);
            }
        }
    }

    /// Probes the extensions, if they are in doubt.
    pub async fn learn_extensions(&self) {
        if self.capabilities.is_doubtful(Instant::now()) {
            let _one_at_a_time = self.probing.lock().await;
            if self.capabilities.is_doubtful(Instant::now()) {
                let _ = self.probe().await;
            }
        }
    }

    /// Returns whether a client should wait for [`Self::learn_extensions`].
    pub fn is_doubtful(&self) -> bool {
        self.capabilities.is_doubtful(Instant::now())
    }

    /// Notes that clients have waited for the extensions, successfully or not.
    pub fn note_probe(&self) {
        self.capabilities.tried(Instant::now());
    }

    /// Connects to learn the extensions, and disconnects.
    pub async fn probe(&self) -> Result<Extensions, RelayError> {
        let connection = self.connect(None).await?;
        let offered = connection.offered();
        connection.quit().await;
        Ok(offered)
    }
}
