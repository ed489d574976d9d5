//! Administrator's setting of an upstream: enabled, disabled or removed, whatever its health.

use crate::metrics::UpstreamMetrics;
use std::sync::Arc;
use tokio::sync::watch;

/// The administrator's setting for an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The upstream gets mail.
    Enabled,
    /// The upstream gets no new mail for the time being.
    Disabled,
    /// The upstream was removed from the configuration, or replaced by one with other settings: only mail in progress
    /// goes on.
    Removed,
}

/// The setting of one upstream, which also decides the upstream's `up` metric. The lock is the watch channel's own,
/// held to look at the value or replace it.
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

    /// Returns whether the setting has changed.
    pub fn set(&self, to: Setting) -> bool {
        self.now.send_if_modified(|now| {
            let is_news = *now != to;
            *now = to;
            self.metrics.up.set(0);
            is_news
        })
    }

    /// Sets the `up` metric; 0 unless enabled. `is_well` is called with the lock held, so that the last caller sets the
    /// latest state.
    pub fn update_metric(&self, is_well: impl FnOnce() -> bool) {
        self.now.send_if_modified(|now| {
            if *now == Setting::Enabled {
                self.metrics.up.set(is_well().into());
            }
            false
        });
    }

    /// Waits until the setting differs from `this`; returns the setting.
    pub async fn changed_from(&self, this: Setting) -> Setting {
        let mut changes = self.now.subscribe();
        // `self` holds the sender, so the channel is open.
        changes.wait_for(|now| *now != this).await.map_or(Setting::Removed, |now| *now)
    }
}
