//! Background task of an upstream: learns the extensions that the upstream offers, retries the upstream while it is
//! down, and closes idle connections after their timeout.

use super::Upstream;
use super::admin_state::Setting;
use super::capabilities::REFRESH;
use crate::relay::error::RelayError;
use crate::smtp::extensions::Extensions;
use std::time::Duration;
use tokio::time::Instant;

/// Interval at which idle connections are checked for their timeout.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Pause before the next probe if a probe failed while the upstream is well. In this case mail probably uses all
/// connections that the upstream accepts.
const PROBE_PAUSE: Duration = Duration::from_secs(10);

impl Upstream {
    /// Runs the background task until the upstream is removed. While the upstream is enabled, the task learns its
    /// extensions if no connection for mail has shown them lately. It retries the upstream while it is down, and closes
    /// idle connections after their timeout.
    pub async fn maintain(&self) {
        while self.connector.admin_state().changed_from(Setting::Disabled).await == Setting::Enabled {
            tokio::select! {
                () = self.refresh() => {}
                () = self.sweep() => {}
            }
        }
    }

    /// Probes the upstream when its known extensions are older than [`REFRESH`], and when a retry is due. Returns when
    /// the upstream is no longer enabled.
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

    /// Closes idle connections after their timeout. Never returns.
    async fn sweep(&self) {
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            for connection in self.pool.expired(Instant::now()) {
                self.quit_in_background(connection, None);
            }
        }
    }

    /// Probes the upstream if its known extensions are perhaps wrong.
    pub async fn learn_extensions(&self) {
        if self.capabilities.is_doubtful(Instant::now()) {
            let _one_at_a_time = self.probing.lock().await;
            if self.capabilities.is_doubtful(Instant::now()) {
                let _ = self.probe().await;
            }
        }
    }

    /// Returns whether the known extensions are perhaps wrong, so that the reply to a client's EHLO should wait for
    /// [`Self::learn_extensions`].
    pub fn is_doubtful(&self) -> bool {
        self.capabilities.is_doubtful(Instant::now())
    }

    /// Records that a client has waited for a probe of the extensions, whether the probe succeeded or not.
    pub fn note_probe(&self) {
        self.capabilities.tried(Instant::now());
    }

    /// Probes the upstream: connects, learns the extensions, and disconnects.
    pub async fn probe(&self) -> Result<Extensions, RelayError> {
        let connection = self.connect(None).await?;
        let offered = connection.offered();
        connection.quit().await;
        Ok(offered)
    }
}
