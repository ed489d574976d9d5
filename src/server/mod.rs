//! The way in: listeners, and a task for each connection that drives its session.

mod accept;
mod accept_errors;
pub mod certificate;
mod connection;
mod connection_limits;
mod log_throttle;
mod message_pipe;
mod notification_throttle;
pub mod proxy;
mod session_log;
mod stream;
pub mod tls;

use crate::accounts::Accounts;
use crate::clock;
use crate::metrics::Metrics;
use crate::relay::Relay;
use crate::session;
use crate::store::Store;
pub use accept_errors::AcceptErrors;
use connection_limits::ConnectionLimits;
use ipnet::IpNet;
pub use log_throttle::LogThrottle;
pub use notification_throttle::NotificationThrottle;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tls::Certificates;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A listener as configured.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Its name in logs and metrics.
    pub name: Arc<str>,
    pub address: SocketAddr,
    /// Networks whose connections begin with a PROXY header; nobody else's header is believed.
    pub proxies: Arc<[IpNet]>,
    pub session: Arc<session::Options>,
}

impl ListenerOptions {
    /// Returns whether connections from this address begin with a PROXY header.
    fn is_of_proxy(&self, peer: IpAddr) -> bool {
        self.proxies.iter().any(|network| network.contains(&peer))
    }
}

/// What all listeners share.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections at once, over all listeners.
    pub max_connections: usize,
    /// Connections at once of one client's network.
    pub max_connections_per_client: usize,
    /// The same for a client that may send without a login by its address.
    pub max_connections_per_trusted_client: usize,
    /// How long a client that must log in may be here before it has.
    pub login_timeout: Duration,
    /// How long a client may be silent between commands.
    pub idle_timeout: Duration,
    /// How long a command may take from its first octet to its last.
    pub command_timeout: Duration,
    /// How long a client may be silent within a message.
    pub data_timeout: Duration,
    /// Octets a second of a message that must come on average, after the first `data_timeout`.
    pub min_data_rate: u64,
    /// How long a message may occupy an upstream's connection, from its first recipient to its last octet.
    pub message_timeout: Duration,
    /// How long sessions may take to end their transactions when the server stops.
    pub drain_timeout: Duration,
    /// How long until certificate files are looked at again.
    pub certificate_pace: Duration,
}

/// What a connection needs of the rest of the house.
pub struct Server {
    pub options: Options,
    pub accounts: Option<Accounts>,
    pub store: Store,
    pub relay: Relay,
    pub metrics: Arc<Metrics>,
    pub notices: NotificationThrottle,
    pub accepting: AcceptErrors,
    /// What bounds the log lines that clients without a login cause.
    pub throttle: LogThrottle,
    pub certificates: Option<Arc<Certificates>>,
}

/// A listener whose socket is bound.
pub struct Bound {
    options: ListenerOptions,
    socket: TcpListener,
}

/// Connections waiting to be accepted: a burst of clients is not turned away.
const BACKLOG: i32 = 4096;

impl Bound {
    /// Binds a listener's socket.
    pub fn bind(options: ListenerOptions) -> io::Result<Self> {
        use socket2::{Domain, Protocol, Socket, Type};
        let address = options.address;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // [::] takes IPv4 clients, too, whatever the system's default is.
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Self::over(options, socket.into())
    }

    /// Takes a socket that listens already: systemd's.
    pub fn over(options: ListenerOptions, socket: std::net::TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { options, socket: TcpListener::from_std(socket)? })
    }

    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// The actual address, where the port was 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// Tells a connection to end: the server stops, or another connection needs the place.
pub struct Stop {
    /// True: sessions outside a transaction end.
    drain: watch::Receiver<bool>,
    /// True: the others do, too, but for those that wait for what the upstream says to a whole message.
    cut: watch::Receiver<bool>,
    /// Whether it is to make room.
    is_evicted: Arc<AtomicBool>,
}

