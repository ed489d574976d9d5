//! Administrator's setting for an upstream: enabled, disabled or removed. It does not depend on the upstream's health.

use crate::metrics::UpstreamMetrics;
use std::sync::Arc;
use tokio::sync::watch;

/// The administrator's setting for an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The upstream gets mail.
    Enabled,
    /// The upstream gets no new mail until it is enabled again.
    Disabled,
    /// The upstream was removed from the configuration, or replaced by an upstream with other settings. It only
    /// finishes transactions that have begun.
    Removed,
}

/// The setting of one upstream, and the upstream's `up` metric, which is 0 unless the upstream is enabled. The lock
/// inside the watch channel is held to read or replace the setting.
pub struct AdminState {
    now: watch::Sender<Setting>,
    metrics: Arc<UpstreamMetrics>,
}

impl AdminState {
    pub fn new(is_enabled: bool, metrics: Arc<UpstreamMetrics>) -> Self {
        Self { now: watch::Sender::new(if is_enabled { Setting::Enabled } else { Setting::Disabled }), metrics }
    }

    pub fn is_enabled(&self) -> bool {
        *self.now.borrow() == Setting::Enabled
    }

    /// Changes the setting, and sets the `up` metric to 0. Returns whether the setting has changed.
    pub fn set(&self, to: Setting) -> bool {
        self.now.send_if_modified(|now| {
            let is_news = *now != to;
            *now = to;
            self.metrics.up.set(0);
            is_news
        })
    }

    /// Sets the `up` metric to the result of `is_well`, if the upstream is enabled. `is_well` is called while the lock
    /// is held. So the last thread to set the metric has also read the newest health.
    pub fn update_metric(&self, is_well: impl FnOnce() -> bool) {
        self.now.send_if_modified(|now| {
            if *now == Setting::Enabled {
                self.metrics.up.set(is_well().into());
            }
            false
        });
    }

    /// Waits until the setting differs from `this`. Returns the setting.
    pub async fn changed_from(&self, this: Setting) -> Setting {
        let mut changes = self.now.subscribe();
        // This cannot fail: `self` holds the sender, so the channel is open.
        changes.wait_for(|now| *now != this).await.map_or(Setting::Removed, |now| *now)
    }
}
