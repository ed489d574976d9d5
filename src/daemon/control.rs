//! State of the admin API: what its handlers need of the running Weir.

use super::reloader::ReloadHandle;
use crate::admin::{Api, CurrentLimitTexts, LimitReader, MAX_REPLAYS, MAX_TESTS, Parts, ReloadFuture, TriedLimit};
use crate::clock;
use crate::config::{LimitOnTrial, limit_on_trial};
use crate::server::{ListenerAddress, Server};
use crate::session;
use crate::top::LevelHistory;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// Returns the state of the API. `sessions` are the options of the sessions of each listener, and `listeners` are the
/// names and addresses of the listeners. `configuration` and `tokens` are files. `limit_texts` are the explanations of
/// the limits in force, and `levels` the levels of the past.
pub fn api(
    reload: &ReloadHandle,
    server: &Arc<Server>,
    sessions: Vec<Arc<session::Options>>,
    listeners: Vec<(String, ListenerAddress)>,
    (configuration, tokens): (PathBuf, Option<PathBuf>),
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
        readers: Arc::default(),
        tests: Arc::new(Semaphore::new(MAX_TESTS)),
        try_limit: limit_reader(configuration.clone()),
        replays: Arc::new(Semaphore::new(MAX_REPLAYS)),
        listeners,
        limit_texts,
        levels,
        started: clock::now(),
        configuration,
        tokens,
        stopping,
    })
}

/// Returns the function that reads the text of one limit, together with the configuration file.
fn limit_reader(configuration: PathBuf) -> LimitReader {
    Box::new(move |limit| {
        let LimitOnTrial { name, policy, warnings } = limit_on_trial(&configuration, limit)?;
        Ok(TriedLimit { name, policy, warnings })
    })
}