impl Stop {
    /// Waits until a session should end, which one in a transaction should later.
    async fn may_end(&mut self, in_transaction: bool) {
        tokio::select! {
            () = is_true(&mut self.cut) => {}
            () = is_true(&mut self.drain), if !in_transaction => {}
        }
    }

    /// Returns whether the connection is closed to make room for another one.
    fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Acquire)
    }
}

async fn is_true(told: &mut watch::Receiver<bool>) {
    if told.wait_for(|told| *told).await.is_err() {
        // Nobody is left who could tell.
        std::future::pending().await
    }
}

/// Serves until `drain` turns true, then ends in order: no new connections, idle sessions are told, transactions may finish.
pub async fn serve(server: Arc<Server>, listeners: Vec<Bound>, mut drain: watch::Receiver<bool>) {
    let places = ConnectionLimits::new(server.options.max_connections);
    // Its task ends when it is dropped.
    let mut watching = JoinSet::new();
    if let Some(certificates) = &server.certificates {
        watching.spawn(certificates.clone().watch(server.options.certificate_pace));
    }
    let throttling = server.clone();
    watching.spawn(async move { throttling.throttle.summarize_regularly().await });
    let mut listening = JoinSet::new();
    for listener in listeners {
        listening.spawn(listen(server.clone(), listener, places.clone(), drain.clone()));
    }
    // The sender lives as long as the process serves.
    let _ = drain.wait_for(|drain| *drain).await;
    let mut all_ended = std::pin::pin!(async { while listening.join_next().await.is_some() {} });
    if tokio::time::timeout(server.options.drain_timeout, &mut all_ended).await.is_err() {
        tracing::warn!("transactions cut off: they took too long to end");
        places.cut_all();
        all_ended.await;
    }
    server.throttle.summarize();
    // Until the task has let go of the server, its state cannot be closed.
    watching.shutdown().await;
}

/// Accepts connections until the server stops; ends when their sessions have.
async fn listen(server: Arc<Server>, listener: Bound, places: Arc<ConnectionLimits>, mut drain: watch::Receiver<bool>) {
    let mut sessions = JoinSet::new();
    let Bound { options, socket } = listener;
    loop {
        let accepted = tokio::select! {
            () = is_true(&mut drain) => break,
            Some(ended) = sessions.join_next(), if !sessions.is_empty() => {
                log_panic(ended);
                continue;
            }
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok((tcp, peer)) => {
                server.metrics.connections.with_label_values(&[&*options.name]).inc();
                let peer = peer.ip().to_canonical();
                match accept::take_place(&server, &options, &places, peer) {
                    Ok(place) => {
                        let (server, drain) = (server.clone(), drain.clone());
                        let stop = Stop { drain, cut: place.cut(), is_evicted: place.is_evicted() };
                        sessions.spawn(accept::receive(server, options.clone(), tcp, peer, place, stop));
                    }
                    Err(full) => accept::turn_away(&server, &options, &tcp, peer, full),
                }
            }
            Err(error) => {
                // Out of file descriptors, mostly: the next try would fail at once, and the one after.
                if let Some(failures) = server.accepting.fail(&error, std::time::Instant::now()) {
                    tracing::error!(listener = &*options.name, %error, failures, "cannot accept a connection");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(socket);
    while let Some(ended) = sessions.join_next().await {
        log_panic(ended);
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a session ended by a fault of Weir's own");
    }
}

/// A new session's id: unique on this host as long as its clock does not stand still, and short enough to be read out.
fn session_id() -> Arc<str> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed) % (36 * 36 * 36);
    let micros = u64::try_from(clock::now().micros()).unwrap_or(0);
    format!("{}{:0>3}", base36(micros), base36(serial)).into()
}

fn base36(mut number: u64) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut digits = Vec::new();
    while number > 0 || digits.is_empty() {
        digits.push(char::from(DIGITS[(number % 36) as usize]));
        number /= 36;
    }
    digits.iter().rev().collect()
}
