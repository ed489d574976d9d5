//! Whether an upstream is to get mail, as the administrator has it: how it fares is another matter.

use crate::metrics::UpstreamMetrics;
use std::sync::Arc;
use tokio::sync::watch;

/// What an upstream is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It gets mail.
    Enabled,
    /// It gets no new mail for the time being.
    Disabled,
    /// It is configured no more, or otherwise: what is under way is its last.
    Removed,
}

/// What one upstream is there for, and with it whether Prometheus is told that it is of use. The lock is the watch's own, held to look
/// at what it guards or to replace it.
pub struct AdminState {
    now: watch::Sender<Use>,
    metrics: Arc<UpstreamMetrics>,
}

impl AdminState {
    pub fn new(is_enabled: bool, metrics: Arc<UpstreamMetrics>) -> Self {
        Self { now: watch::Sender::new(if is_enabled { Use::Enabled } else { Use::Disabled }), metrics }
    }

    pub fn is_enabled(&self) -> bool {
        *self.now.borrow() == Use::Enabled
    }

    /// True: it was there for something else until now.
    pub fn set(&self, to: Use) -> bool {
        self.now.send_if_modified(|now| {
            let is_news = *now != to;
            *now = to;
            self.metrics.up.set(0);
            is_news
        })
    }

    /// Tells Prometheus whether it is well; one that is not enabled counts as not. Asked with the lock held, so that who comes last
    /// is who knows best.
    pub fn show(&self, is_well: impl FnOnce() -> bool) {
        self.now.send_if_modified(|now| {
            if *now == Use::Enabled {
                self.metrics.up.set(is_well().into());
            }
            false
        });
    }

    /// Waits until it is not there for this, and tells for what it is.
    pub async fn until_not(&self, this: Use) -> Use {
        let mut changes = self.now.subscribe();
        // The sender is here, so it is not gone.
        changes.wait_for(|now| *now != this).await.map_or(Use::Removed, |now| *now)
    }
}
