//! `weir serve`: wires the rooms together and serves until told to stop.

use super::{Failure, draw, exit, read_config, refused, systemd};
use crate::accounts::Accounts;
use crate::admin::{self, Readiness};
use crate::clock;
use crate::config::{self, Config, ConfigError, Problems, Severity};
use crate::metrics::Metrics;
use crate::relay::Relay;
use crate::server::tls::Certificates;
use crate::server::{self, Bound, Server};
use crate::store::{Health, Store};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub fn run(path: &Path) -> Result<(), Failure> {
    let config = read_config(path)?;
    let problems = config.check_files(clock::now());
    if problems.has_errors() {
        return Err(refused(&problems));
    }
    draw(&problems);
    crate::log::begin(config.log);
    raise_file_limit();
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::new(exit::OS, error))?;
    let served = runtime.block_on(serve(config));
    // Blocking work that is left belongs to sessions that have been cut off.
    runtime.shutdown_background();
    served
}

async fn serve(config: Config) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let sockets = systemd::sockets().map_err(|error| Failure::new(exit::OS, error))?;
    let running = Running::start(config, sockets).await?;
    systemd::ready();
    tokio::select! {
        () = systemd::feed_watchdog() => {}
        () = async { while signals.next().await == Signal::Reload { running.reload().await } } => {}
    }
    systemd::stopping();
    tracing::info!("stopping: transactions may finish, a second signal ends them");
    tokio::select! {
        () = running.stop() => tracing::info!("stopped"),
        () = signals.stop() => tracing::warn!("stopped at once"),
    }
    Ok(())
}

/// What the process is told to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signal {
    Reload,
    Stop,
}

/// SIGTERM and Ctrl-C stop, SIGHUP reloads.
pub struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hang_up: unix::Signal,
}

