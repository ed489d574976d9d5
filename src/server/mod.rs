//! Listeners, and a task for each connection that drives its session. A policy connection has a thread.

mod accept;
mod accept_errors;
mod blocked_connections;
pub mod certificate;
mod certificate_chooser;
pub mod client_authorities;
mod connection;
mod connection_limits;
mod decision_records;
mod deferred_charges;
mod listener;
mod log_throttle;
mod login_network;
mod message_pipe;
mod open_sessions;
mod options;
mod outcome_permits;
mod outcomes;
mod policy_decision;
mod policy_service;
pub mod proxy;
mod queue_ids;
mod report_mail;
mod reported_event_log;
mod sender_activity;
mod services;
mod session_id;
mod session_log;
mod session_records;
mod stop;
mod stream;
pub mod tls;
mod upstream_requests;
mod waiting;

pub use accept_errors::AcceptErrors;
pub use blocked_connections::BlockedCounts;
pub use connection_limits::MAX_EVICTING;
pub use listener::Bound;
pub use log_throttle::LogThrottle;
pub use open_sessions::{OpenSessions, SessionEntry};
pub use options::{ListenerAddress, ListenerOptions, Options, Protocol};
pub use outcome_permits::OutcomePermits;
pub use outcomes::{GivenOutcome, OutcomeCounts};
pub use services::Server;

use connection_limits::ConnectionLimits;
use std::sync::Arc;
use stop::End;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Serves until `drain` becomes true, then stops in order: accepts no new connections, ends idle sessions, and lets
/// transactions finish within the drain timeout.
pub async fn serve(server: Arc<Server>, listeners: Vec<Bound>, mut drain: watch::Receiver<bool>) {
    let connections = ConnectionLimits::new(server.options.max_connections);
    // The tasks end when the set is dropped.
    let mut watching = JoinSet::new();
    if let Some(certificates) = &server.certificates {
        watching.spawn(certificates.clone().watch(server.options.certificate_pace));
    }
    let throttling = server.clone();
    watching.spawn(async move { throttling.log_throttle.summarize_regularly().await });
    let mut listening = JoinSet::new();
    for listener in listeners {
        listening.spawn(listener::listen(server.clone(), listener, connections.clone(), drain.clone()));
    }
    // This cannot fail, because the sender lives as long as the process serves.
    let _ = drain.wait_for(|drain| *drain).await;
    connections.end_all(End::Drain);
    let mut all_ended = std::pin::pin!(async { while listening.join_next().await.is_some() {} });
    if tokio::time::timeout(server.options.drain_timeout, &mut all_ended).await.is_err() {
        tracing::warn!("transactions cut off: they took too long to end");
        connections.end_all(End::Cut);
        all_ended.await;
    }
    server.log_throttle.summarize();
    // The store can be closed only after these tasks have dropped the server.
    watching.shutdown().await;
}
