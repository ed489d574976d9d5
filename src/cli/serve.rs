//! `weir serve`: builds the modules from the configuration, connects them, and serves until told to stop.

use super::exceptions::Order;
use super::reloader::{Orders, Reloader};
use super::{CommandError, draw, exit, open_files, read_config, refused, systemd};
use crate::accounts::Accounts;
use crate::admin::{self, BodyHandler, ControlHandlers, Outcome, OutcomeFuture, Readiness, SocketFile};
use crate::clock;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::rehearse::live::{self, AnswerError};
use crate::relay::Relay;
use crate::server::tls::Certificates;
use crate::server::{self, AcceptErrors, Bound, LogThrottle, NotificationThrottle, Server};
use crate::session;
use crate::store::{Health, Store};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

pub fn run(path: &Path) -> Result<(), CommandError> {
    let mut config = read_config(path)?;
    let problems = config.check_files(clock::now());
    if problems.has_errors() {
        return Err(refused(&problems));
    }
    draw(&problems);
    let _log = crate::log::begin(config.log);
    open_files::fit(&mut config, open_files::raise());
    let runtime = tokio::runtime::Runtime::new().map_err(|error| CommandError::new(exit::OS, error))?;
    let served = runtime.block_on(serve(config));
    // Blocking work that remains belongs to sessions that were cut off.
    runtime.shutdown_background();
    served
}

async fn serve(config: Config) -> Result<(), CommandError> {
    let mut signals = Signals::new()?;
    let sockets = systemd::sockets().map_err(|error| CommandError::new(exit::OS, error))?;
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

/// Order that a signal gives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signal {
    Reload,
    Stop,
}

/// Signals of the process: SIGTERM and Ctrl-C stop, SIGHUP reloads.
pub struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hang_up: unix::Signal,
}

impl Signals {
    pub fn new() -> Result<Self, CommandError> {
        let catch = |kind| unix::signal(kind).map_err(|error| CommandError::new(exit::OS, error));
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

    /// Waits for any of the signals.
    pub async fn any(&mut self) {
        let _ = self.next().await;
    }

    /// Waits for a signal to stop.
    async fn stop(&mut self) {
        while self.next().await != Signal::Stop {}
    }
}

/// Weir that is serving.
pub struct Running {
    server: Arc<Server>,
    /// Bound addresses of the listeners, by name.
    pub listeners: Vec<(String, SocketAddr)>,
    pub admin: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    serving: tokio::task::JoinHandle<()>,
    /// Tasks that check the upstreams and end exceptions.
    background_tasks: JoinSet<()>,
    admin_tasks: JoinSet<()>,
    /// Control socket, if it could be bound.
    socket: Option<SocketFile>,
    orders: Orders,
    reloading: tokio::task::JoinHandle<()>,
}

impl Running {
    /// Opens everything, then starts to serve. A listener whose name is in `sockets` uses that socket instead of
    /// binding.
    pub async fn start(config: Config, sockets: HashMap<String, std::net::TcpListener>) -> Result<Self, CommandError> {
        let fail = |code, error: &dyn std::fmt::Display| CommandError::new(code, error);
        let metrics = Arc::new(Metrics::new().map_err(|e| fail(exit::OS, &e))?);
        crate::log::count_lost_in(&metrics.log_lines_lost);
        let certificates = config.tls.map(Certificates::read).transpose().map_err(|e| fail(exit::CONFIG, &e))?;
        metrics.max_connections.set(config.server.max_connections.try_into().unwrap_or(i64::MAX));
        let store = Store::open(&config.state, config.policy, metrics.clone()).map_err(|e| fail(exit::IO, &e))?;
        store.set_clock_doubt(clock::status().doubt);
        let accounts = config.accounts.map(|options| Accounts::open(&options, metrics.clone())).transpose();
        let relay = Relay::new(&config.relay, &metrics).map_err(|e| fail(exit::CONFIG, &e))?;
        let server = Arc::new(Server {
            options: config.server,
            accounts: accounts.map_err(|e| fail(exit::CONFIG, &e))?,
            store,
            relay,
            metrics: metrics.clone(),
            notification_throttle: NotificationThrottle::default(),
            accept_errors: AcceptErrors::default(),
            log_throttle: LogThrottle::new(metrics.log_lines_suppressed.clone()),
            certificates: certificates.map(Arc::new),
        });
        let sessions = config.listeners.iter().map(|listener| listener.session.clone()).collect();
        let bound = bind(config.listeners, sockets)?;
        let mut listeners = Vec::new();
        for listener in &bound {
            let address = listener.address().map_err(|e| fail(exit::OS, &e))?;
            tracing::info!(listener = listener.name(), %address, "listening");
            listeners.push((listener.name().to_owned(), address));
        }
        let (stop, stopping) = watch::channel(false);
        let reloader = Reloader::new(server.clone(), config.problems.path, config.settings, config.watched);
        let (orders, reloading) = reloader.start(stopping.clone());
        let public = admin::public_router(metrics, readiness(&server, stopping.clone()));
        let mut admin_tasks = JoinSet::new();
        let mut socket = None;
        if let Some((listener, file)) = bind_socket(&config.admin).await {
            let orders = acts(&orders, &server, sessions).router();
            admin_tasks.spawn(administer(
                listener,
                public.clone().merge(orders),
                admin::MAX_CONTROL_BODY,
                stopping.clone(),
            ));
            socket = Some(file);
        }
        let mut admin = None;
        if let Some(address) = config.admin.address {
            let listener = bind_admin(address).await?;
            admin = listener.local_addr().ok();
            admin_tasks.spawn(administer(listener, public, admin::MAX_PUBLIC_BODY, stopping.clone()));
        }
        let mut background_tasks = JoinSet::new();
        background_tasks.spawn(server.relay.maintain());
        background_tasks.spawn(end_exceptions(Arc::downgrade(&server)));
        let serving = tokio::spawn(server::serve(server.clone(), bound, stopping));
        Ok(Self { server, listeners, admin, stop, serving, background_tasks, admin_tasks, socket, orders, reloading })
    }

