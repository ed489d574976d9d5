//! Admission of a new connection, before its session: reads the PROXY header and applies the connection limits.

use super::connection::Connection;
use super::connection_limits::{ConnectionLimits, ConnectionPermit, Full, Standing};
use super::log_throttle::Permit;
use super::options::ListenerOptions;
use super::proxy::{self, Fault, Header};
use super::services::Server;
use crate::metrics::GaugeGuard;
use crate::session::Security;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Maximum time to wait for a PROXY header. A proxy sends the header at once; §2 of the protocol asks for at least 3
/// seconds, because in this time TCP sends lost packets again.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason for which there is no PROXY header.
enum NoHeader {
    /// The connection ended before its first octet. This is a health check, which most proxies make every few seconds.
    HealthCheck,
    Wrong(Fault),
}

/// Serves a connection from its first octet to its end. Holds the permit until the end.
pub async fn serve(
    server: Arc<Server>,
    listener: Arc<ListenerOptions>,
    mut tcp: TcpStream,
    peer: IpAddr,
    mut permit: ConnectionPermit,
) {
    let since = Instant::now();
    let mut client = peer;
    let is_of_proxy = listener.is_of_proxy(peer);
    if is_of_proxy {
        let timeout = HEADER_TIMEOUT.min(server.options.command_timeout);
        let header = tokio::select! {
            header = tokio::time::timeout(timeout, read_header(&mut tcp)) => header,
            () = permit.stop().may_end(false) => {
                if permit.stop().is_evicted() {
                    server.metrics.connections.evicted.with_label_values(&[&*listener.name]).inc();
                }
                return;
            }
        };
        match header.unwrap_or(Err(NoHeader::Wrong(Fault("it did not come in time")))) {
            Ok(named) => client = named.unwrap_or(peer),
            Err(NoHeader::HealthCheck) => return,
            Err(NoHeader::Wrong(error)) => {
                count_refused(&server, &listener, "proxy-protocol");
                if let Some(Permit { suppressed }) = server.log_throttle.permit("invalid PROXY header", peer) {
                    tracing::warn!(listener = &*listener.name, %peer, %error, suppressed, "invalid PROXY header");
                }
                return;
            }
        }
    }
    if is_of_proxy {
        let limit = max_connections_of(&server, &listener, client);
        if let Some(Err(full)) = limit.map(|limit| permit.assign(client, limit)) {
            return reject(&server, &listener, Some(&tcp), client, full);
        }
        permit.update(client, standing(&listener, client));
    }
    let _counted = GaugeGuard::new(&server.metrics.connections.sessions.with_label_values(&[&*listener.name]));
    let mut connection = Connection::new(server, listener, tcp, client, since, permit);
    connection.run().await;
    connection.report_eviction();
}

/// Acquires a permit for a new connection from this address, before any octet of the connection is read.
pub fn acquire(
    server: &Server,
    listener: &ListenerOptions,
    connections: &Arc<ConnectionLimits>,
    peer: IpAddr,
) -> Result<ConnectionPermit, Full> {
    match listener.is_of_proxy(peer) {
        // A Postfix has as many policy connections as it has SMTP sessions.
        _ if listener.is_policy() => connections.acquire(peer, Standing::Known, None),
        true => connections.acquire(peer, Standing::Stranger, None),
        false => connections.acquire(peer, standing(listener, peer), max_connections_of(server, listener, peer)),
    }
}

/// Returns the standing of a client that has not logged in. Only a stranger's connection can be closed to make room. A
/// proxy that is permitted to send XCLIENT counts as known.
fn standing(listener: &ListenerOptions, client: IpAddr) -> Standing {
    match listener.session.trusts(client) || listener.session.may_name_clients(client) {
        true => Standing::Known,
        false => Standing::Stranger,
    }
}

/// Returns the maximum number of connections of the client's network. `None` for a proxy that is permitted to send
/// XCLIENT, because such a proxy connects for many clients.
fn max_connections_of(server: &Server, listener: &ListenerOptions, client: IpAddr) -> Option<usize> {
    let options = &server.options;
    let limit = match listener.session.trusts(client) {
        true => options.max_connections_per_trusted_client,
        false => options.max_connections_per_client,
    };
    (!listener.session.may_name_clients(client)).then_some(limit)
}

/// Reads a PROXY header, and no octet after the header, because a TLS handshake can follow. Returns the client's
/// address, if the header names one.
async fn read_header(tcp: &mut TcpStream) -> Result<Option<IpAddr>, NoHeader> {
    let mut bytes = Vec::new();
    loop {
        let more = match proxy::parse(&bytes).map_err(NoHeader::Wrong)? {
            Header::Complete { client, .. } => return Ok(client),
            Header::Incomplete { more } => more,
        };
        match (&mut *tcp).take(more as u64).read_buf(&mut bytes).await {
            Ok(1..) => {}
            _ if bytes.is_empty() => return Err(NoHeader::HealthCheck),
            _ => return Err(NoHeader::Wrong(Fault("the connection ended within it"))),
        }
    }
}

/// Rejects a connection for which there is no permit. `tcp`: the connection, if it is one of TCP.
pub fn reject(server: &Server, listener: &ListenerOptions, tcp: Option<&TcpStream>, client: IpAddr, full: Full) {
    let (reason, code, text, message) = match full {
        Full::All => ("max-connections", "421 4.3.2", "Too many connections; try again", "too many connections"),
        Full::Client => (
            "max-connections-per-client",
            "421 4.7.0",
            "Too many connections from your network; close some and try again",
            "too many connections of one client",
        ),
    };
    count_refused(server, listener, reason);
    if let Some(tcp) = tcp.filter(|_| !listener.is_policy()) {
        send_rejection(listener, tcp, code, text);
    }
    let Some(Permit { suppressed }) = server.log_throttle.permit(message, client) else { return };
    let refused = 1 + suppressed.unwrap_or(0);
    let max_of_client = max_connections_of(server, listener, client).filter(|_| full == Full::Client);
    let limit = max_of_client.unwrap_or(server.options.max_connections);
    tracing::warn!(listener = &*listener.name, %client, limit, refused, suppressed, "{message}");
}

fn count_refused(server: &Server, listener: &ListenerOptions, reason: &str) {
    server.metrics.connections.refused.with_label_values(&[&*listener.name, reason]).inc();
}

/// Sends the reason for the rejection, but does not wait until the client reads it, because a rejected client must not
/// occupy a connection. Sends nothing on a listener with implicit TLS: the client would take plain text for broken TLS,
/// and a TLS handshake would cost the work that the rejection saves.
fn send_rejection(listener: &ListenerOptions, tcp: &TcpStream, code: &str, text: &str) {
    if listener.session.tls == Security::Implicit {
        return;
    }
    let reply = format!("{code} {} {text}\r\n", listener.session.hostname);
    let _ = tcp.try_write(reply.as_bytes());
    // Closing a socket with unread octets, such as a PROXY header, resets the connection, and the client perhaps loses
    // the reply. So read them first.
    let _ = tcp.try_read(&mut [0; 1024]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the future that an asynchronous function returns.
    fn future_octets<A, B, C, D, E, F>(_: impl FnOnce(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_idle_session_has_a_small_future() {
        let octets = future_octets(serve);
        assert!(octets <= 1_800, "{octets} octets: box the large futures of rare steps");
    }
}
