//! State that the handlers of the API share.

use super::ApiError;
use super::limit_counts::LimitCounts;
use super::limit_texts::{CurrentLimitTexts, LimitTexts};
use crate::server::Server;
use crate::session;
use crate::time::Timestamp;
use crate::top::LevelHistory;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use utoipa::ToSchema;

/// State of the handlers. The module `daemon` builds it. A clone is cheap.
#[derive(Clone)]
pub struct Api(Arc<Parts>, Arc<LimitCounts>);

/// Parts of the running Weir that the handlers need.
pub struct Parts {
    /// The services of the running Weir. The reference is weak: while Weir stops, handlers must not keep the store open.
    pub server: Weak<Server>,
    /// Options of the sessions of each listener.
    pub sessions: Vec<Arc<session::Options>>,
    pub reload: ReloadHandler,
    /// Names of the listeners, with their bound addresses.
    pub listeners: Vec<(String, SocketAddr)>,
    /// Explanations of the limits in force.
    pub limit_texts: CurrentLimitTexts,
    /// Levels of the past.
    pub levels: Arc<LevelHistory>,
    /// Time when Weir started.
    pub started: Timestamp,
    /// Permits for readers of the event stream.
    pub readers: Arc<Semaphore>,
    /// Becomes true when Weir stops.
    pub stopping: watch::Receiver<bool>,
}

/// Function that reads the configuration again.
pub type ReloadHandler = Box<dyn Fn() -> ReloadFuture + Send + Sync>;

/// Future of the outcome of a reload.
pub type ReloadFuture = Pin<Box<dyn Future<Output = Result<Reloaded, ApiError>> + Send>>;

/// Result of a reload that has put the configuration in force.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Reloaded {
    /// For people: warnings, and the consequences of the new configuration. Several lines.
    pub message: String,
    /// Number of limits in force.
    pub limits: u64,
}

impl Api {
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts), Arc::default())
    }

    /// Returns the services of the running Weir. Returns an error if Weir is stopping.
    pub fn server(&self) -> Result<Arc<Server>, ApiError> {
        self.0.server.upgrade().ok_or_else(|| ApiError::unavailable("Weir is stopping"))
    }

    pub fn sessions(&self) -> &[Arc<session::Options>] {
        &self.0.sessions
    }

    pub fn listeners(&self) -> &[(String, SocketAddr)] {
        &self.0.listeners
    }

    pub fn limit_texts(&self) -> Arc<LimitTexts> {
        self.0.limit_texts.get()
    }

    /// Returns the last counts of budgets.
    pub fn limit_counts(&self) -> &LimitCounts {
        &self.1
    }

    pub fn levels(&self) -> &LevelHistory {
        &self.0.levels
    }

    pub fn started(&self) -> Timestamp {
        self.0.started
    }

    pub async fn reload(&self) -> Result<Reloaded, ApiError> {
        (self.0.reload)().await
    }

    /// Returns a permit to read the event stream. Returns an error if there are too many readers.
    pub fn reader_permit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let permit = self.0.readers.clone().try_acquire_owned();
        permit.map_err(|_| ApiError::unavailable("too many readers of the event stream"))
    }

    /// Waits until Weir stops.
    pub async fn stopped(&self) {
        // If the sender is dropped, Weir has stopped.
        drop(self.0.stopping.clone().wait_for(|stopping| *stopping).await);
    }
}
