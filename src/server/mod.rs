//! Listeners, and a task for each connection that drives its session.

mod accept;
mod accept_errors;
pub mod certificate;
mod connection;
mod connection_limits;
mod log_throttle;
mod message_pipe;
mod notification_throttle;
mod options;
pub mod proxy;
mod services;
mod session_id;
mod session_log;
mod stop;
mod stream;
pub mod tls;
mod upstream_requests;
mod waiting;

pub use accept_errors::AcceptErrors;
pub use log_throttle::LogThrottle;
pub use notification_throttle::NotificationThrottle;
pub use options::{ListenerOptions, Options};
pub use services::Server;

use connection_limits::ConnectionLimits;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use stop::{Stop, is_true};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A listener whose socket is bound.
pub struct Bound {
    options: ListenerOptions,
    socket: TcpListener,
}

/// Connections that may wait to be accepted, so that a burst of clients is not refused.
const BACKLOG: i32 = 4096;

impl Bound {
    /// Binds a listener's socket.
    pub fn bind(options: ListenerOptions) -> io::Result<Self> {
        use socket2::{Domain, Protocol, Socket, Type};
        let address = options.address;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // [::] accepts IPv4 clients, too, whatever the system's default is.
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Self::over(options, socket.into())
    }

    /// Takes a socket that listens already, such as systemd's.
    pub fn over(options: ListenerOptions, socket: std::net::TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { options, socket: TcpListener::from_std(socket)? })
    }

    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// The actual address, also where the configured port is 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// Serves until `drain` turns true, then stops in order: accepts no new connections, ends idle sessions, lets
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
        listening.spawn(listen(server.clone(), listener, connections.clone(), drain.clone()));
    }
    // No error: the sender lives as long as the process serves.
    let _ = drain.wait_for(|drain| *drain).await;
    let mut all_ended = std::pin::pin!(async { while listening.join_next().await.is_some() {} });
    if tokio::time::timeout(server.options.drain_timeout, &mut all_ended).await.is_err() {
        tracing::warn!("transactions cut off: they took too long to end");
        connections.cut_all();
        all_ended.await;
    }
    server.log_throttle.summarize();
    // The state can be closed only after the tasks have dropped the server.
    watching.shutdown().await;
}

/// Accepts connections until the server stops. Returns when their sessions have ended.
async fn listen(
    server: Arc<Server>,
    listener: Bound,
    connections: Arc<ConnectionLimits>,
    mut drain: watch::Receiver<bool>,
) {
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
                match accept::acquire(&server, &options, &connections, peer) {
                    Ok(permit) => {
                        let (server, drain) = (server.clone(), drain.clone());
                        let stop = Stop { drain, cut: permit.cut(), is_evicted: permit.is_evicted() };
                        sessions.spawn(accept::serve(server, options.clone(), tcp, peer, permit, stop));
                    }
                    Err(full) => accept::reject(&server, &options, &tcp, peer, full),
                }
            }
            Err(error) => {
                // Mostly out of file descriptors: further tries would fail at once, so pause.
                if let Some(failures) = server.accept_errors.fail(&error, std::time::Instant::now()) {
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
