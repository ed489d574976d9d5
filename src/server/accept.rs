//! What comes before a session: whose connection it is, and whether there is a place for it.

use super::connection::Connection;
use super::connection_limits::{ConnectionLimits, ConnectionPermit, Full, Standing};
use super::log_throttle::Permit;
use super::proxy::{self, Fault, Header};
use super::{ListenerOptions, Server, Stop};
use crate::session::Security;
use prometheus::IntGauge;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// How long a PROXY header may take. A proxy has it at hand; §2 of the protocol asks for at least 3 seconds, in which TCP sends
/// again what was lost.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no PROXY header.
enum NoHeader {
    /// The connection ended before its first octet: a look whether somebody listens, of which most proxies take one every few
    /// seconds.
    OnlyLooked,
    Wrong(Fault),
}

/// Serves a connection to its end, from its first octet. It keeps its place as long.
pub async fn receive(
    server: Arc<Server>,
    listener: ListenerOptions,
    mut tcp: TcpStream,
    peer: IpAddr,
    mut place: ConnectionPermit,
    mut stop: Stop,
) {
    let since = Instant::now();
    let mut client = peer;
    let is_of_proxy = listener.is_of_proxy(peer);
    if is_of_proxy {
        let patience = HEADER_TIMEOUT.min(server.options.command_timeout);
        let header = tokio::select! {
            header = tokio::time::timeout(patience, read_header(&mut tcp)) => header,
            () = stop.may_end(false) => {
                if stop.is_evicted() {
                    server.metrics.connections_evicted.with_label_values(&[&*listener.name]).inc();
                }
                return;
            }
        };
        match header.unwrap_or(Err(NoHeader::Wrong(Fault("it did not come in time")))) {
            Ok(named) => client = named.unwrap_or(peer),
            Err(NoHeader::OnlyLooked) => return,
            Err(NoHeader::Wrong(error)) => {
                count_refused(&server, &listener, "proxy-protocol");
                if let Some(Permit { suppressed }) = server.throttle.permit("no good PROXY header", peer) {
                    tracing::warn!(listener = &*listener.name, %peer, %error, suppressed, "no good PROXY header");
                }
                return;
            }
        }
    }
    if is_of_proxy {
        let limit = most_of_one(&server, &listener, client);
        if let Some(Err(full)) = limit.map(|limit| place.give_to(client, limit)) {
            return turn_away(&server, &listener, &tcp, client, full);
        }
        place.note(client, standing(&listener, client));
    }
    let _counted = Counted::new(server.metrics.sessions.with_label_values(&[&*listener.name]));
    let mut connection = Connection::new(server, listener, tcp, client, since, stop, place);
    connection.converse().await;
    connection.report_eviction();
}

/// Takes a place for a connection from this address, of which nothing else is known yet.
pub fn take_place(
    server: &Server,
    listener: &ListenerOptions,
    places: &Arc<ConnectionLimits>,
    peer: IpAddr,
) -> Result<ConnectionPermit, Full> {
    match listener.is_of_proxy(peer) {
        true => places.take(peer, Standing::Stranger, None),
        false => places.take(peer, standing(listener, peer), most_of_one(server, listener, peer)),
    }
}

/// Whether a client that has not logged in may be closed to make room. A proxy that names its clients with XCLIENT is known.
fn standing(listener: &ListenerOptions, client: IpAddr) -> Standing {
    match listener.session.trusts(client) || listener.session.may_name_clients(client) {
        true => Standing::Known,
        false => Standing::Stranger,
    }
}

/// How many connections the client's network may have; `None` for a proxy that names its clients with XCLIENT: it comes for many.
fn most_of_one(server: &Server, listener: &ListenerOptions, client: IpAddr) -> Option<usize> {
    let options = &server.options;
    let limit = match listener.session.trusts(client) {
        true => options.max_connections_per_trusted_client,
        false => options.max_connections_per_client,
    };
    (!listener.session.may_name_clients(client)).then_some(limit)
}

/// Reads a PROXY header and nothing of what follows it, which may be TLS. The client's address, if the header names one.
async fn read_header(tcp: &mut TcpStream) -> Result<Option<IpAddr>, NoHeader> {
    let mut bytes = Vec::new();
    loop {
        let more = match proxy::parse(&bytes).map_err(NoHeader::Wrong)? {
            Header::Complete { client, .. } => return Ok(client),
            Header::Incomplete { more } => more,
        };
        match (&mut *tcp).take(more as u64).read_buf(&mut bytes).await {
            Ok(1..) => {}
            _ if bytes.is_empty() => return Err(NoHeader::OnlyLooked),
            _ => return Err(NoHeader::Wrong(Fault("the connection ended within it"))),
        }
    }
}

/// Refuses a connection for which there is no place.
pub fn turn_away(server: &Server, listener: &ListenerOptions, tcp: &TcpStream, client: IpAddr, full: Full) {
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
    say(listener, tcp, code, text);
    let Some(Permit { suppressed }) = server.throttle.permit(message, client) else { return };
    let refused = 1 + suppressed.unwrap_or(0);
    let of_one = most_of_one(server, listener, client).filter(|_| full == Full::Client);
    let limit = of_one.unwrap_or(server.options.max_connections);
    tracing::warn!(listener = &*listener.name, %client, limit, refused, suppressed, "{message}");
}

fn count_refused(server: &Server, listener: &ListenerOptions, reason: &str) {
    server.metrics.connections_refused.with_label_values(&[&*listener.name, reason]).inc();
}

/// Says why there is no session, without waiting: whoever is turned away takes no place meanwhile. Where TLS comes first nothing
/// is said: plain text would be taken for broken TLS, and a handshake costs what the refusal is to spare.
fn say(listener: &ListenerOptions, tcp: &TcpStream, code: &str, text: &str) {
    if listener.session.tls == Security::Implicit {
        return;
    }
    let reply = format!("{code} {} {text}\r\n", listener.session.hostname);
    let _ = tcp.try_write(reply.as_bytes());
    // Closing with octets unread, such as a PROXY header, resets the connection, which may take the words away again.
    let _ = tcp.try_read(&mut [0; 1024]);
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