    /// Reloads limits, upstreams, certificates and users. A bad configuration leaves the former one in force.
    pub async fn reload(&self) {
        // The reloader logs the outcome.
        let _ = self.orders.reload().await;
    }

    /// Stops in order: transactions finish, then the state is written to disk.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        let _ = self.serving.await;
        drop(self.background_tasks);
        // Does not wait for a scraper that keeps its connection open.
        self.admin_tasks.shutdown().await;
        drop(self.socket);
        let _ = self.reloading.await;
        self.server.relay.close().await;
        if let Some(server) = Arc::into_inner(self.server) {
            server.store.close().await;
        }
    }
}

fn bind(
    listeners: Vec<server::ListenerOptions>,
    mut sockets: HashMap<String, std::net::TcpListener>,
) -> Result<Vec<Bound>, CommandError> {
    let mut bound = Vec::new();
    for options in listeners {
        let (name, address) = (options.name.clone(), options.address);
        let listener = match sockets.remove(&*name) {
            Some(socket) => Bound::over(options, socket),
            None => Bound::bind(options),
        };
        bound.push(listener.map_err(|error| {
            CommandError::new(exit::UNAVAILABLE, format!("listener \"{name}\" cannot listen on {address}: {error}"))
        })?);
    }
    for name in sockets.keys() {
        tracing::warn!(name, "a socket that was handed over has the name of no listener, and is not served");
    }
    Ok(bound)
}

async fn bind_admin(address: SocketAddr) -> Result<TcpListener, CommandError> {
    let socket = TcpListener::bind(address).await.map_err(|error| {
        CommandError::new(exit::UNAVAILABLE, format!("administration cannot listen on {address}: {error}"))
    })?;
    let address = socket.local_addr().unwrap_or(address);
    tracing::info!(%address, "administration listening");
    Ok(socket)
}

/// Binds the control socket. Weir serves mail even if that fails.
async fn bind_socket(options: &admin::Options) -> Option<(UnixListener, SocketFile)> {
    match admin::bind(&options.socket).await {
        Ok(bound) => {
            tracing::info!(socket = %options.socket.display(), "orders are taken");
            Some(bound)
        }
        Err(error) => {
            tracing::error!(%error, "no orders are taken: weir reload will not find this Weir, SIGHUP will");
            None
        }
    }
}

async fn administer<L>(listener: L, router: axum::Router, max_body: usize, mut stopping: watch::Receiver<bool>)
where
    L: axum::serve::Listener<Addr: admin::Peer>,
{
    let stop = async move { drop(stopping.wait_for(|stop| *stop).await) };
    admin::serve(listener, router, max_body, stop).await;
}

/// Returns the handlers of administrators' commands.
fn acts(orders: &Orders, server: &Arc<Server>, listeners: Vec<Arc<session::Options>>) -> ControlHandlers {
    let orders = orders.clone();
    let reload = move || {
        let orders = orders.clone();
        Box::pin(async move { orders.reload().await }) as OutcomeFuture
    };
    let listeners = Arc::new(listeners);
    let test = of_server(server, move |server, case| {
        let listeners = listeners.clone();
        Box::pin(async move {
            match live::answer(&server.store, &listeners, &case, clock::now()).await {
                Ok(answer) => Outcome::Done(answer),
                Err(AnswerError::Case(why)) => Outcome::Refused(format!("{why}\n")),
                Err(AnswerError::Store(why)) => Outcome::Unavailable(format!("{why}\n")),
            }
        })
    });
    let exception = |order: Order| {
        let act =
            of_server(server, move |server, body| Box::pin(async move { order.answer(&server.store, &body).await }));
        (order.path(), act)
    };
    ControlHandlers { reload: Box::new(reload), test, exceptions: Order::ALL.into_iter().map(exception).collect() }
}

/// Wraps a handler that needs the server. After the server has gone, the answer is that Weir is stopping.
fn of_server(
    server: &Arc<Server>,
    ask: impl Fn(Arc<Server>, String) -> OutcomeFuture + Send + Sync + 'static,
) -> BodyHandler {
    let server = Arc::downgrade(server);
    Box::new(move |body| match server.upgrade() {
        Some(server) => ask(server, body),
        None => Box::pin(async { Outcome::Unavailable("Weir is stopping\n".to_owned()) }),
    })
}

/// Ends exceptions whose time is over, and reports the state of the wall clock.
async fn end_exceptions(server: Weak<Server>) {
    let mut ticks = tokio::time::interval(EXCEPTIONS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(server) = server.upgrade() else { break };
        let (now, status) = (clock::now(), clock::status());
        let metrics = &server.metrics;
        metrics.clock_jumps.inc_by(status.jumps.saturating_sub(metrics.clock_jumps.get()));
        metrics.clock_ahead.set(status.disagreement / 1_000_000);
        server.store.set_clock_doubt(status.doubt);
        server.store.end_exceptions(now);
    }
}

/// Interval of checks for exceptions that have ended: the maximum delay until their end is recorded.
const EXCEPTIONS_INTERVAL: Duration = Duration::from_millis(500);

/// Reports readiness: the state is healthy, connections can be accepted, and Weir is not stopping.
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
