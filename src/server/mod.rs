//! The way in: listeners, and a task for each connection that drives its session.

mod body;
mod connection;
pub mod proxy;
mod report;
mod stream;
pub mod tls;

use crate::accounts::Accounts;
use crate::clock;
use crate::metrics::Metrics;
use crate::relay::Relay;
use crate::session;
use crate::store::Store;
use connection::Connection;
use prometheus::IntGauge;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tls::Certificate;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// A listener as configured.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Its name in logs and metrics.
    pub name: Arc<str>,
    pub address: SocketAddr,
    pub session: Arc<session::Options>,
}

/// What all listeners share.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections at once, over all listeners.
    pub max_connections: usize,
    /// How long a client may be silent between commands.
    pub idle_timeout: Duration,
    /// How long a command may take from its first octet to its last.
    pub command_timeout: Duration,
    /// How long a client may be silent within a message.
    pub data_timeout: Duration,
    /// How long sessions may take to end their transactions when the server stops.
    pub drain_timeout: Duration,
}

/// What a connection needs of the rest of the house.
pub struct Server {
    pub options: Options,
    pub accounts: Option<Accounts>,
    pub store: Store,
    pub relay: Relay,
    pub metrics: Arc<Metrics>,
    pub certificate: Option<Certificate>,
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

/// Tells connections that the server stops.
#[derive(Clone)]
pub struct Stop {
    /// True: sessions outside a transaction end.
    drain: watch::Receiver<bool>,
    /// True: the others do, too, but for those that wait for what the upstream says to a whole message.
    cut: watch::Receiver<bool>,
}

impl Stop {
    /// Waits until a session should end, which one in a transaction should later.
    async fn may_end(&mut self, in_transaction: bool) {
        let told = if in_transaction { &mut self.cut } else { &mut self.drain };
        if told.wait_for(|told| *told).await.is_err() {
            // Nobody is left who could tell.
            std::future::pending().await
        }
    }
}

/// Serves until `drain` turns true, then ends in order: no new connections, idle sessions are told, transactions may finish.
pub async fn serve(server: Arc<Server>, listeners: Vec<Bound>, mut drain: watch::Receiver<bool>) {
    let (cut, cutting) = watch::channel(false);
    let stop = Stop { drain: drain.clone(), cut: cutting };
    let places = Arc::new(Semaphore::new(server.options.max_connections));
    let mut listening = JoinSet::new();
    for listener in listeners {
        listening.spawn(listen(server.clone(), listener, places.clone(), stop.clone()));
    }
    // The sender lives as long as the process serves.
    let _ = drain.wait_for(|drain| *drain).await;
    let mut all_ended = std::pin::pin!(async { while listening.join_next().await.is_some() {} });
    if tokio::time::timeout(server.options.drain_timeout, &mut all_ended).await.is_err() {
        tracing::warn!("transactions cut off: they took too long to end");
        let _ = cut.send(true);
        all_ended.await;
    }
}

/// Accepts connections until the server stops; ends when their sessions have.
async fn listen(server: Arc<Server>, listener: Bound, places: Arc<Semaphore>, mut stop: Stop) {
    let mut sessions = JoinSet::new();
    let Bound { options, socket } = listener;
    loop {
        let accepted = tokio::select! {
            () = stop.may_end(false) => break,
            Some(ended) = sessions.join_next(), if !sessions.is_empty() => {
                log_panic(ended);
                continue;
            }
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok((tcp, peer)) => match places.clone().try_acquire_owned() {
                Ok(place) => {
                    let session = session(server.clone(), options.clone(), tcp, peer, stop.clone(), place);
                    sessions.spawn(session);
                }
                Err(_) => refuse(&server, tcp, &options),
            },
            Err(error) => {
                // Out of file descriptors, mostly: the next try would fail at once, and the one after.
                tracing::error!(listener = &*options.name, %error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(socket);
    while let Some(ended) = sessions.join_next().await {
        log_panic(ended);
    }
}

async fn session(
    server: Arc<Server>,
    listener: ListenerOptions,
    tcp: TcpStream,
    peer: SocketAddr,
    stop: Stop,
    _place: OwnedSemaphorePermit,
) {
    let metrics = server.metrics.clone();
    metrics.connections.with_label_values(&[&*listener.name]).inc();
    let _counted = Counted::new(metrics.sessions.with_label_values(&[&*listener.name]));
    Connection::new(server, listener, tcp, peer.ip(), stop).converse().await;
}

/// Counts one for as long as it lives.
struct Counted(IntGauge);

impl Counted {
    fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a session ended by a fault of Weir's own");
    }
}

/// Tells a client that there are too many; without waiting for it.
fn refuse(server: &Server, tcp: TcpStream, listener: &ListenerOptions) {
    let text = format!("421 4.3.2 {} Too many connections; try again\r\n", listener.session.hostname);
    let _ = tcp.try_write(text.as_bytes());
    server.metrics.connections.with_label_values(&[&*listener.name]).inc();
    tracing::warn!(listener = &*listener.name, limit = server.options.max_connections, "too many connections");
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