impl Signals {
    pub fn new() -> Result<Self, Failure> {
        let catch = |kind| unix::signal(kind).map_err(|error| Failure::new(exit::OS, error));
        Ok(Self {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
            hang_up: catch(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }

    /// Waits for any of them.
    pub async fn any(&mut self) {
        let _ = self.next().await;
    }

    /// Waits for a signal to stop.
    async fn stop(&mut self) {
        while self.next().await != Signal::Stop {}
    }
}

/// A Weir that serves.
pub struct Running {
    /// Its configuration.
    path: PathBuf,
    server: Arc<Server>,
    /// The actual addresses of the listeners, by name.
    pub listeners: Vec<(String, std::net::SocketAddr)>,
    pub admin: Option<std::net::SocketAddr>,
    stop: watch::Sender<bool>,
    serving: tokio::task::JoinHandle<()>,
    /// Those who look after the upstreams.
    minders: JoinSet<()>,
    administering: Option<tokio::task::JoinHandle<()>>,
}

impl Running {
    /// Opens everything, then begins to serve. Listeners whose names are among those of `sockets` take these instead of binding.
    pub async fn start(config: Config, sockets: HashMap<String, std::net::TcpListener>) -> Result<Self, Failure> {
        let fail = |code, error: &dyn std::fmt::Display| Failure::new(code, error);
        let path = config.problems.path.clone();
        let metrics = Arc::new(Metrics::new().map_err(|e| fail(exit::OS, &e))?);
        let certificates = config.tls.map(Certificates::read).transpose().map_err(|e| fail(exit::CONFIG, &e))?;
        let store = Store::open(&config.state, config.policy, metrics.clone()).map_err(|e| fail(exit::IO, &e))?;
        let accounts = config.accounts.map(|options| Accounts::open(&options, metrics.clone())).transpose();
        let relay = Relay::new(&config.relay, &metrics).map_err(|e| fail(exit::CONFIG, &e))?;
        let server = Arc::new(Server {
            options: config.server,
            accounts: accounts.map_err(|e| fail(exit::CONFIG, &e))?,
            store,
            relay,
            metrics: metrics.clone(),
            certificates: certificates.map(Arc::new),
        });
        let bound = bind(config.listeners, sockets)?;
        let mut listeners = Vec::new();
        for listener in &bound {
            let address = listener.address().map_err(|e| fail(exit::OS, &e))?;
            tracing::info!(listener = listener.name(), %address, "listening");
            listeners.push((listener.name().to_owned(), address));
        }
        let (stop, stopping) = watch::channel(false);
        let admin_socket = match config.admin {
            Some(options) => Some(bind_admin(&options).await?),
            None => None,
        };
        let admin = admin_socket.as_ref().and_then(|socket| socket.local_addr().ok());
        let administering = admin_socket.map(|socket| {
            let readiness = readiness(&server, stopping.clone());
            let mut stopped = stopping.clone();
            let stop = async move { drop(stopped.wait_for(|stop| *stop).await) };
            tokio::spawn(async move {
                if let Err(error) = admin::serve(socket, metrics, readiness, stop).await {
                    tracing::error!(%error, "administration ended");
                }
            })
        });
        let mut minders = JoinSet::new();
        minders.spawn(server.relay.look_after());
        let serving = tokio::spawn(server::serve(server.clone(), bound, stopping));
        Ok(Self { path, server, listeners, admin, stop, serving, minders, administering })
    }

    /// Reads limits, upstreams, certificates and users again. What is bad leaves the former in place.
    pub async fn reload(&self) {
        systemd::reloading();
        match read_again(&self.path) {
            Ok(config) => {
                tracing::info!(limits = config.policy.limits.len(), "limits read again");
                self.server.store.set_policy(config.policy);
                if let Err(error) = self.server.relay.set_upstreams(&config.relay) {
                    tracing::error!(%error, "upstreams not taken: the former ones stay");
                }
            }
            Err(error) => tracing::error!(error, "limits and upstreams not taken: the former ones stay"),
        }
        if let Some(certificates) = &self.server.certificates {
            certificates.clone().reload().await;
        }
        if let Some(accounts) = &self.server.accounts {
            accounts.reload().await;
        }
        systemd::ready();
    }

    /// Ends in order: transactions may finish, then the state is brought to disk.
    pub async fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.serving.await;
        drop(self.minders);
        if let Some(administering) = self.administering {
            // A scraper that keeps its connection open is not waited for.
            administering.abort();
            let _ = administering.await;
        }
        self.server.relay.close().await;
        if let Some(server) = Arc::into_inner(self.server) {
            server.store.close().await;
        }
    }
}

/// A configuration in which nothing is wrong.
fn read_again(path: &Path) -> Result<Config, String> {
    let wrong = |problems: &Problems| {
        let first = problems.found.iter().find(|problem| problem.severity == Severity::Error);
        let first = first.map_or("", |problem| &problem.message);
        format!("{}: {first}; weir check says more", problems.path.display())
    };
    match config::read(path) {
        Ok(config) => Ok(config),
        Err(ConfigError::Io(path, error)) => Err(format!("{}: {error}", path.display())),
        Err(ConfigError::Problems(problems)) => Err(wrong(&problems)),
    }
}

fn bind(
    listeners: Vec<server::ListenerOptions>,
    mut sockets: HashMap<String, std::net::TcpListener>,
) -> Result<Vec<Bound>, Failure> {
    let mut bound = Vec::new();
    for options in listeners {
        let (name, address) = (options.name.clone(), options.address);
        let listener = match sockets.remove(&*name) {
            Some(socket) => Bound::over(options, socket),
            None => Bound::bind(options),
        };
        bound.push(listener.map_err(|error| {
            Failure::new(exit::UNAVAILABLE, format!("listener \"{name}\" cannot listen on {address}: {error}"))
        })?);
    }
    for name in sockets.keys() {
        tracing::warn!(name, "a socket that was handed over has the name of no listener, and is not served");
    }
    Ok(bound)
}

async fn bind_admin(options: &admin::Options) -> Result<TcpListener, Failure> {
    let address = options.address;
    let socket = TcpListener::bind(address).await.map_err(|error| {
        Failure::new(exit::UNAVAILABLE, format!("administration cannot listen on {address}: {error}"))
    })?;
    let address = socket.local_addr().unwrap_or(address);
    tracing::info!(%address, "administration listening");
    Ok(socket)
}

/// Ready when state and listeners are, and not stopping.
fn readiness(server: &Arc<Server>, stopping: watch::Receiver<bool>) -> Readiness {
    let server = Arc::downgrade(server);
    Arc::new(move || {
        let Some(server) = server.upgrade().filter(|_| !*stopping.borrow()) else {
            return Err("stopping".to_owned());
        };
        match server.store.health() {
            Health::Good => Ok(()),
            Health::Degraded(why) => Err(format!("state degraded: {why}")),
        }
    })
}

/// Each session has two sockets; the soft limit of most systems, 1024, is there for programs that use select().
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
