//! State that the handlers of the API share.

use super::limit_counts::LimitCounts;
use super::limit_texts::{CurrentLimitTexts, LimitTexts};
use super::{ApiError, Readers};
use crate::policy::Policy;
use crate::server::{ListenerAddress, Server};
use crate::session;
use crate::time::Timestamp;
use crate::top::LevelHistory;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
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
    pub listeners: Vec<(String, ListenerAddress)>,
    /// Explanations of the limits in force.
    pub limit_texts: CurrentLimitTexts,
    /// Levels of the past.
    pub levels: Arc<LevelHistory>,
    /// Time when Weir started.
    pub started: Timestamp,
    /// The configuration file.
    pub configuration: PathBuf,
    /// The tokens file.
    pub tokens: Option<PathBuf>,
    /// Readers of the event stream.
    pub readers: Arc<Readers>,
    /// Permits for tests of messages.
    pub tests: Arc<Semaphore>,
    pub try_limit: LimitReader,
    /// Permits for replays of the decision log.
    pub replays: Arc<Semaphore>,
    /// Becomes true when Weir stops.
    pub stopping: watch::Receiver<bool>,
}

/// Function that reads the text of one limit, together with the configuration file. It blocks. The error is for people.
pub type LimitReader = Box<dyn Fn(&str) -> Result<TriedLimit, String> + Send + Sync>;

/// Limit that an administrator tries.
pub struct TriedLimit {
    pub name: String,
    /// Policy of the configuration file, with this limit.
    pub policy: Policy,
    /// Warnings about the limit.
    pub warnings: Vec<String>,
}

/// Function that reads the configuration again.
pub type ReloadHandler = Box<dyn Fn() -> ReloadFuture + Send + Sync>;

/// Future of the outcome of a reload.
pub type ReloadFuture = Pin<Box<dyn Future<Output = ReloadOutcome> + Send>>;

/// Outcome of a reload.
pub struct ReloadOutcome {
    /// True if the new limits are in force, even if the answer is an error of other parts, which are not.
    pub is_in_force: bool,
    pub answer: Result<Reloaded, ApiError>,
}

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

    pub fn listeners(&self) -> &[(String, ListenerAddress)] {
        &self.0.listeners
    }

    pub fn configuration(&self) -> &Path {
        &self.0.configuration
    }

    pub fn tokens(&self) -> Option<&Path> {
        self.0.tokens.as_deref()
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

    pub async fn reload(&self) -> ReloadOutcome {
        (self.0.reload)().await
    }

    pub fn readers(&self) -> &Arc<Readers> {
        &self.0.readers
    }

    /// Waits for a permit to test a message.
    pub async fn test_permit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let permit = self.0.tests.clone().acquire_owned().await;
        permit.map_err(|_| ApiError::unavailable("Weir is stopping"))
    }

    /// Reads the text of one limit. Blocks.
    pub fn try_limit(&self, limit: &str) -> Result<TriedLimit, String> {
        (self.0.try_limit)(limit)
    }

    /// Waits for a permit to replay the decision log.
    pub async fn replay_permit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let permit = self.0.replays.clone().acquire_owned().await;
        permit.map_err(|_| ApiError::unavailable("Weir is stopping"))
    }

    /// Waits until Weir stops.
    pub async fn stopped(&self) {
        // If the sender is dropped, Weir has stopped.
        drop(self.0.stopping.clone().wait_for(|stopping| *stopping).await);
    }
}
