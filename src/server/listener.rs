//! Listener: binds its socket, accepts connections, and starts a task for each connection.

use super::accept;
use super::connection_limits::{ConnectionLimits, ConnectionPermit};
use super::options::{ListenerAddress, ListenerOptions, Protocol};
use super::policy_service::{PolicyService, RunningConnection};
use super::services::Server;
use crate::socket_file::{self, SocketFile};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A listener whose socket is bound.
pub struct Bound {
    options: ListenerOptions,
    socket: Socket,
}

enum Socket {
    Tcp(TcpListener),
    Unix {
        socket: UnixListener,
        /// Removes the file when the listener ends.
        _file: SocketFile,
    },
}

/// Accepted connection.
enum Accepted {
    Tcp(TcpStream, IpAddr),
    Unix(UnixStream),
}

/// Maximum connections that can wait until Weir accepts them. It is large, so that a burst of clients is not refused.
const BACKLOG: i32 = 4096;

impl Bound {
    /// Binds a listener's socket.
    pub async fn bind(options: ListenerOptions) -> io::Result<Self> {
        match options.address.clone() {
            ListenerAddress::Tcp(address) => Self::over(options, tcp_socket(address)?),
            ListenerAddress::Unix { path, mode } => {
                let bound = socket_file::bind(&path, mode, BACKLOG).await;
                let (socket, _file) = bound.map_err(io::Error::other)?;
                Ok(Self { options, socket: Socket::Unix { socket, _file } })
            }
        }
    }

    /// Uses a socket that listens already, such as a socket from systemd.
    pub fn over(options: ListenerOptions, socket: std::net::TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { options, socket: Socket::Tcp(TcpListener::from_std(socket)?) })
    }

    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// Returns the actual address, even if the configured port is 0.
    pub fn address(&self) -> io::Result<ListenerAddress> {
        match &self.socket {
            Socket::Tcp(socket) => socket.local_addr().map(ListenerAddress::Tcp),
            Socket::Unix { .. } => Ok(self.options.address.clone()),
        }
    }
}

fn tcp_socket(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // [::] also accepts IPv4 clients, independent of the system's default.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

impl Socket {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                Ok(Accepted::Tcp(stream, peer.ip().to_canonical()))
            }
            Self::Unix { socket, .. } => Ok(Accepted::Unix(socket.accept().await?.0)),
        }
    }
}

impl Accepted {
    /// Returns the socket, which from then on blocks the thread that waits for it.
    fn into_blocking(self) -> io::Result<socket2::Socket> {
        let socket: socket2::Socket = match self {
            Self::Tcp(stream, _) => {
                // Answers of a policy service are small, and Postfix waits for them.
                let _ = stream.set_nodelay(true);
                stream.into_std()?.into()
            }
            Self::Unix(stream) => stream.into_std()?.into(),
        };
        socket.set_nonblocking(false)?;
        Ok(socket)
    }

    /// Returns the address of the peer. The peer of a Unix socket is on this machine.
    fn peer(&self) -> IpAddr {
        match self {
            Self::Tcp(_, peer) => *peer,
            Self::Unix(_) => Ipv4Addr::LOCALHOST.into(),
        }
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
    let options = Arc::new(options);
    let service = match &options.protocol {
        Protocol::Smtp => None,
        Protocol::PostfixPolicy(policy) => Some(PolicyService::new(server.clone(), policy.clone())),
    };
    // The task ends when the set is dropped.
    let mut forgetting = JoinSet::new();
    if let Some(service) = service.clone() {
        let drain = drain.clone();
        forgetting.spawn(async move { service.forget_regularly(drain).await });
    }
    loop {
        let accepted = tokio::select! {
            // The listener also stops if the sender is gone, but the sender lives as long as the process serves.
            _ = drain.wait_for(|drain| *drain) => break,
            Some(ended) = sessions.join_next(), if !sessions.is_empty() => {
                log_panic(ended);
                continue;
            }
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok(accepted) => {
                server.metrics.connections.accepted.with_label_values(&[&*options.name]).inc();
                let peer = accepted.peer();
                match accept::acquire(&server, &options, &connections, peer) {
                    Ok(permit) => match &service {
                        Some(service) => match start(service.clone(), accepted, permit) {
                            Ok(connection) => drop(sessions.spawn(connection.end())),
                            Err(error) => report_failure(&server, &options.name, &error).await,
                        },
                        None => {
                            let Accepted::Tcp(tcp, peer) = accepted else { continue };
                            sessions.spawn(accept::serve(server.clone(), options.clone(), tcp, peer, permit));
                        }
                    },
                    Err(full) => match &accepted {
                        Accepted::Tcp(tcp, _) => accept::reject(&server, &options, Some(tcp), peer, full),
                        Accepted::Unix(_) => accept::reject(&server, &options, None, peer, full),
                    },
                }
            }
            Err(error) => report_failure(&server, &options.name, &error).await,
        }
    }
    drop(socket);
    while let Some(ended) = sessions.join_next().await {
        log_panic(ended);
    }
    while let Some(ended) = forgetting.join_next().await {
        log_panic(ended);
    }
    if let Some(service) = service {
        service.stop();
    }
}

/// Starts to serve a policy connection.
fn start(service: Arc<PolicyService>, accepted: Accepted, permit: ConnectionPermit) -> io::Result<RunningConnection> {
    let peer = accepted.peer();
    service.start(accepted.into_blocking()?, peer, permit)
}

/// Reports that a connection could not be accepted, and pauses.
async fn report_failure(server: &Server, listener: &str, error: &io::Error) {
    server.metrics.connections.accept_errors.with_label_values(&[listener]).inc();
    server.accept_errors.log_and_pause(listener, error).await;
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a session ended because of a bug in Weir");
    }
}
