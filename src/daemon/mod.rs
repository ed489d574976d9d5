//! The running Weir: opens the modules as the configuration says, connects them, serves, and stops in order.

mod administration;
mod control;
mod core_dumps;
mod error;
mod limit_metrics;
mod limit_texts;
mod new_passwords;
mod notices;
mod open_files;
mod refusal_sink;
mod reloader;
mod signals;
mod systemd;

pub use error::StartError;
pub use notices::send as send_notice;
pub use signals::Signals;

use crate::accounts::Accounts;
use crate::admin::{self, CurrentLimitTexts, Readiness};
use crate::clock;
use crate::config::Config;
use crate::decisions::{self, DecisionLog, Hub};
use crate::metrics::Metrics;
use crate::notify::Notifier;
use crate::relay::Relay;
use crate::server::tls::Certificates;
use crate::server::{self, AcceptErrors, Bound, ListenerAddress, LogThrottle, OutcomePermits, Server};
use crate::store::{Health, Store};
use crate::top::{LevelHistory, TopSenders};
use administration::Administration;
use limit_metrics::show_limits;
use refusal_sink::RefusalSink;
use reloader::{ReloadHandle, Reloader};
use signals::Signal;
use std::collections::HashMap;
use std::mem::take;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;

/// Serves until a signal to stop.
pub fn run(mut config: Config) -> Result<(), StartError> {
    core_dumps::disable();
    open_files::fit(&mut config, open_files::raise());
    let runtime = runtime().map_err(StartError::system)?;
    let served = runtime.block_on(serve(config));
    // Do not wait for blocking tasks that still run: they belong to sessions that were interrupted.
    runtime.shutdown_background();
    served
}

/// Creates the async runtime of a server. Its threads are as many as the processors, but at least two: if the disk
/// hangs, one thread hangs in a commit to the state file, and another must serve all sessions.
pub fn runtime() -> std::io::Result<Runtime> {
    let threads = std::thread::available_parallelism().map_or(2, |processors| processors.get().max(2));
    Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}

async fn serve(config: Config) -> Result<(), StartError> {
    let mut signals = Signals::new()?;
    let sockets = systemd::sockets().map_err(StartError::system)?;
    let daemon = Daemon::start(config, sockets).await?;
    systemd::ready();
    tokio::select! {
        () = systemd::feed_watchdog() => {}
        () = async { while signals.next().await == Signal::Reload { daemon.reload().await } } => {}
    }
    systemd::stopping();
    tracing::info!("stopping: transactions may finish, a second signal ends them");
    tokio::select! {
        () = daemon.stop() => tracing::info!("stopped"),
        () = signals.stop() => tracing::warn!("stopped at once"),
    }
    Ok(())
}

/// Weir that is serving.
pub struct Daemon {
    server: Arc<Server>,
    /// Names of the listeners, with their bound addresses.
    pub listeners: Vec<(String, ListenerAddress)>,
    administration: Administration,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    /// Task that delivers notices.
    delivering: JoinHandle<()>,
    /// Tasks that check the upstreams and the passwords of suspended users, and end exceptions.
    background_tasks: JoinSet<()>,
    reload_handle: ReloadHandle,
    reloading: JoinHandle<()>,
}

