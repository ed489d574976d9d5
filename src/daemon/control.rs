//! State of the admin API: what its handlers need of the running Weir.

use super::reloader::ReloadHandle;
use crate::admin::{Api, CurrentLimitTexts, MAX_READERS, Parts, ReloadFuture};
use crate::clock;
use crate::server::Server;
use crate::session;
use crate::top::LevelHistory;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// Returns the state of the API. `sessions` are the options of the sessions of each listener, and `listeners` are the
/// names and addresses of the listeners. `limit_texts` are the explanations of the limits in force,
/// and `levels` the levels of the past.
pub fn api(
    reload: &ReloadHandle,
    server: &Arc<Server>,
    sessions: Vec<Arc<session::Options>>,
    listeners: Vec<(String, SocketAddr)>,
    (limit_texts, levels): (CurrentLimitTexts, Arc<LevelHistory>),
    stopping: watch::Receiver<bool>,
) -> Api {
    let handle = reload.clone();
    let reload = Box::new(move || {
        let handle = handle.clone();
        Box::pin(async move { handle.reload().await }) as ReloadFuture
    });
    Api::new(Parts {
        server: Arc::downgrade(server),
        sessions,
        reload,
        readers: Arc::new(Semaphore::new(MAX_READERS)),
        listeners,
        limit_texts,
        levels,
        started: clock::now(),
        stopping,
    })
}
