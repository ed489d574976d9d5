//! Services that all connections share: accounts, store, relay, metrics, log throttles, certificates.

use super::accept_errors::AcceptErrors;
use super::log_throttle::LogThrottle;
use super::open_sessions::OpenSessions;
use super::options::Options;
use super::outcome_permits::OutcomePermits;
use super::tls::Certificates;
use crate::accounts::Accounts;
use crate::decisions::{DecisionLog, Hub};
use crate::metrics::Metrics;
use crate::notify::Notifier;
use crate::relay::Relay;
use crate::store::Store;
use crate::top::TopSenders;
use std::sync::Arc;

/// Services that all connections share.
pub struct Server {
    pub options: Options,
    pub accounts: Option<Accounts>,
    pub store: Store,
    pub relay: Relay,
    pub metrics: Arc<Metrics>,
    /// Hub that gives records of decisions to those who want them.
    pub decisions: Hub,
    pub decision_log: Option<Arc<DecisionLog>>,
    pub notifier: Arc<Notifier>,
    pub accept_errors: AcceptErrors,
    /// Throttle of the log lines that clients cause.
    pub log_throttle: LogThrottle,
    /// The senders that send or are refused most.
    pub top: TopSenders,
    pub certificates: Option<Arc<Certificates>>,
    pub sessions: Arc<OpenSessions>,
    pub outcome_permits: OutcomePermits,
}