impl Daemon {
    /// Opens all services and listeners, then starts to serve. A listener whose name is in `sockets` uses that socket
    /// instead of binding its own.
    pub async fn start(mut config: Config, sockets: HashMap<String, TcpListener>) -> Result<Self, StartError> {
        let needed_files = open_files::needed(&config, config.server.max_connections);
        let sessions = config.listeners.iter().map(|listener| listener.session.clone()).collect();
        let (listeners, admin_options) = (take(&mut config.listeners), config.admin.clone());
        let limits = config.policy.limit_count();
        let (texts, levels) = (CurrentLimitTexts::default(), Arc::new(LevelHistory::default()));
        texts.set(limit_texts::limit_texts(&config));
        let (path, settings, watched, databases) = (
            config.problems.path.clone(),
            take(&mut config.settings),
            take(&mut config.watched),
            take(&mut config.databases),
        );
        let server = Arc::new(open(config)?);
        let bound = bind(listeners, sockets).await?;
        bound.iter().for_each(|listener| server.metrics.show_listener(listener.name()));
        let listeners = addresses(&bound)?;
        let (stop, stopping) = watch::channel(false);
        let files = (path.clone(), admin_options.tokens.clone());
        let (reload_handle, reloading) =
            Reloader::new(server.clone(), path, settings, watched, databases, texts.clone(), needed_files)
                .start(stopping.clone());
        let public = admin::public_router(server.metrics.clone(), readiness(&server, stopping.clone()));
        let api = control::api(
            &reload_handle,
            &server,
            sessions,
            listeners.clone(),
            files,
            (texts, levels.clone()),
            stopping.clone(),
        );
        let delivering = notices::start(&server).await;
        let administration = Administration::start(&admin_options, public, api, &server, &stopping).await?;
        let mut background_tasks = JoinSet::new();
        background_tasks.spawn(server.relay.maintain());
        background_tasks.spawn(end_exceptions(Arc::downgrade(&server)));
        background_tasks.spawn(notices::follow_resets(Arc::downgrade(&server)));
        background_tasks.spawn(new_passwords::watch(Arc::downgrade(&server)));
        background_tasks.spawn(admin::sample_levels(Arc::downgrade(&server), levels));
        let serving = tokio::spawn(server::serve(server.clone(), bound, stopping));
        log_start(limits, &listeners);
        Ok(Self {
            server,
            listeners,
            administration,
            stop,
            serving,
            delivering,
            background_tasks,
            reload_handle,
            reloading,
        })
    }

    /// Returns the bound address of the read-only HTTP routes.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.administration.address
    }

    /// Reloads limits, upstreams, certificates and users. If the new configuration is bad, the former configuration
    /// stays in force.
    pub async fn reload(&self) {
        // The reloader logs the outcome.
        let _ = self.reload_handle.reload().await;
    }

    /// Stops in order: transactions finish, then the state is written to disk.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        let _ = self.serving.await;
        // Sessions that ended during the stop can have made notices. They are stored, and delivered after the next start.
        self.server.notifier.stop();
        let _ = self.delivering.await;
        // A task perhaps holds the server until it has ended.
        self.background_tasks.shutdown().await;
        let _ = tokio::time::timeout(ADMINISTRATION_TIMEOUT, self.administration.stop()).await;
        let _ = self.reloading.await;
        self.server.relay.close().await;
        if let Some(server) = unshared(self.server).await {
            server.store.close().await;
            if let Some(log) = server.decision_log {
                let _ = tokio::task::spawn_blocking(move || log.flush()).await;
            }
        }
    }
}

/// Maximum time in which requests of administrators end when Weir stops: first until they reach a point at which they
/// can be interrupted, and then until acts, which are not interrupted, are done.
const ADMINISTRATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of checks whether acts are done.
const UNSHARED_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until no act of an administrator, and no charge that a session left behind, uses the server any more. Returns
/// `None` if one still uses it after [`ADMINISTRATION_TIMEOUT`]: then the state file is not closed in order, and the next
/// start recovers it.
async fn unshared(mut server: Arc<Server>) -> Option<Server> {
    let wait = async {
        loop {
            match Arc::try_unwrap(server) {
                Ok(server) => break server,
                Err(shared) => server = shared,
            }
            tokio::time::sleep(UNSHARED_INTERVAL).await;
        }
    };
    let unshared = tokio::time::timeout(ADMINISTRATION_TIMEOUT, wait).await;
    if unshared.is_err() {
        tracing::error!("a request or a charge does not end: the state file is not closed in order");
    }
    unshared.ok()
}

/// Opens the services that all connections share.
fn open(config: Config) -> Result<Server, StartError> {
    let metrics = Arc::new(Metrics::new().map_err(StartError::system)?);
    crate::log::count_lost_in(&metrics.service.log_lines_lost);
    let certificates =
        config.tls.map(|options| Certificates::read(options, metrics.service.certificate_expiry.clone()));
    let certificates = certificates.transpose().map_err(StartError::config)?;
    metrics.service.config_taken(clock::now());
    show_limits(&metrics, &config.policy);
    metrics.connections.max.set(config.server.max_connections.try_into().unwrap_or(i64::MAX));
    let store = Store::open(&config.state, config.policy, metrics.clone());
    let store = store.map_err(|error| StartError::State(error.to_string()))?;
    store.set_clock_doubt(clock::status().doubt);
    let accounts = config.accounts.map(|options| Accounts::open(&options, metrics.clone())).transpose();
    let relay = Relay::new(&config.relay, &metrics).map_err(StartError::config)?;
    let notifier = Arc::new(Notifier::new(config.notify, store.notice_recorder(), metrics.clone()));
    let decision_log = config.decision_log.map(|options| start_decision_log(&options, &metrics)).transpose()?;
    Ok(Server {
        decisions: hub(&store, decision_log.as_ref()),
        decision_log,
        options: config.server,
        accounts: accounts.map_err(StartError::config)?,
        store,
        relay,
        metrics: metrics.clone(),
        notifier,
        accept_errors: AcceptErrors::default(),
        log_throttle: LogThrottle::new(metrics.service.log_lines_suppressed.clone()),
        top: TopSenders::default(),
        certificates: certificates.map(Arc::new),
        sessions: Arc::default(),
        outcome_permits: OutcomePermits::default(),
    })
}

