//! List of the configured upstreams. A reload of the configuration can change the list at any time.

use super::config_error::ConfigError;
use super::dns::Resolver;
use super::options::{Options, UpstreamOptions};
use super::upstream::Upstream;
use crate::metrics;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The configured upstreams, and the objects that are needed to create new upstreams.
pub struct UpstreamList {
    /// The options in force. The lock is held during a change of the list, so that changes happen one at a time. Files
    /// are read while the lock is held, but nothing is awaited.
    options: Mutex<Options>,
    /// The list. The lock inside the watch channel is held to copy or replace the list.
    current: watch::Sender<Arc<Snapshot>>,
    resolver: Arc<Resolver>,
    metrics: Arc<metrics::Upstreams>,
}

/// The list of upstreams at one moment.
pub struct Snapshot {
    pub all: Vec<Arc<Upstream>>,
    /// The enabled upstreams.
    pub enabled: Vec<Arc<Upstream>>,
    /// The enabled upstreams to which limits route mail.
    pub routed: Vec<Arc<Upstream>>,
}

/// Error of an upstream whose configuration cannot be used, with the upstream's name.
#[derive(Debug)]
pub struct UnusableError(Arc<str>, ConfigError);

impl fmt::Display for UnusableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "upstream {}: {}", self.0, self.1)
    }
}

impl std::error::Error for UnusableError {}

impl UpstreamList {
    pub fn new(options: &Options, metrics: &Arc<metrics::Upstreams>) -> Result<Self, UnusableError> {
        let none = Snapshot { all: Vec::new(), enabled: Vec::new(), routed: Vec::new() };
        let this = Self {
            options: Mutex::new(options.clone()),
            current: watch::Sender::new(Arc::new(none)),
            resolver: Arc::new(Resolver::new(&options.dns)),
            metrics: metrics.clone(),
        };
        let all = this.make(options)?;
        for upstream in &all {
            upstream.update_metric();
            if !upstream.options().enabled {
                tracing::info!(upstream = &**upstream.name(), "upstream not enabled: it gets no mail");
            }
        }
        this.current.send_replace(Arc::new(Snapshot::of(all, options)));
        // A Weir without upstreams only answers Postfix.
        if !options.upstreams.is_empty() {
            this.warn_if_none();
        }
        Ok(this)
    }

    /// Returns the present list.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.borrow().clone()
    }

    /// Replaces the upstreams and name servers by those of another configuration. Upstreams whose options are equal are
    /// kept. Removed, disabled or changed upstreams still finish the transactions that have begun. If there is an
    /// error, nothing is changed. Must be called within a Tokio runtime.
    pub fn set(&self, wanted: &Options) -> Result<(), UnusableError> {
        let mut options = self.options.lock().unwrap_or_else(PoisonError::into_inner);
        // Weir's host name, timeouts and listening addresses are not changed, because the rest of Weir uses the old
        // values until a restart.
        let (upstreams, routed, dns) = (wanted.upstreams.clone(), wanted.routed.clone(), wanted.dns.clone());
        let wanted = Options { upstreams, routed, dns, ..options.clone() };
        let made = self.make(&wanted)?;
        if self.resolver.change(&wanted.dns) {
            tracing::info!("name servers changed");
        }
        let former = self.snapshot();
        let same = |new: &Arc<Upstream>| former.all.iter().find(|old| old.options().is_like(new.options())).cloned();
        let all: Vec<_> = made.into_iter().map(|new| same(&new).unwrap_or(new)).collect();
        let new = Arc::new(Snapshot::of(all, &wanted));
        // New upstreams start before the list is published, and old upstreams stop after that, so the list is never
        // empty.
        for upstream in new.enabled.iter().filter(|upstream| !is_among(&former.enabled, upstream)) {
            upstream.enable();
        }
        self.current.send_replace(new.clone());
        for upstream in former.all.iter().filter(|upstream| !is_among(&new.all, upstream)) {
            upstream.remove();
        }
        for upstream in new.all.iter().filter(|upstream| !is_among(&new.enabled, upstream)) {
            upstream.disable();
        }
        new.all.iter().for_each(|upstream| upstream.update_metric());
        log_changes(&former, &new);
        self.warn_if_none();
        *options = wanted;
        Ok(())
    }

    /// Runs the background tasks of all upstreams, also of upstreams that are added later. Runs until the future is
    /// dropped.
    pub async fn maintain(&self) {
        let mut changes = self.current.subscribe();
        let (mut tasks, mut maintained) = (JoinSet::new(), Vec::<Arc<Upstream>>::new());
        loop {
            let all = changes.borrow_and_update().all.clone();
            for upstream in all.iter().filter(|upstream| !is_among(&maintained, upstream)) {
                let upstream = upstream.clone();
                tasks.spawn(async move { upstream.maintain().await });
            }
            maintained = all;
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                // The task of a removed upstream has ended.
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    fn make(&self, options: &Options) -> Result<Vec<Arc<Upstream>>, UnusableError> {
        let new = |upstream: &UpstreamOptions| {
            let new = Upstream::new(options, upstream, self.resolver.clone(), &self.metrics);
            new.map(Arc::new).map_err(|why| UnusableError(upstream.name.clone(), why))
        };
        options.upstreams.iter().map(new).collect()
    }

    fn warn_if_none(&self) {
        let enabled = &self.snapshot().enabled;
        if enabled.is_empty() {
            tracing::warn!("no upstream is enabled: clients get 451");
        } else if !enabled.iter().any(|upstream| upstream.takes_route(None)) {
            tracing::warn!("no upstream is enabled for mail that no limit routes: clients get 451");
        }
    }
}

impl Snapshot {
    /// Makes a snapshot. `options` has the options of the upstreams in `all`, in the same order.
    fn of(all: Vec<Arc<Upstream>>, options: &Options) -> Self {
        let enabled = all.iter().zip(&options.upstreams).filter(|(_, options)| options.enabled);
        let enabled: Vec<_> = enabled.map(|(upstream, _)| upstream.clone()).collect();
        let routed = enabled.iter().filter(|upstream| options.routed.contains(upstream.name())).cloned().collect();
        Self { all, enabled, routed }
    }

    fn find(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.all.iter().find(|upstream| **upstream.name() == *name)
    }
}

/// Returns whether the list contains this upstream itself (the same `Arc`), not only an upstream of the same name.
pub fn is_among(list: &[Arc<Upstream>], upstream: &Arc<Upstream>) -> bool {
    list.iter().any(|other| Arc::ptr_eq(other, upstream))
}

fn log_changes(before: &Snapshot, now: &Snapshot) {
    for upstream in &now.all {
        let name = &**upstream.name();
        let enabled = is_among(&now.enabled, upstream);
        match before.find(name) {
            None => tracing::info!(upstream = name, enabled, "upstream added"),
            Some(former) if !Arc::ptr_eq(former, upstream) => {
                tracing::info!(upstream = name, enabled, "upstream changed: new connections use the new settings");
            }
            Some(former) if is_among(&before.enabled, former) == enabled => {}
            Some(_) if enabled => {
                tracing::info!(upstream = name, "upstream enabled: it gets mail when it has answered")
            }
            Some(_) => tracing::info!(upstream = name, "upstream disabled: it gets no more mail"),
        }
    }
    for former in before.all.iter().filter(|former| now.find(former.name()).is_none()) {
        tracing::info!(upstream = &**former.name(), "upstream removed: it gets no more mail");
    }
}
