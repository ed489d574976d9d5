//! Signal to a connection that it should end: the server stops, or the connection is evicted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// Signal to a connection that it should end.
#[derive(Clone)]
pub struct Stop {
    /// If true, sessions outside a transaction end.
    pub drain: watch::Receiver<bool>,
    /// If true, sessions in a transaction end, too, except sessions that wait for the upstream's reply to the whole
    /// message.
    pub cut: watch::Receiver<bool>,
    /// If true, the connection is closed to make room for another connection.
    pub is_evicted: Arc<AtomicBool>,
}

impl Stop {
    /// Waits until the session should end. A session in a transaction waits for `cut`. Other sessions wait for `cut` or
    /// `drain`.
    pub async fn may_end(&mut self, in_transaction: bool) {
        tokio::select! {
            () = is_true(&mut self.cut) => {}
            () = is_true(&mut self.drain), if !in_transaction => {}
        }
    }

    /// Returns whether the connection is closed to make room for another connection.
    pub fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Acquire)
    }
}

/// Waits until the signal becomes true.
pub async fn is_true(signal: &mut watch::Receiver<bool>) {
    if signal.wait_for(|value| *value).await.is_err() {
        // The sender was dropped, so the signal stays false.
        std::future::pending().await
    }
}