/// Returns the hub of decisions, with the store of refusals and the decision log as sinks.
fn hub(store: &Store, decision_log: Option<&Arc<DecisionLog>>) -> Hub {
    let refusals: Arc<dyn decisions::Sink> = Arc::new(RefusalSink(store.refusal_recorder()));
    let log = decision_log.map(|log| log.clone() as Arc<dyn decisions::Sink>);
    Hub::new(store.keeps_refusals().then_some(refusals).into_iter().chain(log).collect())
}

fn start_decision_log(options: &decisions::Options, metrics: &Metrics) -> Result<Arc<DecisionLog>, StartError> {
    let log = DecisionLog::start(options, &metrics.service.decision_log_lines_lost);
    log.map(Arc::new).map_err(StartError::system)
}

/// Logs the version and the extent of the configuration.
fn log_start(limits: usize, listeners: &[(String, ListenerAddress)]) {
    let listeners: Vec<_> = listeners.iter().map(|(name, address)| format!("{name} {address}")).collect();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), limits, listeners = listeners.join(", "), "started");
}

async fn bind(
    listeners: Vec<server::ListenerOptions>,
    mut sockets: HashMap<String, TcpListener>,
) -> Result<Vec<Bound>, StartError> {
    let mut bound = Vec::new();
    for options in listeners {
        let (name, address) = (options.name.clone(), options.address.clone());
        let listener = match sockets.remove(&*name) {
            Some(socket) => Bound::over(options, socket),
            None => Bound::bind(options).await,
        };
        bound.push(
            listener.map_err(|error| {
                StartError::Listen(format!("listener \"{name}\" cannot listen on {address}: {error}"))
            })?,
        );
    }
    for name in sockets.keys() {
        tracing::warn!(name, "a socket that was handed over has the name of no listener, and is not served");
    }
    Ok(bound)
}

/// Returns names and bound addresses of the listeners, and logs them.
fn addresses(bound: &[Bound]) -> Result<Vec<(String, ListenerAddress)>, StartError> {
    let address = |listener: &Bound| {
        let address = listener.address().map_err(StartError::system)?;
        tracing::info!(listener = listener.name(), %address, "listening");
        Ok((listener.name().to_owned(), address))
    };
    bound.iter().map(address).collect()
}

/// Ends exceptions that have expired, and reports the state of the wall clock.
async fn end_exceptions(server: Weak<Server>) {
    let mut ticks = tokio::time::interval(EXCEPTIONS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(server) = server.upgrade() else { break };
        let (now, status) = (clock::now(), clock::status());
        let metrics = &server.metrics;
        metrics.service.clock_jumps.inc_by(status.jumps.saturating_sub(metrics.service.clock_jumps.get()));
        metrics.service.clock_ahead.set(status.disagreement / 1_000_000);
        server.store.set_clock_doubt(status.doubt);
        server.store.end_exceptions(now);
    }
}

/// Interval of checks for exceptions that have expired: the maximum delay until their end is recorded.
const EXCEPTIONS_INTERVAL: Duration = Duration::from_millis(500);

/// Returns the check of readiness. Weir is ready if the state file is healthy, connections can be accepted, and Weir is
/// not stopping.
fn readiness(server: &Arc<Server>, stopping: watch::Receiver<bool>) -> Readiness {
    let server = Arc::downgrade(server);
    Arc::new(move || {
        let Some(server) = server.upgrade().filter(|_| !*stopping.borrow()) else {
            return Err("stopping".to_owned());
        };
        if let Some(why) = server.accept_errors.current_error(std::time::Instant::now()) {
            return Err(format!("cannot accept connections: {why}"));
        }
        match server.store.health() {
            Health::Good => Ok(()),
            Health::Degraded(why) => Err(format!("state degraded: {why}")),
        }
    })
}
