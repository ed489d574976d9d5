//! Listener: binds its socket, accepts connections, and starts a task for each connection.

use super::accept;
use super::connection_limits::ConnectionLimits;
use super::options::ListenerOptions;
use super::services::Server;
use super::stop::{Stop, is_true};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A listener whose socket is bound.
pub struct Bound {
    options: ListenerOptions,
    socket: TcpListener,
}

/// Maximum connections that can wait until Weir accepts them. It is large, so that a burst of clients is not refused.
const BACKLOG: i32 = 4096;

impl Bound {
    /// Binds a listener's socket.
    pub fn bind(options: ListenerOptions) -> io::Result<Self> {
        use socket2::{Domain, Protocol, Socket, Type};
        let address = options.address;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // [::] also accepts IPv4 clients, independent of the system's default.
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Self::over(options, socket.into())
    }

    /// Uses a socket that listens already, such as a socket from systemd.
    pub fn over(options: ListenerOptions, socket: std::net::TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { options, socket: TcpListener::from_std(socket)? })
    }

    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// Returns the actual address, even if the configured port is 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// Accepts connections until the server stops. Returns when their sessions have ended.
pub async fn listen(
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
                server.metrics.connections.accepted.with_label_values(&[&*options.name]).inc();
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
                server.metrics.connections.accept_errors.with_label_values(&[&*options.name]).inc();
                server.accept_errors.log_and_pause(&options.name, &error).await;
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
        tracing::error!(%error, "a session ended because of a bug in Weir");
    }
}
